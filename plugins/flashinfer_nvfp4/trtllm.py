"""FlashInfer's FP8 sparse decode (TRTLLM-gen, compute capability 10.x) on rows that were copied out of the cache."""

from __future__ import annotations

import importlib
import math
from typing import ClassVar

import torch

from flashinfer_nvfp4.rowformat import E4M3_MAX, LATENT, ROPE
from flashinfer_nvfp4.workspace import PAGE

__all__ = ["TrtllmRows", "missing"]


class TrtllmRows:
    """A `flashinfer_nvfp4.prefill.StagedKernel` on e4m3 rows, for e4m3 queries; others are rounded to that.

    scale: what the query's dot product with a row is multiplied by, the query's own scale in it. nope: width of the
    model's query without RoPE, before absorption, which the kernel is chosen by. workspace: zeroed, int8, as large as
    vLLM gives that kernel, because it keeps counters there between launches.
    """

    dtype: ClassVar[torch.dtype] = torch.float8_e4m3fn
    scale: ClassVar[float] = 1.0
    """Rows are staged as they are: e4m3 holds a latent up to 448, and folded ones have a root mean square near 1."""

    def __init__(self, softmax_scale: float, nope: int, workspace: torch.Tensor) -> None:
        self.softmax_scale = softmax_scale
        self.nope = nope
        self.workspace = workspace

    def __call__(
        self, query: torch.Tensor, rows: torch.Tensor, indices: torch.Tensor, counts: torch.Tensor, lse: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `flashinfer_nvfp4.prefill.StagedKernel`; a token without keys has zeros."""
        run = importlib.import_module("flashinfer.decode").trtllm_batch_decode_with_kv_cache_mla
        topk = indices.shape[1]
        if query.dtype != self.dtype:
            query = query.clamp(-E4M3_MAX, E4M3_MAX).to(self.dtype)  # beyond them the conversion gives NaN
        found = run(
            query=query.unsqueeze(1),
            kv_cache=rows.view(-1, 1, PAGE, LATENT + ROPE),
            workspace_buffer=self.workspace,
            qk_nope_head_dim=self.nope,
            kv_lora_rank=LATENT,
            qk_rope_head_dim=ROPE,
            block_tables=indices.unsqueeze(1),
            seq_lens=counts,
            max_seq_len=topk,
            bmm1_scale=self.softmax_scale * self.scale,
            bmm2_scale=self.scale,
            sparse_mla_top_k=topk,
            return_lse=lse,
        )
        out, sums = found if lse else (found, None)
        tokens, heads, _ = query.shape
        empty = (counts == 0)[:, None]
        out = out.reshape(tokens, heads, LATENT).masked_fill_(empty[:, :, None], 0)
        if sums is None:
            return out, None
        # Base 2 there, natural here; a token without keys has left the last one's.
        return out, (sums.reshape(tokens, heads) * math.log(2)).masked_fill_(empty, -math.inf)


def missing() -> str:
    """Why the kernel cannot be called here; empty where it can. Its binaries come with FlashInfer or on demand."""
    try:
        found = hasattr(importlib.import_module("flashinfer.decode"), "trtllm_batch_decode_with_kv_cache_mla")
    except (ImportError, OSError) as error:
        return f"flashinfer.decode cannot be imported ({error})"
    return "" if found else "this FlashInfer has no trtllm_batch_decode_with_kv_cache_mla"
