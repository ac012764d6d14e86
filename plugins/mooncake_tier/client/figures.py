"""What a client counts: the name, kind and meaning of each figure, in one table, and the counters behind it."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass

from mooncake_tier.client.integrity import Fault
from mooncake_tier.client.operation import Kind, Outcome

__all__ = ["FIGURES", "Counts", "Figure"]


@dataclass(frozen=True)
class Figure:
    """One metric. label, values: its only label and what that may be, empty without one."""

    name: str
    kind: str
    about: str
    label: str = ""
    values: tuple[str, ...] = ("",)


_OUTCOMES = tuple(one.value for one in Outcome)
_FAULTS = tuple(one.name.lower() for one in Fault)
_KINDS = tuple(one.value for one in Kind)

FIGURES = (
    Figure("mooncake_tier_lookups", "counter", "Keys looked up, by outcome; ok are hits", "outcome", _OUTCOMES),
    Figure("mooncake_tier_loads", "counter", "Blocks asked for; ok were read and proven", "outcome", _OUTCOMES),
    Figure("mooncake_tier_stores", "counter", "Blocks offered; ok are in the store", "outcome", _OUTCOMES),
    Figure("mooncake_tier_loaded_bytes", "counter", "Payload of the blocks that were read and proven"),
    Figure("mooncake_tier_stored_bytes", "counter", "Payload that was written, without blocks that were there"),
    Figure("mooncake_tier_lookup_seconds", "counter", "Time of lookups from submission to outcome"),
    Figure("mooncake_tier_load_seconds", "counter", "Time of loads from submission to outcome"),
    Figure("mooncake_tier_store_seconds", "counter", "Time of stores from submission to outcome"),
    Figure("mooncake_tier_corrupt", "counter", "Objects that did not prove themselves, removed", "fault", _FAULTS),
    Figure("mooncake_tier_evicted", "counter", "Blocks that were gone at their load"),
    Figure("mooncake_tier_rejected_puts", "counter", "Puts that the full pool refused, and that were tried again"),
    Figure("mooncake_tier_breaker_opened", "counter", "Times that the breaker opened"),
    Figure("mooncake_tier_probes", "counter", "Probes of a store left alone", "result", ("answered", "failed")),
    Figure("mooncake_tier_breaker_state", "gauge", "0 closed, 1 half open, 2 open"),
    Figure("mooncake_tier_waiting", "gauge", "Calls that wait for a thread", "kind", _KINDS),
    Figure("mooncake_tier_remembered_keys", "gauge", "Keys whose load failed a short while ago"),
)


class Counts:
    """Counters of one client. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: defaultdict[tuple[str, str], float] = defaultdict(float)

    def add(self, name: str, amount: float = 1, label: str = "") -> None:
        """Add to the counter ``mooncake_tier_{name}``, under its label's value."""
        with self._lock:
            self._values[f"mooncake_tier_{name}", label] += amount

    def snapshot(self) -> dict[tuple[str, str], float]:
        """(name, label's value or empty) -> value since the client began; those that never counted are missing."""
        with self._lock:
            return dict(self._values)
