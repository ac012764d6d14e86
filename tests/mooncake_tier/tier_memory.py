"""Memory with an address, for tests."""

from __future__ import annotations

import ctypes
import mmap


class Memory:
    """`size` bytes that can be read, written and handed out as (address, bytes)."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, max(size, 1))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.size = size

    def part(self, offset: int, nbytes: int) -> tuple[int, int]:
        """A range of it."""
        return self.address + offset, nbytes

    def write(self, offset: int, value: bytes) -> None:
        self._map[offset : offset + len(value)] = value

    def read(self, offset: int, nbytes: int) -> bytes:
        return self._map[offset : offset + nbytes]


def pattern(seed: int, nbytes: int) -> bytes:
    """Bytes that no other seed gives."""
    import hashlib

    block = b"".join(hashlib.sha256(f"{seed}/{i}".encode()).digest() for i in range(8))
    return (block * (nbytes // len(block) + 1))[:nbytes]
