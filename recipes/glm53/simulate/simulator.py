"""Runs replays on an interpreter that has Dynamo, one process each, and says what is missing where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

__all__ = ["RELEASES", "SimulationError", "probe", "replay"]

#: Releases whose simulator was tried here. Another one is refused: its configuration and records may differ.
RELEASES = ("1.6.1",)

_PROBE = (
    "from importlib.metadata import version; import dynamo.replay, dynamo.mocker.config; print(version('ai-dynamo'))"
)
_LOUD = 2000  # characters of a failed replay's output that are shown


class SimulationError(Exception):
    """The simulation cannot run, or ran and failed."""


def probe(python: str) -> str:
    """Dynamo's release on this interpreter; raises `SimulationError` where there is none that is known."""
    try:
        ran = _run([python, "-c", _PROBE], 120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SimulationError(f"--python {python}: it cannot be run ({error}). Name a Python 3.11 or 3.12.") from error
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise SimulationError(
            f"--python {python} has no Dynamo whose simulator can be imported: {last}. The simulation runs on Dynamo's "
            f"own mocker and router. Install ai-dynamo=={RELEASES[-1]} there (`make env` does it in this repository's "
            ".venv), or name the interpreter that has it with --python. `glm53 plan traffic` and `plan tier` need none."
        )
    found = ran.stdout.strip().splitlines()[-1]
    if found not in RELEASES:
        raise SimulationError(
            f"--python {python} has Dynamo {found}, whose simulator was not tried. Known is {', '.join(RELEASES)}: "
            f"install ai-dynamo=={RELEASES[-1]}, or name another interpreter with --python."
        )
    return found


def replay(python: str, job: dict[str, Any], folder: Path, name: str, deadline: float) -> dict[str, Any]:
    """Replay one job; `deadline` is on `time.monotonic`. Raises `SimulationError` where it fails or takes too long."""
    source, result = folder / f"{name}.job.json", folder / f"{name}.result.json"
    source.write_text(json.dumps(job), encoding="utf-8")
    result.unlink(missing_ok=True)  # of an earlier run in the same folder
    left = deadline - time.monotonic()
    try:
        if left <= 0:
            raise subprocess.TimeoutExpired(name, 0)
        # -P: the script's own folder, with a module called trace, stays out of sys.path.
        ran = _run([python, "-P", str(Path(__file__).with_name("worker.py")), str(source), str(result)], left)
    except subprocess.TimeoutExpired as error:
        raise SimulationError(
            f"the time ran out in {name}. Give a higher --minutes, fewer --rounds or --sessions, or --quick."
        ) from error
    if ran.returncode or not result.exists():
        said = (ran.stderr + ran.stdout).strip()[-_LOUD:]
        raise SimulationError(f"Dynamo's replay of {name} failed with exit code {ran.returncode}:\n{said}")
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    if found["completed"] != found["requests"]:
        raise SimulationError(
            f"Dynamo's replay of {name} completed {found['completed']} of {found['requests']} requests: a prompt with "
            "its answer is longer than a rank's KV or the recipe's engine.max_model_len. Shorten the prompts."
        )
    return found


def _run(argv: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    quiet = {"DYN_LOG": "error", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=seconds, env={**os.environ, **quiet}, stdin=subprocess.DEVNULL
    )
