"""A store in this process whose calls hang or fail when told to. A fake: the real one is in test_tier_client_stock."""

from __future__ import annotations

import ctypes
import re
import threading

from mooncake_tier.stock import ABSENT


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
