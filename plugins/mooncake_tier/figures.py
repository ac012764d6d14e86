"""What a client counts: the name, kind and meaning of each figure, in one table, and the counters behind it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

__all__ = ["FIGURES", "Counts", "Figure"]


@dataclass(frozen=True)
class Figure:
    """One metric. label: name of its only label, empty without one. Counters end in ``_total`` where they are shown."""

    name: str
    kind: str
    label: str
    about: str


FIGURES = (
    Figure("mooncake_tier_lookups", "counter", "outcome", "Keys looked up, by outcome; ok are hits"),
    Figure("mooncake_tier_loads", "counter", "outcome", "Blocks asked for, by outcome; ok were read and proven"),
    Figure("mooncake_tier_stores", "counter", "outcome", "Blocks offered, by outcome; ok are in the store"),
    Figure("mooncake_tier_loaded_bytes", "counter", "", "Payload of the blocks that were read and proven"),
    Figure("mooncake_tier_stored_bytes", "counter", "", "Payload that was written; blocks that were there are not"),
    Figure("mooncake_tier_lookup_seconds", "counter", "", "Time of lookups from submission to outcome"),
    Figure("mooncake_tier_load_seconds", "counter", "", "Time of loads from submission to outcome"),
    Figure("mooncake_tier_store_seconds", "counter", "", "Time of stores from submission to outcome"),
    Figure("mooncake_tier_corrupt", "counter", "fault", "Objects that did not prove themselves and were removed"),
    Figure("mooncake_tier_evicted", "counter", "", "Blocks that a lookup had found and that were gone at their load"),
    Figure("mooncake_tier_rejected_puts", "counter", "", "Puts that the full pool refused; they were tried again"),
    Figure("mooncake_tier_breaker_opened", "counter", "", "Times that the breaker opened"),
    Figure("mooncake_tier_probes", "counter", "result", "Probes of a store that the breaker had left alone"),
    Figure("mooncake_tier_breaker_state", "gauge", "", "0 closed, 1 half open, 2 open"),
    Figure("mooncake_tier_waiting", "gauge", "kind", "Calls that wait for a thread"),
    Figure("mooncake_tier_remembered_keys", "gauge", "", "Keys whose load failed a short while ago"),
)
_BY_NAME = {figure.name: figure for figure in FIGURES}


class Counts:
    """Counters of one client. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: Counter[tuple[str, str]] = Counter()

    def add(self, name: str, amount: float = 1, label: str = "") -> None:
        """Add to the counter ``mooncake_tier_{name}``."""
        full = f"mooncake_tier_{name}"
        assert bool(_BY_NAME[full].label) == bool(label), full
        with self._lock:
            self._values[full, label] += amount  # type: ignore[assignment]

    def snapshot(self) -> dict[tuple[str, str], float]:
        """(name, label's value or empty) -> value since the client began."""
        with self._lock:
            return dict(self._values)
