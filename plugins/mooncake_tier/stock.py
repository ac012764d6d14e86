"""What is known of the Mooncake releases: which are tested, what their numbers mean, how the store is called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Protocol

from mooncake_tier.errors import TierUnavailable
from stockpatch.versions import Window

__all__ = [
    "ABSENT",
    "DISTRIBUTIONS",
    "LEASE_OVER",
    "MOONCAKE",
    "NO_SPACE",
    "MooncakeStore",
    "NativeStore",
    "all_failed",
    "installed_wheels",
    "prepare_environment",
]

DISTRIBUTIONS = (
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine-cuda13",
)
"""All of them install the one package `mooncake`, so two of them overwrite each other."""

MOONCAKE = Window(DISTRIBUTIONS, ">=0.3.13,<0.3.14", tested=("0.3.13.post1",))

#: Numbers that a batch returns for one key.
ABSENT = -704
NO_SPACE = -200
LEASE_OVER = -707
"""The transfer took longer than the lease that the get itself had begun; another get begins another."""

#: Longest time in seconds that a call waits for an answer of the master, or for the next bytes of a block over TCP. Its
#: own default is 30, and for so long one lost answer would keep a thread, and memory that a load may still write to.
SILENCE_S = 5

#: TCP connections to one pool. When it hangs, a batch ends after `SILENCE_S` for every so many of its objects; with
#: Mooncake's own number, a load of 12 blocks took three times `SILENCE_S`.
TCP_LANES = 16


class NativeStore(Protocol):
    """The calls of a store; each may take seconds, and each but `close` lets other threads run meanwhile."""

    def exists(self, keys: list[str]) -> list[int]:
        """1 present, 0 absent, negative: failed. Grants a lease to those that are present."""

    def get(self, keys: list[str], addresses: list[list[int]], sizes: list[list[int]]) -> list[int]:
        """Bytes read for each key, or a negative number."""

    def put(self, keys: list[str], addresses: list[list[int]], sizes: list[list[int]]) -> list[int]:
        """0 for each key that is stored now, whoever stored it, or a negative number."""

    def remove(self, key: str) -> int:
        """Remove it, leased or not; 0, or a negative number."""

    def remove_matching(self, pattern: str) -> int:
        """Remove all keys that a regular expression matches; their number, or a negative one."""

    def register(self, address: int, nbytes: int) -> int:
        """Make memory known to the transport; 0, or a negative number."""

    def unregister(self, address: int) -> int:
        """The opposite."""

    def close(self) -> None:
        """End its threads and connections; takes a second, in which no Python code runs."""


def installed_wheels() -> dict[str, str]:
    """Mooncake distributions of this environment and their versions."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def prepare_environment(host: str) -> None:
    """Defaults for what Mooncake reads from the environment, unless it is set: its address here, and quiet logs."""
    for name, value in {
        "MC_TCP_BIND_ADDRESS": host,
        "MC_RPC_TIMEOUT_MS": str(1000 * SILENCE_S),
        "MC_TCP_PROGRESS_TIMEOUT_SEC": str(SILENCE_S),
        "MC_TCP_STATUS_TIMEOUT_SEC": str(SILENCE_S),
        "MC_TCP_LANES_PER_PEER": str(TCP_LANES),
        "GLOG_minloglevel": "2",
        "MC_STORE_CLIENT_METRIC": "0",
    }.items():
        os.environ.setdefault(name, value)


class MooncakeStore:
    """A `NativeStore` on the installed Mooncake."""

    def __init__(self, host: str, master: str, protocol: str, device: str, buffer_bytes: int = 16 << 20) -> None:
        """Set it up as a client that lends no memory. Raises `TierUnavailable`.

        **The set-up holds the interpreter's lock**, for 90 s if the master does not answer: `preflight` first.
        host: this machine's address for its peers. master: ``host:port``, or ``etcd://...`` with high availability.
        """
        MOONCAKE.require()
        prepare_environment(host)
        try:
            from mooncake.store import MooncakeDistributedStore, ReplicateConfig
        except ImportError as error:
            raise TierUnavailable(
                f"mooncake.store does not import: {error}. Blocks cannot be stored without it. "
                "Run `mooncake-tier doctor`, which names the library or wheel that is missing."
            ) from error
        self._store: Any = MooncakeDistributedStore()
        self._config = ReplicateConfig()
        code = self._store.setup(host, "P2PHANDSHAKE", 0, buffer_bytes, protocol, device, master)
        if code:
            raise TierUnavailable(
                f"Mooncake's set-up with master={master} protocol={protocol} returned {code}: it cannot be used. "
                "Start master and pool (mooncake-tier serve), and run `mooncake-tier doctor` here."
            )

    def exists(self, keys: list[str]) -> list[int]:
        return list(self._store.batch_is_exist(keys))

    def get(self, keys: list[str], addresses: list[list[int]], sizes: list[list[int]]) -> list[int]:
        return list(self._store.batch_get_into_multi_buffers(keys, addresses, sizes))

    def put(self, keys: list[str], addresses: list[list[int]], sizes: list[list[int]]) -> list[int]:
        return list(self._store.batch_put_from_multi_buffers(keys, addresses, sizes, self._config))

    def remove(self, key: str) -> int:
        return int(self._store.remove(key, True))

    def remove_matching(self, pattern: str) -> int:
        return int(self._store.remove_by_regex(pattern, True))

    def register(self, address: int, nbytes: int) -> int:
        return int(self._store.register_buffer(address, nbytes))

    def unregister(self, address: int) -> int:
        return int(self._store.unregister_buffer(address))

    def close(self) -> None:
        self._store.close()
        self._store = None


def all_failed(codes: Sequence[int]) -> bool:
    """Whether a batch shows that the store does not work: every key failed, and none because of what it holds.

    -700 to -799 are about one object: absent, incomplete, leased.
    """
    return bool(codes) and all(code < 0 and code != NO_SPACE and not -800 < code <= -700 for code in codes)
