"""Attention over all keys of a token from attention over parts of them, by their log-sum-exps, in place.

The running result is float32, so that parts do not add up their roundings. It needs no second output: the bfloat16
output holds the upper 16 bits of it, and only the lower 16 lie beside. The last part rounds once.
"""

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


def merge_into(
    out: torch.Tensor,
    lower: torch.Tensor,
    lse: torch.Tensor,
    part: torch.Tensor,
    part_lse: torch.Tensor,
    *,
    last: bool = False,
) -> None:
    """Make the running result and ``lse`` those of their own keys and of ``part``'s.

    The running result [tokens, heads, 512] is the float32 whose upper 16 bits are ``out``, bfloat16, and whose lower 16
    are ``lower``, int16. With ``last``, ``out`` is the rounded result, and ``lower`` stays as it is. ``part``: bfloat16
    or float32. Log-sum-exps: float32 [tokens, heads], natural logarithm, minus infinity without any key: then that
    result is not looked at, so that ``lse`` alone begins a running result. Raises `LaunchRefused`.
    """
    check_tensor("out", out, (torch.bfloat16,), (None, None, LATENT))
    tokens, heads, _ = out.shape
    check_tensor("lower", lower, (torch.int16,), (tokens, heads, LATENT))
    check_tensor("part", part, (torch.bfloat16, torch.float32), (tokens, heads, LATENT))
    check_tensor("lse", lse, (torch.float32,), (tokens, heads))
    check_tensor("part_lse", part_lse, (torch.float32,), (tokens, heads))
    tensors = {"out": out, "lower": lower, "lse": lse, "part": part, "part_lse": part_lse}
    for name, tensor in tensors.items():
        check_output(name, tensor)
    check_devices(merge_into_kernel, **tensors)
    if not tokens or not heads:
        return
    with torch.cuda.device_of(out):
        merge_into_kernel[(tokens, heads)](out, lower, lse, part, part_lse, LAST=last, **MERGE_LAUNCH)


@triton.jit
def merge_into_kernel(out, lower, lse, part, part_lse, LAST: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    one, other = tl.load(lse + row), tl.load(part_lse + row)
    most = tl.maximum(one, other)
    shift = tl.where(most == -float("inf"), 0.0, most)
    weight, other_weight = tl.exp(one - shift), tl.exp(other - shift)
    total = weight + other_weight
    column = row * 512 + tl.arange(0, 512)
    high = tl.load(out + column).to(tl.int16, bitcast=True).to(tl.int32) << 16
    running = (high | (tl.load(lower + column).to(tl.int32) & 0xFFFF)).to(tl.float32, bitcast=True)
    mine = tl.where(weight > 0, running, 0.0)
    theirs = tl.where(other_weight > 0, widened(tl.load(part + column)), 0.0)
    empty = total == 0  # a NaN is not, and goes on
    merged = (mine * weight + theirs * other_weight) / tl.where(empty, 1.0, total)
    if LAST:
        tl.store(out + column, rounded(merged, tl.bfloat16))
    else:
        bits = merged.to(tl.int32, bitcast=True)
        tl.store(out + column, (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True))
        tl.store(lower + column, (bits & 0xFFFF).to(tl.int16))
    tl.store(lse + row, tl.where(empty, -float("inf"), shift + tl.log(tl.where(empty, 1.0, total))))
