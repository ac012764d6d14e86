"""Which launches this package's own kernels take: numbers only, standard library."""

from __future__ import annotations

from flashinfer_nvfp4.plan import STAGE_KEYS

__all__ = ["MAX_HEADS", "TRITON_MAJORS", "triton_unfit", "unfit"]

MAX_HEADS = 128
"""Heads of a launch."""
TRITON_MAJORS = (9, 10, 12)
"""Major compute capabilities that the Triton kernels were compiled for."""


def triton_unfit(capability: tuple[int, int], heads: int, topk: int) -> str:
    """Why the Triton kernel takes no launch of this shape on such a device; empty where it does."""
    major, minor = capability
    if major not in TRITON_MAJORS:
        return f"it does not compile for compute capability {major}.{minor}"
    return unfit(heads, topk)


def unfit(heads: int, topk: int) -> str:
    """Why no kernel of this package takes a launch of ``heads`` heads with ``topk`` keys a token; empty where one
    does."""
    if not 1 <= heads <= MAX_HEADS:
        return f"{heads} heads are outside 1 to {MAX_HEADS}"
    return "" if topk > 0 and topk % STAGE_KEYS == 0 else f"a top-k of {topk} is no multiple of {STAGE_KEYS}"
