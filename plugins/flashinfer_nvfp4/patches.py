"""What this plugin replaces in vLLM, each record only once a layer with NVFP4 rows is built.

The backend itself needs no patch: it is registered over stock's names (`flashinfer_nvfp4.plugin`).
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from flashinfer_nvfp4.stock import VLLM, VLLM_SINCE_032, VLLM_SINCE_033, VLLM_UNTIL_031, VLLM_UNTIL_032
from flashinfer_nvfp4.writer import around_fused_write
from stockpatch.register import Patch, Register
from stockpatch.versions import Window

__all__ = ["CONTEXT", "FOLD", "FUSED_WRITE", "REGISTER"]

_PARAMETERS = (
    *("positions", "q_c", "q_rms_norm_w", "q_rms_eps", "kv_c", "kv_rms_norm_w", "kv_rms_eps", "k_pe"),
    *("k_rope_cos_sin_cache", "index_k", "index_k_layer_norm_w", "index_k_layer_norm_bias", "index_k_layer_norm_eps"),
    *("index_k_rope_cos_sin_cache", "topk_indices_buffer", "slot_mapping", "indexer_slot_mapping", "indexer_k_cache"),
    *("indexer_cache_shuffled", "mla_kv_cache", "mla_kv_cache_dtype", "mla_k_scale", "has_indexer"),
    *("index_rope_interleave", "q_c_out", "kv_c_out", "k_pe_out", "index_k_out"),
)


def _writer_is_elsewhere() -> bool:
    kernels = importlib.import_module("vllm.models.deepseek_v32.common.kernels")
    return "mla_kv_cache" not in inspect.signature(kernels.fused_norm_rope).parameters


def _fused_write(id: str, window: Window, parameters: tuple[str, ...]) -> Patch:
    return Patch(
        id=id,
        target="vllm.models.deepseek_v32.attention:fused_norm_rope",
        window=window,
        why="GLM-5.3's attention writes its cache inside a fused Triton kernel, not through the backend, and that "
        "kernel knows one way to choose a block's scale and converts with instructions that compute capability 9.0 "
        "does not have. The replacement leaves norms, RoPE and indexer to the kernel and writes nvfp4_ds_mla rows "
        "after it, under FLASHINFER_NVFP4_POLICY; every other cache dtype goes to the original.",
        upstream="https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/models/deepseek_v32/attention.py",
        remove_when="vLLM writes the MLA cache through the attention backend on this path, or its kernel takes the "
        "policy and runs on 9.0.",
        expects=parameters,
        replace=around_fused_write,
        obsolete=_writer_is_elsewhere,
        optional_outside=True,
    )


def _with_fold(original: Any) -> Any:
    @functools.wraps(original)
    def process_weights_after_loading(model: Any, model_config: Any, target_device: Any) -> None:
        from flashinfer_nvfp4.folding import fold_loaded

        fold_loaded(model)
        original(model, model_config, target_device)

    return process_weights_after_loading


def _with_reload(original: Any) -> Any:
    @functools.wraps(original)
    def _layerwise_process(layer: Any, info: Any) -> None:
        from flashinfer_nvfp4.reloading import fold_incoming, settle

        fold_incoming(layer, info.loaded_weights)
        original(layer, info)
        settle(layer)

    return _layerwise_process


def _with_format(original: Any) -> Any:
    @functools.wraps(original)
    def get_parameter_for_reload(model: Any, name: str) -> Any:
        from flashinfer_nvfp4.reloading import refuse_processed

        refuse_processed(model)
        return original(model, name)

    return get_parameter_for_reload


def _kernel_format(id: str, window: Window, target: str, source: str) -> Patch:
    return Patch(
        id=id,
        target=target,
        window=window,
        why="Weights that arrive in kernel format are copied over a model's parameters, with no word to a backend. "
        "Under folded latents nobody can tell whether they were folded, too. This function is called for each "
        "parameter before its copy; the replacement refuses at the first of a folded model, so that none is changed.",
        upstream=f"https://github.com/vllm-project/vllm/blob/{source}",
        remove_when="vLLM asks an attention backend before it copies weights in kernel format.",
        expects=("model", "name"),
        replace=_with_format,
        optional_outside=True,
    )


def _with_context(original: Any) -> Any:
    from flashinfer_nvfp4.context_gather import around_gather

    return around_gather(original)


def _context_is_read() -> bool:
    stock = importlib.import_module("vllm.model_executor.layers.attention.mla_attention").MLACommonBaseImpl
    return "nvfp4" in inspect.getsource(stock._compute_prefill_context)


#: The records of which one applies to each release: vLLM 0.33 added a parameter.
FUSED_WRITE = ("rows-after-fused-norm-until-0.32", "rows-after-fused-norm")
FOLD = (
    *("fold-before-processing", "fold-of-reloads"),
    *("no-kernel-format-under-folds-until-0.31", "no-kernel-format-under-folds"),
)
CONTEXT = ("context-of-nvfp4-rows",)

REGISTER = Register(
    "flashinfer_nvfp4",
    (
        _fused_write(FUSED_WRITE[0], VLLM_UNTIL_032, _PARAMETERS),
        _fused_write(FUSED_WRITE[1], VLLM_SINCE_033, (*_PARAMETERS, "skip_scale")),
        Patch(
            id=FOLD[0],
            target="vllm.model_executor.model_loader.base_loader:process_weights_after_loading",
            window=VLLM,
            why="The latent fold must see a layer's norm and its kv_b_proj as loaded, before quantization methods "
            "repack the one and attention keeps its own copies. A backend is called too late for that, and with "
            "neither the layer nor its norm. The replacement folds models that have layers with nvfp4_ds_mla rows, "
            "then goes on as before.",
            upstream="https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/model_executor/model_loader/base_loader.py",
            remove_when="vLLM calls an attention backend with its layer between loading and processing the weights.",
            expects=("model", "model_config", "target_device"),
            replace=_with_fold,
        ),
        Patch(
            id=FOLD[1],
            target="vllm.model_executor.model_loader.reload.layerwise:_layerwise_process",
            window=VLLM,
            why="A reload into a running engine loads, processes and copies one module after another, and no backend "
            "sees a module in between: its weights would stay unfolded under rows that are folded. The replacement "
            "multiplies the tensors that have arrived for a folded norm or projection, then goes on as before.",
            upstream="https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/model_executor/model_loader/reload/layerwise.py",
            remove_when="vLLM calls an attention backend with its layer between loading and processing the weights.",
            expects=("layer", "info"),
            replace=_with_reload,
        ),
        _kernel_format(
            FOLD[2],
            VLLM_UNTIL_031,
            "vllm.v1.worker.gpu_model_runner:_get_parameter_for_reload",
            "v0.31.0/vllm/v1/worker/gpu_model_runner.py",
        ),
        _kernel_format(
            FOLD[3],
            VLLM_SINCE_032,
            "vllm.model_executor.model_loader.reload.inplace:get_parameter_for_reload",
            "v0.33.0/vllm/model_executor/model_loader/reload/inplace.py",
        ),
        Patch(
            id=CONTEXT[0],
            target="vllm._custom_ops:gather_and_maybe_dequant_cache",
            window=VLLM,
            why="A prompt of at most index_topk tokens prefills with dense attention, and the part of it that is "
            "cached already (a prefix hit, an earlier chunk) is gathered by this function, whose CUDA code knows auto "
            "and the fp8 kinds: with nvfp4_ds_mla the engine ends at the first such prompt. The replacement decodes "
            "these rows into vLLM's workspace; every other cache dtype goes to the original. A subclass would have "
            "to copy two methods of 90 lines each, and would not serve FLASHMLA_SPARSE.",
            upstream="https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/model_executor/layers/attention/mla_attention.py",
            remove_when="vLLM's context gather reads nvfp4_ds_mla rows.",
            expects=(
                *("src_cache", "dst", "block_table", "cu_seq_lens", "token_to_seq", "num_tokens", "kv_cache_dtype"),
                *("scale", "seq_starts"),
            ),
            replace=_with_context,
            obsolete=_context_is_read,
        ),
    ),
)
