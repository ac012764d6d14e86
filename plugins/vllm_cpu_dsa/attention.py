"""Sparse multi-head latent attention over a paged cache: each query reads only its selected rows."""

from __future__ import annotations

import torch

from vllm_cpu_dsa.paged import PagedBatch, Request, chunks
from vllm_cpu_dsa.rows import RowFormat

__all__ = ["attend", "store_rows"]

GATHERED_BYTES = 32 << 20
"""Rows gathered for one group of queries, in float32."""


def store_rows(
    cache: torch.Tensor, slots: torch.Tensor, latent: torch.Tensor, rope: torch.Tensor, rows: RowFormat
) -> None:
    """Encode and write one row a token.

    cache: [blocks, block_size, width] in the format's dtype, with any strides.
    slots: int [tokens]; negative: skip. latent: [tokens, 512]. rope: [tokens, 64].
    """
    written = slots >= 0
    block, offset = slots[written] // cache.shape[1], slots[written] % cache.shape[1]
    cache[block, offset] = rows.encode(latent[written], rope[written]).to(cache.dtype)


def attend(
    cache: torch.Tensor,
    batch: PagedBatch,
    q: torch.Tensor,
    selected: torch.Tensor,
    scale: float,
    rows: RowFormat,
    out: torch.Tensor,
) -> None:
    """Attend from ``q`` [tokens, heads, 512 + 64] to the selected rows; into ``out`` [tokens, heads, 512].

    selected: int [tokens, topk], positions in the token's own request, -1 for none.
    Rows of ``out`` that belong to no request are left alone. Computes in float32.
    """
    for request in batch.requests:
        _attend_request(cache, request, q, selected, scale, rows, out)


def _attend_request(
    cache: torch.Tensor,
    request: Request,
    q: torch.Tensor,
    selected: torch.Tensor,
    scale: float,
    rows: RowFormat,
    out: torch.Tensor,
) -> None:
    block_size = cache.shape[1]
    # Always the full width, so that a token's sums do not depend on what shares its batch.
    width = selected.shape[1]
    for first, last in chunks(request.start, request.stop, GATHERED_BYTES // (4 * q.shape[2] * width)):
        picked = selected[first:last].long()
        none = picked < 0
        picked = picked.masked_fill(none, 0)

        # Decode every row that some query of the group needs once, then let the queries share them.
        needed = torch.zeros(request.context, dtype=torch.bool)
        needed[picked.flatten()] = True
        position = needed.nonzero().flatten()
        place = needed.cumsum(0) - 1
        latent, rope = rows.decode(cache[request.blocks[position // block_size], position % block_size])
        key = torch.cat((latent, rope), dim=-1).float()[place[picked]]

        score = torch.bmm(q[first:last].float(), key.transpose(1, 2)).mul_(scale)
        weight = score.masked_fill_(none[:, None], float("-inf")).softmax(-1)
        out[first:last] = torch.bmm(weight, key[..., : latent.shape[-1]]).to(out.dtype)
