"""The chunks of one engine in the node's store: looked up, loaded, stored, kept and announced, and none waited for.

Loads no vLLM; `mooncake_tier.tier` is what vLLM calls.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mooncake_tier import keys
from mooncake_tier.client.connection import open_store
from mooncake_tier.client.figures import Counts
from mooncake_tier.client.master import Master
from mooncake_tier.client.opening import Opening
from mooncake_tier.client.operation import Block
from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.events.evictions import Evictions
from mooncake_tier.events.waking import wake
from mooncake_tier.offloading.holds import Holds
from mooncake_tier.offloading.jobs import Finished, Jobs
from mooncake_tier.offloading.lookups import Lookups
from mooncake_tier.offloading.sessions import Sessions
from mooncake_tier.offloading.settings import OffloadSettings
from mooncake_tier.stock import NativeStore

__all__ = ["ChunkPool"]

_log = logging.getLogger("mooncake_tier")

_STAGING = 64 << 20


class ChunkPool:
    """Used from the scheduler's thread alone.

    address, nbytes: the host memory of all chunks; chunk_bytes: of one, so that chunk i lies at i * chunk_bytes.
    events: whether somebody wants to know what is in the store. connect: opens it.
    """

    def __init__(
        self,
        settings: OffloadSettings,
        address: int,
        nbytes: int,
        chunk_bytes: int,
        events: bool,
        connect: Callable[[], NativeStore] | None = None,
    ) -> None:
        self.settings, self._address, self._nbytes, self.chunk_bytes = settings, address, nbytes, chunk_bytes
        self._connect = connect or (lambda: open_store(settings.address))
        self.counts = Counts()
        self.evictions: Evictions | None = None
        if events and settings.metrics:
            host, _, port = settings.metrics.rpartition(":")
            self.evictions = Evictions(Master(host, int(port)), settings.poll_s, wake)
        self._fields: dict[str, Any] = {}
        self._namespace = ""
        self._opening: Opening | None = None
        self._lookups: Lookups | None = None
        self._outdated: set[str] = set()
        """Requests whose blocks were computed with weights that are not the namespace's."""
        self._running: set[str] = set()
        self.heard = 0
        """Grows with every answer of the store."""
        self.jobs = Jobs(lambda: self.client, settings.least_rate)
        self.holds = Holds(self._hold, self._let_go)
        self.sessions = Sessions(self.holds, settings.session_bytes, chunk_bytes, settings.session_idle_s)

    # The store

    @property
    def client(self) -> TierClient | None:
        """The client, once the namespace is known and the store open."""
        return self._opening.client if self._opening else None

    @property
    def told(self) -> bool:
        """Whether the namespace is known."""
        return bool(self._namespace)

    def open(self, fields: Mapping[str, Any]) -> None:
        """The namespace is known: connect in the background. Raises `KeyRefused` for fields that name no block."""
        self._fields = dict(fields)
        self._namespace = keys.namespace(**self._fields)
        _log.info("mooncake_tier: namespace %s", self._namespace)
        self._opening = Opening(self._connected, self.settings.opening_s, self.settings.options.longest_cooldown_s)

    def rotate(self) -> None:
        """The weights changed, or may have: use another namespace. No job may be under way.

        It has the text of ``revision_file``, with which engines that were updated alike find each other's chunks, or
        without one a random text, with which nobody else does.
        """
        if not self.told:
            return
        file = self.settings.revision_file
        update = Path(file).read_text(encoding="utf-8").strip() if file else secrets.token_hex(8)
        self._namespace = keys.namespace(**{**self._fields, "revision": f"{self._fields['revision']}/update-{update}"})
        _log.info("mooncake_tier: the cache was reset; namespace %s from now on", self._namespace)
        self._outdated |= self._running
        if self._lookups is not None:
            self._lookups.clear()
        self.sessions.clear()
        self.holds.clear()
        if self.client:
            self.client.rename(self._namespace)

    def _connected(self) -> TierClient:
        options = self.settings.options
        least = max(options.staging_bytes or _STAGING, self.chunk_bytes)
        client = TierClient(self._connect(), self._namespace, dataclasses.replace(options, staging_bytes=least))
        client.register(self._address, self._nbytes)
        if client.namespace != self._namespace:  # it was reset meanwhile
            client.rename(self._namespace)
        return client

    def close(self) -> bool:
        """End everything; returns False if Mooncake still uses memory."""
        if self.evictions is not None:
            self.evictions.close()
        return self._opening.close() if self._opening else True

    # Requests and their chunks

    def name(self, group: int, block_hash: bytes) -> str:
        """The key of a chunk, by the hash of its last block."""
        return keys.block_key(self._namespace, block_hash, keys.Rank(group=group))

    def begin(self, request: str, names: Sequence[str], session: str | None) -> None:
        """A request arrived, with the chunks of its prompt, which the store may have though the GPU has them, too."""
        self._running.add(request)
        self.sessions.begin(request, names, session)
        self.touch(names)

    def finish(self, request: str, names: Sequence[str], ended: bool) -> None:
        """A request has ended, with the chunks that it had by then."""
        self._running.discard(request)
        self.sessions.finish(request, names if request not in self._outdated else (), ended)

    def forget(self, request: str) -> None:
        """vLLM asks nothing for it any more."""
        self._outdated.discard(request)
        if self._lookups is not None:
            self._lookups.forget(request)

    def lookup(self, name: str, request: str) -> bool | None:
        """Whether the chunk can be loaded; None: ask again."""
        lookups = self._asking()
        if lookups is None:
            return None if not self.told or (self._opening and self._opening.pending) else False
        return lookups.ask(name, request)

    def submit(self) -> None:
        """Send what was asked since the last time."""
        if (lookups := self._asking()) is not None:
            lookups.submit()

    def settle(self) -> list[Finished]:
        """Take over what the store answered; returns the jobs that are finished."""
        lookups = self._asking()
        finished = self.jobs.finished()
        self.heard += (lookups is not None and lookups.settle()) + len(finished)
        for one in finished:
            if lookups is not None:
                lookups.stored(() if one.load else one.ok)
                lookups.failed(one.failed if one.load else ())
            if self.evictions is not None and one.load:
                self.evictions.withdraw(one.failed)
        self.sessions.expire()
        return finished

    def load(self, job: int, request: str, chunks: Mapping[str, int]) -> None:
        """Read chunks, name -> number, into their places."""
        self.jobs.load(job, request, [self._block(name, number) for name, number in chunks.items()])

    def store(self, job: int, request: str, chunks: Mapping[str, int]) -> None:
        """Write those of the chunks that somebody is likely to read, from their places."""
        wanted = {
            name: number
            for name, number in chunks.items()
            if request not in self._outdated
            and (self.settings.write == "all" or self.sessions.worth_writing(request, name))
        }
        self.counts.add("unwritten_chunks", len(chunks) - len(wanted))
        self.jobs.store(job, request, [self._block(name, number) for name, number in wanted.items()])

    def announce(self, names: Iterable[str]) -> list[str]:
        """These are in the store; returns those that nobody was told of."""
        return self.evictions.announce(names) if self.evictions is not None else []

    def touch(self, names: Sequence[str]) -> None:
        """These are used, if not from the store: their turn to be evicted comes later."""
        if self.client:
            self.client.hold([name for name in names if name not in self.holds], self.settings.options.lease_s)

    def snapshot(self) -> dict[tuple[str, str], float]:
        """Figures of `mooncake_tier.offloading.figures`."""
        gauges = {
            ("mooncake_tier_sessions", ""): float(len(self.sessions)),
            ("mooncake_tier_held_keys", ""): float(len(self.holds)),
            ("mooncake_tier_open", ""): float(self.client is not None),
        }
        return self.counts.snapshot() | (self.client.snapshot() if self.client else {}) | gauges

    def _block(self, name: str, number: int) -> Block:
        return Block.at(name, self._address + number * self.chunk_bytes, self.chunk_bytes)

    def _asking(self) -> Lookups | None:
        if self._lookups is None and self.client:
            self._lookups = Lookups(self.client, self.holds)
        return self._lookups

    def _hold(self, names: Sequence[str], seconds: float) -> None:
        if self.client:
            self.client.hold(names, seconds)

    def _let_go(self, names: Sequence[str]) -> None:
        if self.client:
            self.client.let_go(names)
