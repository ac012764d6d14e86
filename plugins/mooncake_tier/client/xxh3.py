"""XXH3-64 of memory, by the xxHash library that every Mooncake wheel carries; no dependency of its own.

The call into the library holds no lock of the interpreter, so a checksum does not stop other threads.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from mooncake_tier.errors import TierUnavailable

__all__ = ["digest", "library_path"]

_SYSTEM = "libxxhash.so.0"


def digest(parts: Iterable[tuple[int, int]]) -> int:
    """XXH3-64, seed 0, of the concatenation of memory ranges (address, bytes); 0 to 2^64 - 1.

    The ranges must be readable by the CPU. Raises `TierUnavailable` if there is no xxHash library.
    """
    library = _library()
    ranges = list(parts)
    if len(ranges) == 1:
        return int(library.XXH3_64bits(*ranges[0]))
    state = library.XXH3_createState()
    if not state:
        raise MemoryError("XXH3_createState returned nothing: no memory for a checksum's state")
    try:
        library.XXH3_64bits_reset(state)
        for address, nbytes in ranges:
            library.XXH3_64bits_update(state, address, nbytes)
        return int(library.XXH3_64bits_digest(state))
    finally:
        library.XXH3_freeState(state)


def library_path() -> str | None:
    """The library that Mooncake's wheel carries, else the system's; None without both."""
    spec = importlib.util.find_spec("mooncake")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for found in sorted(Path(place).parent.glob("mooncake_transfer_engine*.libs/libxxhash-*.so*")):
            return str(found)
    try:
        ctypes.CDLL(_SYSTEM)
    except OSError:
        return None
    return _SYSTEM


@functools.cache
def _library() -> ctypes.CDLL:
    path = library_path()
    if path is None:
        raise TierUnavailable(
            f"no xxHash library: neither beside Mooncake's wheel nor {_SYSTEM}. Blocks cannot be checked without it. "
            "Install a Mooncake wheel (mooncake-tier doctor says which), or the system's package libxxhash0."
        )
    library = ctypes.CDLL(path)
    memory, state = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_void_p
    for name, result, arguments in (
        ("XXH3_64bits", ctypes.c_uint64, memory),
        ("XXH3_createState", state, ()),
        ("XXH3_freeState", ctypes.c_int, (state,)),
        ("XXH3_64bits_reset", ctypes.c_int, (state,)),
        ("XXH3_64bits_update", ctypes.c_int, (state, *memory)),
        ("XXH3_64bits_digest", ctypes.c_uint64, (state,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, list(arguments)
    return library
