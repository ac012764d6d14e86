"""The DSA lightning indexer over a paged FP8 key cache: which earlier tokens each query attends to.

A query scores every earlier key, ``score[k] = scale[k] * sum_h weight[h] * relu(q[h] . key[k])``, and keeps
the ``topk`` best. The cache pages are vLLM's: in each block first all keys (FP8), then all scales (float32).
"""

from __future__ import annotations

import torch

from vllm_cpu_dsa.paged import PagedBatch, Request, chunks
from vllm_cpu_dsa.quantize import FP8, KEY_FLOOR, quantize_rows

__all__ = ["page_views", "select", "store_keys"]

SCALE_BYTES = 4
SCORE_BYTES = 8 << 20
"""Per-head scores held at once: small enough to stay in cache between the product and the sum over heads."""


def page_views(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys [blocks, block_size, head_dim] and scales [blocks, block_size, 4], both uint8 views of ``cache``.

    cache: uint8 [blocks, block_size, head_dim + 4], whose blocks may lie at any distance from each other.
    """
    blocks, size, width = cache.shape
    head_dim = width - SCALE_BYTES
    block_stride, row_stride, byte_stride = cache.stride()
    if (row_stride, byte_stride) != (width, 1):
        raise ValueError(
            f"indexer cache strides {cache.stride()}: keys and scales share a page, whose bytes must lie "
            f"together; allowed are (any, {width}, 1). Use a block-compact layout such as LBHNC or BLHNC."
        )
    keys = cache.as_strided((blocks, size, head_dim), (block_stride, head_dim, 1))
    scales = cache.as_strided(
        (blocks, size, SCALE_BYTES),
        (block_stride, SCALE_BYTES, 1),
        cache.storage_offset() + size * head_dim,
    )
    return keys, scales


def store_keys(cache: torch.Tensor, slots: torch.Tensor, k: torch.Tensor) -> None:
    """Quantize keys ``k`` [tokens, head_dim] and write them to ``slots`` (int [tokens]; negative: skip)."""
    keys, scales = page_views(cache)
    written = slots >= 0
    block, offset = slots[written] // cache.shape[1], slots[written] % cache.shape[1]
    values, scale = quantize_rows(k[written], KEY_FLOOR)
    keys[block, offset] = values.view(torch.uint8)
    scales[block, offset] = scale.view(torch.uint8)


def select(
    cache: torch.Tensor,
    batch: PagedBatch,
    q: torch.Tensor,
    weights: torch.Tensor,
    topk: int,
    out: torch.Tensor,
) -> None:
    """Write each query's selected positions, in its own request, to ``out`` [tokens, >= topk]; -1 pads.

    q: FP8 [tokens, heads, head_dim]. weights: [tokens, heads], with the query's scale multiplied in.
    """
    out.fill_(-1)
    for request in batch.requests:
        _select_request(cache, request, q, weights, topk, out)


def _select_request(
    cache: torch.Tensor,
    request: Request,
    q: torch.Tensor,
    weights: torch.Tensor,
    topk: int,
    out: torch.Tensor,
) -> None:
    # A query with at most topk tokens up to and including its own takes them all: nothing to score.
    certain = min(max(topk - request.first_position, 0), request.stop - request.start)
    if certain:
        position = torch.arange(request.first_position + certain, dtype=out.dtype)
        ahead = position > position[request.first_position :, None]
        out[request.start : request.start + certain, : len(position)] = position.expand_as(ahead).masked_fill(ahead, -1)
    if request.start + certain == request.stop:
        return

    keys, scales = page_views(cache)
    blocks = request.blocks[: -(-request.context // cache.shape[1])]
    key = keys[blocks].view(FP8).flatten(0, 1)[: request.context].float()
    scale = scales[blocks].view(torch.float32).flatten()[: request.context]
    heads = q.shape[1]
    for first, last in chunks(request.start + certain, request.stop, SCORE_BYTES // (4 * heads * request.context)):
        seen = request.first_position + last - request.start
        per_head = (q[first:last].float().flatten(0, 1) @ key[:seen].T).relu_().view(last - first, heads, seen)
        score = _sum_heads(per_head.mul_(weights[first:last, :, None].float())).mul_(scale[:seen])
        position = torch.arange(seen)
        own = torch.arange(seen - (last - first), seen)
        score.masked_fill_(position > own[:, None], float("-inf"))
        best = score.topk(topk, dim=-1, sorted=False).indices
        # In the order of the context: attention then adds up in an order that does not depend on the batch.
        out[first:last, :topk] = best.sort(dim=-1).values.to(out.dtype)


def _sum_heads(products: torch.Tensor) -> torch.Tensor:
    """Sum of ``products`` [queries, heads, keys] over heads, in place, by halves.

    A matrix product would do, but its order of summation changes with the number of keys, and the last bit of a
    score can decide what is selected.
    """
    heads = products.shape[1]
    while heads > 1:
        half = heads // 2
        products[:, :half] += products[:, heads - half : heads]
        heads -= half
    return products[:, 0]
