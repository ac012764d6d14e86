"""What may be set of a client, and what cannot be."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from mooncake_tier.errors import SettingRefused
from mooncake_tier.keys import CHECKSUMS

__all__ = ["Options"]

_LIMITS = {"tcp": 1000}
"""Pieces of memory in one batch: from 4,000 on Mooncake's TCP transport rejects part of a batch (0.3.13)."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How long, how much and how often. Times in seconds.

    lookup_s, load_s, store_s: deadlines of a call, from its submission. A miss is the outcome of one that is late.
    lease_s: the master's ``--default_kv_lease_ttl``; keys whose load is pending are touched every third of it.
    failures, cooldown_s, longest_cooldown_s: consecutive failed calls that open the breaker, and its pauses.
    remember_s: how long a key whose load failed counts as absent.
    load_threads: loads at the same time, each one call of Mooncake.
    batch_pieces, batch_bytes: most pieces of memory, and payload, in one call of Mooncake.
    queue_bytes: payload that may wait to be stored; more is dropped, because the blocks are in use elsewhere.
    staging_bytes: the client's own memory for staged loads, per load thread; 0 allows none.
    checksum: the namespace's.
    """

    lookup_s: float = 0.1
    load_s: float = 2.0
    store_s: float = 10.0
    lease_s: float = 10.0
    failures: int = 3
    cooldown_s: float = 1.0
    longest_cooldown_s: float = 30.0
    remember_s: float = 60.0
    load_threads: int = 2
    batch_pieces: int = _LIMITS["tcp"]
    batch_bytes: int = 64 << 20
    queue_bytes: int = 1 << 30
    staging_bytes: int = 0
    checksum: str = "xxh3"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "checksum":
                if value not in CHECKSUMS:
                    raise _refused(field.name, value, " or ".join(CHECKSUMS))
            elif field.type == "float":
                if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                    raise _refused(field.name, value, "a number of seconds above 0")
            elif type(value) is not int or value < (0 if field.name == "staging_bytes" else 1):
                raise _refused(field.name, value, "a whole number of at least 1 (staging_bytes: 0)")
        if self.batch_pieces < 2:
            raise _refused("batch_pieces", self.batch_pieces, "at least 2: a block and its trailer")
        if self.longest_cooldown_s < self.cooldown_s:
            raise _refused("longest_cooldown_s", self.longest_cooldown_s, f"at least cooldown_s={self.cooldown_s}")


def _refused(name: str, value: object, allowed: str) -> SettingRefused:
    return SettingRefused(f"{name}={value!r}", "the client cannot work with it", allowed, "Correct the setting")
