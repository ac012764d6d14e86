"""Lookup, load and store of blocks in Mooncake: no caller waits beyond its deadline, and what is wrong is a miss.

Every call becomes an `Operation` in the queue of a thread; only these threads call Mooncake. While the breaker is open
everything misses at once, and one thread probes the store until it answers again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from mooncake_tier import keys
from mooncake_tier.client.breaker import Breaker, State
from mooncake_tier.client.care import Care, Probe
from mooncake_tier.client.figures import Counts
from mooncake_tier.client.lane import Lane
from mooncake_tier.client.operation import Block, Kind, Operation, Outcome, check_parts
from mooncake_tier.client.pressure import FailedLoads
from mooncake_tier.client.work import Work
from mooncake_tier.errors import SettingRefused
from mooncake_tier.options import Options
from mooncake_tier.stock import NativeStore

__all__ = ["TierClient"]

_log = logging.getLogger("mooncake_tier")
_STATES = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}


class TierClient:
    """A client of one namespace. Make it with `mooncake_tier.client.connection.connect`, end it with `close`.

    Memory that blocks lie in must be registered first, and stay mapped until the client is closed.
    """

    def __init__(
        self,
        native: NativeStore,
        namespace: str,
        options: Options | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        keys.namespace_pattern(namespace)
        self.namespace, self.options = namespace, options or Options()
        self.counts = Counts()
        one = self.options
        self.breaker = Breaker(one.failures, one.cooldown_s, one.longest_cooldown_s, clock)
        self.failed_loads = FailedLoads(one.remember_s, clock=clock)
        self._native, self._clock, self._closed = native, clock, False
        self._registered: list[int] = []
        self._work = Work(native, namespace, one, self.counts, self.failed_loads, self._answered, clock)
        for address, nbytes in self._work.memory:
            self.register(address, nbytes)
        self._lanes = {
            Kind.LOOKUP: Lane("lookup", self._guarded(self._work.lookup)),
            Kind.LOAD: Lane("load", self._guarded(self._work.load), one.load_threads),
            Kind.STORE: Lane("store", self._guarded(self._work.store), most_bytes=one.queue_bytes),
        }
        probe = Probe(native, namespace, self._work.probe_memory)
        self.care = Care(native, probe, one.lease_s, self.breaker, self.counts, self._pending_loads, clock)

    def register(self, address: int, nbytes: int) -> None:
        """Make memory known to the transport, once; raises `SettingRefused` if Mooncake does not take it."""
        code = self._native.register(address, nbytes)
        if code:
            raise SettingRefused(
                f"register_buffer of {nbytes} bytes returned {code}",
                "blocks could not be moved to or from this memory",
                "memory that is mapped, not registered before, and within the limits of the device",
                "Look at Mooncake's log (GLOG_minloglevel=0), and at `ulimit -l` with RDMA",
            )
        self._registered.append(address)

    def lookup(self, names: Sequence[str], deadline_s: float | None = None) -> list[bool]:
        """Whether each key's block is in the store; waits for the answer, until the deadline at most.

        A key that is present has a lease from now on: it is not evicted for `lease_s` seconds. Hold it with `hold`.
        """
        return [outcome.ok for outcome in self.submit_lookup(names, deadline_s).wait()]

    def submit_lookup(self, names: Sequence[str], deadline_s: float | None = None) -> Operation:
        """The same without waiting. A key whose load failed a short while ago counts as absent."""
        return self._submit(
            Kind.LOOKUP, [Block(name, ()) for name in names], _seconds(deadline_s, self.options.lookup_s)
        )

    def load(self, blocks: Sequence[Block], deadline_s: float | None = None, staged: bool = False) -> Operation:
        """Read blocks into registered memory. A block whose outcome is not OK must be computed.

        staged: see `Operation`; needs `staging_bytes` for the largest block, and copies every block once.
        Without it, memory of a block that was not OK holds anything, and is not free until `released`.
        """
        for block in blocks:
            check_parts(block.parts)
            if staged and self.options.staging_bytes < block.nbytes:
                raise SettingRefused(
                    f"a block of {block.nbytes} bytes with staging_bytes={self.options.staging_bytes}",
                    "a staged load goes through the client's own memory",
                    f"staging_bytes of at least {block.nbytes}",
                    "Raise it, or load without staged=True",
                )
        return self._submit(Kind.LOAD, blocks, _seconds(deadline_s, self.options.load_s), staged)

    def store(self, blocks: Sequence[Block], deadline_s: float | None = None) -> Operation:
        """Write blocks that are not in the store. Their memory must not change until `released`.

        If it does change, the object does not prove itself at its load: a miss, not wrong bytes.
        """
        for block in blocks:
            check_parts(block.parts)
        return self._submit(Kind.STORE, blocks, _seconds(deadline_s, self.options.store_s))

    def hold(self, names: Sequence[str], seconds: float) -> None:
        """Keep the leases of these keys, which are present, alive for so long, or until `let_go`."""
        self.care.hold(names, self._clock() + seconds)

    def let_go(self, names: Sequence[str]) -> None:
        """End what `hold` began."""
        self.care.let_go(names)

    def rename(self, namespace: str) -> None:
        """Use another namespace from now on. Nothing may be under way: what is, proves itself for neither."""
        keys.namespace_pattern(namespace)
        self.namespace = self._work.namespace = namespace

    def clear(self, within_s: float = 10.0) -> int | None:
        """Remove every block of this namespace, and no other, leased or not; their number.

        None if the store did not do it within `within_s` seconds.
        """
        removed: list[int] = []
        pattern = keys.namespace_pattern(self.namespace)

        def remove() -> None:
            removed.append(self._native.remove_matching(pattern))

        thread = threading.Thread(target=remove, name="mooncake-tier-clear", daemon=True)
        thread.start()
        thread.join(within_s)
        return removed[0] if removed and removed[0] >= 0 else None

    def snapshot(self) -> dict[tuple[str, str], float]:
        """Figures of `mooncake_tier.client.figures` by name and label: counters since the start, gauges now."""
        gauges = {
            ("mooncake_tier_breaker_state", ""): float(_STATES[self.breaker.state]),
            ("mooncake_tier_remembered_keys", ""): float(len(self.failed_loads)),
        }
        for kind, lane in self._lanes.items():
            gauges["mooncake_tier_waiting", kind.value] = float(len(lane.waiting))
        return self.counts.snapshot() | gauges

    def close(self, within_s: float = 10.0) -> bool:
        """End the threads, free the memory, close the store; what is queued is a miss. Safe to call twice.

        Returns False if a thread is still inside Mooncake after `within_s` seconds: then the store stays open, because
        closing it under that thread would end the process.
        """
        if self._closed:
            return True
        until = time.monotonic() + within_s
        for lane in self._lanes.values():
            for operation in lane.close():
                operation.settle([Outcome.CLOSED] * len(operation.blocks))
        self.care.close()
        running = [name for lane in self._lanes.values() for name in lane.join(until)] + self.care.join(until)
        if running:
            _log.error("mooncake_tier: %s still in a call of Mooncake after %s s; left open", running, within_s)
            return False
        self._closed = True
        for address in self._registered:
            self._native.unregister(address)
        self._native.close()
        self._work.free()
        return True

    def _submit(self, kind: Kind, blocks: Sequence[Block], seconds: float, staged: bool = False) -> Operation:
        slow = self._lanes[kind].step_back
        operation = Operation(kind, blocks, self._clock() + seconds, self._settled, self._clock, staged, slow)
        if not blocks:
            operation.settle([])
        elif self._closed:
            operation.settle([Outcome.CLOSED] * len(blocks))
        elif not self.breaker.allows:
            operation.settle([Outcome.BREAKER] * len(blocks))
        elif not self._lanes[kind].put(operation):
            operation.settle([Outcome.BUSY] * len(blocks))
        return operation

    def _guarded(self, run: Callable[[Operation, int], None]) -> Callable[[Operation, int], None]:
        """The same, where an error is a miss and a failure of the store."""

        def guarded(operation: Operation, thread: int) -> None:
            try:
                run(operation, thread)
            except Exception:
                _log.exception("mooncake_tier: a %s ended with an error", operation.kind.value)
                if operation.settle([Outcome.FAILED] * len(operation.blocks)):
                    self._answered(False)

        return guarded

    def _settled(self, operation: Operation) -> None:
        """Count an outcome; a deadline that passed during the call is a failure of the store."""
        kind, outcomes = operation.kind.value, operation.outcomes
        for outcome in set(outcomes):
            self.counts.add(f"{kind}s", outcomes.count(outcome), outcome.value)
        self.counts.add(f"{kind}_seconds", operation.took_s or 0.0)
        if Outcome.DEADLINE in outcomes and operation.begun:  # waiting in the queue says nothing about the store
            if operation.kind is Kind.LOAD:
                self.failed_loads.add(operation.keys)
            self._lanes[operation.kind].step_back(operation)
            self._answered(False)

    def _answered(self, well: bool) -> None:
        if well:
            self.breaker.success()
        elif self.breaker.failure():
            self.counts.add("breaker_opened")
            _log.warning(
                "mooncake_tier: the store does not answer; every lookup misses until a probe succeeds (%s)",
                self.namespace,
            )
            for lane in self._lanes.values():
                for waiting in lane.drain():
                    waiting.settle([Outcome.BREAKER] * len(waiting.blocks))
            self.care.wake()

    def _pending_loads(self) -> list[str]:
        return [key for operation in self._lanes[Kind.LOAD].waiting for key in operation.keys]


def _seconds(given: float | None, otherwise: float) -> float:
    return otherwise if given is None else given
