"""One call to decode, on the flat rows of a cache, and the way of the Triton kernel.

It may be recorded in a CUDA graph once `Decoder.warm_up` has run: nothing waits for the device, and what is allocated
depends on shapes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from flashinfer_nvfp4.plan import plan_splits
from flashinfer_nvfp4.rowformat import LATENT, ROPE, ROW_BYTES

__all__ = ["Decoder", "Result", "TritonDecoder", "launch_on_nothing"]

Result = tuple[torch.Tensor, torch.Tensor | None]


class Decoder(Protocol):
    """How a layer decodes."""

    @property
    def scale(self) -> float:
        """Of ``query @ key``, an FP8 query's own in it."""
        ...

    @property
    def lse(self) -> bool:
        """Whether the log-sum-exp is wanted."""
        ...

    @property
    def wants_counts(self) -> bool:
        """Whether a token's keys must stand together at the front of its index row, with their number."""
        ...

    def __call__(
        self, query: torch.Tensor, rows: torch.Tensor, indices: torch.Tensor, counts: torch.Tensor | None = None
    ) -> Result:
        """Output, bfloat16 [tokens, heads, 512], and if wanted its natural log-sum-exp, float32 [tokens, heads].

        ``query`` [tokens, heads, 576] in a dtype that the kernel takes; ``rows`` uint8 [rows, 352], contiguous;
        ``indices`` int32 [tokens, topk], -1 for none; ``counts`` int32 [tokens], if `wants_counts`. A token without
        any key gives zeros and minus infinity. Raises `LaunchRefused`.
        """
        ...

    def warm_up(self, heads: int, topk: int, dtype: torch.dtype, device: torch.device) -> None:
        """Build, load and compile what launches of this shape need, by running them on an empty row."""
        ...


@dataclass(frozen=True)
class TritonDecoder:
    """A `Decoder` that reads rows where they lie, by the Triton kernel."""

    scale: float
    lse: bool
    wants_counts: bool = False

    def __call__(
        self, query: torch.Tensor, rows: torch.Tensor, indices: torch.Tensor, counts: torch.Tensor | None = None
    ) -> Result:
        """See `Decoder`; ``query`` is bfloat16 or float8_e4m3fn."""
        from flashinfer_nvfp4.kernels.decode import decode

        out, sums = decode(query, rows.unsqueeze(1), indices, self.scale)
        return out, sums if self.lse else None

    def warm_up(self, heads: int, topk: int, dtype: torch.dtype, device: torch.device) -> None:
        """See `Decoder`. The merge of splits is compiled for powers of two, which depend on the tokens."""
        from flashinfer_nvfp4.kernels.decode import TILE

        at_once = torch.cuda.get_device_properties(device).multi_processor_count
        tiles = -(-heads // TILE)
        first: dict[int, int] = {}
        for tokens in range(1, 4 * at_once):
            splits = plan_splits(tokens * tiles, topk, at_once)
            first.setdefault((splits - 1).bit_length(), tokens)
        for tokens in first.values():
            launch_on_nothing(self, tokens, heads, topk, dtype, device)


def launch_on_nothing(
    decoder: Decoder, tokens: int, heads: int, topk: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Launch a decoder for tokens without keys, in a cache of one empty row."""
    rows = torch.zeros((1, ROW_BYTES), dtype=torch.uint8, device=device)
    query = torch.zeros((tokens, heads, LATENT + ROPE), dtype=torch.bfloat16, device=device).to(dtype)
    indices = torch.full((tokens, topk), -1, dtype=torch.int32, device=device)
    decoder(query, rows, indices, indices.new_zeros(tokens))
