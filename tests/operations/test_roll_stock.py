"""`glm53 roll`: the workers of a role are replaced under load, on a local stack whose engines are Dynamo's mocker."""

from __future__ import annotations

import json
import stat
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from glm53.cli import app
from glm53.deployment import Deployment, parse
from glm53.local.roll import roll
from glm53.local.stack import Stack, StackError, State

runner = CliRunner()

#: Requests of each agent at least: a slow machine may do fewer while the workers are replaced.
REQUESTS = 7


def _deployment(model: Path, **changes: Any) -> Deployment:
    raw: dict[str, Any] = {
        "name": "rolled",
        "model": {"path": str(model), "served_name": "tiny"},
        "workers": {"aggregated": 2},
        "frontend": {"retries": 3},
    }
    return parse(raw | changes)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the stack takes for its interpreter."""
    path = tmp_path_factory.mktemp("python") / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).with_name("mocked_engine.py")}" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture(scope="module")
def stack(dynamo: None, operated_model: Path, python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two workers and a frontend."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS", "1")
        running = Stack(_deployment(operated_model), tmp_path_factory.mktemp("roll"), python=python)
        running.up(print, 120)
        try:
            yield running
        finally:
            assert runner.invoke(app, ["down", "--run-dir", str(running.run_dir)]).exit_code == 0


def test_a_role_is_replaced_under_load_and_no_request_fails(stack: Stack, operated_model: Path, python: str) -> None:
    stop = threading.Event()

    def agent(which: int) -> list[str]:
        outcomes: list[str] = []
        with httpx.Client(timeout=60, trust_env=False) as client:
            while not stop.is_set() or len(outcomes) < REQUESTS:
                message = {"role": "user", "content": f"agent {which}, request {len(outcomes)}"}
                body = {"model": "tiny", "max_tokens": 40, "ignore_eos": True, "messages": [message]}
                stream = len(outcomes) % 2 == 0
                text = client.post(f"{stack.url}/v1/chat/completions", json=body | {"stream": stream})
                whole = (
                    text.status_code == 200 and '"error"' not in text.text and '"finish_reason":"length"' in text.text
                )
                outcomes.append("" if whole else f"{text.status_code} {text.text[-300:]}")
        return outcomes

    with ThreadPoolExecutor(8) as pool:
        agents = [pool.submit(agent, which) for which in range(8)]
        try:
            replaced = roll(_deployment(operated_model), "aggregated", stack.run_dir, print, 120, python=python)
        finally:
            stop.set()
        outcomes = [outcome for future in agents for outcome in future.result()]

    failed = [outcome for outcome in outcomes if outcome]
    print(f"requests {len(outcomes)}, failed {len(failed)}, replaced {replaced}")
    assert replaced == {"aggregated-0": "aggregated-2", "aggregated-1": "aggregated-3"}
    assert failed == []
    assert len(outcomes) >= len(agents) * REQUESTS
    state = json.loads(runner.invoke(app, ["status", "--run-dir", str(stack.run_dir), "--json"]).stdout)
    assert state["healthy"]
    assert [one["name"] for one in state["processes"]] == ["broker", "frontend", "aggregated-2", "aggregated-3"]


@pytest.mark.parametrize(
    ("changes", "role", "said"),
    [
        ({"engine": {"block_size": 128}}, "aggregated", "on which all roles must agree"),
        ({}, "decode", "no decode worker runs"),
    ],
)
def test_what_cannot_be_rolled_is_refused_and_goes_on(
    stack: Stack, operated_model: Path, changes: dict[str, Any], role: Any, said: str
) -> None:
    before = State.read(stack.run_dir)
    with pytest.raises(StackError, match=said):
        roll(_deployment(operated_model, **changes), role, stack.run_dir, print)

    assert State.read(stack.run_dir) == before


def test_a_new_worker_that_cannot_start_leaves_the_old_ones_alone(
    stack: Stack, operated_model: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such engine; exit 3\n")
    broken.chmod(0o755)
    before = State.read(stack.run_dir)
    with pytest.raises(StackError, match="no such engine"):
        roll(_deployment(operated_model), "aggregated", stack.run_dir, print, python=str(broken))

    assert State.read(stack.run_dir) == before


def test_nothing_running_and_an_unknown_role_are_said(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "glm53-cpu.yaml"
    nothing = runner.invoke(app, ["roll", "decode", "-d", str(recipe), "--run-dir", str(tmp_path)])
    unknown = runner.invoke(app, ["roll", "router", "-d", str(recipe), "--run-dir", str(tmp_path)])

    assert (nothing.exit_code, unknown.exit_code) == (1, 2)
    assert "glm53 up" in nothing.stderr
    assert "prefill, decode, aggregated" in unknown.stderr
