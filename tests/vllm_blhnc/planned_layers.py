"""GLM-5.3's layers in vLLM's own classes, and what the engine core's planner makes of their caches.

The layers are made with small widths on torch's meta device, as nothing of them is run. What the CPU lacks is put in
afterwards: the attention backend of each layer is SM100's, with the cache dtype to plan for.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["CACHES", "LAYERS", "MEMORY", "built", "config", "on_sm100", "planned", "specs"]

MEMORY = 100_000_000_000  # bytes
LAYERS = 78

# vLLM's name of the dtype and of the backend's class, by our name of both.
CACHES = {
    ("fp8", "FLASHINFER_MLA_SPARSE"): "fp8_e4m3",
    ("bf16", "FLASHINFER_MLA_SPARSE"): "bfloat16",
    ("bf16", "FLASHMLA_SPARSE"): "bfloat16",
    ("fp8_ds_mla", "FLASHMLA_SPARSE"): "fp8_ds_mla",
    ("nvfp4_ds_mla", "FLASHMLA_SPARSE"): "nvfp4_ds_mla",
    ("float32", "CPU_MLA_SPARSE"): "auto",
}


def config(layers: int = LAYERS, **changes: Any) -> dict[str, Any]:
    """The config.json of a model with GLM-5.3's layers and caches, and little else of its size."""
    from glm53.model.shape import Shape

    config = Shape(layers=layers, hidden=64, mtp=True).config() | changes
    if changes:
        config["indexer_types"] = ["full" if kind == "F" else "shared" for kind in changes["index_topk_pattern"]]
    return config


def built(config: dict[str, Any], tp: int = 1) -> Any:
    """vLLM's configuration after it has made target and MTP model of this config.json.

    tp: tensor-parallel ranks; the others are forked from this process, the first rank, and end once groups and models
    are made. Only the first call in a process makes the groups.
    """
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel, model_parallel_is_initialized
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(config))
    made = EngineArgs(
        model=str(folder),
        dtype="float32",
        block_size=64,
        max_model_len=1024,
        enforce_eager=True,
        skip_tokenizer_init=True,
        tensor_parallel_size=tp,
        speculative_config={"method": "mtp", "num_speculative_tokens": 1},
    ).create_engine_config()
    rank = next((rank for rank in range(1, tp) if not os.fork()), 0)
    try:
        with set_current_vllm_config(made):
            if not model_parallel_is_initialized():
                init_distributed_environment(tp, rank, f"file://{folder}/group", 0, backend="gloo")
                initialize_model_parallel(tp)
            with torch.device("meta"):
                initialize_model(vllm_config=made)
                initialize_model(vllm_config=made, model_config=made.speculative_config.draft_model_config)
    finally:
        if rank:
            os._exit(0)
    return made


def on_sm100() -> None:
    """From now on this process has an SM100 GPU, by what the layers' attention backends ask the platform."""
    from vllm.platforms import current_platform

    def sm100(cls: type, capability: int, device_id: int = 0) -> bool:
        return capability == 100

    type(current_platform).is_device_capability_family = classmethod(sm100)


def specs(vllm_config: Any, dtype: str, backend: str) -> dict[str, Any]:
    """The worker's cache specifications of the built layers, on this backend of SM100."""
    from vllm.model_executor.layers.attention.mla_attention import MLAAttention
    from vllm.v1.attention.backends.mla import flashinfer_mla_sparse, flashmla_sparse, indexer
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    on_gpu = {
        "FLASHINFER_MLA_SPARSE": flashinfer_mla_sparse.FlashInferMLASparseTRTLLMBackend,
        "FLASHMLA_SPARSE": flashmla_sparse.FlashMLASparseBackend,
    }
    layers = vllm_config.compilation_config.static_forward_context
    for layer in layers.values():
        if isinstance(layer, MLAAttention):
            layer.kv_cache_dtype = CACHES[dtype, backend]
            layer.attn_backend = on_gpu.get(backend, layer.attn_backend)
            assert layer.attn_backend.get_name() == backend
        elif backend in on_gpu:
            layer.get_attn_backend = lambda: indexer.DeepseekV32IndexerBackend
    return get_kv_cache_spec(vllm_config)


def planned(vllm_config: Any, layout: str, specs: dict[str, Any]) -> dict[str, Any]:
    """What the engine core decides for these specifications."""
    from vllm.v1.core import kv_cache_utils

    vllm_config.cache_config.kv_cache_layout = layout
    try:
        from vllm.v1.core import kv_cache_planning as planner
    except ImportError:
        from vllm.v1.core import kv_cache_utils as planner
    if hasattr(planner, "get_global_kv_cache_groups"):
        groups = planner.get_global_kv_cache_groups(vllm_config, [specs])
        (config,) = planner.get_kv_cache_configs(vllm_config, [specs], [MEMORY], groups)
    else:
        (config,) = planner.get_kv_cache_configs(vllm_config, [specs], [MEMORY])
    pages = {name: spec.page_size_bytes for name, spec in specs.items()}
    # Where each page lies: from the tensor's offset on, a layer's stride apart.
    ends = [t.offset + i * t.layer_stride + pages[n] for t in config.kv_cache_tensors for i, n in enumerate(t.layers)]
    return {
        "groups": len(config.kv_cache_groups),
        "layers": sorted(name for tensor in config.kv_cache_tensors for name in tensor.layers),
        "blocks": config.num_blocks,
        "tokens": kv_cache_utils.get_kv_cache_capacity(vllm_config, config)[0],
        "sizes": {tensor.size for tensor in config.kv_cache_tensors},
        "strides": {tensor.block_stride for tensor in config.kv_cache_tensors},
        "end": max(ends),
        "apart": len(set(ends)) == len(pages),
    }
