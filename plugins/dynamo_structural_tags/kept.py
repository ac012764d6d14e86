"""Results by content: the last ones used, from several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Kept"]

T = TypeVar("T")


class Kept(Generic[T]):
    """At most `size` results; the one that was not asked for the longest time goes first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._found: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        """The result for a key, None if there is none (any more)."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def put(self, key: Hashable, result: T) -> T:
        """Keep a result, and return it."""
        with self._lock:
            self._found[key] = result
            while len(self._found) > self._size:
                self._found.popitem(last=False)
        return result
