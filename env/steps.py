"""Run the steps of a set-up: say which one and how long, keep their output in a log, explain a failure."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

HEARTBEAT_S = 10.0
TAIL_LINES = 20

# A line that pip prints for every missing local folder of the machine's own configuration.
NOISE = re.compile(r"^WARNING: Location '.*' is ignored")

# Output of a failed step -> what most likely helps. First match wins.
LIKELY_FIXES: tuple[tuple[str, str], ...] = (
    (
        # With a constraint on torch anywhere in pip's settings, pip words the same lack as a conflict.
        r"(satisfies the requirement|No matching distribution found for|Cannot install) torch==\S+\+cpu",
        "pip's package index has no CPU build of torch for this Python. Set PIP_EXTRA_INDEX_URL to PyTorch's "
        "CPU wheel index (PyTorch's install page shows it for Linux, Pip, CPU) and run this again.",
    ),
    (r"No space left on device", "The disk is full: free about 4 GB, or choose another place with --venv."),
    (
        r"ensurepip is not available|No module named '?ensurepip|No module named '?venv",
        "This Python cannot make virtual environments: install its venv package (Debian and Ubuntu: "
        "python3-venv, of the same version).",
    ),
    (
        r"requested \(constraint\)|conflicts? with constraint",
        "A constraint file of this machine forbids a pinned version: see `pip config list`.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        "The package index's certificate is not trusted here: set PIP_CERT to your organisation's bundle.",
    ),
    (
        r"(?i)name resolution|NewConnectionError|ConnectionError|ConnectTimeout|ProxyError|Read timed out|"
        r"Connection (refused|reset|broken)|Max retries exceeded",
        "The package index did not answer: check the network and pip's index and proxy settings "
        "(`pip config list`), then run this again; finished steps are kept.",
    ),
    (
        r"Python\.h: No such file",
        "Python's C headers are missing: install its development package (Debian and Ubuntu: python3-dev).",
    ),
    (
        r"satisfies the requirement|No matching distribution found",
        "A pinned version is not on the configured package index: see `pip config list`; mirrors may lag.",
    ),
)


class StepFailed(Exception):
    """A step ended with an error; the message holds its last output lines and the likely fix."""


class Steps:
    """Numbered steps with elapsed time, written to `out`; the output of their commands goes to `log`."""

    def __init__(self, total: int, log: Path, lock: int | None = None, out: TextIO = sys.stderr) -> None:
        """`lock` is a locked file descriptor that the commands hold too, should this process be killed."""
        self.total, self.log, self.out = total, log, out
        self.held = () if lock is None else (lock,)
        self.number = 0
        self.started = time.monotonic()

    def begin(self, title: str) -> None:
        """Empty the log and say what the steps are for."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")
        self.say(f"{title}; full output: {self.log}")

    def say(self, text: str) -> None:
        print(text, file=self.out, flush=True)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Number and time what runs inside."""
        self.number += 1
        label = f"[{self.number}/{self.total}]"
        self.say(f"{label} {title}")
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        self.say(f"{label} done in {took:.0f} s ({time.monotonic() - self.started:.0f} s in all)")

    def skip(self, count: int, why: str) -> None:
        """Count steps that are not needed."""
        self.say(f"[{self.number + 1}-{self.number + count}/{self.total}] not needed: {why}")
        self.number += count

    def run(self, commands: Sequence[Sequence[str]], env: Mapping[str, str] | None = None) -> None:
        """Run `commands` side by side until all have ended; raise `StepFailed` at the first that fails."""
        logs = [self.log.with_suffix(f".{self.number}.{i}") for i in range(len(commands))]
        children: list[subprocess.Popen[bytes]] = []
        began = told = time.monotonic()
        try:
            for command, log in zip(commands, logs, strict=True):
                with log.open("wb") as sink:
                    sink.write(f"$ {' '.join(command)}\n".encode())
                    sink.flush()
                    children.append(
                        subprocess.Popen(
                            command,
                            stdin=subprocess.DEVNULL,
                            stdout=sink,
                            stderr=subprocess.STDOUT,
                            env=dict(env) if env is not None else None,
                            start_new_session=True,
                            pass_fds=self.held,
                        )
                    )
            while True:
                codes = [child.poll() for child in children]
                failed = next((i for i, code in enumerate(codes) if code), None)
                if failed is not None:
                    raise StepFailed(explain(commands[failed], codes[failed] or 0, _text(logs[failed]), self.log))
                if all(code == 0 for code in codes):
                    return
                if time.monotonic() - told >= HEARTBEAT_S:
                    told = time.monotonic()
                    running = [log for log, code in zip(logs, codes, strict=True) if code is None]
                    self.say(f"      {told - began:.0f} s: {_last_line(running[0])}")
                time.sleep(0.1)
        finally:
            end(children)
            with self.log.open("a") as whole:
                for log in logs:
                    whole.write(_text(log))
                    log.unlink(missing_ok=True)


def explain(command: Sequence[str], code: int, output: str, log: Path) -> str:
    """Return the message for a failed `command`: exit code, last lines of `output`, likely fix."""
    lines = [line for line in output.splitlines() if line.strip()][-TAIL_LINES:]
    shown = " ".join(command[:6]) + (" ..." if len(command) > 6 else "")
    fix = next((text for pattern, text in LIKELY_FIXES if re.search(pattern, output)), None)
    return "\n".join(
        [
            f"`{shown}` ended with exit code {code}. Last lines:",
            *(f"    {line}" for line in lines),
            f"Likely fix: {fix or 'none known for this output; read the whole log.'}",
            f"Log: {log}",
        ]
    )


def end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End every child that still runs, with all it started: first asked, after 5 s forced."""
    groups = [child for child in children if child.poll() is None]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in groups:
            _signal_group(child, number)
        deadline = time.monotonic() + 5.0
        while any(_signal_group(child, 0) for child in groups) and time.monotonic() < deadline:
            time.sleep(0.02)


def _signal_group(child: subprocess.Popen[bytes], number: int) -> bool:
    """Signal the child's process group; return whether it has members left."""
    child.poll()
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return False
    return True


def interrupt_on_termination() -> None:
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that `Steps.run` ends its children on the way out."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def _text(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines(keepends=True) if log.exists() else []
    return "".join(line for line in lines if not NOISE.match(line))


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in _text(log).splitlines() if line.strip()]
    # The first line is the command itself; what pip appends says where it read a requirement.
    return lines[-1].partition(" (from ")[0][:90] if len(lines) > 1 else "running"
