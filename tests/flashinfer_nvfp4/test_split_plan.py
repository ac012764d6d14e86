"""Splits of the Triton decode kernel: numbers in, numbers out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_nvfp4.plan import plan_splits


def _cost(programs: int, stages: int, at_once: int, splits: int) -> int:
    """The documented model, waves by simulation: a wave takes as many programs as the device runs at once."""
    left, waves = max(programs, 1) * splits, 0
    while left > 0:
        left -= at_once
        waves += 1
    longest = max(len(range(s, stages, splits)) for s in range(splits))
    return waves * (longest + 3) + (4 if splits > 1 else 0)


@given(st.integers(0, 400), st.integers(1, 80), st.integers(1, 160))
def test_no_legal_number_of_splits_costs_less(programs: int, stages: int, at_once: int) -> None:
    planned = plan_splits(programs, 32 * stages, at_once)
    legal = range(1, max(1, min(16, stages // 3)) + 1)

    assert planned in legal
    assert _cost(programs, stages, at_once, planned) == min(_cost(programs, stages, at_once, s) for s in legal)


@pytest.mark.parametrize(
    ("programs", "topk", "at_once", "splits"),
    [
        (1, 2048, 148, 16),  # one token: as many as there may be
        (148, 2048, 148, 1),  # a full device
        (74, 2048, 148, 2),  # half of it
        (1, 2048, 1, 1),  # no second multiprocessor
        (1, 32, 148, 1),  # nothing to share
        (0, 2048, 148, 16),  # planned as one token
    ],
)
def test_splits_fill_the_device_and_no_more(programs: int, topk: int, at_once: int, splits: int) -> None:
    assert plan_splits(programs, topk, at_once) == splits


@pytest.mark.parametrize(("programs", "topk", "at_once"), [(-1, 64, 1), (1, 0, 1), (1, 48, 1), (1, 64, 0)])
def test_what_is_no_launch_is_refused(programs: int, topk: int, at_once: int) -> None:
    with pytest.raises(ValueError, match=rf"programs={programs}, topk={topk}, at_once={at_once} is no launch"):
        plan_splits(programs, topk, at_once)
