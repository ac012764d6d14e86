"""One client of the store for a process: vLLM's scheduler and worker may live in the same one."""

from __future__ import annotations

import threading

from mooncake_tier.client.connection import StoreAddress, open_store
from mooncake_tier.client.figures import FIGURES
from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.errors import KeyRefused
from mooncake_tier.options import Options

__all__ = ["SharedClient"]

_GAUGES = frozenset(figure.name for figure in FIGURES if figure.kind == "gauge")

_lock = threading.Lock()
_shared: dict[StoreAddress, SharedClient] = {}


class SharedClient:
    """A client that several parts of a process use, and that ends with the last `release`.

    Its namespace may come later than the connection: until `named`, `client` is None.
    """

    def __init__(self, address: StoreAddress, options: Options) -> None:
        """Connect; raises `mooncake_tier.errors.TierUnavailable`. Use `of` instead."""
        self.client: TierClient | None = None
        self._address, self._options, self._users = address, options, 0
        self._native = open_store(address)
        self._told: dict[tuple[str, str], float] = {}

    @classmethod
    def of(cls, address: StoreAddress, options: Options) -> SharedClient:
        """This process's client of that store; whoever asks owes one `release`."""
        with _lock:
            if address not in _shared:
                _shared[address] = cls(address, options)
            _shared[address]._users += 1
            return _shared[address]

    def named(self, namespace: str) -> TierClient:
        """The client, now that the namespace is known. Raises `KeyRefused` if it was another one before."""
        with _lock:
            if self.client is None:
                self.client = TierClient(self._native, namespace, self._options)
            if self.client.namespace != namespace:
                raise KeyRefused(
                    f"namespace={namespace} and {self.client.namespace} in one process",
                    "blocks of one would be looked for under the other",
                    "one deployment in a process",
                    "Report it, with both workers' reports",
                )
            return self.client

    def figures(self) -> dict[tuple[str, str], float]:
        """What was counted since the last call, by whoever made it; gauges as they are now."""
        if self.client is None:
            return {}
        now = self.client.snapshot()
        with _lock:
            before, self._told = self._told, now
        return {
            key: value - before.get(key, 0.0) if key[0] not in _GAUGES else value
            for key, value in now.items()
            if value != before.get(key, 0.0)
        }

    def release(self) -> None:
        """End it if nobody else uses it."""
        with _lock:
            self._users -= 1
            if self._users:
                return
            del _shared[self._address]
        if self.client is not None:
            self.client.close()
        else:
            self._native.close()
