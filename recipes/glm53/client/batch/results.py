"""The output of a batch: one line a result, appended whole, so that a killed run can go on where it stopped.

A line counts once its newline is written. What follows the last newline is the torn end of a killed run and is cut off;
its request is sent again. The file is locked while a run writes to it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glm53.client.batch.requests import Entry

__all__ = ["OutputError", "Results", "answered", "lost", "opened", "succeeded"]


class OutputError(ValueError):
    """The output cannot be used; the message says why and what to do."""


def answered(entry: Entry, status: int, request_id: str, body: Any) -> dict[str, Any]:
    """The result of a request that was answered, whatever the status."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": entry.id, "custom_id": entry.custom_id, "response": response, "error": None}


def lost(entry: Entry, code: str, message: str) -> dict[str, Any]:
    """The result of a request to which no answer came."""
    return {"id": entry.id, "custom_id": entry.custom_id, "response": None, "error": {"code": code, "message": message}}


def succeeded(result: dict[str, Any]) -> bool:
    """Whether a result is an answer with status 200."""
    return result["error"] is None and result["response"]["status_code"] == 200


class Results:
    """An open output. done: custom_id of each result -> whether it succeeded. torn: bytes that were cut off."""

    def __init__(self, path: Path, fd: int, done: dict[str, bool], torn: int) -> None:
        self.path = path
        self.done = done
        self.torn = torn
        self._fd = fd

    def add(self, result: dict[str, Any]) -> None:
        """Append one result. Raises OSError if it could not be written, such as on a full disk."""
        name = result["custom_id"]
        if name in self.done:
            raise RuntimeError(f"a second result for {name!r} would be written to {self.path}")
        _write(self._fd, json.dumps(result).encode() + b"\n")
        self.done[name] = succeeded(result)


@contextmanager
def opened(path: Path, entries: Iterable[Entry], *, again: bool = False) -> Iterator[Results]:
    """The output at `path`, made if it is not there, ready to go on.

    again: drop the results that did not succeed, so that their requests are sent once more.
    Raises OutputError if another run writes to it, or if it holds anything but results of `entries`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = _locked(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror}). Choose another output.") from error
    try:
        size = os.fstat(fd).st_size
        done, whole = _results(path, {entry.custom_id: entry for entry in entries})
        if again and not all(done.values()):
            fd = _replaced(path, fd, list(done.values()))
            done = {name: True for name, good in done.items() if good}
        elif whole < size:
            os.ftruncate(fd, whole)
        yield Results(path, fd, done, size - whole)
    finally:
        os.close(fd)


def _locked(path: Path) -> int:
    """A descriptor of `path` that no other run has, for appending."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_ino == os.stat(path).st_ino:
                return fd
        except BlockingIOError as error:
            os.close(fd)
            raise OutputError(
                f"another run writes to {path}. Wait for it, end it, or choose another output."
            ) from error
        except FileNotFoundError:
            pass
        os.close(fd)  # the file was replaced between opening and locking


def _replaced(path: Path, fd: int, keep: list[bool]) -> int:
    """Put the lines to `keep` in the place of the file in one step; returns the new descriptor, locked like the old."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    new = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    fcntl.flock(new, fcntl.LOCK_EX)
    with path.open("rb") as lines:
        for line, kept in zip(lines, keep, strict=False):  # what is torn has no verdict
            if kept:
                _write(new, line)
    os.fsync(new)
    os.replace(temporary, path)
    os.close(fd)
    return new


def _write(fd: int, rest: bytes) -> None:
    while rest:
        rest = rest[os.write(fd, rest) :]


def _results(path: Path, entries: dict[str, Entry]) -> tuple[dict[str, bool], int]:
    """custom_id -> whether it succeeded, in the order of the lines, and the bytes of the whole lines."""
    done: dict[str, bool] = {}
    whole = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                break
            name, good = _result(f"{path} line {number}", line, entries)
            if name in done:
                raise OutputError(f"{path} line {number} is a second result of {name!r}. Remove one of them.")
            done[name] = good
            whole += len(line)
    return done, whole


def _result(where: str, line: bytes, entries: dict[str, Entry]) -> tuple[str, bool]:
    try:
        result = json.loads(line)
        name, told, good = str(result["custom_id"]), result["id"], succeeded(result)
    except (ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{where} is no result of a batch. Choose an output that is new, or a run's own.") from error
    if name not in entries:
        raise OutputError(f"{where} is of {name!r}, which the input does not have. Choose another output.")
    if told != entries[name].id:
        raise OutputError(
            f"{where} is of another request than {name!r} on line {entries[name].line} of the input, which must have "
            "changed. Choose another output, or put the input back."
        )
    return name, good
