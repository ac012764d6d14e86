"""The thread that looks after the store: keeps leases alive while loads are pending, and probes a store left alone."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from mooncake_tier.client.breaker import Breaker
from mooncake_tier.client.figures import Counts
from mooncake_tier.client.lane import leave_cores
from mooncake_tier.stock import NO_SPACE, NativeStore

__all__ = ["PROBE_BYTES", "Care", "Probe"]

_log = logging.getLogger("mooncake_tier")

_HALF = 64
PROBE_BYTES = 2 * _HALF
"""Registered memory that a probe needs."""


class Probe:
    """Store, read and remove a small object: that works only if both the master and a pool do.

    memory: address of `PROBE_BYTES` registered bytes.
    """

    def __init__(self, native: NativeStore, namespace: str, memory: int) -> None:
        self._native, self._memory = native, memory
        self.key = f"{namespace}/probe/{os.getpid()}-{id(self):x}"
        self._content = hashlib.sha512(self.key.encode()).digest()

    def __call__(self) -> bool:
        """Whether the store works. Takes as long as Mooncake takes."""
        out, back = self._memory, self._memory + _HALF
        ctypes.memmove(out, self._content, _HALF)
        ctypes.memset(back, 0, _HALF)
        [put] = self._native.put([self.key], [[out]], [[_HALF]])
        if put == NO_SPACE:
            return True
        if put:
            return False
        [got] = self._native.get([self.key], [[back]], [[_HALF]])
        well = got == _HALF and ctypes.string_at(back, _HALF) == self._content
        self._native.remove(self.key)
        return well


class Care:
    """Touches held keys every third of a lease, and probes when the breaker says so.

    pending: keys of loads that wait for a thread.
    """

    def __init__(
        self,
        native: NativeStore,
        probe: Callable[[], bool],
        lease_s: float,
        breaker: Breaker,
        counts: Counts,
        pending: Callable[[], list[str]],
        clock: Callable[[], float],
    ) -> None:
        self._native, self._probe, self._breaker, self._counts = native, probe, breaker, counts
        self._pending, self._clock, self._every = pending, clock, lease_s / 3
        self._held: dict[str, float] = {}
        self._touch_at = clock() + self._every
        self._woken = self._closed = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="mooncake-tier-care", daemon=True)
        self._thread.start()

    def hold(self, names: Sequence[str], until: float) -> None:
        """Keep the leases of these keys alive until this time on the clock."""
        with self._change:
            self._held |= dict.fromkeys(names, until)

    def let_go(self, names: Sequence[str]) -> None:
        """Hold these no longer."""
        with self._change:
            for name in names:
                self._held.pop(name, None)

    @property
    def held(self) -> list[str]:
        """The keys that are held now."""
        now = self._clock()
        with self._change:
            self._held = {name: until for name, until in self._held.items() if until > now}
            return list(self._held)

    def wake(self) -> None:
        """The breaker opened: look when its probe is due."""
        with self._change:
            self._woken = True
            self._change.notify()

    def close(self) -> None:
        """Let the thread end after what it does now."""
        with self._change:
            self._closed = True
            self._change.notify()

    def join(self, until: float) -> list[str]:
        """Wait for the thread until this time of the monotonic clock; returns its name if it still runs."""
        self._thread.join(max(0.0, until - time.monotonic()))
        return [self._thread.name] if self._thread.is_alive() else []

    def _work(self) -> None:
        leave_cores(threading.current_thread())  # a probe of a pool that hangs spins, and a lookup takes little
        while True:
            with self._change:
                due = min(self._touch_at, self._breaker.probe_at or self._touch_at)
                self._change.wait_for(lambda: self._woken or self._closed, max(0.0, due - self._clock()))
                self._woken = False
                if self._closed:
                    return
            try:
                if self._breaker.begin_probe():
                    self._run_probe()
                if self._clock() >= self._touch_at:
                    self._touch_at = self._clock() + self._every
                    self._touch()
            except Exception:
                _log.exception("mooncake_tier: looking after the store ended with an error; it goes on")

    def _run_probe(self) -> None:
        well = False
        try:
            well = self._probe()
        finally:
            self._breaker.probed(well)
            self._counts.add("probes", 1, "answered" if well else "failed")
        if well:
            _log.warning("mooncake_tier: the store answers again")

    def _touch(self) -> None:
        """A lookup renews a lease. A store that does not answer has no leases to renew."""
        names = [*dict.fromkeys([*self.held, *self._pending()])]
        if names and self._breaker.allows:
            self._native.exists(names)
