"""One call for every way to decode, on the flat rows of a cache.

All of them may be recorded in a CUDA graph once `Decoder.warm_up` has run: nothing waits for the device, and what is
allocated depends on shapes alone.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import torch

from flashinfer_nvfp4.dispatch import GROUP, STOCK_SIZES
from flashinfer_nvfp4.head_groups import grouped, ungrouped
from flashinfer_nvfp4.plan import plan_clusters, plan_splits
from flashinfer_nvfp4.rowformat import LATENT, ROPE, ROW_BYTES
from flashinfer_nvfp4.settings import Kernel
from flashinfer_nvfp4.trtllm import TrtllmRows

__all__ = ["Decoder"]

Result = tuple[torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True)
class Decoder:
    """How a layer decodes. scale: of ``query @ key``, an FP8 query's own in it. copied: for ``gather`` alone."""

    kernel: Kernel
    scale: float
    lse: bool
    copied: TrtllmRows | None = None

    @property
    def wants_counts(self) -> bool:
        """Whether a token's keys must stand together at the front of its index row, with their number."""
        return self.kernel == "gather"

    def __call__(
        self, query: torch.Tensor, rows: torch.Tensor, indices: torch.Tensor, counts: torch.Tensor | None = None
    ) -> Result:
        """Output, bfloat16 [tokens, heads, 512], and if wanted its natural log-sum-exp, float32 [tokens, heads].

        ``query`` [tokens, heads, 576] in the dtype of the `flashinfer_nvfp4.dispatch.Choice`; ``rows`` uint8 [rows,
        352], contiguous; ``indices`` int32 [tokens, topk], -1 for none; ``counts`` int32 [tokens], if `wants_counts`.
        A token without any key gives zeros and minus infinity. Raises `LaunchRefused`.
        """
        if self.kernel == "cuda":
            from flashinfer_nvfp4.cuda_decode import decode as cuda_decode

            if self.lse:
                return cuda_decode(query, rows, indices, self.scale, lse=True)
            return cuda_decode(query, rows, indices, self.scale), None
        if self.kernel == "triton":
            from flashinfer_nvfp4.kernels.decode import decode as triton_decode

            out, sums = triton_decode(query, rows.unsqueeze(1), indices, self.scale)
            return out, sums if self.lse else None
        if self.kernel == "flashinfer":
            return _stock_op(query, rows, indices, self.scale), None
        return self._gathered(query, rows, indices, counts)

    def warm_up(self, heads: int, topk: int, dtype: torch.dtype, device: torch.device) -> None:
        """Build, load and compile what launches of this shape need, by running them on an empty row."""
        rows = torch.zeros((1, ROW_BYTES), dtype=torch.uint8, device=device)
        for tokens in self._variants(heads, topk, device):
            query = torch.zeros((tokens, heads, LATENT + ROPE), dtype=torch.bfloat16, device=device).to(dtype)
            indices = torch.full((tokens, topk), -1, dtype=torch.int32, device=device)
            self(query, rows, indices, indices.new_zeros(tokens))

    def _variants(self, heads: int, topk: int, device: torch.device) -> list[int]:
        """Numbers of tokens whose launches are all that there are: Triton's merge is compiled for powers of two of
        splits, which depend on the tokens; everything else is one module."""
        if self.kernel != "triton":
            return [1]
        at_once = torch.cuda.get_device_properties(device).multi_processor_count
        tiles = -(-heads // GROUP)
        first: dict[int, int] = {}
        for tokens in range(1, 4 * at_once):
            splits = plan_splits(tokens * tiles, topk, at_once)
            first.setdefault((splits - 1).bit_length(), tokens)
        return list(first.values())

    def _gathered(
        self, query: torch.Tensor, rows: torch.Tensor, indices: torch.Tensor, counts: torch.Tensor | None
    ) -> Result:
        """The selected rows one after another, token by token, and the FP8 kernel on these."""
        from flashinfer_nvfp4.kernels.gather import gather

        assert self.copied is not None
        assert counts is not None
        copied = gather(rows.unsqueeze(1), indices.flatten(), self.copied.dtype, scale=self.copied.scale)
        places = torch.arange(indices.numel(), dtype=torch.int32, device=indices.device).view(indices.shape)
        return self.copied(query, copied, places, counts, self.lse)


def _stock_op(query: torch.Tensor, rows: torch.Tensor, indices: torch.Tensor, scale: float) -> torch.Tensor:
    """FlashInfer's op, which has 16 heads a token: more are dealt out to further tokens, fewer are padded."""
    heads = query.shape[1]
    query, indices = grouped(query, indices, GROUP)
    run = importlib.import_module("flashinfer.mla").nvfp4_sparse_mla_decode
    ctas = _clusters(query.shape[0], indices.shape[1], query.device)
    return ungrouped(run(query, rows, indices, scale, num_ctas_per_token=ctas), heads)


def _clusters(tokens: int, topk: int, device: torch.device) -> int | None:
    """Thread blocks a token, by this package's plan where the op tells how many run at once."""
    from flashinfer_nvfp4.installed import op_capacity

    capacity = op_capacity(device.index or 0)
    if not capacity or not tokens:
        return None
    return plan_clusters(tokens, topk, {size: most for size, most in capacity.items() if size in STOCK_SIZES})
