"""Device functions shared by the kernels: e4m3 and e2m1 elements in integer arithmetic, and where rows lie.

Both formats are float16 with fewer bits: shifted to the places of float16's exponent and mantissa, a code is its value
times a power of two, subnormals included. So decoding costs two shifts, is exact, and needs no conversion
instruction, which makes it the same on every device and in the interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashinfer_nvfp4 import rowformat

__all__ = [
    "byte_offsets",
    "e2m1_halves",
    "e4m3_codes",
    "e4m3_halves",
    "load_rows",
    "round_to_e2m1",
    "rounded",
    "widened",
]

ROW_BYTES = tl.constexpr(rowformat.ROW_BYTES)
ROPE_OFFSET = tl.constexpr(rowformat.ROPE_OFFSET)
SCALE_OFFSET = tl.constexpr(rowformat.SCALE_OFFSET)
E2M1_MAX = tl.constexpr(rowformat.E2M1_MAX)
E4M3_MAX = tl.constexpr(rowformat.E4M3_MAX)


@triton.jit
def byte_offsets(slots, block_stride, BLOCK_SIZE: tl.constexpr):
    """Offsets, int64, of the rows in ``slots`` >= 0 from the cache's first byte; blocks are ``block_stride`` apart."""
    slots = slots.to(tl.int64)
    return (slots // BLOCK_SIZE) * block_stride + (slots % BLOCK_SIZE) * ROW_BYTES


@triton.jit
def e4m3_halves(codes):
    """Values of uint8 e4m3 ``codes`` times 2**-8, float16, exactly: the exponent bias is 15 instead of 7."""
    codes = codes.to(tl.uint16)
    bits = ((codes & 0x80) << 8) | ((codes & 0x7F) << 7)
    bits = tl.where((codes & 0x7F) == 0x7F, 0x7E00, bits).to(tl.uint16)  # NaN
    return bits.to(tl.float16, bitcast=True)


@triton.jit
def e2m1_halves(codes):
    """Values of uint16 e2m1 ``codes`` times 2**-14, float16, exactly: bias 15 instead of 1. Higher bits are 0."""
    return (((codes & 8) << 12) | ((codes & 7) << 9)).to(tl.float16, bitcast=True)


@triton.jit
def e4m3_codes(x):
    """Codes, int32, of float32 ``x``: to nearest, ties to even, saturated; NaN is 0x7F with the sign."""
    magnitude = tl.minimum(tl.abs(x), E4M3_MAX)
    # Below 2**-6 the codes count multiples of 2**-9, which is the last bit of a float32 from 2**14 on.
    small = (magnitude + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    # From there on, 20 of the 23 mantissa bits go, and the exponent bias is 7 instead of 127.
    bits = magnitude.to(tl.int32, bitcast=True)
    large = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
    codes = tl.where(magnitude < 0.015625, small, large)
    codes = tl.where(x == x, codes, 0x7F)
    return codes | ((x.to(tl.int32, bitcast=True) >> 24) & 0x80)


@triton.jit
def round_to_e2m1(magnitude):
    """Nearest e2m1 values of float32 ``magnitude`` >= 0, ties to the even code, saturated.

    As in `flashinfer_nvfp4.codec`: adding 2**(n+22) to a value of 2**n or more rounds to its multiples of 2**(n-1).
    """
    magnitude = tl.minimum(magnitude, E2M1_MAX)
    power = (magnitude.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    shift = tl.maximum(power, 1.0) * 4194304.0
    return (magnitude + shift) - shift


@triton.jit
def widened(x):
    """Float32 of a bfloat16, float16 or float32, exactly; the interpreter's own conversion drops subnormals."""
    if x.dtype == tl.bfloat16:
        x = (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
def rounded(x, DTYPE: tl.constexpr):
    """Float32 ``x`` as it is, or as bfloat16 to nearest, ties to even; the interpreter's own conversion truncates."""
    if tl.bfloat16 == DTYPE:
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        bits = tl.where(x == x, bits, 0x7FC0).to(tl.int16)
        x = bits.to(tl.bfloat16, bitcast=True)
    return x


@triton.jit
def load_rows(rows, valid, ROWS: tl.constexpr):
    """Even and odd latent elements, float16 [ROWS, 256] each, times 2**-7; RoPE, float16 [ROWS, 64], times 2**-8.

    ``rows``: pointers [ROWS]. All is exact. Rows that are not ``valid`` are zero, and nothing is read for them.
    """
    block = tl.arange(0, 32)
    codes = rows[:, None, None] + (8 * block[:, None] + tl.arange(0, 8)[None, :])[None, :, :]
    packed = tl.load(codes, mask=valid[:, None, None], other=0).to(tl.uint16)
    scale_bytes = rows[:, None] + (8 * (block % 4) + block // 4 + SCALE_OFFSET)[None, :]
    # 2**-8 * 2**15 * 2**-14: the largest scale is then 57344 and the smallest product 2**-17, both within float16.
    scales = e4m3_halves(tl.load(scale_bytes, mask=valid[:, None], other=0)) * 32768.0
    scales = scales.to(tl.float16)[:, :, None]
    even = tl.reshape(e2m1_halves(packed & 15) * scales, (ROWS, 256))
    odd = tl.reshape(e2m1_halves(packed >> 4) * scales, (ROWS, 256))
    rope_bytes = rows[:, None] + (tl.arange(0, 64) + ROPE_OFFSET)[None, :]
    rope = e4m3_halves(tl.load(rope_bytes, mask=valid[:, None], other=0))
    return even, odd, rope
