"""Reading rows out of a paged cache as BF16 or FP8 values, for kernels that know no NVFP4 rows.

BF16 is exact: an e2m1 value times an e4m3 scale has at most 6 significant bits. FP8 is e4m3 of ``value / scale``,
RoPE part included, rounded to nearest, ties to even, saturated at 448; a kernel that reads it multiplies keys and
values by ``scale``. That rounds the latent a second time (docs/nvfp4.md has the error). With a power of two, RoPE
elements stay as they are while they remain in range, and only latents beyond 448 * scale saturate; a row holds up to
2688.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.kernels.arguments import check_cache, check_devices, check_output, interpreted
from flashinfer_nvfp4.kernels.elements import byte_offsets, e4m3_codes, load_rows
from flashinfer_nvfp4.rowformat import LATENT, ROPE
from flashinfer_nvfp4.tensors import check_tensor

__all__ = ["gather"]

ROWS = 16
LAUNCH = {"num_warps": 4, "enable_fp_fusion": False}
INTERPRETED_ROWS = 256


def gather(
    cache: torch.Tensor,
    slots: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    *,
    scale: float = 1.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Values [rows, 576], latent before RoPE, of the rows in ``slots`` [rows], int64 or int32, of ``cache``.

    ``dtype``: bfloat16 or float8_e4m3fn; ``scale``: positive and finite, of FP8 only; ``out``: where to write. A slot
    of -1, or otherwise outside the cache, gives zeros, and nothing is read for it. Raises `LaunchRefused`.
    """
    width = LATENT + ROPE
    check_tensor("slots", slots, (torch.int64, torch.int32), (None,))
    check_cache(cache)
    out = slots.new_empty((slots.shape[0], width), dtype=dtype) if out is None else out
    check_tensor("out", out, (torch.bfloat16, torch.float8_e4m3fn), (slots.shape[0], width))
    check_output("out", out)
    quantized = out.dtype == torch.float8_e4m3fn
    if out.dtype != dtype or not 0 < scale < float("inf") or (scale != 1 and not quantized):
        raise LaunchRefused(
            f"dtype={dtype} with out of {out.dtype} and scale={scale}",
            "the result could not be told from others",
            "the dtype of out; a positive, finite scale for float8_e4m3fn, 1 for bfloat16",
            "Pass matching arguments",
        )
    check_devices(gather_kernel, cache=cache, slots=slots, out=out)
    if not slots.shape[0]:
        return out
    rows = INTERPRETED_ROWS if interpreted(gather_kernel) else ROWS
    with torch.cuda.device_of(cache):
        gather_kernel[(triton.cdiv(slots.shape[0], rows),)](
            cache,
            slots,
            out.view(torch.uint8) if quantized else out,
            slots.shape[0],
            cache.shape[0] * cache.shape[1],
            slots.stride(0),
            cache.stride(0),
            1.0 / scale,
            BLOCK_SIZE=cache.shape[1],
            ROWS=rows,
            **LAUNCH,
        )
    return out


@triton.jit(do_not_specialize=["count", "capacity"])
def gather_kernel(
    cache,
    slots,
    out,
    count,
    capacity,
    slot_stride,
    block_stride,
    multiplier,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < count
    slot = tl.load(slots + row * slot_stride, mask=inside, other=-1)
    valid = (slot >= 0) & (slot < capacity)
    rows = cache + byte_offsets(tl.where(valid, slot, 0), block_stride, BLOCK_SIZE)
    store_values(out + row * 576, inside, *load_rows(rows, valid, ROWS), multiplier, ROWS)


@triton.jit
def store_values(targets, inside, even, odd, rope, multiplier, ROWS: tl.constexpr):
    """Write rows as `load_rows` gives them to the pointers ``targets`` [ROWS]: bfloat16, or e4m3 times multiplier."""
    latent = tl.interleave(even, odd).to(tl.float32) * 128.0
    rope = rope.to(tl.float32) * 256.0
    if targets.dtype.element_ty == tl.uint8:
        latent = e4m3_codes(latent * multiplier)
        rope = e4m3_codes(rope * multiplier)
    columns = targets[:, None] + tl.arange(0, 512)[None, :]
    tl.store(columns, latent.to(targets.dtype.element_ty), mask=inside[:, None])
    columns = targets[:, None] + 512 + tl.arange(0, 64)[None, :]
    tl.store(columns, rope.to(targets.dtype.element_ty), mask=inside[:, None])
