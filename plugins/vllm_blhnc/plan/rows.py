"""Block rows, runs of blocks and the descriptors they cost.

A *block* is one page of every cache layer. Under BLHNC the pages of a block lie side by side, so a block is
one contiguous *row*; NIXL moves a *run* of rows whose ids are consecutive on both sides as one descriptor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["BlockRow", "block_row", "descriptor_count", "run_lengths"]


@dataclass(frozen=True)
class BlockRow:
    """One block of all layers.

    payload: bytes that carry KV, the sum of all pages.
    nbytes: bytes from one row to the next: payload rounded up to `alignment`.
    alignment: bytes; the least common multiple of what the attention backends ask for.
    """

    payload: int
    nbytes: int
    alignment: int

    @property
    def padding(self) -> int:
        """Bytes at the end of each row that carry nothing but are stored and moved."""
        return self.nbytes - self.payload


def block_row(pages: Mapping[str, int], alignments: Iterable[int]) -> BlockRow:
    """The row that holds one page of each layer.

    pages: bytes of one page by layer name. alignments: bytes, one per layer (1 = none asked for).
    Raises ValueError if there is no page or a size is not positive.
    """
    if not pages:
        raise ValueError("a block row needs at least one page, got none")
    if bad := {name: size for name, size in pages.items() if size <= 0}:
        raise ValueError(f"page sizes must be positive numbers of bytes, got {bad}")
    alignment = math.lcm(*alignments)
    payload = sum(pages.values())
    return BlockRow(payload, -(-payload // alignment) * alignment, alignment)


def run_lengths(source: Sequence[int], destination: Sequence[int]) -> list[int]:
    """Lengths of the runs in which both block id sequences count up by one, in order.

    Block i moves from ``source[i]`` to ``destination[i]``. Raises ValueError if the lengths differ.
    """
    if len(source) != len(destination):
        raise ValueError(f"{len(source)} source blocks cannot move to {len(destination)} destination blocks")
    lengths: list[int] = []
    for i in range(len(source)):
        if i and source[i] == source[i - 1] + 1 and destination[i] == destination[i - 1] + 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def descriptor_count(blocks: int, runs: int, regions: int, *, dense: bool) -> int:
    """Descriptors NIXL posts for one transfer.

    NIXL merges neighbours only in a *dense* region, where a block's length equals the distance to the next
    block. So a transfer costs one descriptor per region and run if dense, per region and block if not.
    """
    return regions * (runs if dense else blocks)
