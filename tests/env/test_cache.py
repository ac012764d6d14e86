"""A cache entry is whole or absent."""

from pathlib import Path

import pytest
from cache import Cache, sha256


def _cache(folder: Path) -> tuple[Cache, list[str]]:
    said: list[str] = []
    return Cache(folder / "cache", said.append), said


def _file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_hashes_are_sha256(tmp_path: Path) -> None:
    # The published test vector of FIPS 180-2 for "abc".
    assert sha256(_file(tmp_path, "a", "abc")) == ("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")


def test_finds_what_was_stored(tmp_path: Path) -> None:
    cache, said = _cache(tmp_path)
    assert cache.find("key") is None

    cache.store("key", [_file(tmp_path, "a.whl", "one"), _file(tmp_path, "b.so", "two")])

    folder = cache.find("key")
    assert folder is not None
    assert (folder / "a.whl").read_text() == "one"
    assert (folder / "b.so").read_text() == "two"
    assert said == []


@pytest.mark.parametrize("damage", ["altered", "removed", "added", "no manifest", "bad manifest", "empty manifest"])
def test_a_damaged_entry_is_told_and_thrown_away(tmp_path: Path, damage: str) -> None:
    cache, said = _cache(tmp_path)
    folder = cache.store("key", [_file(tmp_path, "a.whl", "one")])
    match damage:
        case "altered":
            (folder / "a.whl").write_text("0ne")
        case "removed":
            (folder / "a.whl").unlink()
        case "added":
            (folder / "b.whl").write_text("two")
        case "no manifest":
            (folder / "manifest.json").unlink()
        case "bad manifest":
            (folder / "manifest.json").write_text("{")
        case "empty manifest":
            (folder / "manifest.json").write_text("{}")

    assert cache.find("key") is None
    assert not folder.exists()
    assert "key is damaged" in said[0]


def test_what_a_killed_store_left_is_no_entry_and_does_not_stay(tmp_path: Path) -> None:
    cache, _ = _cache(tmp_path)
    (tmp_path / "cache" / "key.part").mkdir(parents=True)
    (tmp_path / "cache" / "key.part" / "a.whl").write_text("half")

    assert cache.find("key") is None
    folder = cache.store("key", [_file(tmp_path, "a.whl", "whole")])

    assert (folder / "a.whl").read_text() == "whole"
    assert cache.find("key") == folder
