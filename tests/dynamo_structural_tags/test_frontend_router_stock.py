"""KV routing with this plugin's chat engine: a prompt goes to the worker that has its blocks, as in Dynamo."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest

if importlib.util.find_spec("dynamo") is None or importlib.util.find_spec("dynamo.frontend") is None:
    pytest.skip("needs Dynamo: run `make test`, which installs it into .venv", allow_module_level=True)

from scripted_stack import OURS, Front, started

ROUTER = ("--router-mode", "kv", "--no-router-kv-events")
TOOL = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}


def _ask(front: Front, task: str) -> int:
    """The worker that a turn of one agent's conversation goes to."""
    message = {"role": "user", "content": f"{task} " * 200}
    answer = front.post(messages=[message], tools=[TOOL])
    assert answer.status_code == 200, answer.text
    return front.workers()[-1]


def test_turns_of_a_conversation_go_to_the_worker_that_has_their_blocks(served_model: Path, tmp_path: Path) -> None:
    """Of two idle workers, chance alone would send all of these to the first one's once in thousands of runs."""
    with started(tmp_path, served_model, {"ours": OURS}, workers=2, router=ROUTER) as fronts:
        front, deadline = fronts["ours"], time.monotonic() + 60
        while len(set(front.workers())) < 2 and time.monotonic() < deadline:
            _ask(front, f"warm {len(front.workers())}")  # until both workers are known to the router
        first = {task: _ask(front, task) for task in ("alpha", "beta", "gamma", "delta")}

        again = {task: [_ask(front, task) for _ in range(3)] for task in first}

    assert again == {task: [worker] * 3 for task, worker in first.items()}
