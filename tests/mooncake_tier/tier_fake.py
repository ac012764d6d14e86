"""A store and a master here that hang or fail when told to. Fakes: the real ones are in test_tier_client_stock."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from mooncake_tier.client.master import Losses
from mooncake_tier.errors import TierUnavailable
from mooncake_tier.stock import ABSENT


@dataclass
class FakeMaster:
    """A `mooncake_tier.events.evictions.Listing`. listed: its keys. gone: what it counts as lost, whether or not it
    lists less. pings: since it began. silent: it does not answer. lists: how often it was asked for all keys."""

    listed: list[str] = field(default_factory=list)
    gone: int = 0
    pings: int = 0
    silent: bool = False
    lists: int = 0

    def losses(self) -> Losses:
        self._answer()
        return Losses(self.gone, capacity_bytes=1, clients=1, mounts=1, pings=self.pings)

    def pieces(self) -> Iterator[list[str]]:
        self._answer()
        self.lists += 1
        for key in list(self.listed):
            yield [key]

    def _answer(self) -> None:
        if self.silent:
            raise TierUnavailable("no answer")


class FakeStore:
    """A `mooncake_tier.stock.NativeStore` in a dictionary. hang: calls wait until it is set. code: what they return."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.calls: list[tuple[str, list[str]]] = []
        self.go = threading.Event()
        self.go.set()
        self.code: int | None = None
        self.closed = 0

    def _enter(self, name: str, keys: list[str]) -> None:
        self.calls.append((name, keys))
        self.go.wait(30)

    def exists(self, keys: list[str]) -> list[int]:
        self._enter("exists", keys)
        return [self.code if self.code is not None else int(key in self.objects) for key in keys]

    def get(self, keys: list[str], addresses: list[list[int]], sizes: list[list[int]]) -> list[int]:
        self._enter("get", keys)
        codes = []
        for key, where, lengths in zip(keys, addresses, sizes, strict=True):
            value = self.objects.get(key)
            if value is None or self.code is not None:
                codes.append(ABSENT if self.code is None else self.code)
                continue
            at = 0
            for address, nbytes in zip(where, lengths, strict=True):
                ctypes.memmove(address, value[at : at + nbytes], nbytes)
                at += nbytes
            codes.append(len(value))
        return codes

    def put(self, keys: list[str], addresses: list[list[int]], sizes: list[list[int]]) -> list[int]:
        self._enter("put", keys)
        if self.code is not None:
            return [self.code] * len(keys)
        for key, where, lengths in zip(keys, addresses, sizes, strict=True):
            value = b"".join(ctypes.string_at(a, n) for a, n in zip(where, lengths, strict=True))
            self.objects.setdefault(key, value)
        return [0] * len(keys)

    def remove(self, key: str) -> int:
        self._enter("remove", [key])
        self.objects.pop(key, None)
        return 0

    def remove_matching(self, pattern: str) -> int:
        found = [key for key in self.objects if re.search(pattern, key)]
        for key in found:
            del self.objects[key]
        return len(found)

    def register(self, address: int, nbytes: int) -> int:
        return 0

    def unregister(self, address: int) -> int:
        return 0

    def close(self) -> None:
        self.closed += 1
