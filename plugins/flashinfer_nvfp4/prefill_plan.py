"""Which prefill tokens attend to NVFP4 rows where they lie, and which to rows that are staged first: numbers only.

*Direct*: the decode kernel takes prefill tokens as further tokens. It needs no workspace, and reads and unpacks a row
again for every token and every 16 heads that select it.

*Staged*: the rows of a request are decoded once into a workspace, as the FP8 or BF16 rows that stock sparse kernels
read. Requests whose rows fit together share a *stage*. A request with more rows than the workspace holds takes several
stages, *parts* of its keys, whose results are merged by their log-sum-exps. In each stage the tokens come in *passes*,
because what a pass needs beside the rows lives in the workspace too (`flashinfer_nvfp4.workspace`).

Staging pays when the tokens are many for the rows they select from. `Costs` decides, in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.workspace import Layout

__all__ = ["COSTS", "Costs", "PrefillPlan", "Request", "Span", "Stage", "Window", "plan_prefill"]

Span = tuple[int, int]
"""First token and the one behind the last, counted over the prefill tokens of the batch."""

HEADS = 16
"""Heads that share the reads of a row in the direct kernels."""


@dataclass(frozen=True)
class Request:
    """One request of the batch: its new ``tokens``, and its ``rows`` in the cache, the new ones included."""

    tokens: int
    rows: int


@dataclass(frozen=True)
class Costs:
    """Microseconds, by which `plan_prefill` compares. None was measured with this plugin's kernels.

    ``direct``: of a token and 16 heads at a top-k of 2048; FlashInfer's op takes 76.8 us for 128 tokens on a GB300
    (its README). ``staged``: of a token in a stock kernel; between 35 and 45 tokens TRTLLM-gen's time grows by 0.31 us
    a token there. ``part``: what each further part costs a token: the shortest launch, its index list, the merge.
    ``row``: 928 bytes read and written at 4 TB/s. ``benchmarks/nvfp4_gpu.py`` prints what a device takes.
    """

    direct: float = 0.6
    staged: float = 0.31
    part: float = 0.1
    row: float = 0.00023


COSTS = Costs()


@dataclass(frozen=True)
class Window:
    """Rows ``first`` to ``first + rows - 1`` of ``request``, staged from place ``place`` on."""

    request: int
    first: int
    rows: int
    place: int


@dataclass(frozen=True)
class Stage:
    """Windows that are staged together, and the passes over the tokens that attend to them.

    ``part`` counts the stages of a request that has ``parts``.
    """

    windows: tuple[Window, ...]
    passes: tuple[Span, ...]
    part: int = 0
    parts: int = 1

    @property
    def rows(self) -> int:
        return sum(window.rows for window in self.windows)


@dataclass(frozen=True)
class PrefillPlan:
    """Steps in order: the tokens of a `Span` attend directly, those of a `Stage` from the workspace.

    Every token with something to do is in one span, or in the passes of one stage for each part of its request.
    ``reason``: for the log.
    """

    steps: tuple[Span | Stage, ...]
    reason: str

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(step for step in self.steps if isinstance(step, Stage))

    @property
    def launches(self) -> int:
        """Launches of attention kernels."""
        return sum(len(step.passes) if isinstance(step, Stage) else 1 for step in self.steps)


def plan_prefill(requests: Sequence[Request], heads: int, layout: Layout | None, costs: Costs = COSTS) -> PrefillPlan:
    """Steps for the prefill tokens of ``requests``, which follow each other in the batch, at ``heads`` heads.

    Without a ``layout`` everything is direct. Requests without tokens get no step. Raises `LaunchRefused` for numbers
    that describe no batch.
    """
    bad = [request for request in requests if not 0 <= request.tokens <= request.rows]
    if bad or heads < 1 or (layout is not None and layout.heads != heads):
        raise LaunchRefused(
            f"requests={bad}, heads={heads} with {layout}",
            "it describes no prefill",
            "0 tokens or more in at least as many rows, 1 head or more, those of the layout",
            "Pass the numbers of one batch",
        )
    spans = _spans(requests)
    busy = [index for index, request in enumerate(requests) if request.tokens]
    if layout is None:
        steps: list[Span | Stage] = [(spans[busy[0]][0], spans[busy[-1]][1])] if busy else []
        return PrefillPlan(tuple(steps), "direct: no rows are staged here")
    parts_of = {index: _parts(requests[index], layout, costs) for index in busy}
    steps = []
    for parts, group in groupby(busy, key=parts_of.__getitem__):
        members = list(group)
        if not parts:
            steps.append((spans[members[0]][0], spans[members[-1]][1]))
        elif parts == 1:
            steps += _shared(requests, members, spans, layout)
        else:
            for index in members:
                steps += _in_parts(Window(index, 0, requests[index].rows, 0), spans[index], parts, layout.pass_tokens)
    staged = sum(1 for parts in parts_of.values() if parts)
    most = max(parts_of.values(), default=0)
    return PrefillPlan(tuple(steps), f"{staged} of {len(busy)} requests staged, in up to {most} parts")


def _parts(request: Request, layout: Layout, costs: Costs) -> int:
    """Stages of a request, 0 for none."""
    parts = -(-request.rows // layout.capacity)
    direct = costs.direct * request.tokens * -(-layout.heads // HEADS)
    staged = costs.row * request.rows + request.tokens * (costs.staged + costs.part * (parts - 1))
    return parts if staged < direct and (parts == 1 or layout.staged.lse) else 0


def _shared(requests: Sequence[Request], members: list[int], spans: list[Span], layout: Layout) -> Iterator[Stage]:
    """Stages of requests that fit one by one, as many in each as fit."""
    windows: list[Window] = []
    for index in members:
        rows = requests[index].rows
        place = windows[-1].place + windows[-1].rows if windows else 0
        if place + rows > layout.capacity:
            yield _stage(windows, spans, layout)
            windows, place = [], 0
        windows.append(Window(index, 0, rows, place))
    yield _stage(windows, spans, layout)


def _stage(windows: list[Window], spans: list[Span], layout: Layout) -> Stage:
    span = (spans[windows[0].request][0], spans[windows[-1].request][1])
    return Stage(tuple(windows), _passes(span, layout.pass_tokens))


def _in_parts(whole: Window, span: Span, parts: int, pass_tokens: int) -> Iterator[Stage]:
    """Parts as even as they go, so that none is nearly empty."""
    bounds = [whole.rows * part // parts for part in range(parts + 1)]
    for part, (first, end) in enumerate(pairwise(bounds)):
        window = Window(whole.request, first, end - first, 0)
        yield Stage((window,), _passes(span, pass_tokens), part, parts)


def _passes(span: Span, size: int) -> tuple[Span, ...]:
    return tuple((first, min(first + size, span[1])) for first in range(span[0], span[1], size))


def _spans(requests: Sequence[Request]) -> list[Span]:
    ends = [0]
    for request in requests:
        ends.append(ends[-1] + request.tokens)
    return list(pairwise(ends))
