"""What a router is told of blocks that lie in two places of one medium, and of blocks that were evicted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from mooncake_tier.errors import TierUnavailable
from mooncake_tier.events.evictions import Evictions
from mooncake_tier.events.residency import Residency


@dataclass
class Stored:
    """The fields of vLLM's BlockStored that matter here."""

    block_hashes: list[int]
    medium: str | None = "CPU"
    ownership: str | None = None
    locality: str | None = None
    group_idx: int | None = 0
    token_ids: list[int] = field(default_factory=lambda: [1, 2])


@dataclass
class Removed:
    block_hashes: list[int]
    medium: str | None = "CPU"
    ownership: str | None = None
    locality: str | None = None
    group_idx: int | None = 0


@dataclass
class Cleared:
    pass


def _residency(medium: str = "CPU") -> Residency:
    return Residency(Stored, Removed, Cleared, "tier", medium)


def _tier(event: Stored | Removed) -> Stored | Removed:
    event.ownership, event.locality = "tier", "LOCAL"
    return event


def test_a_block_in_two_places_is_stored_once_and_removed_with_the_last() -> None:
    residency = _residency()

    assert list(residency.merged([Stored([1, 2]), _tier(Stored([1, 2]))])) == [Stored([1, 2])]
    assert list(residency.merged([Removed([1, 2])])) == []
    assert list(residency.merged([_tier(Removed([2]))])) == [Removed([2])]
    assert list(residency.merged([_tier(Removed([1]))])) == [Removed([1])]
    assert len(residency) == 0


def test_an_event_tells_only_of_the_blocks_that_are_gone() -> None:
    residency = _residency()
    list(residency.merged([Stored([1]), Stored([1, 2])]))

    assert list(residency.merged([Removed([1, 2])])) == [Removed([2])]
    assert list(residency.merged([Removed([1])])) == [Removed([1])]


def test_a_pool_of_several_nodes_is_a_medium_of_its_own() -> None:
    residency = _residency("EXTERNAL")

    told = list(residency.merged([Stored([1]), _tier(Stored([1])), Removed([1]), _tier(Removed([1]))]))

    assert told == [Stored([1]), Stored([1], "EXTERNAL"), Removed([1]), Removed([1], "EXTERNAL")]


def test_placeholders_and_removals_of_what_nobody_was_told_of_are_left_out() -> None:
    residency = _residency()

    assert list(residency.merged([Stored([1], token_ids=[]), Removed([1]), Removed([9])])) == []


def test_other_events_pass_and_a_clearing_one_forgets() -> None:
    residency = _residency()
    list(residency.merged([Stored([1])]))

    assert list(residency.merged(["another", Cleared(), Removed([1])])) == ["another", Cleared()]


def test_after_a_reset_everything_is_removed_once() -> None:
    residency = _residency("EXTERNAL")
    list(residency.merged([Stored([1]), Stored([2]), _tier(Stored([2]))]))

    residency.withdraw()

    assert list(residency.merged([Removed([1])])) == [Removed([1, 2]), Removed([2], "EXTERNAL")]
    assert list(residency.merged([])) == []


@pytest.fixture
def listed() -> dict[str, bool]:
    """Keys that the master lists; without any it does not answer."""
    return {}


def _evictions(listed: dict[str, bool], poll_s: float = 1000.0, found: Callable[[], None] = lambda: None) -> Evictions:
    def keys() -> list[str]:
        if not listed:
            raise TierUnavailable("no answer")
        return list(listed)

    return Evictions(keys, poll_s, found)


def test_a_key_that_is_not_listed_any_more_is_gone_once(listed: dict[str, bool]) -> None:
    evictions = _evictions(listed)
    assert evictions.announce(["a", "b", "a"]) == ["a", "b"]
    assert evictions.announce(["b", "c"]) == ["c"]
    listed |= dict.fromkeys(["a", "c", "x"], True)

    evictions.look()
    evictions.look()

    assert evictions.pending
    assert evictions.take() == ["b"]
    assert evictions.take() == []
    assert len(evictions) == 2
    evictions.close()


def test_what_is_stored_again_before_anybody_was_told_is_not_gone(listed: dict[str, bool]) -> None:
    evictions = _evictions(listed)
    evictions.announce(["a"])
    evictions.withdraw(["a", "never announced"])

    assert evictions.announce(["a"]) == []
    assert not evictions.pending
    evictions.close()


def test_whoever_forgot_everything_is_told_again_and_of_no_removal_before(listed: dict[str, bool]) -> None:
    evictions = _evictions(listed)
    evictions.announce(["a", "b"])
    evictions.withdraw(["b"])

    assert evictions.forget() == ["a"]
    assert evictions.take() == ["b"]
    evictions.withdraw(["a"])
    assert not evictions.pending
    assert evictions.announce(["a"]) == ["a"]
    evictions.close()


def test_a_master_that_stays_away_takes_everything_with_it(listed: dict[str, bool]) -> None:
    evictions = _evictions(listed)
    evictions.announce(["a"])

    for expected in ([], [], ["a"]):
        evictions.look()
        assert evictions.take() == expected
    evictions.close()


def test_a_thread_looks_by_itself_and_says_what_it_found(listed: dict[str, bool]) -> None:
    found = threading.Event()
    evictions = _evictions(listed, poll_s=0.01, found=found.set)
    listed["b"] = True
    evictions.announce(["a", "b"])

    assert found.wait(60)

    assert evictions.take() == ["a"]
    evictions.close()
