"""Attention over two sets of keys from attention over each, by their log-sum-exps, in place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashinfer_nvfp4.kernels.arguments import check_devices, check_output
from flashinfer_nvfp4.kernels.elements import rounded, widened
from flashinfer_nvfp4.rowformat import LATENT
from flashinfer_nvfp4.tensors import check_tensor

__all__ = ["MERGE_LAUNCH", "merge_into"]

MERGE_LAUNCH = {"num_warps": 4}


def merge_into(out: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor) -> None:
    """Make ``out`` [tokens, heads, 512] and ``lse`` [tokens, heads] those of their own keys and of ``part``'s.

    Outputs are bfloat16 or float32, log-sum-exps float32, natural logarithm, minus infinity without any key (then
    that output is not looked at). Sums are float32; ``out`` is rounded once. Raises `LaunchRefused`.
    """
    kinds = (torch.bfloat16, torch.float32)
    check_tensor("out", out, kinds, (None, None, LATENT))
    tokens, heads, _ = out.shape
    check_tensor("part", part, kinds, (tokens, heads, LATENT))
    check_tensor("lse", lse, (torch.float32,), (tokens, heads))
    check_tensor("part_lse", part_lse, (torch.float32,), (tokens, heads))
    tensors = {"out": out, "lse": lse, "part": part, "part_lse": part_lse}
    for name, tensor in tensors.items():
        check_output(name, tensor)
    check_devices(merge_into_kernel, **tensors)
    if not tokens or not heads:
        return
    with torch.cuda.device_of(out):
        merge_into_kernel[(tokens, heads)](out, lse, part, part_lse, **MERGE_LAUNCH)


@triton.jit
def merge_into_kernel(out, lse, part, part_lse):
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    one, other = tl.load(lse + row), tl.load(part_lse + row)
    most = tl.maximum(one, other)
    shift = tl.where(most == -float("inf"), 0.0, most)
    weight, other_weight = tl.exp(one - shift), tl.exp(other - shift)
    total = weight + other_weight
    column = tl.arange(0, 512)
    mine = tl.where(weight > 0, widened(tl.load(out + row * 512 + column)), 0.0)
    theirs = tl.where(other_weight > 0, widened(tl.load(part + row * 512 + column)), 0.0)
    empty = total == 0  # a NaN is not, and goes on
    merged = (mine * weight + theirs * other_weight) / tl.where(empty, 1.0, total)
    tl.store(out + row * 512 + column, rounded(merged, out.dtype.element_ty))
    tl.store(lse + row, tl.where(empty, -float("inf"), shift + tl.log(tl.where(empty, 1.0, total))))
