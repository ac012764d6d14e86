"""Writing rows into a paged cache, byte for byte as `flashinfer_nvfp4.codec` encodes them.

What the codec refuses, a kernel must store somehow: an infinity is encoded as the largest value of its block's scale,
and a NaN makes the scale of its block, or its own RoPE element, NaN (0x7F), so that it is seen by whoever reads it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashinfer_nvfp4 import rowformat
from flashinfer_nvfp4.codec import INPUTS, POLICIES, Policy
from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.kernels.arguments import check_cache, check_devices, check_rows, interpreted
from flashinfer_nvfp4.kernels.elements import byte_offsets, e4m3_codes, e4m3_halves, round_to_e2m1, widened
from flashinfer_nvfp4.tensors import check_tensor

__all__ = ["encode"]

ROPE_OFFSET = tl.constexpr(rowformat.ROPE_OFFSET)
SCALE_OFFSET = tl.constexpr(rowformat.SCALE_OFFSET)
E4M3_MIN = tl.constexpr(rowformat.E4M3_MIN)
E4M3_MAX_CODE = tl.constexpr(rowformat.E4M3_MAX_CODE)

LAUNCH = {"num_warps": 2, "enable_fp_fusion": False}
"""A fused multiply-add would round an error once where the codec rounds twice."""
INTERPRETED_TOKENS = 64
"""Tokens a program where a program costs more than what it computes."""


def encode(
    latent: torch.Tensor, rope: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, policy: Policy = "rtn"
) -> None:
    """Write the rows of ``latent`` [tokens, 512] and ``rope`` [tokens, 64] to ``slots`` of ``cache``.

    Both are bfloat16, float16 or float32, each token's values contiguous and tokens at any aligned distance. ``cache``
    is uint8 [blocks, block size, 352] (`flashinfer_nvfp4.kernels.arguments`); ``slots`` int64 or int32 [tokens], each
    at most once. A token whose slot is -1, or otherwise outside the cache, is not written. Raises `LaunchRefused`.
    """
    if policy not in POLICIES:
        raise LaunchRefused(f"policy={policy!r}", "no such way to choose scales", ", ".join(POLICIES), "Choose one")
    check_tensor("latent", latent, INPUTS, (None, rowformat.LATENT))
    check_tensor("rope", rope, INPUTS, (latent.shape[0], rowformat.ROPE))
    check_tensor("slots", slots, (torch.int64, torch.int32), (latent.shape[0],))
    check_cache(cache)
    if not latent.shape[0]:
        return
    check_rows("latent", latent)
    check_rows("rope", rope)
    check_devices(encode_kernel, latent=latent, rope=rope, cache=cache, slots=slots)
    tokens = INTERPRETED_TOKENS if interpreted(encode_kernel) else 1
    with torch.cuda.device_of(cache):
        encode_kernel[(triton.cdiv(latent.shape[0], tokens),)](
            latent,
            rope,
            slots,
            cache,
            latent.shape[0],
            cache.shape[0] * cache.shape[1],
            latent.stride(0),
            rope.stride(0),
            slots.stride(0),
            cache.stride(0),
            BLOCK_SIZE=cache.shape[1],
            POLICY=policy,
            TOKENS=tokens,
            **LAUNCH,
        )


@triton.jit(do_not_specialize=["count", "capacity"])
def encode_kernel(
    latent,
    rope,
    slots,
    cache,
    count,
    capacity,
    latent_stride,
    rope_stride,
    slot_stride,
    block_stride,
    BLOCK_SIZE: tl.constexpr,
    POLICY: tl.constexpr,
    TOKENS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    slot = tl.load(slots + token * slot_stride, mask=token < count, other=-1)
    valid = (slot >= 0) & (slot < capacity)
    rows = cache + byte_offsets(tl.where(valid, slot, 0), block_stride, BLOCK_SIZE)
    block = tl.arange(0, 32)

    elements = (latent + token * latent_stride)[:, None, None]
    elements += (16 * block[:, None] + tl.arange(0, 16)[None, :])[None, :, :]
    x = widened(tl.load(elements, mask=valid[:, None, None], other=0.0))
    x = tl.reshape(x, (TOKENS * 32, 16))
    nan = tl.max((x != x).to(tl.int32), 1)
    x = tl.where(x == x, x, 0.0)
    scales = _choose_scales(tl.abs(x), POLICY)

    x = x * tl.div_rn(1.0, _e4m3_values(scales))[:, None]
    codes = _e2m1_codes(round_to_e2m1(tl.abs(x))) | tl.where(x < 0, 8, 0)
    low, high = tl.split(tl.reshape(codes, (TOKENS * 32, 8, 2)))
    packed = tl.reshape(low | (high << 4), (TOKENS, 32, 8)).to(tl.uint8)
    code_bytes = rows[:, None, None] + (8 * block[:, None] + tl.arange(0, 8)[None, :])[None, :, :]
    tl.store(code_bytes, packed, mask=valid[:, None, None])
    scales = tl.reshape(tl.where(nan > 0, 0x7F, scales), (TOKENS, 32)).to(tl.uint8)
    scale_bytes = rows[:, None] + (8 * (block % 4) + block // 4 + SCALE_OFFSET)[None, :]
    tl.store(scale_bytes, scales, mask=valid[:, None])

    column = tl.arange(0, 64)
    rotated = tl.load((rope + token * rope_stride)[:, None] + column[None, :], mask=valid[:, None], other=0.0)
    rotated = e4m3_codes(widened(rotated)).to(tl.uint8)
    tl.store(rows[:, None] + ROPE_OFFSET + column[None, :], rotated, mask=valid[:, None])


@triton.jit
def _choose_scales(magnitudes, POLICY: tl.constexpr):
    """Codes, int32 [blocks], of the scales of ``magnitudes`` [blocks, 16]; of equal errors the first wins."""
    amax = tl.max(magnitudes, 1)
    nearest = e4m3_codes(tl.maximum(amax * (1.0 / 6.0), E4M3_MIN))
    best = nearest
    if POLICY == "four_over_six":
        codes = e4m3_codes(tl.maximum(amax * 0.25, E4M3_MIN))
        best = tl.where(_squared_error(magnitudes, codes) < _squared_error(magnitudes, nearest), codes, nearest)
    if POLICY == "search":
        least = _squared_error(magnitudes, nearest)
        for step in tl.static_range(-2, 6):
            codes = tl.minimum(tl.maximum(nearest + step, 1), E4M3_MAX_CODE)
            error = _squared_error(magnitudes, codes)
            best = tl.where(error < least, codes, best)
            least = tl.minimum(error, least)
    return best


@triton.jit
def _squared_error(magnitudes, codes):
    """Float32 [blocks]; squares are added as the codec adds them, i and i + 8, then i and i + 4, i + 2, i + 1."""
    scales = _e4m3_values(codes)
    error = round_to_e2m1(magnitudes * tl.div_rn(1.0, scales)[:, None]) * scales[:, None] - magnitudes
    error = error * error
    error = tl.sum(tl.reshape(error, (error.shape[0], 2, 8)), 1)  # a sum of two has one order
    error = tl.sum(tl.reshape(error, (error.shape[0], 2, 4)), 1)
    error = tl.sum(tl.reshape(error, (error.shape[0], 2, 2)), 1)
    return tl.sum(error, 1)


@triton.jit
def _e4m3_values(codes):
    return e4m3_halves(codes.to(tl.uint8)).to(tl.float32) * 256.0


@triton.jit
def _e2m1_codes(values):
    """Codes, int32, of e2m1 values >= 0: from 1 on exponent and mantissa bit of the float32, below its halves."""
    return tl.where(values < 1.0, (values * 2.0).to(tl.int32), (values.to(tl.int32, bitcast=True) >> 22) - 252)
