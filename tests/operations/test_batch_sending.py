"""How `glm53 batch` treats answers, on a fake API; test_batch_stock.py does so with Dynamo, killed and restarted."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, fake_api
from typer.testing import CliRunner

from glm53.cli import app
from glm53.client.batch.requests import index
from glm53.client.batch.results import opened
from glm53.client.batch.send import Policy, Tally, send
from glm53.client.server import Server

runner = CliRunner()


def _send(folder: Path, api: FakeApi, names: list[str], **policy: Any) -> tuple[Tally, dict[str, dict[str, Any]]]:
    """Send one request for each name; returns what was counted, and the results by name."""
    source, output = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(_line(name) for name in names))
    entries = index(source)
    with fake_api(api), opened(output, entries) as results:
        chosen = Policy(**{"first_wait_s": 0.01, **policy})
        tally = asyncio.run(send(Server(f"{api.url}/v1"), source, entries, results, chosen, lambda tally: None))
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert sorted(line["custom_id"] for line in lines) == sorted(names)
    return tally, {line["custom_id"]: line for line in lines}


def _line(name: str, model: str = "tiny") -> str:
    body = {"model": model, "messages": [{"role": "user", "content": name}]}
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"


@pytest.mark.parametrize("status", [0, 408, 429, 502, 503, 504, 529])
def test_answers_that_say_not_now_are_tried_again(tmp_path: Path, status: int) -> None:
    api = FakeApi(statuses={"a": [status, status]})
    tally, results = _send(tmp_path, api, ["a", "b"])

    assert (api.tries, tally.retries) == ({"a": 3, "b": 1}, 2)
    assert results["a"]["response"]["status_code"] == 200
    assert (tally.prompt_tokens, tally.completion_tokens) == (4, 6)


@pytest.mark.parametrize("status", [400, 401, 404, 422, 500])
def test_answers_that_stay_the_same_are_results_at_once(tmp_path: Path, status: int) -> None:
    api = FakeApi(statuses={"a": [status]})
    tally, results = _send(tmp_path, api, ["a"])

    assert (api.tries, tally.retries) == ({"a": 1}, 0)
    assert results["a"]["response"] == {
        "status_code": status,
        "request_id": results["a"]["id"],
        "body": {"message": f"status {status}"},
    }


@pytest.mark.parametrize(("status", "answer", "error"), [(503, 503, None), (0, None, "connection_lost")])
def test_patience_has_an_end_and_the_last_answer_is_the_result(
    tmp_path: Path, status: int, answer: int | None, error: str | None
) -> None:
    _, results = _send(tmp_path, FakeApi(statuses={"a": [status] * 100}), ["a", "b"], patience_s=0.1)

    assert (results["a"]["response"] or {}).get("status_code") == answer
    assert (results["a"]["error"] or {}).get("code") == error
    assert results["b"]["response"]["status_code"] == 200


def test_a_wait_that_the_server_asks_for_is_kept(tmp_path: Path) -> None:
    api = FakeApi(statuses={"a": [429]}, headers={"retry-after": "60"})
    tally, results = _send(tmp_path, api, ["a"], patience_s=30)

    assert (tally.retries, results["a"]["response"]["status_code"]) == (0, 429)


def test_no_more_requests_are_under_way_than_allowed(tmp_path: Path) -> None:
    api = FakeApi(wait_s=0.02)
    _send(tmp_path, api, [f"r{number}" for number in range(30)], concurrency=4)

    assert api.most == 4


def test_the_summary_counts_requests_and_failures(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(_line("a") + _line("b"))
    with fake_api(FakeApi(statuses={"b": [400]})) as api:
        first = runner.invoke(app, ["batch", str(source), str(output), "--url", api.url, "--json"])
        second = runner.invoke(app, ["batch", str(source), str(output), "--url", api.url, "--json", "--retry-failed"])

    summary = json.loads(first.stdout)
    assert (first.exit_code, summary["requests"], summary["succeeded"], summary["failed"]) == (1, 2, 1, 1)
    again = json.loads(second.stdout)
    assert (second.exit_code, again["done_before"], again["sent"], again["succeeded"]) == (0, 1, 1, 2)
    assert len(output.read_text().splitlines()) == 2


def test_a_model_that_is_not_served_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(_line("a") + _line("b", model="grand"))
    with fake_api(FakeApi()) as api:
        result = runner.invoke(app, ["batch", str(source), str(tmp_path / "out.jsonl"), "--url", api.url])

    assert (result.exit_code, api.tries) == (2, {})
    assert "line 2 asks for model 'grand'" in result.stderr


def test_a_full_disk_ends_the_run_and_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(_line(f"r{number}") for number in range(50)))
    room = iter([20, 300, 10])

    def write(fd: int, content: bytes) -> int:
        try:
            return real(fd, content[: next(room)])
        except StopIteration:
            raise OSError(errno.ENOSPC, "No space left on device") from None

    real = os.write
    with fake_api(FakeApi()) as api:
        with monkeypatch.context() as full:
            full.setattr(os, "write", write)
            result = runner.invoke(app, ["batch", str(source), str(output), "--url", api.url])
        assert result.exit_code == 1
        assert "No space left on device" in result.stderr
        assert "run the same command again" in result.stderr
        again = runner.invoke(app, ["batch", str(source), str(output), "--url", api.url])

    assert again.exit_code == 0
    assert len({json.loads(line)["custom_id"] for line in output.read_text().splitlines()}) == 50
