"""The structure of free block ids against plain sets and exhaustive search."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vllm_blhnc.free_runs import FreeRuns, IdSet

LIMIT = 3000  # ids: words of the id set that are full, partly filled and empty


def _extents(free: set[int]) -> list[tuple[int, int]]:
    """Maximal runs of a set as (first, length), by looking at every id."""
    found: list[tuple[int, int]] = []
    for number in sorted(free):
        if found and sum(found[-1]) == number:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((number, 1))
    return found


def _run_count(ids: list[int]) -> int:
    return sum(1 for i, number in enumerate(ids) if not i or number != ids[i - 1] + 1)


@given(st.sets(st.integers(0, LIMIT - 1)), st.sets(st.integers(0, LIMIT - 1)), st.lists(st.integers(0, LIMIT - 1)))
def test_an_id_set_finds_the_next_member_in_both_directions(
    members: set[int], gone: set[int], asked: list[int]
) -> None:
    numbers = IdSet(LIMIT)
    for number in members:
        numbers.add(number)
    for number in gone:
        numbers.discard(number)

    left = members - gone
    for number in [*asked, *left, 0, LIMIT - 1, 1023, 1024, 2047, 2048]:
        assert numbers.floor(number) == max((n for n in left if n <= number), default=None)
        assert numbers.ceil(number) == min((n for n in left if n >= number), default=None)


class AgainstASet(RuleBasedStateMachine):
    """Random takes, returns and removals; a plain set says what has to be free."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = FreeRuns(LIMIT)
        self.free: set[int] = set()

    @rule(first=st.integers(0, LIMIT - 1), length=st.integers(1, 400), down=st.booleans())
    def give_back_a_run(self, first: int, length: int, down: bool) -> None:
        ids = [i for i in range(first, min(first + length, LIMIT)) if i not in self.free]
        self.runs.add(reversed(ids) if down else ids)
        self.free |= set(ids)

    @rule(ids=st.lists(st.integers(0, LIMIT - 1), unique=True, max_size=30))
    def give_back_scattered_ids(self, ids: list[int]) -> None:
        ids = [number for number in ids if number not in self.free]
        self.runs.add(ids)
        self.free |= set(ids)

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def remove_one(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.free)))
        self.runs.remove(number)
        self.free.remove(number)

    @rule(data=st.data(), after=st.none() | st.integers(0, LIMIT - 1))
    def take(self, data: st.DataObject, after: int | None) -> None:
        count = data.draw(st.integers(0, len(self.free)))
        before = _extents(self.free)

        ids = self.runs.take(count, after)

        assert len(ids) == len(set(ids)) == count
        assert set(ids) <= self.free
        if after is not None and count and after + 1 in dict(before):
            # As far as that run goes, the ids follow it.
            length = min(count, dict(before)[after + 1])
            assert ids[:length] == list(range(after + 1, after + 1 + length))
        elif count:
            # No choice has fewer runs: the longest extents hold the ids, and none is cut that need not be.
            sizes = sorted((length for _, length in before), reverse=True)
            fewest = next(k for k in range(1, len(sizes) + 1) if sum(sizes[:k]) >= count)
            assert _run_count(ids) <= fewest
            holding = [length for length in sizes if length >= count]
            if holding:
                assert dict(before)[ids[0]] == min(holding)
        self.free -= set(ids)

    @invariant()
    def holds_exactly_the_free_ids(self) -> None:
        assert len(self.runs) == len(self.free)
        assert list(self.runs) == sorted(self.free)
        assert list(self.runs.extents()) == _extents(self.free)


AgainstASet.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
test_free_runs_hold_and_hand_out_what_a_set_would = AgainstASet.TestCase


@pytest.mark.parametrize("again", [[5], [3, 4], [9, 10], [5, 5], [20, 20], [21, 20, 21]])
def test_an_id_that_is_free_cannot_be_freed(again: list[int]) -> None:
    runs = FreeRuns(100)
    runs.add(range(4, 10))

    with pytest.raises(ValueError, match="are not all in use"):
        runs.add(again)


def test_an_id_in_use_cannot_be_removed() -> None:
    runs = FreeRuns(100)
    runs.add([4, 5, 6])
    runs.remove(5)

    for number in (5, 3, 7, 99):
        with pytest.raises(KeyError):
            runs.remove(number)
    assert 5 not in runs
    assert list(runs) == [4, 6]


def test_more_ids_than_are_free_are_refused_and_nothing_is_taken() -> None:
    runs = FreeRuns(100)
    runs.add([1, 2, 3])

    with pytest.raises(ValueError, match="cannot take 4 block ids, 3 are free"):
        runs.take(4)
    assert list(runs) == [1, 2, 3]


def _calls(limit: int) -> int:
    """Python calls that a fixed piece of work takes in a pool of this size, every second id of which is free."""
    runs = FreeRuns(limit)
    runs.add(range(0, limit, 2))
    counted = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for _ in range(20):
            taken = runs.take(10, after=limit // 2)
            runs.remove(0)
            runs.add([0])
            runs.add(taken)
    finally:
        sys.setprofile(None)
    return counted


def test_the_work_does_not_grow_with_the_pool() -> None:
    """A property of the algorithm, so it is counted in calls and not in time."""
    assert _calls(200_000) <= 1.1 * _calls(2_000)


@pytest.mark.parametrize("ids", [[100], [-1], [98, 99, 100], [1 << 40]])
def test_an_id_of_no_block_cannot_be_freed(ids: list[int]) -> None:
    runs = FreeRuns(100)

    with pytest.raises(ValueError, match=r"are not in range\(100\)"):
        runs.add(ids)
    assert len(runs) == 0
