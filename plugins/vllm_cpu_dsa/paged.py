"""Which tokens of a batch belong to which request, and where a request's context lies in the paged cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch

__all__ = ["PagedBatch", "Request", "chunks"]


@dataclass(frozen=True)
class Request:
    """One request's share of a step.

    start, stop: its rows among the step's tokens.
    context: tokens in its cache once this step's are written; its last query sees all of them.
    blocks: int64 [logical blocks], the physical block of each; entries beyond the context are unused.
    """

    start: int
    stop: int
    context: int
    blocks: torch.Tensor

    @property
    def first_position(self) -> int:
        """Position in the request of the row ``start``."""
        return self.context - (self.stop - self.start)


@dataclass(frozen=True)
class PagedBatch:
    """All requests of one step."""

    requests: tuple[Request, ...]

    @classmethod
    def of(cls, query_start: list[int], seq_lens: list[int], block_table: torch.Tensor) -> PagedBatch:
        """From vLLM's batch metadata.

        query_start: first row of each request, and one past the last row.
        seq_lens: context length of each request.
        block_table: integer [requests, logical blocks].
        """
        return cls(
            tuple(
                Request(start, stop, context, blocks.long())
                for (start, stop), context, blocks in zip(pairwise(query_start), seq_lens, block_table, strict=False)
                if stop > start
            )
        )


def chunks(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of at most ``size`` (at least 1) that cover [start, stop)."""
    size = max(size, 1)
    for first in range(start, stop, size):
        yield first, min(first + size, stop)
