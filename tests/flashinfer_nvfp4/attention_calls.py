"""The backend's attention called in a process of its own, with this package's and stock's Triton kernels interpreted.

`start` prepares the process: stock compiles its kernels only where it sees a GPU's Triton, so there it is told that it
runs one. Everything else is stock's: its sparse base class, its index conversion, its merge of parallel decode.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

import torch
from attention_batch import SCALE

__all__ = [
    "attend",
    "configure",
    "fused_write",
    "implementation",
    "loaded",
    "merge",
    "metadata_of",
    "real_layer",
    "saved",
    "start",
]

HEAD_DIMS = {"qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "qk_head_dim": 256, "v_head_dim": 256}


def saved(value: Any) -> bytes:
    """As bytes: multiprocessing would move tensors to memory that both processes share."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def loaded(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)


def _module(name: str) -> Any:
    return importlib.import_module(name)


class _NoStream(AbstractContextManager["_NoStream"]):
    """Stands for CUDA's streams and events, which order what runs in order here."""

    def record(self, stream: Any = None) -> None: ...

    wait_event = wait_stream = record

    def __exit__(self, *error: object) -> None: ...


def start(policy: str, triton: str) -> str:
    """Import vLLM with its Triton kernels, from the folder ``triton``; its version."""
    sys.path.append(triton)
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "VLLM_LOGGING_LEVEL": "ERROR", "FLASHINFER_NVFP4_POLICY": policy}
    os.environ["VLLM_NVFP4_MLA_SCALES"] = policy  # what it is called in a staged tree
    os.environ |= {"VLLM_CPU_DSA": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}  # a platform for models with an indexer
    platforms = _module("vllm.platforms")
    if not entry_points(group="vllm.platform_plugins"):  # a staged tree, whose own platform serves these models
        assert platforms.current_platform.is_cpu()
    platforms.vllm_version_matches_substr = lambda text: False
    assert _module("vllm.triton_utils").HAS_TRITON
    capability = _module("vllm.platforms.interface").DeviceCapability(9, 0)
    type(platforms.current_platform).get_device_capability = classmethod(lambda cls, device_id=0: capability)
    groups = _module("vllm.v1.attention.backends.mla.index_group")
    groups.current_stream = _NoStream
    groups._create_side_stream = lambda device: _NoStream()
    groups._create_event = _NoStream
    configure()
    return str(_module("vllm").__version__)


def configure() -> None:
    """Give attention as much of a configuration as it reads; there is no engine around it."""
    sparse = _module("vllm.model_executor.layers.attention.sparse_mla_attention")
    sparse.get_tensor_model_parallel_world_size = lambda: 1
    config = SimpleNamespace(
        model_config=SimpleNamespace(enforce_eager=False),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=SimpleNamespace(block_size=64),
    )
    ours = ("rows_attention", *(("attention", "kernel_choice") if _plugin() else ()))
    for module in (sparse, *(_module(f"flashinfer_nvfp4.{name}") for name in ours)):
        module.get_current_vllm_config = lambda: config


def _backend() -> Any:
    """The class that reads the rows of this device: the plugin's under stock's name; vLLM's own in a staged tree."""
    if not _plugin():
        return _module("vllm.v1.attention.backends.mla.nvfp4_mla_sparse").Nvfp4MLASparseBackend
    major = _module("flashinfer_nvfp4.device").capability()[0]
    name = next(name for name, majors in _module("flashinfer_nvfp4.stock").NAMES.items() if major in majors)
    return getattr(_module("flashinfer_nvfp4.backend"), name)


def _plugin() -> bool:
    """Whether the plugin is there; a staged tree has what was moved, and nothing else of it."""
    try:
        _module("flashinfer_nvfp4.kernel_choice")
    except ModuleNotFoundError:
        return False
    return True


def implementation(heads: int, topk: Any, shard: tuple[int, int] = (1, 0)) -> Any:
    """A layer's implementation, made as vLLM makes it: through the class that the backend's name stands for."""
    state = _module("vllm.distributed.parallel_state")
    group = SimpleNamespace(world_size=shard[0], rank_in_group=shard[1])
    state.get_dcp_group = lambda: group
    state.get_dcp_world_size_and_rank = lambda enabled=True: shard
    impl = _backend().get_impl_cls()(
        num_heads=heads,
        head_size=576,
        scale=SCALE,
        num_kv_heads=1,
        alibi_slopes=None,
        sliding_window=None,
        kv_cache_dtype="nvfp4_ds_mla",
        logits_soft_cap=None,
        attn_type="decoder",
        kv_sharing_target_layer_name=None,
        topk_indices_buffer=topk,
        q_lora_rank=2048,
        kv_lora_rank=512,
        kv_b_proj=torch.nn.Identity(),
        **HEAD_DIMS,
    )
    impl.process_weights_after_loading(torch.bfloat16)
    return impl


def metadata_of(case: Any) -> Any:
    """What attention reads of a batch's metadata."""
    return SimpleNamespace(
        block_size=case["cache"].shape[1],
        block_table=case["block_table"],
        req_id_per_token=case["requests"],
        num_decode_tokens=case["decode_tokens"],
        num_actual_tokens=len(case["requests"]),
        cp_kv_cache_interleave_size=case.get("interleave", 1),
    )


def attend(request: bytes) -> bytes:
    """Write a case's rows, then attend: the cache, output, log-sum-exp, its base and the decoder."""
    case = loaded(request)
    impl = implementation(case["heads"], case["topk"], case.get("shard", (1, 0)))
    scale = torch.ones(1)
    impl.do_kv_cache_update(
        case["latent"], case["rope"].unsqueeze(1), case["cache"], case["slots"], "nvfp4_ds_mla", scale
    )
    query = case["query"]
    if case.get("parted"):
        query = query.split((512, 64), -1)
    out, lse = impl.forward_mqa(query, case["cache"], metadata_of(case), SimpleNamespace(_q_scale_float=1.0))
    return saved((case["cache"], out, lse, impl.lse_base_on_e, type(impl.decoder).__name__))


def merge(request: bytes) -> bytes:
    """Outputs and log-sum-exps of all ranks, [ranks, tokens, heads, 512] and [ranks, tokens, heads], merged by stock:
    by its kernel for all-gather and reduce-scatter, and by its reference for all-to-all."""
    outs, sums, natural = loaded(request)
    dcp = _module("vllm.v1.attention.ops.dcp")
    # Of a compiled kernel; stock counts them for its launcher.
    dcp._CORRECT_ATTN_CP_OUT_KERNEL.kernel.constexprs = []
    parts = [
        dcp.correct_attn_out(out.clone(), sums, rank, dcp.CPTritonContext(), is_lse_base_on_e=natural)[0]
        for rank, out in enumerate(outs)
    ]
    return saved((torch.stack(parts).sum(0), dcp._lse_weighted_combine(outs, sums, is_lse_base_on_e=natural)))


def fused_write(request: bytes) -> bytes:
    """Stock's fused norm and RoPE as GLM's attention calls it: the cache, and what attention got."""
    case = loaded(request)
    implementation(8, torch.full((1, 128), -1, dtype=torch.int32))
    attention = _module("vllm.models.deepseek_v32.attention")
    tokens = len(case["kv_c"])
    outputs = {"kv_c_out": torch.empty_like(case["kv_c"]), "k_pe_out": torch.empty_like(case["k_pe"])}
    norm_rope = getattr(attention, "norm_rope", attention.fused_norm_rope)  # the former in a staged tree
    normed = norm_rope(
        torch.arange(tokens),
        case["q_c"],
        torch.ones(case["q_c"].shape[1], dtype=torch.bfloat16),
        1e-6,
        case["kv_c"],
        case["norm"],
        1e-6,
        case["k_pe"],
        case["cos_sin"],
        None,
        None,
        None,
        1e-6,
        None,
        torch.full((tokens, 128), -1, dtype=torch.int32),
        slot_mapping=case["slots"],
        mla_kv_cache=case["cache"],
        mla_kv_cache_dtype=case["dtype"],
        has_indexer=False,
        **outputs,
    )
    return saved((case["cache"], normed, outputs["kv_c_out"], outputs["k_pe_out"]))


def real_layer(folder: str) -> bytes:
    """vLLM's own attention layer of the model in ``folder``, on this backend, and metadata of a batch of three."""
    backend = _backend()
    layers = _module("vllm.model_executor.layers.attention.mla_attention")
    layers.get_attn_backend = lambda *args, **kwargs: backend
    config = (
        _module("vllm.engine.arg_utils")
        .EngineArgs(
            model=folder,
            dtype="bfloat16",
            block_size=64,
            max_model_len=1024,
            enforce_eager=True,
            skip_tokenizer_init=True,
            kv_cache_dtype="nvfp4_ds_mla",
        )
        .create_engine_config()
    )
    state = _module("vllm.distributed.parallel_state")
    with _module("vllm.config").set_current_vllm_config(config):
        state.init_distributed_environment(1, 0, f"file://{folder}/group", 0, backend="gloo")
        state.initialize_model_parallel(1)
        _module("vllm.model_executor.model_loader.utils").initialize_model(vllm_config=config)
    name, layer = next(
        (name, layer)
        for name, layer in config.compilation_config.static_forward_context.items()
        if isinstance(layer, layers.MLAAttention)
    )
    spec = backend.customize_spec(layer.get_kv_cache_spec(config))
    builder = backend.get_builder_cls()(spec, [name], config, torch.device("cpu"))
    starts, lengths = torch.tensor([0, 1, 2, 22], dtype=torch.int32), torch.tensor([70, 33, 20], dtype=torch.int32)
    metadata = builder.build(
        0,
        _module("vllm.v1.attention.backend").CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=lengths,
            seq_lens_cpu_upper_bound=lengths,
            num_reqs=3,
            num_actual_tokens=22,
            max_query_len=20,
            max_seq_len=70,
            block_table_tensor=torch.zeros(3, 16, dtype=torch.int32),
            slot_mapping=torch.zeros(22, dtype=torch.int64),
        ),
    )
    return saved(
        {
            "implementation": type(layer.impl).__name__,
            "name": layer.attn_backend.get_name(),
            "dtype": layer.kv_cache_dtype,
            "query": layer.impl.supports_quant_query_input,
            "page": spec.page_size_bytes,
            "alignment": spec.block_stride_alignment,
            "builder": type(builder).__name__,
            "requests": metadata.req_id_per_token,
            "block_size": metadata.block_size,
            "written": _module("flashinfer_nvfp4.writer").written_policy(),
        }
    )
