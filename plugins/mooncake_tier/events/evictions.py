"""Which of the keys that were announced are gone. Mooncake tells nobody of an eviction, so its master is asked.

Its counters are asked at every look, and its list of all keys only when they say that some may be gone: at a million
keys the list is 100 MB. What is done with it is done in pieces, so that the engine's thread is not kept from its turn.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from mooncake_tier.client.master import Losses
from mooncake_tier.errors import TierUnavailable

__all__ = ["Evictions", "Listing"]

_log = logging.getLogger("mooncake_tier")

#: Looks in a row that fail before everything counts as gone: a store that cannot be asked serves nothing either.
_LOST = 3
#: Every so many looks the list is read whatever the counters say.
_AT_LEAST = 12
#: Keys that are told to be gone at once: a full pool of a million keys evicts fifty thousand, and a step of the engine
#: tells of each in about a microsecond.
_AT_ONCE = 2000
#: Parts that announced keys are kept in: what is done with one of them, or with a piece of the list, holds the
#: interpreter for less than a millisecond, even if there are a million keys.
_PARTS = 256
#: Pause behind each of them, in which a thread that waits for the interpreter gets it: it is not handed over by a call
#: that returns at once, and otherwise after 5 ms only.
_TURN_S = 0.0005


class Listing(Protocol):
    """What is asked of a master; each call raises `TierUnavailable`, and none renews a lease."""

    def losses(self) -> Losses:
        """Counters of what it lost."""

    def pieces(self) -> Iterator[list[str]]:
        """All its keys."""


class Evictions:
    """Announced keys, and those of them that the master does not list any more.

    poll_s: pause between two looks. found: called by the thread when there is something to take. A key that is gone is
    there to be taken at the latest after poll_s and the time of one look, and if the master does not answer, after
    three of both.
    """

    def __init__(self, master: Listing, poll_s: float, found: Callable[[], None] = lambda: None) -> None:
        self._master, self._poll, self._found = master, poll_s, found
        self._announced: tuple[dict[str, int], ...] = tuple({} for _ in range(_PARTS))
        """By hash, with the number of the look that found it last, or that began last before it was announced."""
        self._gone: set[str] = set()
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._number = 0
        self._losses: Losses | None = None
        self._same = 0
        """Looks in a row before which nothing was lost."""
        self._failures = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mooncake-tier-evictions", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return sum(map(len, self._announced))

    def announce(self, names: Iterable[str]) -> list[str]:
        """These are in the store; returns those that nobody was told of, or was told that they are gone."""
        new = []
        with self._lock:
            for name in dict.fromkeys(names):
                part = self._announced[hash(name) % _PARTS]
                if name not in part and name not in self._gone:
                    new.append(name)
                self._gone.discard(name)
                part[name] = self._number  # a look that has begun may miss it
        return new

    def withdraw(self, names: Iterable[str]) -> None:
        """These turned out not to be there."""
        with self._lock:
            for name in names:
                if self._announced[hash(name) % _PARTS].pop(name, None) is not None:
                    self._gone.add(name)

    def forget(self) -> list[str]:
        """Whoever was told knows of none of them any more; returns those that will not be reported as gone now."""
        with self._lock:
            forgotten = [name for part in (*self._announced, self._gone) for name in part]
            self._gone.clear()
            for part in self._announced:
                part.clear()
            return forgotten

    @property
    def pending(self) -> bool:
        """Whether there is something to take."""
        return bool(self._gone)

    def take(self) -> list[str]:
        """Some of the keys that are gone and were not taken before; each was announced."""
        with self._lock:
            return [self._gone.pop() for _ in range(min(_AT_ONCE, len(self._gone)))]

    def look(self, always: bool = True) -> None:
        """Compare with what the master lists. always: also if its counters say that nothing is gone."""
        with self._looking:
            self._look(always)

    def close(self, within_s: float = 5.0) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join(within_s)

    def _look(self, always: bool) -> None:
        with self._lock:
            self._number += 1
            number = self._number
        if not len(self):
            return
        try:
            if self._lost_nothing() and not always:
                self._failures = 0
                return
            for names in self._master.pieces():
                self._seen(names, number)
                time.sleep(_TURN_S)
            self._failures = 0
        except TierUnavailable as error:
            self._failures += 1
            self._losses = None
            if self._failures < _LOST:
                return
            if self._failures == _LOST:
                _log.warning("mooncake_tier: %s; no block in it is promised to a router any more", error)
            number += 1
        self._sweep(number)

    def _lost_nothing(self) -> bool:
        """Whether the list needs no reading. After a loss it is read twice: what was lost just before the first time
        may have been announced just after it."""
        losses, before = self._master.losses(), self._losses
        self._same = self._same + 1 if before is not None and losses.none_since(before) else 0
        self._losses = losses
        return self._same > 1 and self._same % _AT_LEAST > 0

    def _seen(self, names: Iterable[str], number: int) -> None:
        announced = self._announced
        with self._lock:
            for name in names:
                part = announced[hash(name) % _PARTS]
                if name in part:
                    part[name] = number

    def _sweep(self, number: int) -> None:
        """What no look since that number has seen is gone."""
        for part in self._announced:
            with self._lock:
                gone = [name for name, seen in part.items() if seen < number]
                for name in gone:
                    del part[name]
                self._gone.update(gone)
            time.sleep(_TURN_S)

    def _work(self) -> None:
        while not self._closed.wait(self._poll):
            try:
                self.look(always=False)
                if self.pending:
                    self._found()
            except Exception:
                _log.exception("mooncake_tier: looking for evicted blocks ended with an error; it goes on")
