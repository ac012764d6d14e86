"""Random paged caches for the unit tests, and an FP8 decoder that shares no code with torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

__all__ = ["Layout", "decode_e4m3", "layouts", "strided_pages"]


def decode_e4m3(code: np.ndarray) -> np.ndarray:
    """float64 value of each FP8 e4m3fn code (uint8), from the format's definition: bias 7, no infinities."""
    code = code.astype(np.int64)
    sign = np.where(code & 0x80, -1.0, 1.0)
    exponent, mantissa = (code >> 3) & 0xF, code & 0x7
    value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return np.where((exponent == 15) & (mantissa == 7), np.nan, sign * value)


@dataclass(frozen=True)
class Layout:
    """Requests as (context length, query length), and where their blocks lie.

    blocks: [requests, logical blocks], a random injection into the pages, so that order tells nothing.
    """

    contexts: tuple[tuple[int, int], ...]
    blocks: torch.Tensor
    pages: int

    @property
    def query_start(self) -> list[int]:
        return [0, *np.cumsum([queries for _, queries in self.contexts]).tolist()]

    @property
    def seq_lens(self) -> list[int]:
        return [context for context, _ in self.contexts]

    def slots(self, block_size: int) -> torch.Tensor:
        """int64: where each query token's row lies."""
        found = []
        for row, (context, queries) in enumerate(self.contexts):
            for position in range(context - queries, context):
                found.append(int(self.blocks[row, position // block_size]) * block_size + position % block_size)
        return torch.tensor(found)


def layouts(contexts: list[tuple[int, int]], block_size: int, seed: int) -> Layout:
    """Shuffled blocks for these requests, with unused pages in between and stale table entries behind."""
    generator = torch.Generator().manual_seed(seed)
    width = max(-(-context // block_size) for context, _ in contexts) + 1
    pages = width * len(contexts) + 3
    order = torch.randperm(pages, generator=generator)[: width * len(contexts)]
    return Layout(tuple(contexts), order.view(len(contexts), width).int(), pages)


def strided_pages(pages: int, shape: tuple[int, int], dtype: torch.dtype, gap: int, offset: int) -> torch.Tensor:
    """A cache view [pages, *shape] whose pages lie ``gap`` elements apart, ``offset`` into their storage.

    That is how vLLM's block-outermost layouts look to one layer. The gaps hold garbage (all bits set).
    """
    rows, width = shape
    stride = rows * width + gap
    bits = torch.full(((pages * stride + offset) * dtype.itemsize,), 0xFF, dtype=torch.uint8)
    return bits.view(dtype).as_strided((pages, rows, width), (stride, width, 1), offset)
