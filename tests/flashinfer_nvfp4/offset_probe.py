"""A kernel that stores the byte offsets of slots, for `test_kernel_offsets_stock`; imports Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashinfer_nvfp4.kernels.elements import byte_offsets

__all__ = ["offsets"]


@triton.jit
def probe(slots, out, block_stride, SIZE: tl.constexpr, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, COUNT)
    tl.store(out + place, byte_offsets(tl.load(slots + place), block_stride, SIZE))


def offsets(slots: list[int], apart: int, size: int, kind: str) -> list[int]:
    """What `byte_offsets` gives for ``slots`` of dtype ``kind``."""
    given = torch.tensor(slots, dtype=getattr(torch, kind))
    out = torch.zeros(len(slots), dtype=torch.int64)
    probe[(1,)](given, out, apart, SIZE=size, COUNT=len(slots))
    return out.tolist()
