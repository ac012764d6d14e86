"""The breaker as a table of states and events, and against a plain model over random events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_tier.client.breaker import Breaker, State

LIMIT, COOLDOWN, LONGEST = 3, 1.0, 6.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(LIMIT, COOLDOWN, LONGEST, clock)


def _in(breaker: Breaker, clock: Clock, state: State) -> None:
    if state is not State.CLOSED:
        for _ in range(LIMIT):
            breaker.failure()
    if state is State.HALF_OPEN:
        clock.now += COOLDOWN
        assert breaker.begin_probe()
    assert breaker.state is state


@pytest.mark.parametrize(
    ("state", "event", "after"),
    [
        (State.CLOSED, "success", State.CLOSED),
        (State.CLOSED, "one failure", State.CLOSED),
        (State.CLOSED, "failures", State.OPEN),
        (State.CLOSED, "probe at once", State.CLOSED),
        (State.CLOSED, "probe later", State.CLOSED),
        (State.CLOSED, "probed well", State.CLOSED),
        (State.CLOSED, "probed badly", State.CLOSED),
        (State.OPEN, "success", State.OPEN),
        (State.OPEN, "one failure", State.OPEN),
        (State.OPEN, "failures", State.OPEN),
        (State.OPEN, "probe at once", State.OPEN),
        (State.OPEN, "probe later", State.HALF_OPEN),
        (State.OPEN, "probed well", State.OPEN),
        (State.OPEN, "probed badly", State.OPEN),
        (State.HALF_OPEN, "success", State.HALF_OPEN),
        (State.HALF_OPEN, "one failure", State.HALF_OPEN),
        (State.HALF_OPEN, "failures", State.HALF_OPEN),
        (State.HALF_OPEN, "probe at once", State.HALF_OPEN),
        (State.HALF_OPEN, "probe later", State.HALF_OPEN),
        (State.HALF_OPEN, "probed well", State.CLOSED),
        (State.HALF_OPEN, "probed badly", State.OPEN),
    ],
)
def test_each_event_in_each_state(breaker: Breaker, clock: Clock, state: State, event: str, after: State) -> None:
    _in(breaker, clock, state)

    if event == "success":
        breaker.success()
    elif event == "one failure":
        assert not breaker.failure()
    elif event == "failures":
        assert [breaker.failure() for _ in range(LIMIT)].count(True) == (state is State.CLOSED)
    elif event.startswith("probe "):
        clock.now += 0 if event == "probe at once" else 100
        assert breaker.begin_probe() == (after is State.HALF_OPEN and state is State.OPEN)
    else:
        breaker.probed(event == "probed well")

    assert breaker.state is after
    assert breaker.allows == (after is State.CLOSED)
    assert (breaker.probe_at is not None) == (after is State.OPEN)


def test_failures_count_only_in_a_row(breaker: Breaker) -> None:
    for _ in range(5):
        breaker.failure()
        breaker.failure()
        breaker.success()

    assert breaker.state is State.CLOSED


def test_the_pause_doubles_up_to_the_longest_and_begins_anew_after_a_good_probe(breaker: Breaker, clock: Clock) -> None:
    _in(breaker, clock, State.OPEN)
    pauses = []
    for _ in range(5):
        assert breaker.probe_at is not None
        pauses.append(breaker.probe_at - clock.now)
        clock.now = breaker.probe_at - 0.001
        assert not breaker.begin_probe()
        clock.now += 0.001
        assert breaker.begin_probe()
        assert not breaker.begin_probe()  # one at a time
        breaker.probed(False)

    assert pauses == pytest.approx([1, 2, 4, 6, 6])
    clock.now += 100
    assert breaker.begin_probe()
    breaker.probed(True)
    _in(breaker, clock, State.OPEN)
    assert breaker.probe_at == clock.now + COOLDOWN


_events = st.lists(
    st.one_of(st.sampled_from(["success", "failure", "begin", "well", "badly"]), st.floats(0, 4)), max_size=80
)


@settings(max_examples=300, deadline=None)
@given(_events)
def test_random_events_follow_a_plain_model(events: list[str | float]) -> None:
    clock = Clock()
    breaker = Breaker(LIMIT, COOLDOWN, LONGEST, clock)
    state, row, pause, due = "closed", 0, COOLDOWN, 0.0
    for event in events:
        if isinstance(event, float):
            clock.now += event
        elif event == "success":
            breaker.success()
            row = 0 if state == "closed" else row
        elif event == "failure":
            opened = breaker.failure()
            row += state == "closed"
            assert opened == (state == "closed" and row == LIMIT)
            if opened:
                state, due = "open", clock.now + pause
        elif event == "begin":
            may = state == "open" and clock.now >= due
            assert breaker.begin_probe() == may
            state = "half_open" if may else state
        else:
            breaker.probed(event == "well")
            if state == "half_open" and event == "well":
                state, row, pause = "closed", 0, COOLDOWN
            elif state == "half_open":
                pause = min(2 * pause, LONGEST)
                state, due = "open", clock.now + pause
        assert (breaker.state.value, breaker.allows) == (state, state == "closed")
