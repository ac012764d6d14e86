"""Clients and pools for Prometheus. Needs prometheus_client, which vLLM brings.

In the process that holds the client::

    prometheus_client.REGISTRY.register(ClientCollector({"prefill-0": client.snapshot}))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from mooncake_tier.client.figures import FIGURES
from mooncake_tier.client.master import Master
from mooncake_tier.errors import TierUnavailable

__all__ = ["ClientCollector", "PoolCollector"]

Family = CounterMetricFamily | GaugeMetricFamily
_KINDS = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}

#: Of `mooncake_tier.client.master.STATS` those that only grow.
_GROWING = frozenset({"evictions", "evicted_keys", "evicted_bytes"})


class ClientCollector(Collector):
    """The figures of `mooncake_tier.client.figures`, by client. clients: name -> its `TierClient.snapshot`."""

    def __init__(self, clients: Mapping[str, Callable[[], Mapping[tuple[str, str], float]]]) -> None:
        self._clients = clients

    def collect(self) -> Iterator[Family]:
        """Every figure with every value of its label, also where nothing was counted yet."""
        snapshots = {name: snapshot() for name, snapshot in self._clients.items()}
        for figure in FIGURES:
            labels = ["client", *filter(None, [figure.label])]
            family = _KINDS[figure.kind](figure.name, figure.about, labels=labels)
            for name, snapshot in snapshots.items():
                for value in figure.values:
                    family.add_metric([name, *filter(None, [value])], snapshot.get((figure.name, value), 0.0))
            yield family


class PoolCollector(Collector):
    """What a master says of all its pools: size, use and evictions; nothing while it does not answer."""

    def __init__(self, master: Master) -> None:
        self._master = master

    def collect(self) -> Iterator[Family]:
        """One family for each figure of `mooncake_tier.client.master.STATS`."""
        try:
            stats = self._master.stats()
        except TierUnavailable:
            return
        for name, value in stats.items():
            kind = CounterMetricFamily if name in _GROWING else GaugeMetricFamily
            yield kind(f"mooncake_tier_pool_{name}", f"Mooncake's {name.replace('_', ' ')}, all pools", value=value)
