"""One call to the store for a caller who must not wait: its outcome is settled by its deadline at the latest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from mooncake_tier.client.integrity import Parts, payload_bytes

__all__ = ["SLOW_S", "Block", "Kind", "Operation", "Outcome", "check_parts"]

SLOW_S = 0.25
"""A call that takes longer, most likely waits for a store that does not answer."""


@dataclass(frozen=True)
class Block:
    """A block (or chunk) in memory. parts: address and bytes of its pieces, in an order that is always the same."""

    key: str
    parts: tuple[tuple[int, int], ...]

    @classmethod
    def at(cls, key: str, address: int, nbytes: int) -> Block:
        """A block that lies in one piece."""
        return cls(key, ((address, nbytes),))

    @property
    def nbytes(self) -> int:
        return payload_bytes(self.parts)


class Kind(Enum):
    """What a call does."""

    LOOKUP = "lookup"
    LOAD = "load"
    STORE = "store"


class Outcome(Enum):
    """What became of one key. Everything but OK is a miss: compute the block, or leave it unstored."""

    OK = "ok"
    ABSENT = "absent"
    CORRUPT = "corrupt"
    FAILED = "failed"
    REMEMBERED = "remembered"
    NO_SPACE = "no_space"
    DEADLINE = "deadline"
    BREAKER = "breaker"
    BUSY = "busy"
    CANCELLED = "cancelled"
    CLOSED = "closed"

    @property
    def ok(self) -> bool:
        """Present, loaded and proven, or stored."""
        return self is Outcome.OK


class Operation:
    """A call under way. Ask `poll` from a loop that must not wait, or `wait`.

    blocks: what it is about; a lookup's have no parts. deadline: on the clock. staged: whether a load goes through the
    client's own memory, so that the caller's is free as soon as the outcome is settled. Without that, a call that
    missed its deadline may still write to (a load) or read from (a store) the caller's memory until `released`.
    slow: told by `poll`, once, of a call that has taken `SLOW_S`.
    """

    def __init__(
        self,
        kind: Kind,
        blocks: Sequence[Block],
        deadline: float,
        settled: Callable[[Operation], None],
        clock: Callable[[], float] = time.monotonic,
        staged: bool = False,
        slow: Callable[[Operation], None] | None = None,
    ) -> None:
        self.kind, self.blocks, self.deadline, self.staged = kind, blocks, deadline, staged
        self.began = clock()
        self.took_s: float | None = None
        self._clock, self._on_settled, self._on_slow = clock, settled, slow
        self._slow_at = deadline
        self._outcomes: list[Outcome] | None = None
        self._running = False
        self._begun = False
        self._change = threading.Condition()

    @property
    def keys(self) -> list[str]:
        return [block.key for block in self.blocks]

    @property
    def settled(self) -> bool:
        """Whether the outcomes are known; looks at no clock."""
        return self._outcomes is not None

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of a settled call; empty before."""
        return self._outcomes or []

    @property
    def begun(self) -> bool:
        """Whether a thread ever took it up."""
        return self._begun

    @property
    def released(self) -> bool:
        """Whether the caller's memory is no longer read or written on behalf of this call."""
        return self._outcomes is not None and (self.staged or not self._running)

    def poll(self) -> list[Outcome] | None:
        """The outcome of each block, in order; None while there is time left and no answer."""
        if self._outcomes is None:
            now = self._clock()
            if now >= self.deadline:
                self.settle([Outcome.DEADLINE] * len(self.blocks))
            elif now >= self._slow_at and self._on_slow:
                self._slow_at = self.deadline
                self._on_slow(self)
        return self._outcomes

    def wait(self) -> list[Outcome]:
        """The same, waiting until there is an answer or the deadline has come."""
        with self._change:
            self._change.wait_for(lambda: self._outcomes is not None, max(0.0, self.deadline - self._clock()))
        if self._outcomes is None:
            self.settle([Outcome.DEADLINE] * len(self.blocks))
        assert self._outcomes is not None
        return self._outcomes

    def wait_released(self, timeout_s: float) -> bool:
        """Wait until the caller's memory is free; returns whether it is."""
        with self._change:
            return self._change.wait_for(lambda: self.released, timeout_s)

    def begin(self) -> bool:
        """A worker is about to touch memory; False if the outcome is settled and it must not."""
        with self._change:
            self._slow_at = self._clock() + SLOW_S
            self._running = self._begun = self._outcomes is None
            return self._running

    def end(self) -> None:
        """The worker touches memory no more."""
        with self._change:
            self._running = False
            self._change.notify_all()

    def cancel(self) -> bool:
        """Give it up if no thread has taken it up; returns whether."""
        with self._change:
            return not self._begun and self.settle([Outcome.CANCELLED] * len(self.blocks))

    def touch(self, write: Callable[[], None]) -> bool:
        """Write to the caller's memory if the outcomes are not settled, which waits meanwhile; returns whether."""
        with self._change:
            if self._outcomes is None:
                write()
            return self._outcomes is None

    def settle(self, outcomes: list[Outcome]) -> bool:
        """Set the outcomes, once; returns False if they were settled before."""
        with self._change:
            if self._outcomes is not None:
                return False
            self.took_s = self._clock() - self.began
            self._outcomes = outcomes
            self._change.notify_all()
        self._on_settled(self)
        return True


def check_parts(parts: Parts) -> None:
    """Raise ValueError for a payload that no store could hold."""
    if not parts or any(nbytes < 1 for _, nbytes in parts):
        raise ValueError(f"parts={parts!r:.100}: a block has at least one piece, and each has bytes. Pass them.")
