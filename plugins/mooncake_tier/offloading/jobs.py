"""Jobs of vLLM's tiering manager as operations of the client: cut so that a deadline means something, never waited for.

A load goes through the client's own memory, so that its place is free as soon as its outcome is known; a store reads
its place until `released`, and its job is not finished before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mooncake_tier.client.operation import Block, Kind, Operation, Outcome
from mooncake_tier.client.tier_client import TierClient

__all__ = ["Finished", "Jobs"]

_LONGEST_CALL_S = 30.0


@dataclass(frozen=True)
class Finished:
    """job: vLLM's number. load: its direction. ok, failed, given_up: keys by outcome. took_s: since it was begun."""

    job: int
    load: bool
    ok: tuple[str, ...]
    failed: tuple[str, ...]
    given_up: tuple[str, ...]
    nbytes: int
    took_s: float


@dataclass
class _Job:
    load: bool
    request: str
    began: float
    operations: list[Operation] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return all(one.poll() is not None and one.released for one in self.operations)


class Jobs:
    """Loads and stores under way. Used from one thread.

    client: None while the store is not open, which fails every job. least_rate: bytes a second that a load is given
    time for, behind all that waits before it.
    """

    def __init__(
        self, client: Callable[[], TierClient | None], least_rate: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._rate, self._clock = client, least_rate, clock
        self._jobs: dict[int, _Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def loading_bytes(self) -> int:
        """Payload of loads whose outcome is not known."""
        return sum(
            block.nbytes
            for job in self._jobs.values()
            if job.load
            for one in job.operations
            if not one.settled
            for block in one.blocks
        )

    def load(self, number: int, request: str, blocks: Sequence[Block]) -> None:
        """Read blocks into their places."""
        job = self._jobs[number] = _Job(True, request, self._clock())
        client = self._client()
        if client is None:
            job.operations.append(_unserved(blocks))
            return
        ahead = self.loading_bytes
        for part in _cut(blocks, client.options.staging_bytes):
            ahead += sum(block.nbytes for block in part)
            job.operations.append(client.load(part, client.options.load_s + ahead / self._rate, staged=True))

    def store(self, number: int, request: str, blocks: Sequence[Block]) -> None:
        """Write blocks from their places."""
        job = self._jobs[number] = _Job(False, request, self._clock())
        client = self._client()
        job.operations += [_unserved(blocks)] if client is None else [client.store(blocks)]

    def cancel(self, request: str) -> None:
        """Give up the loads of a request that no thread has taken up."""
        for job in self._jobs.values():
            if job.load and job.request == request:
                for one in job.operations:
                    one.cancel()

    def finished(self) -> list[Finished]:
        """The jobs whose memory is free, each once."""
        out = []
        for number, job in list(self._jobs.items()):
            if not job.done:
                continue
            del self._jobs[number]
            by_outcome: dict[bool | None, list[Block]] = {True: [], False: [], None: []}
            for one in job.operations:
                for block, outcome in zip(one.blocks, one.outcomes, strict=True):
                    by_outcome[None if outcome is Outcome.CANCELLED else outcome.ok].append(block)
            ok, failed, given_up = (tuple(block.key for block in by_outcome[kind]) for kind in (True, False, None))
            nbytes = sum(block.nbytes for block in by_outcome[True])
            out.append(Finished(number, job.load, ok, failed, given_up, nbytes, self._clock() - job.began))
        return out

    def drain(self) -> None:
        """Wait until no job touches memory; what no thread has taken up is given up.

        A store that hangs longer than Mooncake's own limits would leave an object that does not prove itself.
        """
        for job in self._jobs.values():
            for one in job.operations:
                one.cancel()
                one.wait()
                one.wait_released(_LONGEST_CALL_S)


def _unserved(blocks: Sequence[Block]) -> Operation:
    operation = Operation(Kind.LOAD, blocks, 0.0, lambda _: None)
    operation.settle([Outcome.CLOSED] * len(blocks))
    return operation


def _cut(blocks: Sequence[Block], most_bytes: int) -> list[list[Block]]:
    """Lists of blocks in their order, none larger than one staging buffer."""
    parts: list[list[Block]] = []
    room = 0
    for block in blocks:
        if not parts or block.nbytes > room:
            parts.append([])
            room = most_bytes
        parts[-1].append(block)
        room -= block.nbytes
    return parts
