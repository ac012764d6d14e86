"""Starting, recognising and ending process groups. Nothing here knows what the processes do."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Started", "end", "free_port_runs", "free_ports", "memory_bytes", "port_is_free", "start", "tail"]


_PORTS = range(20_000, 32_768)


@dataclass(frozen=True)
class Started:
    """A process that leads a session of its own, so that all its descendants can be ended with it.

    created: seconds since the epoch; tells the process from a later one with the same id.
    """

    name: str
    pid: int
    created: float
    log: str

    def alive(self) -> bool:
        """Whether this very process still runs."""
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.created) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def start(name: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> Started:
    """Start `argv` in a session of its own with `env` on top of the caller's, writing to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(  # ended by end(), possibly from another process
            list(argv),
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Started(name, process.pid, psutil.Process(process.pid).create_time(), str(log))


def end(started: Iterable[Started], patience_s: float = 20.0) -> list[str]:
    """End the processes and everything in their sessions; returns the names that had to be killed.

    Asks with SIGTERM first and kills whatever is left after `patience_s` seconds. Shared memory that nobody else has
    goes with them: what is killed cannot remove its own, and vLLM leaves 4 MiB for each rank on a CPU in any case.
    """
    mine = [process for process in started if process.alive() or _session(process)]
    shared = _shared_memory(member for process in mine for member in _session(process))
    for process in mine:
        _signal_group(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and any(_session(process) for process in mine):
        _reap()
        time.sleep(0.1)
    killed = []
    for process in mine:
        if survivors := _session(process):
            killed.append(process.name)
            for survivor in survivors:
                with contextlib.suppress(psutil.NoSuchProcess):
                    survivor.kill()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(_session(process) for process in mine):
        _reap()
        time.sleep(0.05)
    if left := {path for path in shared if path.exists()}:
        for path in left - _shared_memory(psutil.process_iter()):
            path.unlink(missing_ok=True)
    return killed


def memory_bytes(process: Started) -> int:
    """Resident memory of everything in the process's session."""
    total = 0
    for member in _session(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += member.memory_info().rss
    return total


def _session(process: Started) -> list[psutil.Process]:
    """Living members of the session that `process` leads or led."""
    members = []
    for candidate in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            if (
                os.getsid(candidate.pid) == process.pid
                and candidate.create_time() >= process.created - 1
                and candidate.status() != psutil.STATUS_ZOMBIE
            ):
                members.append(candidate)
    return members


def _shared_memory(processes: Iterable[psutil.Process]) -> set[Path]:
    """Files of shared memory that the processes have mapped."""
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            maps = Path(f"/proc/{process.pid}/maps").read_text()  # psutil reads how much of each is used, too: slow
            found |= {Path(one) for one in re.findall(r" (/dev/shm/.+)$", maps, re.MULTILINE)}
    return found


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _reap() -> None:
    """Collect ended children of this process, so that they do not stay as zombies."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def free_ports(count: int, host: str) -> tuple[int, ...]:
    """`count` different TCP ports that were free on `host` a moment ago, below the system's ephemeral range.

    Dynamo reads its status port as a 16-bit signed number, so nothing above 32767 would do, and a port in the
    ephemeral range could be taken by any outgoing connection before the server listens. Raises RuntimeError
    if there are not enough.
    """
    return free_port_runs((1,) * count, host)


def free_port_runs(lengths: Iterable[int], host: str) -> tuple[int, ...]:
    """As `free_ports`, but for each of `lengths` that many ports in a row; all of them one after another."""
    lengths = tuple(lengths)
    found: list[int] = []
    candidates = iter(random.sample(_PORTS, len(_PORTS)))
    for length in lengths:
        for first in candidates:
            run = range(first, first + length)
            if run.stop <= _PORTS.stop and not set(run) & set(found) and all(port_is_free(one, host) for one in run):
                found += run
                break
        else:
            raise RuntimeError(
                f"{len(found)} ports were found free from {_PORTS.start} to {_PORTS.stop - 1}, and {sum(lengths)} are "
                "needed. End other servers on this machine."
            )
    return tuple(found)


def port_is_free(port: int, host: str) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def tail(path: Path | str, lines: int = 20) -> str:
    """The last lines of a log, undecodable bytes replaced; a note if there is no log."""
    try:
        text = Path(path).read_bytes()[-20_000:].decode("utf-8", "replace")
    except OSError as error:
        return f"(no log: {error.strerror})"
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"
