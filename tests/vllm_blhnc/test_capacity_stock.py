"""Tokens of KV by ``glm53 plan kv``, against vLLM's planner with tensor parallelism and larger blocks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from planned_layers import CACHES, MEMORY, built, config, on_sm100, planned, specs

from glm53.plan.capacity import plan_capacity
from vllm_blhnc.plan import Caches, default_backend

if TYPE_CHECKING:
    from conftest import Call

LAYERS = 6
DTYPES = sorted({dtype for dtype, _ in CACHES} - {"float32"})
BLOCK_SIZES = (64, 128, 256)


def _capacities(tp: int) -> dict[Any, Any]:
    """What each rank's memory holds, by dtype and block size, with vLLM's default layout, and the attention heads."""
    vllm_config = built(config(LAYERS), tp)
    on_sm100()
    found: dict[Any, Any] = {"heads": vllm_config.model_config.get_num_attention_heads(vllm_config.parallel_config)}
    for block_size in BLOCK_SIZES:
        vllm_config.cache_config.block_size = block_size
        for dtype in DTYPES:
            caches = specs(vllm_config, dtype, default_backend(dtype))
            found[dtype, block_size] = planned(vllm_config, "LBNHC", caches)
    return found


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_every_rank_holds_what_one_gpu_would(call: Call, release: str, tp: int) -> None:
    """An MLA cache is not split between ranks, so the plan's --tp divides nothing but the weights."""
    # What vLLM's CPU worker names its ranks' shared memory by.
    seen = call(_capacities, tp, environment={"VLLM_DIST_IDENT": f"capacity-{os.getpid()}-{tp}"})

    assert seen["heads"] == config(LAYERS)["num_attention_heads"] // tp
    for dtype in DTYPES:
        for block_size in BLOCK_SIZES:
            plan = plan_capacity(
                Caches.of(config(LAYERS)),
                pool=MEMORY,
                workspace=0,
                dtype=dtype,
                layout="LBNHC",
                block_size=block_size,
                release=release,
            )
            one = seen[dtype, block_size]
            assert (plan.blocks, plan.tokens) == (one["blocks"], one["tokens"]), (dtype, block_size)
