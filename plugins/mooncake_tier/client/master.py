"""The master's HTTP side: whether it serves, how full the pools are, what was evicted. Standard library only."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mooncake_tier.errors import TierUnavailable

__all__ = ["STATS", "Losses", "Master"]

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
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True)
class Losses:
    """What a master counts that changes whenever it may know a key less.

    gone: objects that it ever knew without those that it knows, whatever became of them. capacity_bytes, clients,
    mounts: of the pools, whose objects are not listed any more once they have left. pings: of all clients; they only
    grow while a master lives.
    """

    gone: int
    capacity_bytes: int
    clients: int
    mounts: int
    pings: int

    def none_since(self, before: Losses) -> bool:
        """Whether every key that was listed then is listed now. A pool that died counts once the master forgets it."""
        same = (self.gone, self.capacity_bytes, self.clients, self.mounts)
        return (
            same == (before.gone, before.capacity_bytes, before.clients, before.mounts) and self.pings >= before.pings
        )


class Master:
    """A master, by the address of its metrics port.

    timeout_s: longest silence in an answer; listing_s: in one that needs all its keys, which it collects first.
    """

    def __init__(self, host: str, port: int, timeout_s: float = 2.0, listing_s: float = 20.0) -> None:
        self.url, self._timeout, self._listing = f"http://{host}:{port}", timeout_s, listing_s

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

    def losses(self) -> Losses:
        """Counters that tell whether `pieces` can lack a key that was there before; raises `TierUnavailable`."""
        found = self.metrics()
        ever = found.get("master_value_size_bytes_count", 0.0)  # not shown before the first object
        try:
            return Losses(
                gone=int(ever - found["master_key_count"]),
                capacity_bytes=int(found["master_total_capacity_bytes"]),
                clients=int(found["master_active_clients"]),
                mounts=int(found["master_mount_segment_requests_total"]),
                pings=int(found["master_ping_requests_total"]),
            )
        except KeyError as error:
            raise TierUnavailable(
                f"{self.url}/metrics has no {error}: evictions cannot be seen. "
                "Correct --metrics, or run a tested Mooncake (mooncake-tier doctor)."
            ) from None

    def keys(self) -> list[str]:
        """Every key that it knows; raises `TierUnavailable`.

        Unlike a lookup this renews no lease, so asking again and again keeps nothing from eviction.
        """
        return [key for piece in self.pieces() for key in piece]

    def pieces(self) -> Iterator[list[str]]:
        """The same, some hundreds at a time as they arrive: a million keys are 100 MB, and to take them apart at once
        would stop every other Python thread for half a second."""
        with self._open("/get_all_keys", self._listing) as answer:
            rest = b""
            while data := answer.read(_PIECE_BYTES):
                whole, newline, after = data.rpartition(b"\n")
                if not newline:
                    rest += after
                    continue
                yield (rest + whole).decode().split()
                rest = after
            if answer.length:
                raise http.client.IncompleteRead(rest, answer.length)  # read() tells only of an answer without pieces
            yield rest.decode().split()

    def _read(self, path: str) -> str:
        with self._open(path, self._timeout) as answer:
            return str(answer.read().decode())

    @contextmanager
    def _open(self, path: str, timeout_s: float) -> Iterator[http.client.HTTPResponse]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=timeout_s) as answer:
                yield answer
        except (OSError, urllib.error.URLError, http.client.HTTPException) as error:
            raise TierUnavailable(
                f"{self.url}{path} does not answer ({error}): the master cannot be asked. "
                "Start it (mooncake-tier serve), or correct --metrics."
            ) from None
