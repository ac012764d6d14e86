"""What the tier tells vLLM's metrics: the client's figures, and those of loading for requests that still wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mooncake_tier.client.figures import FIGURES, Figure

__all__ = ["TIER_FIGURES", "Changes"]

TIER_FIGURES = (
    *FIGURES,
    Figure(
        "mooncake_tier_prefetched_chunks", "counter", "Chunks loaded for waiting requests", "use", ("useful", "wasted")
    ),
    Figure("mooncake_tier_cancelled_requests", "counter", "Requests that ended while chunks were loaded for them"),
    Figure("mooncake_tier_unwritten_chunks", "counter", "Chunks that nobody is likely to read, not written"),
    Figure("mooncake_tier_removed_chunks", "counter", "Announced chunks that were found to be gone"),
    Figure("mooncake_tier_sessions", "gauge", "Sessions between two turns, or with a request"),
    Figure("mooncake_tier_held_keys", "gauge", "Keys that are kept from eviction"),
    Figure("mooncake_tier_open", "gauge", "1 if the store is used"),
)

_BY_NAME = {figure.name: figure for figure in TIER_FIGURES}


class Changes:
    """Turns figures since the start into what changed since the last call, as vLLM's statistics want counters."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], float] = {}

    def since_last(self, now: Mapping[tuple[str, str], float]) -> Iterator[tuple[Figure, tuple[str, ...], float]]:
        """(figure, its label's value if it has one, growth of a counter or value of a gauge), changed ones only."""
        for (name, label), value in now.items():
            figure = _BY_NAME[name]
            before = self._last.get((name, label))
            if value != (before or 0.0) or (before is None and figure.kind == "gauge"):
                yield (
                    figure,
                    (label,) if figure.label else (),
                    value if figure.kind == "gauge" else value - (before or 0),
                )
            self._last[name, label] = value
