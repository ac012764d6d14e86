"""A fingerprint of a checkpoint's weights in seconds, so that two models with one name never share a block.

Reading hundreds of gigabytes at every start is not an option. What counts is each file's name, size and header, and of
every tensor its beginning, its end and a piece from its middle: training, merging or quantizing anew changes nearly all
values of a tensor. An edit of a few values elsewhere goes unseen, so the namespace has the revision, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path

from mooncake_tier.errors import KeyRefused

__all__ = ["SAMPLE_BYTES", "fingerprint"]

SAMPLE_BYTES = 256
_LONGEST_HEADER = 100 << 20  # safetensors' own limit


def fingerprint(folder: Path) -> str:
    """``sha256-`` and 32 hexadecimal digits for the ``*.safetensors`` files and the config.json of a checkpoint.

    Raises `KeyRefused` for a folder without weights, and for files that are no safetensors.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise KeyRefused(
            f"{folder} has no *.safetensors",
            "keys must tell weights apart",
            "the folder of a checkpoint that is on this machine",
            "Pass it, or use the checkpoint's commit as `weights` too if it comes from a hub that fixes its content",
        )
    whole = hashlib.sha256()
    for name in ("config.json", "quantization_config.json", "hf_quant_config.json"):
        if (folder / name).exists():
            _add(whole, name.encode(), (folder / name).read_bytes())
    for file in files:
        _add(whole, file.name.encode(), _samples(file))
    return f"sha256-{whole.hexdigest()[:32]}"


def _samples(file: Path) -> bytes:
    """A digest of a file's size, header and pieces of its tensors."""
    digest = hashlib.sha256()
    size = file.stat().st_size
    with file.open("rb") as source:
        start = source.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _LONGEST_HEADER + 1
        if length > min(size, _LONGEST_HEADER):
            raise _unreadable(file, size)
        header = source.read(length)
        try:
            offsets = sorted(
                tuple(entry["data_offsets"]) for name, entry in json.loads(header).items() if name[0] != "_"
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _unreadable(file, size) from error
        _add(digest, str(size).encode(), header)
        for begin, end in offsets:
            for at in (begin, (begin + end - SAMPLE_BYTES) // 2, end - SAMPLE_BYTES):
                at = max(begin, at)
                _add(digest, os.pread(source.fileno(), min(SAMPLE_BYTES, end - at), 8 + length + at))
    return digest.digest()


def _unreadable(file: Path, size: int) -> KeyRefused:
    return KeyRefused(
        f"{file} of {size} bytes", "it is no safetensors file", "a complete checkpoint", "Download it again"
    )


def _add(digest: hashlib._Hash, *parts: bytes) -> None:
    for part in parts:
        digest.update(struct.pack("<Q", len(part)) + part)
