"""Which of the keys that were announced are gone. Mooncake tells nobody of an eviction, so its master is asked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from mooncake_tier.errors import TierUnavailable

__all__ = ["Evictions"]

_log = logging.getLogger("mooncake_tier")

#: Looks in a row that fail before everything counts as gone: a store that cannot be asked serves nothing either.
_LOST = 3


class Evictions:
    """Announced keys, and those of them that the master does not list any more.

    listed: every key of the store, as `mooncake_tier.client.master.Master.keys` tells without renewing a lease; raises
    `TierUnavailable`. poll_s: pause between two looks. found: called by the thread when there is something to take. A
    key that is gone is there to be taken at the latest after poll_s and the time of one look, and if the master does
    not answer, after three of both.
    """

    def __init__(
        self, listed: Callable[[], Iterable[str]], poll_s: float, found: Callable[[], None] = lambda: None
    ) -> None:
        self._listed, self._poll, self._found = listed, poll_s, found
        self._announced: set[str] = set()
        self._gone: set[str] = set()
        self._lock = threading.Lock()
        self._failures = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mooncake-tier-evictions", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._announced)

    def announce(self, names: Iterable[str]) -> list[str]:
        """These are in the store; returns those that nobody was told of, or was told that they are gone."""
        names = list(names)
        with self._lock:
            new = [name for name in dict.fromkeys(names) if name not in self._announced and name not in self._gone]
            self._gone.difference_update(names)
            self._announced.update(names)
            return new

    def withdraw(self, names: Iterable[str]) -> None:
        """These turned out not to be there."""
        with self._lock:
            gone = self._announced.intersection(names)
            self._announced -= gone
            self._gone |= gone

    def forget(self) -> list[str]:
        """Whoever was told knows of none of them any more; returns those that will not be reported as gone now."""
        with self._lock:
            announced, self._announced = list(self._announced), set()
            return announced

    @property
    def pending(self) -> bool:
        """Whether there is something to take."""
        return bool(self._gone)

    def take(self) -> list[str]:
        """Keys that are gone since the last call; each was announced before."""
        with self._lock:
            gone, self._gone = list(self._gone), set()
            return gone

    def look(self) -> None:
        """Compare with what the master lists."""
        with self._lock:
            before = set(self._announced)  # what is announced from now on may be missing in the list
        if not before:
            return
        try:
            left = set(self._listed())
            self._failures = 0
        except TierUnavailable as error:
            self._failures += 1
            if self._failures < _LOST:
                return
            if self._failures == _LOST:
                _log.warning("mooncake_tier: %s; no block in it is promised to a router any more", error)
            left = set()
        self.withdraw(before - left)

    def close(self, within_s: float = 5.0) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join(within_s)

    def _work(self) -> None:
        while not self._closed.wait(self._poll):
            try:
                self.look()
                if self.pending:
                    self._found()
            except Exception:
                _log.exception("mooncake_tier: looking for evicted blocks ended with an error; it goes on")
