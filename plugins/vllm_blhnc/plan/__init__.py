"""Arithmetic of block rows and their transfer: numbers in, numbers out, standard library only."""

from vllm_blhnc.plan.caches import DTYPES, Caches, PlanError
from vllm_blhnc.plan.rows import BlockRow, block_row, descriptor_count, run_lengths
from vllm_blhnc.plan.transfer import (
    BACKENDS,
    BLOCK_SIZE,
    RELEASES,
    Layout,
    Transfer,
    default_backend,
    plan_transfer,
)

__all__ = [
    "BACKENDS",
    "BLOCK_SIZE",
    "DTYPES",
    "RELEASES",
    "BlockRow",
    "Caches",
    "Layout",
    "PlanError",
    "Transfer",
    "block_row",
    "default_backend",
    "descriptor_count",
    "plan_transfer",
    "run_lengths",
]
