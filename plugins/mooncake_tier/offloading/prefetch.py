"""Chunks for requests that still wait: in host memory before their turn comes, also while others use every token.

vLLM looks for a request's chunks when its turn has come, and then loads while the request waits. This asks when the
request arrives, and again after every step, the request at the head of the queue first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

__all__ = ["Chunk", "Host", "Prefetcher", "State"]


class State(Enum):
    """Where a chunk is: nowhere, perhaps in the store, on its way to host memory, in host memory."""

    ABSENT = 0
    ASKED = 1
    LOADING = 2
    READY = 3


@dataclass(frozen=True)
class Chunk:
    """index: its number in the request. key: vLLM's."""

    index: int
    key: Any


class Host(Protocol):
    """What vLLM's scheduler knows and does."""

    def chunks(self, request: str) -> Iterable[Chunk]:
        """The chunks of a request that the GPU does not have, in order; empty for one that is gone."""

    def peek(self, request: str, chunk: Chunk) -> State:
        """Where the chunk is, without loading it: READY, LOADING or ABSENT from host memory."""

    def want(self, request: str, chunk: Chunk) -> State:
        """The same, and begin to load it if the store has it."""


@dataclass
class _Waiting:
    rank: tuple[Any, ...]
    loaded: set[Any] = field(default_factory=set)


class Prefetcher:
    """Requests that wait, and what was loaded for them.

    chunk_bytes: of one chunk. most_bytes: host memory that chunks of waiting requests may fill. loading_bytes: what may
    be under way to it at a time, so that the head of the queue does not wait behind the rest. counted: told the number
    of chunks by use, ``useful`` or ``wasted``.
    """

    def __init__(
        self,
        host: Host,
        chunk_bytes: int,
        most_bytes: int,
        loading_bytes: int,
        counted: Callable[[str, int], None],
    ) -> None:
        self._host, self._counted = host, counted
        self._most = max(1, most_bytes // chunk_bytes)
        self._at_a_time = max(1, loading_bytes // chunk_bytes)
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: str, rank: tuple[Any, ...] = ()) -> None:
        """A request waits from now on; the lower its rank, the earlier its turn, then by arrival."""
        self._waiting[request] = _Waiting(rank)

    def begun(self, requests: Iterable[str]) -> None:
        """Their turn has come."""
        self._end(requests, "useful")

    def dropped(self, request: str) -> bool:
        """It ended without its turn; returns whether something was loaded for it."""
        had = bool(self._waiting[request].loaded) if request in self._waiting else False
        self._end([request], "wasted")
        return had

    def pump(self) -> None:
        """Ask for and load what there is room for, in the order of the queue."""
        filled = loading = 0
        for request in sorted(self._waiting, key=lambda one: self._waiting[one].rank):
            one = self._waiting[request]
            for chunk in self._host.chunks(request):
                state = self._host.peek(request, chunk)
                if state is State.ABSENT:
                    if filled >= self._most or loading >= self._at_a_time:
                        return
                    state = self._host.want(request, chunk)
                    if state is State.LOADING:
                        one.loaded.add(chunk.key)
                if state is State.ABSENT:
                    break
                filled += 1
                loading += state is State.LOADING
            if filled >= self._most:
                return

    def _end(self, requests: Iterable[str], use: str) -> None:
        for request in requests:
            if one := self._waiting.pop(request, None):
                self._counted(use, len(one.loaded))
