"""Reads records back: of closed files, and of files under way up to their last whole line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_capture.files import OPEN, listed
from rl_capture.record import problems

__all__ = ["Unreadable", "faults", "files", "records"]

_ALL = "`rl-capture verify` lists all faults."


class Unreadable(ValueError):
    """A folder or file that holds no records that can be read."""


def files(source: Path) -> list[Path]:
    """The files of records in a folder, oldest first, or the one file that is named.

    Raises `Unreadable` if there is none.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise Unreadable(f"{source} is neither a folder nor a file. Give the folder that RL_CAPTURE_DIR names.")
    found = listed(source)
    if not found:
        raise Unreadable(f"{source} holds no capture-*.jsonl. Give the folder that RL_CAPTURE_DIR names.")
    return found


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of one file; an unfinished last line of a file under way is not one of them.

    Raises `Unreadable` for anything else that is no record.
    """
    for number, text in _lines(path):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"{path}, line {number}: no JSON: {error}. {_ALL}") from error
        if found := problems(record):
            raise Unreadable(f"{path}, line {number}: {found[0]}. {_ALL}")
        yield record


def faults(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of everything in a file that is no whole record."""
    for number, text in _lines(path):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield number, f"no JSON: {error}"
            continue
        for problem in problems(record):
            yield number, problem


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.endswith(b"\n") and path.name.endswith(OPEN):
                return
            yield number, text
