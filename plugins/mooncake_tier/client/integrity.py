"""The trailer of an object: 64 bytes behind the payload that say whose it is, how long, and what it must hash to.

Neither Mooncake's sizes nor its keys prove a payload: a get into a larger buffer succeeds, the first writer of a key
wins, a disk may rot. A block is used only if its trailer, made anew from what was read, is the one that was stored.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from enum import Enum

from mooncake_tier.client import xxh3

__all__ = ["TRAILER_BYTES", "Fault", "Parts", "fault", "payload_bytes", "trailer"]

TRAILER_BYTES = 64
_MAGIC = b"mctier1\n"
#: magic, digest of the namespace, digest of the key, payload bytes, checksum of the payload, of the 56 bytes before.
_FORMAT = struct.Struct("<8s16s16sQQQ")
assert _FORMAT.size == TRAILER_BYTES

Parts = Sequence[tuple[int, int]]
"""Memory ranges of a payload in their order: address, bytes."""


class Fault(Enum):
    """What an object's trailer shows to be wrong, in the order in which it is looked at."""

    FORM = "it has no trailer of this release"
    TORN = "its trailer is damaged"
    NAMESPACE = "it was stored under another namespace"
    KEY = "it was stored under another key"
    LENGTH = "it was stored with another length"
    CHECKSUM = "its payload is not what was stored"


def payload_bytes(parts: Parts) -> int:
    """Bytes of a payload."""
    return sum(nbytes for _, nbytes in parts)


def trailer(namespace: str, key: str, parts: Parts, checksum: str = "xxh3") -> bytes:
    """The trailer for a payload that lies in memory; checksum ``none`` reads no payload and stores 0."""
    total = xxh3.digest(parts) if checksum == "xxh3" else 0
    head = _FORMAT.pack(_MAGIC, _short(namespace), _short(key), payload_bytes(parts), total, 0)[:-8]
    return head + _own(head)


def fault(found: bytes, namespace: str, key: str, parts: Parts, checksum: str = "xxh3") -> Fault | None:
    """What is wrong with the object whose payload was read into `parts` and whose trailer is `found`; None if nothing.

    The payload is hashed last, and only if all else is right.
    """
    if len(found) != TRAILER_BYTES or not found.startswith(_MAGIC):
        return Fault.FORM
    if found[-8:] != _own(found[:-8]):
        return Fault.TORN
    _, theirs, name, nbytes, total, _ = _FORMAT.unpack(found)
    if theirs != _short(namespace):
        return Fault.NAMESPACE
    if name != _short(key):
        return Fault.KEY
    if nbytes != payload_bytes(parts):
        return Fault.LENGTH
    if total != (xxh3.digest(parts) if checksum == "xxh3" else 0):
        return Fault.CHECKSUM
    return None


def _short(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]


def _own(head: bytes) -> bytes:
    return hashlib.sha256(head).digest()[:8]
