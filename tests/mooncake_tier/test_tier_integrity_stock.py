"""Objects prove themselves: XXH3 as others compute it, and every single damage of a trailer or payload is seen."""

from __future__ import annotations

import ctypes
import struct

import pytest
from tier_fields import NAMESPACE
from tier_memory import Memory, pattern

from mooncake_tier.client import xxh3
from mooncake_tier.client.integrity import TRAILER_BYTES, Fault, fault, payload_bytes, trailer
from mooncake_tier.errors import TierUnavailable

if xxh3.library_path() is None:
    pytest.skip("needs an xxHash library: make env, or the system's libxxhash0", allow_module_level=True)

KEY = NAMESPACE + "/g0t0p0d0c0/" + "ab" * 32

#: Bytes of `_data` -> their XXH3-64, by the Python package xxhash 4.1.0 (xxHash 0.8.4).
VECTORS = {
    0: 0x2D06800538D394C2,
    1: 0xC44BDFF4074EECDB,
    3: 0xA1C4A8259B827291,
    4: 0xBB4E3D89EE0B271D,
    8: 0x79D02238B80E37B1,
    9: 0xF64CECC4271FF461,
    16: 0x222E9AEAD6BDDD51,
    17: 0x47AAD6B375EB4BBA,
    128: 0x421A9C905C6E66BA,
    129: 0x9E2414800F83768A,
    240: 0xB714C5FD22744964,
    241: 0xBC424A2C480DD281,
    512: 0x17EC4809D1A9AD43,
    1024: 0x1FD15E7D36F5E1BC,
    1025: 0xFE08E5A874D23FD2,
    4096: 0x84D9E7CE664C8217,
    100_000: 0x1D43EC753D462301,
}


def _data(nbytes: int) -> bytes:
    return bytes((i * 2654435761 >> 13) & 255 for i in range(nbytes))


@pytest.mark.parametrize("nbytes", VECTORS)
def test_the_checksum_is_xxh3_however_the_payload_is_cut(nbytes: int) -> None:
    memory = Memory(nbytes)
    memory.write(0, _data(nbytes))
    third = nbytes // 3

    assert xxh3.digest([memory.part(0, nbytes)]) == VECTORS[nbytes]
    assert (
        xxh3.digest([memory.part(0, third), memory.part(third, 0), memory.part(third, nbytes - third)])
        == (VECTORS[nbytes])
    )


@pytest.fixture
def memory() -> Memory:
    held = Memory(1024)
    held.write(0, pattern(1, 1024))
    return held


def test_a_trailer_is_64_bytes_and_holds_length_and_checksum(memory: Memory) -> None:
    parts = [memory.part(0, 100), memory.part(512, 141)]
    made = trailer(NAMESPACE, KEY, parts)

    whole = memory.read(0, 100) + memory.read(512, 141)
    buffer = ctypes.create_string_buffer(whole, 241)
    assert len(made) == TRAILER_BYTES == 64
    assert struct.unpack_from("<QQ", made, 40) == (241, xxh3.digest([(ctypes.addressof(buffer), 241)]))
    assert payload_bytes(parts) == 241
    assert fault(made, NAMESPACE, KEY, parts) is None


def test_every_flipped_bit_of_a_trailer_is_seen(memory: Memory) -> None:
    parts = [memory.part(0, 1024)]
    made = trailer(NAMESPACE, KEY, parts)

    for bit in range(TRAILER_BYTES * 8):
        damaged = bytearray(made)
        damaged[bit // 8] ^= 1 << bit % 8
        assert fault(bytes(damaged), NAMESPACE, KEY, parts) in (Fault.FORM, Fault.TORN)


@pytest.mark.parametrize("at", [0, 1, 511, 1023])
def test_every_flipped_bit_of_a_payload_is_seen(memory: Memory, at: int) -> None:
    parts = [memory.part(0, 1024)]
    made = trailer(NAMESPACE, KEY, parts)

    for bit in range(8):
        right = memory.read(at, 1)
        memory.write(at, bytes([right[0] ^ 1 << bit]))
        assert fault(made, NAMESPACE, KEY, parts) is Fault.CHECKSUM
        memory.write(at, right)
    assert fault(made, NAMESPACE, KEY, parts) is None


def test_another_objects_bytes_are_seen(memory: Memory) -> None:
    parts = [memory.part(0, 512)]
    made = trailer(NAMESPACE, KEY, parts)

    assert fault(made, NAMESPACE[:-1] + "0", KEY, parts) is Fault.NAMESPACE
    assert fault(made, NAMESPACE, KEY[:-1] + "0", parts) is Fault.KEY
    assert fault(made, NAMESPACE, KEY, [memory.part(0, 511)]) is Fault.LENGTH
    assert fault(made[:-1], NAMESPACE, KEY, parts) is Fault.FORM
    assert fault(bytes(64), NAMESPACE, KEY, parts) is Fault.FORM


def test_without_a_checksum_length_and_owner_still_count(memory: Memory) -> None:
    """For memory that the CPU cannot read: nothing reads the address."""
    unreadable = [(1, 512)]
    made = trailer(NAMESPACE, KEY, unreadable, "none")

    assert fault(made, NAMESPACE, KEY, unreadable, "none") is None
    assert fault(made, NAMESPACE, KEY, [(1, 513)], "none") is Fault.LENGTH
    assert fault(made, NAMESPACE, KEY, [memory.part(0, 512)], "xxh3") is Fault.CHECKSUM


def test_without_a_library_no_block_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xxh3, "library_path", lambda: None)
    xxh3._library.cache_clear()

    with pytest.raises(TierUnavailable, match="libxxhash"):
        xxh3.digest([(1, 1)])
    xxh3._library.cache_clear()
