"""Arithmetic of block rows and their transfer: numbers in, numbers out, standard library only."""

from vllm_blhnc.plan.rows import BlockRow, block_row, descriptor_count, run_lengths

__all__ = ["BlockRow", "block_row", "descriptor_count", "run_lengths"]
