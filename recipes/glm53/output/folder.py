"""Writing rendered files: every file whole, nobody else's overwritten."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["MARKER", "FolderError", "write"]

MARKER = ".glm53-render.json"


class FolderError(ValueError):
    """A folder into which nothing was written; the message names the file in the way."""


def write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write `files` (path in `folder` -> text) and return the paths that changed, removed ones included.

    What an earlier call wrote is replaced, and removed where it is no longer among `files`. Scripts become executable.
    Raises `FolderError`, before anything is written, if a file is in the way that no earlier call wrote, or that was
    edited since.
    """
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file, so nothing can be rendered into it. Choose a folder with -o.")
    written = _earlier(folder)
    for name in sorted({*files, *written}):
        path = folder / name
        if path.exists() and _digest(path.read_bytes()) not in (written.get(name), _digest_of(files.get(name))):
            why = "was changed since it was rendered" if name in written else "was not rendered by glm53"
            raise FolderError(f"{path} {why}, and would be lost. Move it away, or choose another folder with -o.")
    changed = [name for name, text in files.items() if _read(folder / name) != text]
    folder.mkdir(parents=True, exist_ok=True)
    staged = []
    try:
        for name in changed:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{path.name}.new")
            staged.append(new)
            new.write_text(files[name], encoding="utf-8")
            new.chmod(0o755 if files[name].startswith("#!") else 0o644)
        for name, new in zip(changed, staged, strict=True):
            os.replace(new, folder / name)
    finally:
        for new in staged:
            new.unlink(missing_ok=True)
    gone = [name for name in written if name not in files and (folder / name).exists()]
    for name in gone:
        (folder / name).unlink()
    marker = json.dumps({name: _digest_of(text) for name, text in sorted(files.items())}, indent=1) + "\n"
    new = folder / f"{MARKER}.new"
    new.write_text(marker, encoding="utf-8")
    os.replace(new, folder / MARKER)
    return sorted([*changed, *gone])


def _earlier(folder: Path) -> dict[str, str]:
    try:
        written = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        if not isinstance(written, dict):
            raise ValueError(f"it holds a {type(written).__name__}")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, RecursionError) as error:
        raise FolderError(
            f"{folder / MARKER} is damaged ({error}), so that files of glm53 and others cannot be told apart. "
            "Choose another folder with -o, or delete this one."
        ) from error
    return {str(name): str(digest) for name, digest in written.items()}


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest_of(text: str | None) -> str | None:
    return None if text is None else _digest(text.encode("utf-8"))
