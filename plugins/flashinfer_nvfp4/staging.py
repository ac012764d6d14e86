"""Staged prefill of one layer in vLLM: who reads the rows, where they are staged, and what a batch's metadata says.

Staged where TRTLLM-gen runs (compute capability 10.x): it is the one FP8 kernel that takes 16 heads without padding,
and reads FP8 rows of 576 bytes. Elsewhere, with ``FLASHINFER_NVFP4_PREFILL_MIB=0``, and under decode context
parallelism, where a worker holds a part of each context, prefill is direct.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from flashinfer_nvfp4.decoder import Decoder
from flashinfer_nvfp4.device import shared_scratch, trtllm_workspace
from flashinfer_nvfp4.prefill import PrefillTables, StagedKernel, attend
from flashinfer_nvfp4.prefill_plan import PrefillPlan, Request, Stage, Window, plan_prefill
from flashinfer_nvfp4.rowformat import LATENT, ROPE, ROW_BYTES
from flashinfer_nvfp4.trtllm import TrtllmRows, missing
from flashinfer_nvfp4.workspace import SETTING, Layout, StagedRows, chosen_workspace, plan_layout

__all__ = ["ROWS", "Staging", "make_staging", "plan_staging", "requests_of"]

ROWS = StagedRows(row_bytes=576, lse=True, lse_bytes=8 * 256, query_bytes=3 * 576)
"""TRTLLM-gen, for a log-sum-exp, sets 256 places of 8 bytes aside for every token and head; a bfloat16 query is
clamped and rounded to e4m3 first."""
GUARD_BYTES = 1 << 20
"""What it keeps free behind them, once."""


@dataclass(frozen=True)
class Staging:
    """How a layer stages its prefill: the division of the workspace, and the kernel that reads it."""

    layout: Layout
    kernel: StagedKernel

    def warm_up(self, block_size: int, dtype: torch.dtype, device: torch.device) -> None:
        """Run every kernel once on one token, so that nothing is compiled, found missing, or allocated later.

        vLLM's scratch memory grows to the buffer here, before vLLM measures what is left for the cache. ``dtype``: of
        the queries to come.
        """
        window, passes = (Window(0, 0, 1, 0),), ((0, 1),)
        steps = (Stage(window, passes), Stage(window, passes, 0, 2), Stage(window, passes, 1, 2))
        zeros = functools.partial(torch.zeros, dtype=torch.int32, device=device)
        attend(
            PrefillTables.of(PrefillPlan(steps, "warm-up"), 1, device),
            self.layout,
            zeros((1, self.layout.heads, LATENT + ROPE)).to(torch.bfloat16).to(dtype),
            zeros((1, block_size, ROW_BYTES)).to(torch.uint8),
            zeros((1, self.layout.topk)),
            zeros(1),
            zeros((1, 1)),
            shared_scratch(self.layout.buffer_bytes),
            direct=lambda tokens: torch.empty(0),
            staged=self.kernel,
        )

    def tables(self, metadata: Any) -> PrefillTables | None:
        """The plan of this batch on the device, made by the first layer that asks; None where all of it is direct."""
        if not hasattr(metadata, "nvfp4_prefill"):
            metadata.nvfp4_prefill = self._plan(metadata)
        found: PrefillTables | None = metadata.nvfp4_prefill
        return found

    def _plan(self, metadata: Any) -> PrefillTables | None:
        requests = requests_of(metadata)
        if requests is None:
            return None
        plan = plan_prefill(requests, self.layout.heads, self.layout)
        if not plan.stages:
            return None
        return PrefillTables.of(plan, len(requests), metadata.block_table.device, skipped=metadata.num_decodes)

    def attend(
        self,
        tables: PrefillTables,
        decoder: Decoder,
        query: torch.Tensor,
        cache: torch.Tensor,
        topk: torch.Tensor,
        metadata: Any,
        out: torch.Tensor,
    ) -> None:
        """Fill ``out``, bfloat16 [tokens, heads, 512], behind the tokens that decode.

        ``query`` [tokens, heads, 576] and ``topk`` int32 [tokens or more, topk], keys as positions in their requests,
        of the whole batch; ``decoder``: attends to rows where they lie, for what is not staged.
        """
        from vllm.v1.attention.backends.mla import sparse_utils as sparse

        first, tokens = metadata.num_decode_tokens, query.shape[0]
        rows, stride = sparse.flat_kv_row_view(cache, metadata.block_size)

        def direct(here: slice) -> torch.Tensor:
            here = slice(first + here.start, first + here.stop)
            found = sparse.triton_convert_req_index_to_global_index(
                metadata.req_id_per_token[here],
                metadata.block_table,
                topk[here],
                BLOCK_SIZE=metadata.block_size,
                BLOCK_STRIDE_ROWS=stride,
                NUM_TOPK_TOKENS=topk.shape[1],
                return_valid_counts=decoder.wants_counts,
            )
            indices, counts = found if decoder.wants_counts else (found, None)
            return decoder(query[here], rows, indices, counts)[0]

        attend(
            tables,
            self.layout,
            query[first:],
            cache,
            topk[first:tokens],
            metadata.req_id_per_token[first:tokens],
            metadata.block_table[: tables.windows.shape[1]],
            shared_scratch(self.layout.buffer_bytes),
            direct=direct,
            staged=self.kernel,
            out=out[first:],
        )


def plan_staging(capability: tuple[int, int], heads: int, topk: int, shards: int) -> tuple[Layout | None, str]:
    """The division of a layer's workspace, None for prefill that is all direct, and why.

    ``shards``: workers that share each context. Raises `LaunchRefused` for a workspace in which nothing can be staged,
    and `SettingRefused` for a setting that is no amount, also where nothing would be staged.
    """
    layout = plan_layout(chosen_workspace(), topk, heads, ROWS)
    if layout is None:
        return None, f"{SETTING}=0"
    if shards > 1:
        return None, f"{shards} workers share each context"
    if capability[0] != 10:
        return None, f"TRTLLM-gen needs compute capability 10.x, not {capability[0]}.{capability[1]}"
    if why := missing():
        return None, why
    return layout, f"{layout.capacity} rows in {layout.total_bytes >> 20} MiB"


def make_staging(layout: Layout, scale: float, nope: int, device: torch.device) -> Staging:
    """TRTLLM-gen for rows in ``layout``. ``scale``: of ``query @ key``; ``nope``: see `TrtllmRows`.

    Its own workspace is the one that vLLM's layers share, longer by what log-sum-exps of a pass take.
    """
    more = layout.pass_tokens * layout.heads * ROWS.lse_bytes + GUARD_BYTES
    return Staging(layout, TrtllmRows(scale, nope, trtllm_workspace(device, more)))


def requests_of(metadata: Any) -> list[Request] | None:
    """The prefill requests of a batch, by what vLLM tells about them on the host; None where it does not."""
    prefill = getattr(metadata, "prefill", None)
    if prefill is None or prefill.query_lens_cpu is None:
        return None
    lengths = prefill.query_lens_cpu.tolist()
    contexts = [0] * len(lengths) if prefill.chunked_context is None else prefill.chunked_context.context_lens_list
    return [Request(tokens, tokens + context) for tokens, context in zip(lengths, contexts, strict=True)]
