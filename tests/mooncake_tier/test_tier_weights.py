"""The fingerprint of a checkpoint: the same for a copy, another for any other weights of the same name."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from mooncake_tier.errors import KeyRefused
from mooncake_tier.identity.weights import SAMPLE_BYTES, fingerprint

SIZES = {"a": 100_000, "b": 10, "c": SAMPLE_BYTES}


def _file(path: Path, fill: dict[str, bytes]) -> None:
    """A safetensors file as its format says: header length, header, tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, data in fill.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(fill.values()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    one = tmp_path / "org" / "GLM-5.3"
    one.mkdir(parents=True)
    (one / "config.json").write_text('{"num_hidden_layers": 1}')
    _file(one / "model-1.safetensors", {name: bytes([n]) * size for n, (name, size) in enumerate(SIZES.items())})
    _file(one / "model-2.safetensors", {"d": bytes(5000)})
    return one


def test_a_copy_elsewhere_has_the_same(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other" / "name")

    assert fingerprint(folder) == fingerprint(tmp_path / "other" / "name")
    assert len(fingerprint(folder)) == len("sha256-") + 32


@pytest.mark.parametrize("name", SIZES)
def test_other_values_of_one_tensor_are_another(folder: Path, name: str) -> None:
    """Even if only every hundredth value differs, as rounding after training leaves it."""
    before = fingerprint(folder)
    tensors = {one: bytearray([n]) * size for n, (one, size) in enumerate(SIZES.items())}
    tensors[name][::100] = b"\xff" * len(tensors[name][::100])
    _file(folder / "model-1.safetensors", {one: bytes(value) for one, value in tensors.items()})

    assert fingerprint(folder) != before


@pytest.mark.parametrize("change", ["config", "rename", "remove", "shape"])
def test_another_form_is_another(folder: Path, change: str) -> None:
    before = fingerprint(folder)
    second = folder / "model-2.safetensors"
    if change == "config":
        (folder / "config.json").write_text('{"num_hidden_layers": 2}')
    elif change == "rename":
        second.rename(folder / "model-3.safetensors")
    elif change == "remove":
        second.unlink()
    else:
        _file(second, {"e": bytes(5000)})

    assert fingerprint(folder) != before


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyRefused, match=r"has no \*\.safetensors"):
        fingerprint(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"1234567", struct.pack("<Q", 1 << 60), struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 4) + b"{}xx"],
)
def test_a_file_that_is_cut_is_refused(folder: Path, content: bytes) -> None:
    (folder / "model-2.safetensors").write_bytes(content)

    with pytest.raises(KeyRefused, match=r"model-2\.safetensors of \d+ bytes"):
        fingerprint(folder)
