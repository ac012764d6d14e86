"""Files worth keeping between set-ups, with their hashes; deleting the cache is always safe."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

MANIFEST = "manifest.json"


class Cache:
    """Entries are folders under `root`; the caller holds the set-up lock, so there is one writer."""

    def __init__(self, root: Path, say: Callable[[str], None]) -> None:
        self.root, self.say = root, say

    def find(self, key: str) -> Path | None:
        """Return the folder of entry `key`; None if there is none, or one whose files were altered."""
        folder = self.root / key
        if not folder.exists():
            return None
        try:
            expected = json.loads((folder / MANIFEST).read_text())
            if expected and expected == _hashes(folder):
                return folder
        except (OSError, ValueError):
            pass
        self.say(f"      cache entry {key} is damaged: it is thrown away and made again")
        shutil.rmtree(folder)
        return None

    def store(self, key: str, files: list[Path]) -> Path:
        """Move `files` into entry `key`; the entry appears complete or not at all."""
        part = self.root / f"{key}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for file in files:
            shutil.move(file, part / file.name)
        (part / MANIFEST).write_text(json.dumps(_hashes(part), indent=1))
        return part.rename(self.root / key)


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _hashes(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
