"""What to remember of a store that says no: keys whose load failed, and pauses while its pool is full. Pure state."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

__all__ = ["FailedLoads", "Pauses"]


class FailedLoads:
    """Keys whose load failed: a lookup must not promise them again, or a request would load and fail for ever.

    A key is forgotten after remember_s seconds, when it is stored again, or, the oldest first, beyond `most` keys.
    Safe to use from several threads.
    """

    def __init__(self, remember_s: float, most: int = 100_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._remember, self._most, self._clock = remember_s, most, clock
        self._until: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, key: object) -> bool:
        until = self._until.get(key) if isinstance(key, str) else None
        return until is not None and self._clock() < until

    def __len__(self) -> int:
        return len(self._until)

    def add(self, keys: Iterable[str]) -> None:
        """These failed just now."""
        now = self._clock()
        with self._lock:
            for key in keys:
                self._until[key] = now + self._remember
                self._until.move_to_end(key)
            while self._until and (len(self._until) > self._most or next(iter(self._until.values())) <= now):
                self._until.popitem(last=False)

    def forget(self, keys: Iterable[str]) -> None:
        """These are in the store again."""
        with self._lock:
            for key in keys:
                self._until.pop(key, None)


class Pauses:
    """How long to leave a full pool alone: a rejection makes it evict in the background, and then some blocks fit.

    The pause begins with first_s and doubles, up to longest_s, with every rejection of all that was offered.
    """

    def __init__(self, first_s: float = 0.02, longest_s: float = 0.5) -> None:
        self._first, self._longest = first_s, longest_s
        self._next = first_s

    def rejected(self, some_fitted: bool) -> float:
        """Seconds to wait before the next put."""
        if some_fitted:
            self._next = self._first
        pause, self._next = self._next, min(2 * self._next, self._longest)
        return pause

    def accepted(self) -> None:
        """There was room for all."""
        self._next = self._first
