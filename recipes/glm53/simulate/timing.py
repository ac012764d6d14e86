"""How long a step takes in the simulation: rates, written as the profile that Dynamo's mocker reads.

The mocker takes a step's prefill time from the step's new tokens, and its decode time from the tokens in its KV and the
mean context; both are interpolated linearly between the points of a NumPy archive.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Speeds", "write_profile"]

_FAR = 1e7  # tokens; two points make a line, and the mocker goes on straight beyond them


@dataclass(frozen=True)
class Speeds:
    """prefill: tokens a second of one prefill group, all its GPUs together. decode_ms: between two tokens of a user.

    sources: of both, as they are told to the user.
    """

    prefill: float
    decode_ms: float
    sources: tuple[str, str]


def write_profile(path: Path, tokens_per_second: float, decode_ms: float) -> None:
    """Write the profile of one rank: so many new tokens a second in prefill, and so long a decode step."""
    arrays: dict[str, tuple[Sequence[float], tuple[int, ...]]] = {
        "prefill_isl": ((0.0, _FAR), (2,)),
        "prefill_ttft_ms": ((0.0, _FAR / tokens_per_second * 1000), (2,)),
        "decode_active_kv_tokens": ((0.0, _FAR), (2,)),
        "decode_context_length": ((0.0, _FAR), (2,)),
        "decode_itl": ((decode_ms,) * 4, (2, 2)),
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, (values, shape) in arrays.items():
            archive.writestr(f"{name}.npy", _npy(values, shape))


def _npy(values: Sequence[float], shape: tuple[int, ...]) -> bytes:
    """NumPy's file format 1.0: a magic word, the header's length, the header padded to 64 bytes, float64 values."""
    header = repr({"descr": "<f8", "fortran_order": False, "shape": shape})
    padded = header + " " * (-(len(header) + 11) % 64) + "\n"
    file = io.BytesIO()
    file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode("ascii"))
    file.write(struct.pack(f"<{len(values)}d", *values))
    return file.getvalue()
