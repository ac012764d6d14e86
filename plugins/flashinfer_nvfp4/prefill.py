"""Running a prefill plan: stage rows, list places, attend, merge. Nothing here waits for the device.

`PrefillTables` is made once a batch and serves every layer; `attend` runs one layer. Which kernels attend is the
caller's choice: a function for direct tokens, and a `StagedKernel` for staged rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.prefill_plan import PrefillPlan, Span, Stage
from flashinfer_nvfp4.rowformat import LATENT, ROPE
from flashinfer_nvfp4.tensors import check_tensor
from flashinfer_nvfp4.workspace import PAGE, Layout

__all__ = ["DirectKernel", "PrefillTables", "StagedKernel", "attend"]

DirectKernel = Callable[[slice], torch.Tensor]
"""Attention output [tokens, heads, 512] of a slice of the prefill tokens."""


class StagedKernel(Protocol):
    """Sparse attention on staged rows."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows: bfloat16 or float8_e4m3fn."""
        ...

    @property
    def scale(self) -> float:
        """What an FP8 row is divided by when it is staged; 1 for bfloat16."""
        ...

    def __call__(
        self, query: torch.Tensor, rows: torch.Tensor, indices: torch.Tensor, counts: torch.Tensor, lse: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Output [tokens, heads, 512] of ``query`` [tokens, heads, 576] and, if asked for, its log-sum-exp.

        ``rows`` [rows, 576] are whole pages of 64, of which the last may hold anything; token t attends to the first
        ``counts[t]`` of ``indices[t]``, int32 [tokens, topk]. A token with none has any output, and minus infinity.
        The log-sum-exp is float32 [tokens, heads], the natural logarithm.
        """
        ...


@dataclass(frozen=True)
class PrefillTables:
    """A batch on the device: ``windows`` int32 [stages, requests, 3], as `stage` takes them for each stage."""

    plan: PrefillPlan
    windows: torch.Tensor

    @classmethod
    def of(cls, plan: PrefillPlan, requests: int, device: torch.device | str, skipped: int = 0) -> PrefillTables:
        """One copy to the device, from pinned memory where there is a GPU.

        ``skipped``: requests of the batch before those of the plan, which are counted from there.
        """
        pinned = torch.device(device).type == "cuda"
        table = torch.zeros((len(plan.stages), skipped + requests, 3), dtype=torch.int32, pin_memory=pinned)
        for row, each in zip(table, plan.stages, strict=True):
            for window in each.windows:
                row[skipped + window.request] = row.new_tensor((window.first, window.rows, window.place))
        return cls(plan, table.to(device, non_blocking=True))


def attend(
    tables: PrefillTables,
    layout: Layout | None,
    query: torch.Tensor,
    cache: torch.Tensor,
    positions: torch.Tensor,
    requests: torch.Tensor,
    block_table: torch.Tensor,
    buffer: torch.Tensor | None,
    *,
    direct: DirectKernel,
    staged: StagedKernel | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention output, bfloat16 [tokens, heads, 512], of the batch's prefill tokens, in ``out`` if that is given.

    ``query`` [tokens, heads, 576]; ``cache`` uint8 [blocks, block size, 352]; ``positions`` int32 [tokens, topk]: keys
    as positions in the token's request, negative where there is none; ``requests`` int32 [tokens]: rows of
    ``block_table``, int32 [requests, blocks]; ``buffer``: uint8, `Layout.buffer_bytes` or more. A token without keys
    has zeros. Raises `LaunchRefused`.
    """
    from flashinfer_nvfp4.kernels.merge import merge_into
    from flashinfer_nvfp4.kernels.stage import stage, staged_indices

    tokens, heads, _ = query.shape
    out = query.new_empty((tokens, heads, LATENT), dtype=torch.bfloat16) if out is None else out
    check_tensor("out", out, (torch.bfloat16,), (tokens, heads, LATENT))
    windows = iter(tables.windows)
    for step in tables.plan.steps:
        if not isinstance(step, Stage):
            out[slice(*step)] = direct(slice(*step))
            continue
        if layout is None or staged is None or buffer is None:
            raise LaunchRefused(
                f"a plan with stages, layout={layout}, staged={staged}, buffer={buffer is not None}",
                "nothing reads or holds staged rows",
                "the layout that was planned with, a kernel and a buffer",
                "Plan without a layout where no kernel reads staged rows",
            )
        window = next(windows)
        rows, lists, counts = _areas(buffer, layout, staged.dtype)
        stage(cache, block_table, window, max(each.rows for each in step.windows), rows, scale=staged.scale)
        pages = rows[: -(-step.rows // PAGE) * PAGE]
        for first, end in step.passes:
            here, size = slice(first, end), end - first
            staged_indices(positions[here], requests[here], window, lists[:size], counts[:size])
            part, part_sums = staged(query[here], pages, lists[:size], counts[:size], step.parts > 1)
            if step.parts == 1:
                out[here] = part.masked_fill_((counts[:size] == 0)[:, None, None], 0)
                continue
            lower, sums = _carried(buffer, layout, step.span, here)
            if not step.part:
                sums.fill_(-math.inf)  # nothing is carried yet
            merge_into(out[here], lower, sums, part, _given(part_sums), last=step.part == step.parts - 1)
    return out


def _given(sums: torch.Tensor | None) -> torch.Tensor:
    if sums is None:
        raise LaunchRefused(
            "a kernel that returned no log-sum-exp",
            "parts of a token's keys cannot be merged without it",
            "StagedRows(lse=True) of kernels that return it alone",
            "Plan with lse=False",
        )
    return sums


def _carried(buffer: torch.Tensor, layout: Layout, span: Span, here: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """What the tokens ``here`` of a stage's ``span`` carry: int16 [tokens, heads, 512], float32 [tokens, heads]."""
    tokens = span[1] - span[0]
    halves = tokens * layout.heads * LATENT
    area = buffer[layout.carried_at(tokens) :][: tokens * layout.carried_bytes]
    lower, sums = area[: 2 * halves].view(torch.int16), area[2 * halves :].view(torch.float32)
    mine = slice(here.start - span[0], here.stop - span[0])
    return lower.view(tokens, layout.heads, LATENT)[mine], sums.view(tokens, layout.heads)[mine]


def _areas(buffer: torch.Tensor, layout: Layout, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Staged rows [capacity, 576], index lists [pass tokens, topk] and their lengths in the buffer."""
    check_tensor("buffer", buffer, (torch.uint8,), (None,))
    width = (LATENT + ROPE) * dtype.itemsize
    if buffer.numel() < layout.buffer_bytes or width != layout.staged.row_bytes:
        raise LaunchRefused(
            f"a buffer of {buffer.numel()} bytes for rows of {width}",
            "it does not fit the layout",
            f"{layout.buffer_bytes} bytes and rows of {layout.staged.row_bytes}",
            "Allocate Layout.buffer_bytes, for the kernel that was planned with",
        )
    rows = buffer[: layout.capacity * width].view(dtype).view(layout.capacity, LATENT + ROPE)
    lists = buffer[layout.indices_at :][: 4 * layout.pass_tokens * layout.topk].view(torch.int32)
    counts = buffer[layout.counts_at :][: 4 * layout.pass_tokens].view(torch.int32)
    return rows, lists.view(layout.pass_tokens, layout.topk), counts
