"""The master's HTTP side: whether it serves, how full the pools are, what was evicted. Standard library only."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request

from mooncake_tier.errors import TierUnavailable

__all__ = ["STATS", "Master"]

#: Our name of a figure -> the master's metric.
STATS = {
    "capacity_bytes": "master_total_capacity_bytes",
    "used_bytes": "master_allocated_bytes",
    "keys": "master_key_count",
    "clients": "master_active_clients",
    "evictions": "master_successful_evictions_total",
    "evicted_keys": "master_evicted_key_count",
    "evicted_bytes": "master_evicted_size_bytes",
}
_SAMPLE = re.compile(r"^(\w+)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


class Master:
    """A master, by the address of its metrics port."""

    def __init__(self, host: str, port: int, timeout_s: float = 2.0) -> None:
        self.url, self._timeout = f"http://{host}:{port}", timeout_s

    def ready(self) -> bool:
        """Whether it answers and serves."""
        try:
            return bool(json.loads(self._read("/health"))["service_ready"])
        except (TierUnavailable, ValueError, KeyError):
            return False

    def answers(self) -> bool:
        """Whether there is a master at all."""
        try:
            return bool(self._read("/health"))
        except TierUnavailable:
            return False

    def metrics(self) -> dict[str, float]:
        """Every metric without labels, by name; raises `TierUnavailable`."""
        return {name: float(value) for name, value in _SAMPLE.findall(self._read("/metrics"))}

    def capacity(self) -> int:
        """Bytes of all pools that the master knows; 0 if it does not answer."""
        try:
            return int(self.metrics().get(STATS["capacity_bytes"], 0))
        except TierUnavailable:
            return 0

    def stats(self) -> dict[str, int]:
        """The figures of `STATS`; raises `TierUnavailable`."""
        found = self.metrics()
        return {name: int(found[metric]) for name, metric in STATS.items() if metric in found}

    def keys(self) -> list[str]:
        """Every key that it knows; raises `TierUnavailable`.

        Unlike a lookup this renews no lease, so asking again and again keeps nothing from eviction.
        """
        return self._read("/get_all_keys").split()

    def _read(self, path: str) -> str:
        try:
            with urllib.request.urlopen(self.url + path, timeout=self._timeout) as answer:
                return str(answer.read().decode())
        except (OSError, urllib.error.URLError) as error:
            raise TierUnavailable(
                f"{self.url}{path} does not answer ({error}): the master cannot be asked. "
                "Start it (mooncake-tier serve), or correct --metrics."
            ) from None
