"""The store connector's figures, through vLLM's own statistics: its log line and its ``/metrics``."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from mooncake_tier.client.figures import FIGURES

__all__ = ["StoreMetrics", "StoreStats"]

_BY_NAME = {figure.name: figure for figure in FIGURES}
_LOGGED = {
    "hits": ("mooncake_tier_lookups", "ok"),
    "loaded": ("mooncake_tier_loads", "ok"),
    "stored": ("mooncake_tier_stores", "ok"),
    "corrupt": ("mooncake_tier_corrupt", ""),
    "breaker opened": ("mooncake_tier_breaker_opened", ""),
}


class StoreStats(KVConnectorStats):
    """data: name of a figure -> value of its label (empty without one) -> what was counted, or a gauge's value."""

    @classmethod
    def of(cls, figures: dict[tuple[str, str], float]) -> StoreStats:
        """From what `mooncake_tier.client.shared_client.SharedClient.figures` gives."""
        data: dict[str, dict[str, float]] = {}
        for (name, label), value in figures.items():
            data.setdefault(name, {})[label] = value
        return cls(data=data)

    def reset(self) -> None:
        """Forget everything."""
        self.data: dict[str, dict[str, float]] = {}

    def is_empty(self) -> bool:
        return not self.data

    def aggregate(self, other: KVConnectorStats) -> StoreStats:
        """Counters of all workers together; of gauges the largest."""
        for name, values in other.data.items():
            mine = self.data.setdefault(name, {})
            gauge = _BY_NAME[name].kind == "gauge"
            for label, value in values.items():
                mine[label] = max(mine.get(label, value), value) if gauge else mine.get(label, 0.0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """What the log line says: blocks found, loaded and stored, and what went wrong."""
        found: dict[str, int | float] = {}
        for said, (name, label) in _LOGGED.items():
            values = self.data.get(name, {})
            found[f"tier {said}"] = int(values.get(label, 0) if label else sum(values.values()))
        return found


class StoreMetrics(KVConnectorPromMetrics):
    """The figures of `mooncake_tier.client.figures` at ``/metrics`` as ``vllm:mooncake_tier_...``, for each engine."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        classes = {"counter": self._counter_cls, "gauge": self._gauge_cls}
        self._metrics: dict[str, Counter | Gauge] = {}
        for figure in FIGURES:
            labels = [*self._labelnames, *filter(None, [figure.label])]
            metric = classes[figure.kind](name=f"vllm:{figure.name}", documentation=figure.about, labelnames=labels)
            self._metrics[figure.name] = metric
            for engine in self.per_engine_labelvalues.values():
                for value in figure.values:
                    metric.labels(*engine, *filter(None, [value]))

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what one step's statistics say."""
        engine = self.per_engine_labelvalues[engine_idx]
        for name, values in transfer_stats_data.items():
            for label, value in values.items():
                child = self._metrics[name].labels(*engine, *filter(None, [label]))
                if _BY_NAME[name].kind == "gauge":
                    child.set(value)  # type: ignore[union-attr]
                else:
                    child.inc(value)
