"""Bytes of a token in the KV cache: what a run moved, beside what each cache dtype takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glm53.deployment import Deployment
from glm53.plan.config import read_config
from vllm_blhnc.plan import BLOCK_SIZE, Caches, plan_transfer

__all__ = ["cache_figures"]

_COMPARED = ("bf16", "fp8", "nvfp4_ds_mla")
_PLANNED_AS = {"bfloat16": "bf16", "float16": "bf16", "float32": "float32"}


def cache_figures(deployment: Deployment, transfers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """``dtype`` of the run's cache; ``bytes_per_token`` as NIXL moved them in block rows, None without a transfer;
    ``planned_bytes_per_token`` by dtype, that of the run first, with the padding of block rows.

    transfers: records of the run with block rows. The model's config.json is read for the plan.
    """
    engine = deployment.engine
    dtype = _PLANNED_AS[engine.dtype] if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype
    caches = Caches.of(read_config(deployment.model.folder), mtp=0)
    planned = {
        name: plan_transfer(caches, tokens=BLOCK_SIZE, run_length=None, dtype=name, backend="CPU_MLA_SPARSE").row.nbytes
        / BLOCK_SIZE
        for name in dict.fromkeys((dtype, *_COMPARED))
    }
    tokens = sum(one["blocks"] for one in transfers) * engine.block_size
    moved = sum(one["nbytes"] for one in transfers) / tokens if tokens else None
    return {"dtype": dtype, "bytes_per_token": moved, "planned_bytes_per_token": planned}
