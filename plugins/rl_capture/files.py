"""Files of records: appended to line by line, closed by a rename, bounded in size, whole after a kill.

A file under way is ``NAME.jsonl.open`` and locked by its writer; closed, it is ``NAME.jsonl``. A line goes to the
kernel in one piece before the next one is begun, so a killed process leaves at most one unfinished line, at the end.
The next writer of the same machine cuts that off and closes the file; after a day without a record, any writer does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

__all__ = ["CLOSED", "OPEN", "Writer", "Written", "listed"]

CLOSED = ".jsonl"
OPEN = ".jsonl.open"

#: What became of a line: "full" and "large" ones are not written.
Written = Literal["written", "full", "large"]

#: Numbers of the files of this process, which may have several writers.
_numbers = itertools.count(1)

#: Seconds without a record after which another machine's file under way is nobody's.
_FORSAKEN = 86_400.0

#: Seconds after which the sizes of other writers' files are looked up again.
_LOOK = 1.0


def listed(folder: Path) -> list[Path]:
    """The files of records in the folder, oldest first: names begin with the time at which they were begun."""
    return sorted(path for path in folder.iterdir() if path.name.startswith("capture-") and _is_ours(path.name))


class Writer:
    """Appends lines to files in one folder; for one thread.

    file_bytes: size at which a file is closed. total_bytes: of all files in the folder, also those of others.
    drop_oldest: make room by deleting closed files, oldest first; otherwise a full folder takes nothing.
    clock: seconds since the epoch.

    Attributes: recovered, dropped: files that were closed for a writer that is gone, and files deleted to make room.

    Raises OSError if the folder cannot be made or written.
    """

    def __init__(
        self,
        folder: Path,
        file_bytes: int,
        total_bytes: int,
        *,
        drop_oldest: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._file_bytes, self._total = folder, file_bytes, total_bytes
        self._drop_oldest, self._clock = drop_oldest, clock
        self._descriptor: int | None = None
        self._path = folder
        self._size = 0
        self._others, self._looked = 0, float("-inf")
        self.recovered = self.dropped = 0
        # Ids are text to whoever has the tokenizer: nobody else's business.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._recover()
        self._begin()

    @property
    def path(self) -> Path:
        """The file under way."""
        return self._path

    def append(self, line: bytes) -> Written:
        """Write one line, its end included. Raises OSError, and then the file is as before."""
        if len(line) > self._total:
            return "large"
        if self._size and self._size + len(line) > self._file_bytes:
            self._finish()
            self._begin()
        if not self._room_for(len(line)):
            return "full"
        assert self._descriptor is not None
        try:
            _write(self._descriptor, line)
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(line)
        return "written"

    def close(self) -> None:
        """Close the file under way; an empty one goes. Harmless when repeated."""
        self._finish()

    def _room_for(self, size: int) -> bool:
        if time.monotonic() - self._looked > _LOOK:
            self._look()
        while self._others + self._size + size > self._total:
            self._look()  # others may have made room
            if self._others + self._size + size <= self._total:
                return True
            if not self._drop_oldest or not self._drop_one():
                return False
        return True

    def _look(self) -> None:
        self._others = sum(_size(path) for path in listed(self._folder) if path != self._path)
        self._looked = time.monotonic()

    def _drop_one(self) -> bool:
        for path in listed(self._folder):
            if path.name.endswith(CLOSED):
                with contextlib.suppress(FileNotFoundError):  # another writer was faster
                    path.unlink()
                    self.dropped += 1
                return True
        return False

    def _begin(self) -> None:
        while (descriptor := self._begun()) is None:
            continue
        self._descriptor, self._size = descriptor, 0

    def _begun(self) -> int | None:
        """A new file of this writer's, locked; None if another one took the name, or took it for left behind."""
        started = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._clock()))
        self._path = self._folder / f"capture-{started}-{_host()}-{os.getpid()}-{next(_numbers):06}{OPEN}"
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except FileExistsError:
            return None
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)
        return None

    def _finish(self) -> None:
        if self._descriptor is None:
            return
        if self._size:
            _closed(self._descriptor, self._path)
        else:
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor, self._size = None, 0
        self._looked = float("-inf")

    def _recover(self) -> None:
        """Close what writers left that are gone: of this machine at once, of others, whose locks a shared folder may
        not show, after a day without a record."""
        for path in listed(self._folder):
            with contextlib.suppress(OSError):  # gone, or locked by its writer
                mine = f"-{_host()}-" in path.name
                if path.name.endswith(OPEN) and (mine or self._clock() - path.stat().st_mtime > _FORSAKEN):
                    self._recover_one(path)

    def _recover_one(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end = _end_of_lines(descriptor)
            if not end:
                path.unlink()
                return
            os.ftruncate(descriptor, end)
            _closed(descriptor, path)
            self.recovered += 1
        finally:
            os.close(descriptor)


def _is_ours(name: str) -> bool:
    return name.endswith((CLOSED, OPEN))


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _write(descriptor: int, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        done = os.write(descriptor, rest)
        if not done:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rest = rest[done:]


def _closed(descriptor: int, path: Path) -> None:
    """Give a file its last name once its content is on the disk."""
    os.fsync(descriptor)
    with contextlib.suppress(FileNotFoundError):  # another machine took it for nobody's, and closed it
        os.rename(path, path.with_name(path.name.removesuffix(OPEN) + CLOSED))
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _end_of_lines(descriptor: int) -> int:
    """Offset behind the last whole line."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - (1 << 16))
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
