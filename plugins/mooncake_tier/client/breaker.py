"""When to leave a failing store alone, and when to try it again. Pure state, told the time by its clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum

__all__ = ["Breaker", "State"]


class State(Enum):
    """closed: calls go to the store. open: they miss at once. half_open: they miss, and one probe is under way."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Opens after consecutive failures; then only a probe, which no request waits for, can close it.

    failures: consecutive failed calls that open it. cooldown_s: seconds from opening to the first probe, doubled by
    each failed probe up to longest_s. What calls report that began before it opened changes nothing.
    Safe to use from several threads.
    """

    def __init__(
        self,
        failures: int = 3,
        cooldown_s: float = 1.0,
        longest_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._first, self._longest, self._clock = failures, cooldown_s, longest_s, clock
        self._lock = threading.Lock()
        self._state = State.CLOSED
        self._failures = 0
        self._cooldown = cooldown_s
        self._probe_at = 0.0

    @property
    def state(self) -> State:
        return self._state

    @property
    def allows(self) -> bool:
        """Whether a call may go to the store."""
        return self._state is State.CLOSED

    @property
    def probe_at(self) -> float | None:
        """When, on the clock, the next probe is due; None unless it is open."""
        return self._probe_at if self._state is State.OPEN else None

    def success(self) -> None:
        """A call was answered."""
        with self._lock:
            if self._state is State.CLOSED:
                self._failures = 0

    def failure(self) -> bool:
        """A call failed, or was not answered in time. Returns whether this opened the breaker."""
        with self._lock:
            if self._state is not State.CLOSED:
                return False
            self._failures += 1
            if self._failures < self._limit:
                return False
            self._open()
            return True

    def begin_probe(self) -> bool:
        """Whether the caller is to probe the store now; it then owes `probed`."""
        with self._lock:
            if self._state is not State.OPEN or self._clock() < self._probe_at:
                return False
            self._state = State.HALF_OPEN
            return True

    def probed(self, well: bool) -> None:
        """The result of the probe that `begin_probe` asked for."""
        with self._lock:
            if self._state is not State.HALF_OPEN:
                return
            if well:
                self._state, self._failures, self._cooldown = State.CLOSED, 0, self._first
            else:
                self._cooldown = min(2 * self._cooldown, self._longest)
                self._open()

    def _open(self) -> None:
        self._state = State.OPEN
        self._probe_at = self._clock() + self._cooldown
