"""Batches for the backend's attention, and what must come out: for `test_backend_attention_stock` and `_gpu`.

The reference is float64 over the rows that are in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from kernel_calls import cache_of, values_of

__all__ = ["APART", "CASES", "SCALE", "TOPK", "Batch", "close"]

SCALE = 256**-0.5
TOPK = 128
APART = 64 * 352 + 5 * 352
"""Bytes between blocks of another layout: pages of other layers, a whole number of rows, lie there as NaN."""

CASES = {
    "decode": ([70, 130, 33], [1, 1, 1], 3, 16, 0),
    "decode, blocks apart in NaN": ([70, 130], [1, 1], 2, 16, APART),
    "drafts": ([90, 131], [4, 4], 8, 8, APART),
    "drafts, query in two parts": ([90, 131], [4, 4], 8, 8, APART),
    "prefill beside decode": ([70, 40, 150], [1, 1, 6], 2, 8, APART),
    "prefill alone": ([9], [9], 0, 8, 0),
}
"""Tokens of each request, of them new ones, decode tokens, heads, bytes between blocks."""


class Batch:
    """Requests with their cache: what a case says, and where each key lies.

    ``lengths``: tokens of each request, the new ones included; ``new``: how many are new, which are the queries.
    """

    def __init__(
        self, lengths: list[int], new: list[int], heads: int, apart: int = 0, seed: int = 0, topk: int = TOPK
    ) -> None:
        torch.manual_seed(seed)
        blocks = [-(-length // 64) for length in lengths]
        free = torch.randperm(sum(blocks) + 1)
        self.table = torch.full((len(lengths), max(blocks)), -1, dtype=torch.int32)
        for request, count in enumerate(blocks):
            taken, free = free[:count], free[count:]
            self.table[request, :count] = taken.int()
        self.cache = cache_of(torch.full((64 * (sum(blocks) + 1), 352), 0xFF, dtype=torch.uint8), 64, apart)
        self.heads = heads
        self.requests = torch.tensor([r for r, count in enumerate(new) for _ in range(count)], dtype=torch.int32)
        self.positions = [n - count + i for n, count in zip(lengths, new, strict=True) for i in range(count)]
        self.query = torch.randn(len(self.positions), heads, 576).bfloat16()
        self.latent = torch.randn(sum(lengths), 512).bfloat16()
        self.rope = torch.randn(sum(lengths), 64).bfloat16()
        self.keys = [(request, at) for request, length in enumerate(lengths) for at in range(length)]
        self.topk = torch.full((len(self.positions) + 3, topk), -1, dtype=torch.int32)
        for token, position in enumerate(self.positions):
            chosen = torch.randperm(position + 1)[: topk // 2].int()
            places = torch.randperm(topk)[: len(chosen)]  # -1 stands between them too
            self.topk[token, places] = chosen

    def slot(self, request: int, at: int, table: Any = None) -> int:
        return int((self.table if table is None else table)[request, at // 64]) * 64 + at % 64

    def case(self, decode_tokens: int, **more: Any) -> dict[str, Any]:
        slots = torch.tensor([self.slot(*key) for key in self.keys])
        return {
            "heads": self.heads,
            "latent": self.latent,
            "rope": self.rope,
            "cache": self.cache,
            "slots": slots,
            "query": self.query,
            "block_table": self.table,
            "requests": self.requests,
            "topk": self.topk,
            "decode_tokens": decode_tokens,
        } | more

    def reference(self, row: Callable[[int, int], Any]) -> tuple[Any, Any]:
        """Output and natural log-sum-exp, float64, where ``row(request, position)`` is a key's 352 bytes."""
        out, sums = [], []
        for token, request in enumerate(self.requests.tolist()):
            chosen = [at for at in self.topk[token].tolist() if at >= 0]
            keys = values_of(torch.stack([row(request, at) for at in chosen])).double()
            scores = self.query[token].double() @ keys.T * SCALE
            out.append(scores.softmax(-1) @ keys[:, :512])
            sums.append(scores.logsumexp(-1))
        return torch.stack(out), torch.stack(sums)


def close(out: Any, right: Any, most: float = 5e-3) -> None:
    """Within ``most`` of a head's largest element; 0.4 % is the rounding to bfloat16."""
    error = (out.double() - right).abs().amax(-1) / right.abs().amax(-1)
    assert error.max().item() <= most
