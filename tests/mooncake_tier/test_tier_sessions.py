"""Which chunks of sessions are kept from eviction, and which are worth writing."""

from __future__ import annotations

from collections.abc import Sequence

from mooncake_tier.offloading.holds import Holds
from mooncake_tier.offloading.sessions import Sessions


class Clock:
    """A clock that stands."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Kept:
    """What a client would hold."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def hold(self, names: Sequence[str], seconds: float) -> None:
        assert not self.names.intersection(names), "held twice"
        self.names.update(names)

    def let_go(self, names: Sequence[str]) -> None:
        assert self.names.issuperset(names), "let go twice"
        self.names.difference_update(names)


def _sessions(most: int = 100) -> tuple[Sessions, Kept, Clock]:
    kept, clock = Kept(), Clock()
    return Sessions(Holds(kept.hold, kept.let_go), most, 1, 60.0, clock), kept, clock


def _chunks(text: str) -> list[str]:
    """Chained names, as hashes are: ``ab`` has the chunks a and ab."""
    return [text[:end] for end in range(1, len(text) + 1)]


def test_a_key_is_held_until_its_last_reason_is_gone() -> None:
    kept = Kept()
    holds = Holds(kept.hold, kept.let_go)

    holds.add("one", ["a", "b", "a"])
    holds.add("two", ["b", "c"])
    holds.add("two", ["c"])
    assert kept.names == {"a", "b", "c"}
    holds.drop("one")
    assert kept.names == {"b", "c"}
    holds.drop("two", ["c", "never held"])
    assert kept.names == {"b"}
    holds.drop("two")
    holds.drop("two")
    assert (kept.names, len(holds)) == (set(), 0)


def test_the_growing_prefix_of_a_session_is_kept_between_its_turns() -> None:
    sessions, kept, _ = _sessions()

    sessions.begin("turn 1", _chunks("ab"), "agent")
    sessions.finish("turn 1", _chunks("ab"))
    assert kept.names == {"a", "ab"}
    sessions.begin("turn 2", _chunks("abc"), "agent")
    sessions.finish("turn 2", _chunks("abcd"))
    assert kept.names == {"a", "ab", "abc", "abcd"}


def test_a_prompt_that_begins_with_all_of_an_earlier_one_continues_it() -> None:
    sessions, kept, _ = _sessions()
    sessions.begin("1", _chunks("ab"))
    sessions.finish("1", _chunks("ab"))

    sessions.begin("2", _chunks("abx"))
    sessions.begin("3", _chunks("az"))

    assert len(sessions) == 1
    assert sessions.worth_writing("2", "abx")
    assert not sessions.worth_writing("3", "az")
    sessions.finish("2", _chunks("abx"))
    sessions.finish("3", _chunks("az"))
    assert len(sessions) == 2
    assert kept.names == {"a", "ab", "abx", "az"}


def test_what_was_asked_for_before_is_worth_writing() -> None:
    sessions, _, _ = _sessions()
    sessions.begin("1", _chunks("ab"))
    assert not any(sessions.worth_writing("1", name) for name in _chunks("ab"))
    sessions.finish("1", _chunks("ab"))

    sessions.begin("2", _chunks("ax"))

    assert [sessions.worth_writing("2", name) for name in _chunks("ax")] == [True, False]


def test_a_session_that_ends_or_idles_too_long_is_let_go() -> None:
    sessions, kept, clock = _sessions()
    sessions.begin("1", _chunks("ab"), "ends")
    sessions.finish("1", _chunks("ab"), ended=True)
    assert (kept.names, len(sessions)) == (set(), 0)

    sessions.begin("2", _chunks("c"), "idles")
    sessions.finish("2", _chunks("c"))
    clock.now += 59
    sessions.begin("3", _chunks("d"), "goes on")
    clock.now += 2
    sessions.expire()
    assert kept.names == set()
    sessions.finish("3", _chunks("d"))
    assert kept.names == {"d"}


def test_a_session_with_a_running_request_does_not_idle() -> None:
    sessions, kept, clock = _sessions()
    sessions.begin("1", _chunks("ab"), "agent")
    sessions.finish("1", _chunks("ab"))
    sessions.begin("2", _chunks("abc"), "agent")

    clock.now += 600
    sessions.expire()

    assert kept.names == {"a", "ab"}


def test_the_session_that_is_idle_longest_goes_first_when_too_much_is_kept() -> None:
    sessions, kept, _ = _sessions(most=5)
    for name in ("ab", "cd", "ef"):
        sessions.begin(name, _chunks(name), name)
        sessions.finish(name, _chunks(name))

    assert kept.names == {"c", "cd", "e", "ef"}


def test_one_session_keeps_its_beginning_when_it_is_too_long() -> None:
    sessions, kept, _ = _sessions(most=2)
    sessions.begin("1", _chunks("abcd"), "long")
    sessions.finish("1", _chunks("abcd"))

    assert kept.names == {"a", "ab"}


def test_nothing_is_kept_where_nothing_may_be() -> None:
    sessions, kept, _ = _sessions(most=0)
    sessions.begin("1", _chunks("ab"), "agent")
    sessions.finish("1", _chunks("ab"))

    assert kept.names == set()
    assert sessions.worth_writing("2", "ab")


def test_clearing_forgets_sessions_and_what_was_seen() -> None:
    sessions, kept, _ = _sessions()
    sessions.begin("1", _chunks("ab"), "agent")
    sessions.finish("1", _chunks("ab"))

    sessions.clear()

    assert (kept.names, len(sessions)) == (set(), 0)
    assert not sessions.worth_writing("2", "ab")


def test_a_request_of_less_than_a_chunk_is_no_session() -> None:
    """There is nothing to keep, and no next turn could be told by it."""
    sessions, _, _ = _sessions()
    sessions.begin("short", [])
    sessions.finish("short", [])
    assert len(sessions) == 0

    sessions.begin("named", [], "one")
    sessions.begin("beside it", [], "one")
    sessions.finish("named", [])
    assert len(sessions) == 1
    sessions.finish("beside it", _chunks("ab"))
    assert len(sessions) == 1
