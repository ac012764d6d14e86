"""The decoder of every kernel that `flashinfer_nvfp4.dispatch` chooses from; Triton's is in
`flashinfer_nvfp4.decoder`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import torch

from flashinfer_nvfp4.decoder import Decoder, Result, TritonDecoder, launch_on_nothing
from flashinfer_nvfp4.dispatch import GROUP, STOCK_SIZES
from flashinfer_nvfp4.head_groups import grouped, ungrouped
from flashinfer_nvfp4.plan import plan_clusters
from flashinfer_nvfp4.settings import Kernel
from flashinfer_nvfp4.trtllm import TrtllmRows

__all__ = ["decoder_of"]


def decoder_of(kernel: Kernel, scale: float, lse: bool, copied: TrtllmRows | None = None) -> Decoder:
    """The kernel's `Decoder`; ``copied``: of ``gather`` alone, the kernel that reads the copies."""
    if kernel == "cuda":
        return _Cuda(scale, lse)
    if kernel == "flashinfer":
        return _Op(scale, lse)
    if kernel == "triton":
        return TritonDecoder(scale, lse)
    assert copied is not None
    return _Gathered(scale, lse, copied)


@dataclass(frozen=True)
class _OneModule:
    """What is compiled once for all numbers of tokens."""

    scale: float
    lse: bool

    @property
    def wants_counts(self) -> bool:
        return False

    def warm_up(self: Decoder, heads: int, topk: int, dtype: torch.dtype, device: torch.device) -> None:
        launch_on_nothing(self, 1, heads, topk, dtype, device)


class _Cuda(_OneModule):
    def __call__(
        self, query: torch.Tensor, rows: torch.Tensor, indices: torch.Tensor, counts: torch.Tensor | None = None
    ) -> Result:
        from flashinfer_nvfp4.cuda_decode import decode

        if self.lse:
            return decode(query, rows, indices, self.scale, lse=True)
        return decode(query, rows, indices, self.scale), None


class _Op(_OneModule):
    """FlashInfer's op, which has 16 heads a token: more are dealt out to further tokens, fewer are padded."""

    def __call__(
        self, query: torch.Tensor, rows: torch.Tensor, indices: torch.Tensor, counts: torch.Tensor | None = None
    ) -> Result:
        heads = query.shape[1]
        query, indices = grouped(query, indices, GROUP)
        run = importlib.import_module("flashinfer.mla").nvfp4_sparse_mla_decode
        ctas = _clusters(query.shape[0], indices.shape[1], query.device)
        return ungrouped(run(query, rows, indices, self.scale, num_ctas_per_token=ctas), heads), None


@dataclass(frozen=True)
class _Gathered(_OneModule):
    """The selected rows one after another, token by token, and the FP8 kernel on these."""

    copied: TrtllmRows

    @property
    def wants_counts(self) -> bool:
        return True

    def __call__(
        self, query: torch.Tensor, rows: torch.Tensor, indices: torch.Tensor, counts: torch.Tensor | None = None
    ) -> Result:
        from flashinfer_nvfp4.kernels.gather import gather

        assert counts is not None
        copied = gather(rows.unsqueeze(1), indices.flatten(), self.copied.dtype, scale=self.copied.scale)
        places = torch.arange(indices.numel(), dtype=torch.int32, device=indices.device).view(indices.shape)
        return self.copied(query, copied, places, counts, self.lse)


def _clusters(tokens: int, topk: int, device: torch.device) -> int | None:
    """Thread blocks a token, by this package's plan where the op tells how many run at once."""
    from flashinfer_nvfp4.installed import op_capacity

    capacity = op_capacity(device.index or 0)
    if not capacity or not tokens:
        return None
    return plan_clusters(tokens, topk, {size: most for size, most in capacity.items() if size in STOCK_SIZES})
