"""`glm53 batch` against a real Dynamo frontend: killed and run again, and with a worker that dies under it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynamo_deployment import Deployment

REQUESTS = 80


def _input(folder: Path) -> Path:
    """Requests that are each answered with their own number, some tokens at a time."""
    path = folder / "in.jsonl"
    lines = []
    for number in range(REQUESTS):
        said = json.dumps({"text": f"Hm.</think>Number {number}.", "step": 4, "wait": 0.02})
        body = {"model": "tiny", "messages": [{"role": "user", "content": f"@@{said}@@"}]}
        line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines))
    return path


def _start(deployment: Deployment, source: Path, output: Path) -> subprocess.Popen[str]:
    arguments = [str(source), str(output), "--url", deployment.url, "--concurrency", "4", "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "glm53", "batch", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where the tests run in the background, Ctrl-C is ignored, and whatever they start would ignore it, too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def _wait_for_lines(output: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if output.exists() and output.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"{output} has no {count} lines after a minute")


def _finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    said, complained = process.communicate(timeout=120)
    assert process.returncode == 0, complained
    return dict(json.loads(said))


def _assert_one_right_result_each(output: Path) -> None:
    results = [json.loads(line) for line in output.read_text().splitlines()]
    assert Counter(result["custom_id"] for result in results) == {f"r{number}": 1 for number in range(REQUESTS)}
    for result in results:
        content = result["response"]["body"]["choices"][0]["message"]["content"]
        assert content == f"Number {result['custom_id'][1:]}."


def test_killed_twice_and_torn_it_ends_with_exactly_one_result_an_input(scripted: Deployment, tmp_path: Path) -> None:
    source, output = _input(tmp_path), tmp_path / "out.jsonl"
    sent = scripted.requests.read_text().count('"request"')
    for wanted in (20, 50):
        process = _start(scripted, source, output)
        _wait_for_lines(output, wanted)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    whole = output.read_bytes().count(b"\n")
    with output.open("ab") as file:  # what a write leaves of which only the first half reached the disk
        file.write(b'{"id": "batch_req_0", "custom_id": "r1')
    summary = _finish(_start(scripted, source, output))

    _assert_one_right_result_each(output)
    assert summary["done_before"] == whole
    assert summary["torn_bytes"] > 0
    assert summary["succeeded"] == REQUESTS
    sent = scripted.requests.read_text().count('"request"') - sent
    assert REQUESTS <= sent <= REQUESTS + 2 * 4  # only what was under way at a kill is sent again


def test_interrupted_politely_it_says_how_to_go_on(scripted: Deployment, tmp_path: Path) -> None:
    source, output = _input(tmp_path), tmp_path / "out.jsonl"
    process = _start(scripted, source, output)
    _wait_for_lines(output, 5)
    process.send_signal(signal.SIGINT)
    _, complained = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "run the same command again" in complained
    assert "Traceback" not in complained
    _finish(_start(scripted, source, output))
    _assert_one_right_result_each(output)


def test_a_worker_that_dies_and_comes_back_costs_tries_and_no_result(
    dynamo: None, operated_model: Path, tmp_path: Path
) -> None:
    from dynamo_deployment import deployed

    source, output = _input(tmp_path), tmp_path / "out.jsonl"
    with deployed(tmp_path / "dying", operated_model, DYN_PARSER_VERSION="2") as deployment:
        deployment.front()
        deployment.scripted("worker", "--parsers", "--no-tags")
        deployment.wait()
        process = _start(deployment, source, output)
        _wait_for_lines(output, 30)
        deployment.end(["worker"])
        deployment.scripted("worker", "--parsers", "--no-tags")
        summary = _finish(process)

    _assert_one_right_result_each(output)
    assert summary["retries"] > 0
