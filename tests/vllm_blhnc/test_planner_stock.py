"""The plan against vLLM itself: its model classes, the worker's cache specifications and the engine core's planner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from planned_layers import CACHES, LAYERS, MEMORY, built, config, on_sm100, planned, specs

from glm53.plan.capacity import plan_capacity
from vllm_blhnc.plan import Caches, Transfer, default_backend, plan_transfer

if TYPE_CHECKING:
    from conftest import Call

PATTERN = "FFSS" * 19 + "SF"  # IndexShare by pattern: 39 layers with an indexer


def _everything(alignments: list[int | None]) -> dict[Any, Any]:
    """All results of one process: specifications are made once for each backend, the models once."""
    from vllm_blhnc import alignment

    results: dict[Any, Any] = {}
    vllm_config = built(config())
    # The CPU's backend stays in the layers only until the first of the others.
    for dtype, backend in sorted(CACHES, key=lambda cache: cache[1]):
        if not backend.startswith("CPU"):
            on_sm100()
        found = specs(vllm_config, dtype, backend)
        for mtp in (1, 0):
            some = {name: spec for name, spec in found.items() if mtp or f".{LAYERS}." not in name}
            results["pages", dtype, backend, mtp] = dict(Counter(spec.page_size_bytes for spec in some.values()))
            for layout in ("BLHNC", "LBNHC"):
                for tokens in alignments:
                    alignment.ask(vllm_config.cache_config, tokens)
                    results[layout, dtype, backend, mtp, tokens] = planned(vllm_config, layout, dict(some))
                    alignment.ask(vllm_config.cache_config, None)
    by_pattern = specs(built(config(index_topk_pattern=PATTERN)), "fp8", "FLASHINFER_MLA_SPARSE")
    results["pattern"] = sorted(name for name in by_pattern if "indexer" in name)
    return results


ALIGNMENTS: list[int | None] = [None, 32, 64]


@pytest.fixture(scope="module")
def vllm(call: Call) -> Callable[..., Any]:
    """``vllm("BLHNC", "fp8", "FLASHINFER_MLA_SPARSE", 1, None)``: what vLLM decided."""
    results = call(_everything, ALIGNMENTS)
    return lambda *key: results[key if len(key) > 1 else key[0]]


def _plan(release: str, dtype: str, backend: str, mtp: int, tokens: int | None = None) -> Transfer:
    caches = Caches.of(config(), mtp)
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


@pytest.mark.parametrize("layout", ["BLHNC", "LBNHC"])
@pytest.mark.parametrize("mtp", [1, 0])
@pytest.mark.parametrize("dtype", ["fp8", "bf16", "fp8_ds_mla", "nvfp4_ds_mla", "float32"])
def test_a_gpu_holds_as_many_tokens_as_planned(
    vllm: Callable[..., Any], release: str, dtype: str, mtp: int, layout: str
) -> None:
    """What ``glm53 plan kv`` shows, and what vLLM logs as "GPU KV cache size"."""
    caches = Caches.of(config(), mtp)

    plan = plan_capacity(caches, pool=MEMORY, workspace=0, dtype=dtype, layout=layout, release=release)

    seen = vllm(layout, dtype, default_backend(dtype), mtp, None)
    assert (plan.blocks, plan.tokens) == (seen["blocks"], seen["tokens"])
    assert plan.tokens == MEMORY // (64 * plan.bytes_per_token) * 64


def test_a_pattern_gives_the_planned_layers_their_indexers(vllm: Callable[..., Any]) -> None:
    layers = [i for i, kind in enumerate(PATTERN) if kind == "F"] + [LAYERS]

    assert vllm("pattern") == sorted(f"model.layers.{i}.self_attn.indexer.k_cache" for i in layers)
    assert Caches.of(config(index_topk_pattern=PATTERN)).indexers == len(layers)
