"""Which prefill tokens attend to NVFP4 rows where they lie, and which to rows that are staged first: numbers only.

*Direct*: the decode kernel takes prefill tokens as further tokens. It needs no workspace, and reads and unpacks a row
again for every token and every 16 heads that select it.

*Staged*: the rows of a request are decoded once into a workspace, as the FP8 or BF16 rows that other sparse kernels
read. Requests whose rows fit together share a *stage*. A request with more rows than the workspace holds takes several
stages, *parts* of its keys, whose results are merged by their log-sum-exps. In each stage the tokens come in *passes*,
because what a pass needs beside the rows lives in the workspace too (`flashinfer_nvfp4.workspace`). So does what
tokens carry from part to part; where that of all tokens would leave few rows, they come in *groups* of passes, each
of which has the parts staged anew.

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
    """Microseconds, by which `plan_prefill` compares. None was measured with these kernels.

    ``direct``: of a token and 16 heads at a top-k of 2048; FlashInfer's op takes 76.8 us for 128 tokens on a GB300
    (its README). ``staged``: of a token in TRTLLM-gen; between 35 and 45 tokens its time grows by 0.31 us
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

    ``part`` counts the stages of a group of tokens that has ``parts``, which follow each other.
    """

    windows: tuple[Window, ...]
    passes: tuple[Span, ...]
    part: int = 0
    parts: int = 1

    @property
    def rows(self) -> int:
        return sum(window.rows for window in self.windows)

    @property
    def span(self) -> Span:
        """Of all passes."""
        return self.passes[0][0], self.passes[-1][1]


@dataclass(frozen=True)
class PrefillPlan:
    """Steps in order: the tokens of a `Span` attend directly, those of a `Stage` from the workspace.

    Every token with something to do is in one span, or in the passes of one stage for each part of its request's rows.
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
    ways = {index: _way(requests[index], layout, costs) for index in busy}
    steps = []
    for (parts, passes), members in groupby(busy, key=ways.__getitem__):
        if parts > 1:
            for index in members:
                steps += _in_parts(
                    index, requests[index].rows, spans[index], parts, passes * layout.pass_tokens, layout
                )
            continue
        together = list(members)
        if parts:
            steps += _shared(requests, together, spans, layout)
        else:
            steps.append((spans[together[0]][0], spans[together[-1]][1]))
    staged = sum(1 for parts, _ in ways.values() if parts)
    most = max((parts for parts, _ in ways.values()), default=0)
    return PrefillPlan(tuple(steps), f"{staged} of {len(busy)} requests staged, in up to {most} parts")


def _way(request: Request, layout: Layout, costs: Costs) -> tuple[int, int]:
    """Parts of a request's rows, and passes of a group of its tokens: the cheapest; (0, 0) to attend directly."""
    tokens, rows = request.tokens, request.rows
    best, way = costs.direct * tokens * -(-layout.heads // HEADS), (0, 0)
    if rows <= layout.capacity:
        return (1, 0) if costs.row * rows + costs.staged * tokens < best else way
    most = -(-tokens // layout.pass_tokens) if layout.staged.lse else 0
    for passes in range(most, 0, -1):
        held = layout.rows_beside(min(passes * layout.pass_tokens, tokens))
        if not held:
            continue
        parts, groups = -(-rows // held), -(-most // passes)
        cost = costs.row * rows * groups + tokens * (costs.staged + costs.part * (parts - 1))
        if cost < best:
            best, way = cost, (parts, passes)
    return way


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


def _in_parts(request: int, rows: int, span: Span, parts: int, group: int, layout: Layout) -> Iterator[Stage]:
    """For each ``group`` of tokens its parts, as even as they go, so that none is nearly empty."""
    bounds = [rows * part // parts for part in range(parts + 1)]
    for tokens in _passes(span, group):
        for part, (first, end) in enumerate(pairwise(bounds)):
            yield Stage((Window(request, first, end - first, 0),), _passes(tokens, layout.pass_tokens), part, parts)


def _passes(span: Span, size: int) -> tuple[Span, ...]:
    return tuple((first, min(first + size, span[1])) for first in range(span[0], span[1], size))


def _spans(requests: Sequence[Request]) -> list[Span]:
    ends = [0]
    for request in requests:
        ends.append(ends[-1] + request.tokens)
    return list(pairwise(ends))
