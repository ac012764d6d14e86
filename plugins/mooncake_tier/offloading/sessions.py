"""Sessions of agents: the growing prefix of each, kept until its next turn, and what is worth writing at all."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mooncake_tier.offloading.holds import Holds

__all__ = ["Sessions"]

#: Keys that are remembered as asked for, and sessions between two turns.
_MOST_SEEN, _MOST_SESSIONS = 200_000, 10_000


@dataclass
class _Session:
    names: list[str] = field(default_factory=list)
    until: float = 0.0
    running: set[str] = field(default_factory=set)


class Sessions:
    """A request belongs to the session that it names, or to that of a request whose every chunk its prompt begins with.

    holds: keeps keys from eviction. most_bytes: what all sessions may keep; beyond it, the one that was idle longest
    is let go. chunk_bytes: of one key. idle_s: how long a session without a request lives.
    """

    def __init__(
        self,
        holds: Holds,
        most_bytes: int,
        chunk_bytes: int,
        idle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._holds, self._most, self._idle, self._clock = holds, most_bytes // max(chunk_bytes, 1), idle_s, clock
        self._sessions: OrderedDict[str, _Session] = OrderedDict()  # the one that is idle longest first
        self._kept: Counter[str] = Counter()
        self._by_tail: dict[str, str] = {}
        self._of_request: dict[str, str] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: str, names: Sequence[str], session: str | None = None) -> None:
        """A request with the chunks of its prompt, in order, and the session that its client names, if it does."""
        found = session or next((self._by_tail[name] for name in reversed(names) if name in self._by_tail), None)
        if found is not None:
            self._of_request[request] = found
            self._renew(found).running.add(request)

    def worth_writing(self, request: str, name: str) -> bool:
        """Whether somebody is likely to read this chunk: the session's next turn, or whoever asked for it before."""
        return request in self._of_request or name in self._seen

    def finish(self, request: str, names: Sequence[str], ended: bool = False) -> None:
        """A request is done and had these chunks. ended: its client says that the session is over."""
        found = self._of_request.pop(request, f"request/{request}")
        one = self._renew(found)
        one.running.discard(request)
        self._remember(names)
        if ended or not (names or one.names or one.running):  # nothing to keep, and nothing to know it by
            self._drop(found)
        elif len(names) >= len(one.names):
            self._keep(found, one, list(names))
        self.expire()

    def expire(self) -> None:
        """Let go of sessions that are over, and of the longest idle ones while there are too many."""
        now = self._clock()
        for found, one in list(self._sessions.items()):
            too_much = self._most and len(self._kept) > self._most
            if not (too_much or one.until <= now or len(self._sessions) > _MOST_SESSIONS):
                return
            if not one.running:
                self._drop(found)

    def clear(self) -> None:
        """Forget every session and every key, whose names mean nothing any more."""
        for found in list(self._sessions):
            self._drop(found)
        self._seen.clear()
        self._of_request.clear()

    def _renew(self, found: str) -> _Session:
        one = self._sessions.setdefault(found, _Session())
        one.until = self._clock() + self._idle
        self._sessions.move_to_end(found)
        return one

    def _keep(self, found: str, one: _Session, names: list[str]) -> None:
        self._release(found, one)
        one.names = names
        if names:
            self._by_tail[names[-1]] = found
        if self._most:
            kept = names[: self._most]
            self._kept.update(kept)
            self._holds.add(("session", found), kept)

    def _release(self, found: str, one: _Session) -> None:
        if one.names and self._by_tail.get(one.names[-1]) == found:
            del self._by_tail[one.names[-1]]
        if self._most:
            for name in one.names[: self._most]:
                self._kept[name] -= 1
                if not self._kept[name]:
                    del self._kept[name]
            self._holds.drop(("session", found))

    def _drop(self, found: str) -> None:
        self._release(found, self._sessions.pop(found))

    def _remember(self, names: Iterable[str]) -> None:
        for name in names:
            self._seen[name] = None
            self._seen.move_to_end(name)
        while len(self._seen) > _MOST_SEEN:
            self._seen.popitem(last=False)
