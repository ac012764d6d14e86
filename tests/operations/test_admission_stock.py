"""A full deployment refuses with what its recipe says: real Dynamo frontends, started as recipes start them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from dashboard_metrics import metrics, shown
from typer.testing import CliRunner

from glm53.cli import app
from glm53.commands.frontend import frontend_arguments, frontend_environment
from glm53.dashboards.panels import SERVING
from glm53.deployment import parse
from glm53.local.processes import free_ports

if TYPE_CHECKING:
    from dynamo_deployment import Deployment

runner = CliRunner()


def _start(deployment: Deployment, name: str, port: int, frontend: dict[str, Any]) -> str:
    """A frontend as a recipe with these settings starts it; returns its address."""
    recipe = parse(
        {
            "name": "small",
            "model": {"path": str(deployment.model), "served_name": "tiny"},
            "workers": {"aggregated": 1},
            "frontend": frontend,
        }
    )
    arguments = frontend_arguments(recipe, "127.0.0.1", port)
    deployment.front(*arguments, name=name, port=port, **frontend_environment(recipe))
    return f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def full(dynamo: None, operated_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Three frontends over one small mocker worker: full by blocks, full by waiting prompts, and never full."""
    from dynamo_deployment import deployed

    ports = dict(zip(("prefill", "open"), free_ports(2, "127.0.0.1"), strict=True))
    with deployed(tmp_path_factory.mktemp("full"), operated_model) as deployment:
        urls = {
            "blocks": _start(deployment, "blocks", deployment.port, {"busy_blocks": 0.3}),
            "prefill": _start(deployment, "prefill", ports["prefill"], {"busy_prefill_tokens": 64, "full_status": 429}),
            "open": _start(deployment, "open", ports["open"], {}),
        }
        limits = ("--num-gpu-blocks-override", "100", "--block-size", "16", "--max-num-batched-tokens", "512")
        deployment.mocker("worker", *limits, "--speedup-ratio", "2")
        deployment.wait()
        for url in urls.values():
            _until(lambda url=url: _ask(url, 0, 1, 1).status_code == 200)
        yield urls


def _ask(url: str, number: int, words: int, tokens: int) -> httpx.Response:
    message = {"role": "user", "content": f"{number} " + "x" * words}
    body = {"model": "tiny", "max_tokens": tokens, "ignore_eos": True, "messages": [message]}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False)


def _burst(url: str, words: int, tokens: int) -> list[httpx.Response]:
    """16 requests, a moment apart, so that the router hears of each before the next."""

    def one(number: int) -> httpx.Response:
        time.sleep(0.04 * number)
        return _ask(url, number, words, tokens)

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(one, range(16)))


@pytest.mark.parametrize(("kind", "words", "tokens", "status"), [("blocks", 60, 300, 503), ("prefill", 600, 20, 429)])
def test_a_full_deployment_refuses_at_once_and_serves_again_when_there_is_room(
    full: dict[str, str], kind: str, words: int, tokens: int, status: int
) -> None:
    answers = _burst(full[kind], words, tokens)

    assert Counter(one.status_code for one in answers).keys() == {200, status}
    refused = next(one for one in answers if one.status_code != 200)
    assert "overloaded" in refused.json()["message"]
    _until(lambda: _ask(full[kind], 99, words, tokens).status_code == 200)


def test_without_thresholds_requests_wait_instead(full: dict[str, str]) -> None:
    assert {one.status_code for one in _burst(full["open"], 60, 100)} == {200}


def test_while_a_deployment_is_full_chat_says_so_and_a_batch_waits_for_room(
    full: dict[str, str], tmp_path: Path
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with source.open("w") as file:
        for number in range(6):
            message = {"role": "user", "content": f"{number} " + "x" * 60}
            body = {"model": "tiny", "max_tokens": 20, "ignore_eos": True, "messages": [message]}
            line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    with ThreadPoolExecutor(8) as pool:
        for number in range(8):
            pool.submit(_ask, full["open"], number, 60, 400)
        _until(lambda: _ask(full["blocks"], 99, 60, 1).status_code == 503)
        chat = runner.invoke(app, ["chat", "tiny", "x" * 60, "--url", full["blocks"]])
        batch = runner.invoke(app, ["batch", str(source), str(output), "--url", full["blocks"], "--json"])

    assert chat.exit_code == 3
    assert "HTTP 503: the deployment is full or not ready (Service temporarily overloaded). Try again" in chat.stderr
    assert batch.exit_code == 0, batch.output
    summary = json.loads(batch.stdout)
    assert (summary["succeeded"], summary["completion_tokens"]) == (6, 6 * 20)
    assert summary["retries"] > 0


def test_every_metric_of_the_dashboard_that_is_dynamos_is_shown_by_a_frontend(full: dict[str, str]) -> None:
    """After the tests above, because refusals are shown with the first one."""
    text = httpx.get(f"{full['blocks']}/metrics", trust_env=False).text
    families = shown(text)
    asked = {name for name in metrics(SERVING) if name.startswith(("dynamo_frontend", "dynamo_request", "dynamo_comp"))}

    assert len(asked) >= 8
    assert asked - families.keys() == set()
    assert {"status", "error_type"} <= families["dynamo_frontend_requests_total"]
    # What KEDA asks for where capacity is serverless.
    assert "model" in families["dynamo_frontend_queued_requests"]


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
