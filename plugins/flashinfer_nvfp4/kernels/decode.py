"""Sparse MLA decode on rows as they lie in the cache, with log-sum-exp.

A program attends with up to 16 heads of one token to its share of the token's top-k keys (*split*), in stages of 32
rows and with an online softmax; a second kernel merges the splits. Products are float16 with float32 sums. Nothing
but the probabilities is rounded to float16: unpacked rows are exact in it (`flashinfer_nvfp4.kernels.elements`), and
so is the query once each head is divided by its own power of two. The latent's even and odd elements stay in two
tiles, as a byte holds them; the query comes in the same two parts, and sums over the latent have no order to keep.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.kernels.arguments import (
    check_cache,
    check_devices,
    check_output,
    check_rows,
    interpreted,
)
from flashinfer_nvfp4.kernels.elements import byte_offsets, e4m3_halves, load_rows, rounded, widened
from flashinfer_nvfp4.limits import MAX_HEADS
from flashinfer_nvfp4.plan import STAGE_KEYS, plan_splits
from flashinfer_nvfp4.rowformat import LATENT, ROPE
from flashinfer_nvfp4.tensors import check_tensor

__all__ = ["LAUNCH", "MERGE_LAUNCH", "TILE", "decode"]

TILE = 16
"""Heads of a program: with twice as many, query and sums do not fit into its registers."""
LAUNCH = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": True}
MERGE_LAUNCH = {"num_warps": 4, "enable_fp_fusion": True}
KEYS = tl.constexpr(STAGE_KEYS)
LN2 = tl.constexpr(math.log(2))
LOG2E = tl.constexpr(1 / math.log(2))


def decode(
    query: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    scale: float,
    *,
    dtype: torch.dtype = torch.bfloat16,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    splits: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention output [tokens, heads, 512] and log-sum-exp, float32 [tokens, heads].

    ``query`` [tokens, heads, 576]: absorbed latent part before rotated part, bfloat16 or float8_e4m3fn, 1 to 128
    heads; tokens are independent, so drafts of one request are simply further tokens. ``indices`` int32 [tokens,
    topk], topk a multiple of 32: the slots in ``cache`` (uint8 [blocks, block size, 352]) to attend to, in any order;
    one that is named twice counts twice; -1 and everything else outside the cache is empty, and nothing is read for
    it. ``scale`` multiplies ``query @ key``; an FP8 query's own scale goes into it. ``dtype`` of a new ``out``:
    bfloat16 or float32. ``splits``: programs that share a token's keys; planned if left out.

    The log-sum-exp is the natural logarithm of the sum of ``exp(scale * query @ key)``. A token without any key has
    zeros and minus infinity. Raises `LaunchRefused`.
    """
    check_tensor("query", query, (torch.bfloat16, torch.float8_e4m3fn), (None, None, LATENT + ROPE))
    tokens, heads, _ = query.shape
    check_tensor("indices", indices, (torch.int32,), (tokens, None))
    check_cache(cache)
    out = query.new_empty((tokens, heads, LATENT), dtype=dtype) if out is None else out
    lse = query.new_empty((tokens, heads), dtype=torch.float32) if lse is None else lse
    check_tensor("out", out, (torch.bfloat16, torch.float32), (tokens, heads, LATENT))
    check_tensor("lse", lse, (torch.float32,), (tokens, heads))
    check_output("out", out)
    check_output("lse", lse)
    topk = indices.shape[1]
    if not 1 <= heads <= MAX_HEADS or topk < 1 or topk % STAGE_KEYS or not math.isfinite(scale):
        raise LaunchRefused(
            f"heads={heads}, topk={topk}, scale={scale}",
            "no launch fits",
            f"1 to {MAX_HEADS} heads, a positive multiple of {STAGE_KEYS} keys, a finite scale",
            "Pad the indices with -1; launch more heads in parts",
        )
    stages = topk // STAGE_KEYS
    if splits is not None and not 1 <= splits <= stages:
        raise LaunchRefused(
            f"splits={splits}", f"topk={topk} has {stages} stages to share", f"1 to {stages}", "Leave splits out"
        )
    if not tokens:
        return out, lse
    check_rows("query", query)
    check_rows("indices", indices)
    check_devices(decode_kernel, query=query, cache=cache, indices=indices, out=out, lse=lse)
    tiles = triton.cdiv(heads, TILE)
    splits = splits or plan_splits(tokens * tiles, topk, _at_once(query.device))
    partial, partial_lse = out, lse
    if splits > 1:
        partial = query.new_empty((tokens, splits, heads, LATENT), dtype=torch.float32)
        partial_lse = query.new_empty((tokens, splits, heads), dtype=torch.float32)
    quantized = query.dtype == torch.float8_e4m3fn
    with torch.cuda.device_of(query):
        decode_kernel[(tokens, tiles, splits)](
            query.view(torch.uint8) if quantized else query,
            cache,
            indices,
            partial,
            partial_lse,
            scale * math.log2(math.e),
            heads,
            stages,
            cache.shape[0] * cache.shape[1],
            query.stride(0),
            query.stride(1),
            indices.stride(0),
            cache.stride(0),
            BLOCK_SIZE=cache.shape[1],
            HEADS=TILE,
            **LAUNCH,
        )
        if splits > 1:
            merge_kernel[(tokens, heads)](
                partial, partial_lse, out, lse, splits, SPLITS=triton.next_power_of_2(splits), **MERGE_LAUNCH
            )
    return out, lse


def _at_once(device: torch.device) -> int:
    """Programs that the device runs at once, counted as one to a multiprocessor."""
    if device.type != "cuda" or interpreted(decode_kernel):
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit(do_not_specialize=["stages", "capacity"])
def decode_kernel(
    query,
    cache,
    indices,
    out,
    lse,
    scale_log2,
    heads,
    stages,
    capacity,
    query_token_stride,
    query_head_stride,
    index_stride,
    block_stride,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    split = tl.program_id(2)
    splits = tl.num_programs(2)
    own = head < heads
    q_even, q_odd, q_rope, size = _load_query(
        query + token * query_token_stride + head[:, None].to(tl.int64) * query_head_stride, own, HEADS
    )
    factor = size * (scale_log2 * 128.0)  # rows come divided by 2**7

    best = tl.full((HEADS,), -float("inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    even = tl.zeros((HEADS, 256), tl.float32)
    odd = tl.zeros((HEADS, 256), tl.float32)
    indices += token * index_stride
    for stage in range(split * stages // splits, (split + 1) * stages // splits):
        slot = tl.load(indices + stage * KEYS + tl.arange(0, KEYS))
        valid = (slot >= 0) & (slot < capacity)
        rows = cache + byte_offsets(tl.where(valid, slot, 0), block_stride, BLOCK_SIZE)
        k_even, k_odd, k_rope = load_rows(rows, valid, KEYS)

        score = tl.dot(q_even, tl.trans(k_even))
        score = tl.dot(q_odd, tl.trans(k_odd), score)
        score = tl.dot(q_rope, tl.trans(k_rope), score)
        score = tl.where(valid[None, :], score * factor[:, None], -float("inf"))

        higher = tl.maximum(best, tl.max(score, 1))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        p = tl.exp2(score - base[:, None])
        decay = tl.exp2(best - base)
        total = total * decay + tl.sum(p, 1)
        p = p.to(tl.float16)
        even = tl.dot(p, k_even, even * decay[:, None])
        odd = tl.dot(p, k_odd, odd * decay[:, None])
        best = higher

    empty = total == 0
    inverse = tl.where(empty, 0.0, 128.0 / tl.where(empty, 1.0, total))
    result = tl.interleave(even * inverse[:, None], odd * inverse[:, None])
    row = (token * splits + split) * heads + head
    tl.store(
        out + row[:, None] * 512 + tl.arange(0, 512)[None, :], rounded(result, out.dtype.element_ty), mask=own[:, None]
    )
    logarithm = (best + tl.log2(tl.where(empty, 1.0, total))) * LN2
    tl.store(lse + row, tl.where(empty, -float("inf"), logarithm), mask=own)


@triton.jit
def _load_query(rows, own, HEADS: tl.constexpr):
    """Even and odd latent and the RoPE part of a query, float16, and what they were divided by, float32 [HEADS].

    The RoPE part is twice as large, because `load_rows` gives the keys' at half the size of the latent.
    """
    latent = tl.load(rows + tl.arange(0, 512)[None, :], mask=own[:, None], other=0)
    rope = tl.load(rows + 512 + tl.arange(0, 64)[None, :], mask=own[:, None], other=0)
    if rows.dtype.element_ty == tl.uint8:
        latent = e4m3_halves(latent)
        rope = e4m3_halves(rope)
        size = tl.full((HEADS,), 256.0, tl.float32)
    else:
        latent = widened(latent)
        rope = widened(rope)
        largest = tl.maximum(tl.max(tl.abs(latent), 1), tl.max(tl.abs(rope), 1))
        power = largest.to(tl.int32, bitcast=True) & 0x7F800000
        size = power.to(tl.float32, bitcast=True)
        inverse = (0x7F000000 - power).to(tl.float32, bitcast=True)
        latent = (latent * inverse[:, None]).to(tl.float16)
        rope = (rope * inverse[:, None]).to(tl.float16)
    even, odd = tl.split(tl.reshape(latent, (HEADS, 256, 2)))
    return even, odd, rope + rope, size


@triton.jit(do_not_specialize=["splits"])
def merge_kernel(partial, partial_lse, out, lse, splits, SPLITS: tl.constexpr):
    """Combine the splits of one head of one token, each weighted with the exponential of its log-sum-exp."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    split = tl.arange(0, SPLITS)
    inside = split < splits
    row = (token * splits + split) * heads + head
    part = tl.load(partial_lse + row, mask=inside, other=-float("inf"))
    best = tl.max(part, 0)
    base = tl.where(best == -float("inf"), 0.0, best)
    weight = tl.exp2((part - base) * LOG2E)
    total = tl.sum(weight, 0)
    column = tl.arange(0, 512)
    values = tl.load(partial + row[:, None] * 512 + column[None, :], mask=inside[:, None], other=0.0)
    empty = total == 0
    result = tl.sum(values * weight[:, None], 0) / tl.where(empty, 1.0, total)
    target = token * heads + head
    tl.store(out + target * 512 + column, rounded(result, out.dtype.element_ty))
    logarithm = base + tl.log2(tl.where(empty, 1.0, total)) * LN2
    tl.store(lse + target, tl.where(empty, -float("inf"), logarithm))
