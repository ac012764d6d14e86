"""What a router is told of blocks that lie in two places of one medium, and of blocks that were evicted."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from tier_fake import FakeMaster

from mooncake_tier.client.master import Master
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
def evictions() -> Iterator[Evictions]:
    """Its thread never looks by itself."""
    one = Evictions(FakeMaster(), poll_s=1000.0)
    yield one
    one.close()


@pytest.fixture
def master(evictions: Evictions) -> FakeMaster:
    """Whom they ask."""
    assert isinstance(evictions._master, FakeMaster)
    return evictions._master


def test_a_key_that_is_not_listed_any_more_is_gone_once(evictions: Evictions, master: FakeMaster) -> None:
    assert evictions.announce(["a", "b", "a"]) == ["a", "b"]
    assert evictions.announce(["b", "c"]) == ["c"]
    master.listed = ["a", "c", "x"]

    evictions.look()
    evictions.look()

    assert evictions.pending
    assert evictions.take() == ["b"]
    assert evictions.take() == []
    assert len(evictions) == 2


def test_many_keys_that_are_gone_are_told_over_several_steps(evictions: Evictions) -> None:
    names = [str(number) for number in range(5000)]
    evictions.announce(names)
    evictions.look()

    told = []
    while evictions.pending:
        told.append(evictions.take())

    assert [len(some) for some in told] == [2000, 2000, 1000]
    assert sorted(name for some in told for name in some) == sorted(names)


def test_what_is_stored_again_before_anybody_was_told_is_not_gone(evictions: Evictions) -> None:
    evictions.announce(["a"])
    evictions.withdraw(["a", "never announced"])

    assert evictions.announce(["a"]) == []
    assert not evictions.pending


def test_what_is_announced_while_the_master_answers_is_not_gone(evictions: Evictions, master: FakeMaster) -> None:
    evictions.announce(["a", "b"])
    pieces = master.pieces

    def late() -> Iterator[list[str]]:
        yield from pieces()
        assert evictions.announce(["b", "c"]) == ["c"]

    master.pieces = late
    evictions.look()

    assert evictions.take() == ["a"]


def test_whoever_forgot_everything_is_told_again_and_of_no_removal_before(evictions: Evictions) -> None:
    evictions.announce(["a", "b"])
    evictions.withdraw(["b"])

    assert evictions.forget() == ["a", "b"]
    assert evictions.take() == []
    evictions.withdraw(["a"])
    assert not evictions.pending
    assert evictions.announce(["a", "b"]) == ["a", "b"]


def test_a_master_that_stays_away_takes_everything_with_it(evictions: Evictions, master: FakeMaster) -> None:
    evictions.announce(["a"])
    master.silent = True

    for expected in ([], [], ["a"]):
        evictions.look(always=False)
        assert evictions.take() == expected


def test_a_list_is_read_only_after_a_loss_and_then_twice(evictions: Evictions, master: FakeMaster) -> None:
    master.listed = ["a", "b"]
    evictions.announce(["a", "b"])
    read = []
    for change in (False, False, False, True, False, False):
        if change:
            master.listed, master.gone = ["a"], 1
        evictions.look(always=False)
        read.append(master.lists)

    assert read == [1, 2, 2, 3, 4, 4]
    assert evictions.take() == ["b"]


def test_what_is_announced_after_its_loss_was_counted_is_gone_at_the_next_look(
    evictions: Evictions, master: FakeMaster
) -> None:
    master.listed = ["a"]
    evictions.announce(["a"])
    for _ in range(3):
        evictions.look(always=False)
    master.gone = 1  # stored and lost before the look, told of after it
    evictions.look(always=False)
    evictions.announce(["late"])

    evictions.look(always=False)

    assert evictions.take() == ["late"]


def test_another_master_under_the_same_address_is_noticed(evictions: Evictions, master: FakeMaster) -> None:
    master.listed, master.pings = ["a"], 100
    evictions.announce(["a"])
    for _ in range(3):
        evictions.look(always=False)
    master.listed, master.pings = [], 3

    evictions.look(always=False)

    assert evictions.take() == ["a"]


def test_a_loss_that_no_counter_shows_is_found_after_twelve_looks(evictions: Evictions, master: FakeMaster) -> None:
    master.listed = ["a"]
    evictions.announce(["a"])
    evictions.look(always=False)
    master.listed = []
    evictions.look(always=False)
    evictions.announce(["b"])

    assert evictions.take() == ["a"]
    found = []
    for _ in range(11):
        evictions.look(always=False)
        found.append(len(evictions.take()))

    assert found == [0] * 10 + [1]


def test_a_thread_looks_by_itself_and_says_what_it_found() -> None:
    found = threading.Event()
    evictions = Evictions(FakeMaster(["b"]), poll_s=0.01, found=found.set)
    evictions.announce(["a", "b"])

    assert found.wait(60)

    assert evictions.take() == ["a"]
    evictions.close()


def test_a_master_without_the_counters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Master, "_read", lambda self, path: "master_key_count 5\n")

    with pytest.raises(TierUnavailable, match="has no 'master_total_capacity_bytes': evictions cannot be seen"):
        Master("127.0.0.1", 1).losses()


def test_an_answer_that_is_cut_off_is_none() -> None:
    """A fake: a real master that ends in the middle of its answer cannot be had at will."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            near, _ = server.accept()
            with near:
                near.recv(1 << 16)
                near.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nkey/1\nkey/2\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(TierUnavailable, match="get_all_keys does not answer"):
            Master("127.0.0.1", server.getsockname()[1]).keys()
        thread.join()
