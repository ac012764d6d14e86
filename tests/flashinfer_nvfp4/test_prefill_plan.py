"""The division of the prefill workspace, and which tokens use it, by tables and by counting."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.plan import PREFILL_WORKSPACE_BYTES
from flashinfer_nvfp4.prefill_plan import Costs, PrefillPlan, Request, Stage, plan_prefill
from flashinfer_nvfp4.workspace import Layout, StagedRows, least_workspace, plan_layout

FP8 = StagedRows(576, lse=True, lse_bytes=2048)
PLAIN = StagedRows(576, lse=False)
TOPK, HEADS = 2048, 16
LEAST = 512 * (4 * 2048 + 4 + 16 * (1024 + 4 + 2048)) + 2048 * 576
"""A pass of 512 tokens, and the rows that one token selects; all are multiples of 256 by themselves."""
FREE = Costs(row=0.0, staged=0.0, part=0.0)


def _layout(capacity: int, pass_tokens: int = 512, staged: StagedRows = FP8, heads: int = HEADS) -> Layout:
    return Layout(TOPK, heads, staged, capacity, pass_tokens)


def _plan(
    *requests: tuple[int, int], layout: Layout | None = None, costs: Costs = FREE, heads: int = HEADS
) -> PrefillPlan:
    return plan_prefill([Request(*request) for request in requests], heads, layout, costs)


def _windows(stage: Any) -> list[tuple[int, int, int, int]]:
    return [(each.request, each.first, each.rows, each.place) for each in stage.windows]


def test_the_default_is_a_twentieth_of_five_contexts_of_fp8_rows() -> None:
    assert PREFILL_WORKSPACE_BYTES * 20 == 5 * 1_048_576 * 576


@pytest.mark.parametrize(
    ("heads", "staged", "pass_tokens"),
    [
        (16, FP8, 512),
        (16, PLAIN, 512),
        (64, FP8, 128),
        (128, FP8, 64),
        (8, PLAIN, 1024),
        (16, StagedRows(1152, False), 512),
    ],
)
def test_everything_that_is_in_use_at_once_fits_the_workspace(heads: int, staged: StagedRows, pass_tokens: int) -> None:
    """Added up area by area; one page more would not fit."""
    layout = plan_layout(PREFILL_WORKSPACE_BYTES, TOPK, heads, staged)

    assert layout is not None
    assert layout.pass_tokens == pass_tokens
    assert layout.capacity % 64 == 0
    per_head = 1024 + (4 + staged.lse_bytes if staged.lse else 0)
    used = layout.capacity * staged.row_bytes + pass_tokens * (4 * TOPK + 4 + heads * per_head)
    assert used <= layout.total_bytes <= used + 3 * 255
    assert layout.total_bytes <= PREFILL_WORKSPACE_BYTES < layout.total_bytes + 64 * staged.row_bytes + 3 * 255


def test_areas_of_the_buffer_follow_each_other_without_overlap() -> None:
    layout = _layout(192, 3)

    assert layout.indices_at == 110_592  # 192 * 576
    assert layout.counts_at == 110_592 + 24_576  # 3 * 2048 * 4
    assert layout.buffer_bytes == 110_592 + 24_576 + 256


def test_a_workspace_that_holds_nothing_is_refused_with_the_least_that_does() -> None:
    with pytest.raises(
        LaunchRefused, match=rf"{LEAST - 1} bytes.*512 tokens with 16 heads.*0, and {LEAST} bytes.*30 MiB"
    ):
        plan_layout(LEAST - 1, TOPK, HEADS, FP8)
    least = plan_layout(LEAST, TOPK, HEADS, FP8)

    assert least_workspace(TOPK, HEADS, FP8) == LEAST
    assert least is not None
    assert least.capacity == TOPK
    assert plan_layout(0, TOPK, HEADS, FP8) is None


@pytest.mark.parametrize(("workspace", "topk", "heads"), [(-1, 2048, 16), (0, 0, 16), (1 << 28, 2048, 0)])
def test_sizes_of_no_workspace_are_refused(workspace: int, topk: int, heads: int) -> None:
    with pytest.raises(LaunchRefused, match=r"describes no workspace.*1 key and 1 head"):
        plan_layout(workspace, topk, heads, FP8)


@pytest.mark.parametrize(
    ("requests", "steps"),
    [
        ((), []),
        (((0, 0),), []),
        (((0, 500),), []),
        (((1, 1),), [(0, 1)]),
        (((5, 9), (0, 7), (3, 3)), [(0, 8)]),
        (((0, 4), (2, 1_048_576)), [(0, 2)]),
    ],
)
def test_without_a_layout_all_tokens_are_one_direct_launch(requests: Any, steps: Any) -> None:
    plan = _plan(*requests)

    assert list(plan.steps) == steps
    assert plan.launches == len(steps)


def test_requests_share_a_stage_while_their_rows_fit() -> None:
    """One that fits exactly, one row too many, and a request without tokens in between."""
    plan = _plan((600, 1000), (0, 70), (10, 24), (1, 1), (5, 1024), layout=_layout(1024))
    first, second, third = plan.stages

    assert _windows(first) == [(0, 0, 1000, 0), (2, 0, 24, 1000)]
    assert first.passes == ((0, 512), (512, 610))
    assert _windows(second) == [(3, 0, 1, 0)]
    assert second.passes == ((610, 611),)
    assert _windows(third) == [(4, 0, 1024, 0)]
    assert third.passes == ((611, 616),)
    assert plan.launches == 4


def test_more_rows_than_fit_come_in_even_parts() -> None:
    """24,576 rows of 576 bytes hold 9,920 rows, in whole pages, beside 513 tokens of 16 * (1024 + 4) bytes."""
    plan = _plan((513, 29_000), layout=_layout(24_576))

    assert [_windows(stage) for stage in plan.stages] == [
        [(0, 0, 9666, 0)],
        [(0, 9666, 9667, 0)],
        [(0, 19_333, 9667, 0)],
    ]
    assert [(stage.part, stage.parts, stage.passes) for stage in plan.stages] == [
        (part, 3, ((0, 512), (512, 513))) for part in range(3)
    ]


def test_tokens_that_leave_no_room_for_rows_come_in_groups() -> None:
    """What 1024 tokens carry is more than the workspace; that of 512 leaves room for three parts."""
    plan = _plan((1024, 29_000), layout=_layout(24_576))

    assert [(stage.part, stage.passes) for stage in plan.stages] == [
        *((part, ((0, 512),)) for part in range(3)),
        *((part, ((512, 1024),)) for part in range(3)),
    ]


def test_a_million_rows_take_seven_parts_of_the_default_workspace() -> None:
    """A chunk of 8192 tokens at the end of GLM-5.3's longest context, of 64 heads: 16 would be direct.

    512 tokens carry 33.7 MB of 124.7, and 158,016 rows fit beside: 16 * 241 us of rows and 8192 * 0.91 of the rest.
    For twice the tokens it would be 11 parts: 8 * 241 + 8192 * 1.31; for half of them 6: 32 * 241 + 8192 * 0.81.
    """
    layout = plan_layout(PREFILL_WORKSPACE_BYTES, TOPK, 64, FP8)
    plan = plan_prefill([Request(8192, 1_048_576)], 64, layout)

    assert layout is not None
    assert {stage.rows for stage in plan.stages} == {149_796, 149_797}
    assert [stage.part for stage in plan.stages] == 16 * [*range(7)]
    assert [stage.span for stage in plan.stages[::7]] == [(first, first + 512) for first in range(0, 8192, 512)]
    assert plan.launches == 7 * 64


def test_without_a_log_sum_exp_what_does_not_fit_is_direct() -> None:
    plan = _plan((600, 1024), (600, 1025), (5, 5), layout=_layout(1024, staged=PLAIN))

    assert [step if not isinstance(step, Stage) else _windows(step) for step in plan.steps] == [
        [(0, 0, 1024, 0)],
        (600, 1200),
        [(2, 0, 5, 0)],
    ]


@pytest.mark.parametrize(
    ("tokens", "rows", "heads", "groups", "parts"),
    [
        (1, 1260, 16, 1, 1),  # 0.2898 + 0.31 against 0.6
        (1, 1261, 16, 0, 0),
        (1000, 200_000, 16, 1, 1),  # 46 + 310 against 600
        (100, 200_000, 16, 0, 0),  # 46 + 31 against 60
        (100, 200_000, 17, 1, 1),  # 77 against 120: a second group of heads
        (8192, 211_073, 16, 3, 2),  # 3 * 49 + 0.41 * 8192 against 4915: 3584 tokens and half of the rows fit
        (8192, 422_144, 16, 4, 3),  # 4 * 97 + 0.51 * 8192
        (8192, 844_288, 16, 0, 0),  # 16 * 194 + 0.71 * 8192, and more in fewer groups
    ],
)
def test_rows_are_staged_where_that_is_cheaper(tokens: int, rows: int, heads: int, groups: int, parts: int) -> None:
    plan = plan_prefill([Request(tokens, max(rows, tokens))], heads, _layout(211_072, heads=heads))

    assert len(plan.stages) == groups * parts
    assert bool(plan.stages) or plan.steps == ((0, tokens),)


def test_every_token_attends_once_to_every_row_of_its_request() -> None:
    """Counted over batches of all kinds of neighbours, under costs that mix the ways."""
    costs = Costs(direct=0.6, staged=0.3, part=0.005, row=0.0005)
    kinds = [(0, 0), (1, 1), (1, 5000), (200, 4000), (300, 900), (513, 20_000)]
    layout = _layout(4096, pass_tokens=64)
    most = 0
    for requests in itertools.product(kinds, repeat=3):
        plan = _plan(*requests, layout=layout, costs=costs)
        seen: Counter[int] = Counter()
        starts = [0, *itertools.accumulate(tokens for tokens, _ in requests)]
        for step in plan.steps:
            spans = step.passes if isinstance(step, Stage) else (step,)
            for index, (tokens, rows) in enumerate(requests):
                inside = sum(
                    max(0, min(end, starts[index] + tokens) - max(first, starts[index])) for first, end in spans
                )
                windows = [each for each in step.windows if each.request == index] if isinstance(step, Stage) else []
                reached = sum(each.rows for each in windows) if isinstance(step, Stage) else rows
                seen[index] += inside * reached
            if isinstance(step, Stage):
                begin, end = step.span
                carried = (end - begin) * HEADS * (2 * 512 + 4) if step.parts > 1 else 0
                assert step.rows * 576 + carried <= layout.capacity * 576
                most = max(most, step.parts)
                assert all(end - first <= layout.pass_tokens for first, end in step.passes)
                bounds = [(each.place, each.place + each.rows) for each in step.windows]
                assert all(one[1] == other[0] for one, other in itertools.pairwise(bounds))
        for index, (tokens, rows) in enumerate(requests):
            assert seen[index] == tokens * rows
    assert most == 9


@pytest.mark.parametrize("requests", [((2, 1),), ((-1, 5),)])
def test_more_tokens_than_rows_are_refused(requests: Any) -> None:
    with pytest.raises(LaunchRefused, match=r"describes no prefill.*at least as many rows"):
        _plan(*requests)


@pytest.mark.parametrize("heads", [0, 32])
def test_other_heads_than_the_layouts_are_refused(heads: int) -> None:
    with pytest.raises(LaunchRefused, match=rf"heads={heads} .*those of the layout"):
        _plan((1, 1), layout=_layout(1024), heads=heads)
