"""Staging: rows of several requests' contexts into a contiguous buffer, and top-k positions into places in it.

A *window* is the part of one request that is staged: its first position, its number of rows, and its first place in
the buffer. `stage` decodes the rows of all windows in one launch, straight from the block table. `staged_indices` turns
the keys that tokens selected, positions in their own request, into places in the buffer: keys outside the window are
left out, the others move to the front in their order, because kernels that read staged rows take a list and a count.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.kernels.arguments import check_cache, check_devices, check_output, interpreted
from flashinfer_nvfp4.kernels.elements import byte_offsets, load_rows
from flashinfer_nvfp4.kernels.gather import INTERPRETED_ROWS, LAUNCH, ROWS, store_values
from flashinfer_nvfp4.rowformat import LATENT, ROPE
from flashinfer_nvfp4.tensors import check_tensor

__all__ = ["INDEX_LAUNCH", "stage", "staged_indices"]

INDEX_LAUNCH = {"num_warps": 8}


def stage(
    cache: torch.Tensor,
    block_table: torch.Tensor,
    windows: torch.Tensor,
    longest: int,
    out: torch.Tensor,
    *,
    scale: float = 1.0,
) -> None:
    """Decode the rows of ``windows``, int32 [requests, 3], into ``out`` [rows, 576], as `gather` decodes slots.

    ``block_table`` int32 [requests, blocks] of ``cache``, uint8 [blocks, block size, 352]; ``longest``: rows of the
    longest window, which the host knows; ``scale``: of an FP8 ``out``. Positions beyond the table and blocks outside
    the cache give zeros; places outside ``out`` are not written. Raises `LaunchRefused`.
    """
    check_cache(cache)
    requests = windows.shape[0]
    check_tensor("windows", windows, (torch.int32,), (None, 3))
    check_tensor("block_table", block_table, (torch.int32,), (requests, None))
    check_tensor("out", out, (torch.bfloat16, torch.float8_e4m3fn), (None, LATENT + ROPE))
    check_output("out", out)
    check_output("windows", windows)
    quantized = out.dtype == torch.float8_e4m3fn
    if longest < 0 or not 0 < scale < float("inf") or (scale != 1 and not quantized):
        raise LaunchRefused(
            f"longest={longest}, scale={scale} with out of {out.dtype}",
            "no rows can be staged so",
            "0 rows or more; a positive, finite scale for float8_e4m3fn, 1 for bfloat16",
            "Pass what was planned",
        )
    check_devices(stage_kernel, cache=cache, block_table=block_table, windows=windows, out=out)
    if not requests or not longest:
        return
    rows = INTERPRETED_ROWS if interpreted(stage_kernel) else ROWS
    with torch.cuda.device_of(cache):
        stage_kernel[(triton.cdiv(longest, rows), requests)](
            cache,
            block_table,
            windows,
            out.view(torch.uint8) if quantized else out,
            cache.shape[0],
            block_table.shape[1],
            out.shape[0],
            block_table.stride(0),
            block_table.stride(1),
            cache.stride(0),
            1.0 / scale,
            BLOCK_SIZE=cache.shape[1],
            ROWS=rows,
            **LAUNCH,
        )


def staged_indices(
    positions: torch.Tensor,
    requests: torch.Tensor,
    windows: torch.Tensor,
    out: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """Fill ``out``, int32 [tokens, topk], with places in the buffer, -1 behind the last, and ``counts`` [tokens].

    ``positions`` int32 [tokens, topk]: keys as positions in the token's request, in any order, negative where there is
    none; ``requests`` int32 [tokens]: the token's row of ``windows``, int32 [requests, 3]. Raises `LaunchRefused`.
    """
    tokens, topk = positions.shape if positions.ndim == 2 else (None, None)
    check_tensor("positions", positions, (torch.int32,), (None, None))
    check_tensor("requests", requests, (torch.int32,), (tokens,))
    check_tensor("windows", windows, (torch.int32,), (None, 3))
    check_tensor("out", out, (torch.int32,), (tokens, topk))
    check_tensor("counts", counts, (torch.int32,), (tokens,))
    for name, tensor in (("windows", windows), ("out", out), ("counts", counts)):
        check_output(name, tensor)
    tensors = {"positions": positions, "requests": requests, "windows": windows, "out": out, "counts": counts}
    check_devices(indices_kernel, **tensors)
    if not tokens:
        return
    with torch.cuda.device_of(positions):
        indices_kernel[(tokens,)](
            positions,
            requests,
            windows,
            out,
            counts,
            topk,
            windows.shape[0],
            positions.stride(0),
            positions.stride(1),
            requests.stride(0),
            TOPK=triton.next_power_of_2(max(topk or 0, 1)),
            **INDEX_LAUNCH,
        )


@triton.jit(do_not_specialize=["blocks", "columns", "places"])
def stage_kernel(
    cache,
    block_table,
    windows,
    out,
    blocks,
    columns,
    places,
    table_stride,
    column_stride,
    block_stride,
    multiplier,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    request = tl.program_id(1)
    first = tl.load(windows + 3 * request)
    count = tl.load(windows + 3 * request + 1)
    place = tl.load(windows + 3 * request + 2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    if tl.program_id(0) * ROWS < count:
        position = first + row
        column = position // BLOCK_SIZE
        known = (row < count) & (position >= 0) & (column < columns)
        entries = block_table + request.to(tl.int64) * table_stride + column.to(tl.int64) * column_stride
        block = tl.load(entries, mask=known, other=-1)
        valid = known & (block >= 0) & (block < blocks)
        slot = tl.where(valid, block, 0).to(tl.int64) * BLOCK_SIZE + tl.where(valid, position % BLOCK_SIZE, 0)
        even, odd, rope = load_rows(cache + byte_offsets(slot, block_stride, BLOCK_SIZE), valid, ROWS)
        target = place.to(tl.int64) + row
        inside = (row < count) & (target >= 0) & (target < places)
        store_values(out + target * 576, inside, even, odd, rope, multiplier, ROWS)


@triton.jit(do_not_specialize=["topk", "request_count"])
def indices_kernel(
    positions,
    requests,
    windows,
    out,
    counts,
    topk,
    request_count,
    position_stride,
    column_stride,
    request_stride,
    TOPK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    request = tl.load(requests + token * request_stride)
    known = (request >= 0) & (request < request_count)
    window = windows + 3 * tl.where(known, request, 0)
    first = tl.load(window)
    count = tl.where(known, tl.load(window + 1), 0)
    place = tl.load(window + 2)
    column = tl.arange(0, TOPK)
    position = tl.load(positions + token * position_stride + column * column_stride, mask=column < topk, other=-1)
    chosen = (position >= first) & (position < first + count) & (position >= 0) & (column < topk)
    # Those left out follow the chosen ones, so every column of the row is written once.
    ahead = tl.cumsum(chosen.to(tl.int32), 0)
    total = tl.sum(chosen.to(tl.int32), 0)
    target = tl.where(chosen, ahead - 1, total + column - ahead)
    tl.store(out + token * topk + target, tl.where(chosen, place + position - first, -1), mask=column < topk)
    tl.store(counts + token, total)
