"""Calls on the real engine: one ``vllm serve`` on the CPU, a model with random weights, tags and parser of this plugin.

All kinds of requests, over HTTP: forced and auto, streamed and not, single and parallel, with thinking. For comparison
the same server gets some with vLLM's own tags, read by vLLM's own parser. `ENGINE_REQUESTS=500` sends more; the figures
of benchmarks/tool_calls_engine.py are in docs/structural_tags.md.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the pinned stock environment: make test")
pytest.importorskip("safetensors", reason="needs the demo extra: make test")

from dynamo_structural_tags.probe import probe
from glm53.model import make

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
REQUESTS = int(os.environ.get("ENGINE_REQUESTS", "18"))


@pytest.fixture(scope="module")
def engine() -> Iterator[ModuleType]:
    """The benchmark's module."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        found = importlib.import_module("tool_calls_engine")
        vars(found)["TOKENS"] = 300  # an answer; the benchmark takes more
        yield found
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def served(engine: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Address and model of the server."""
    folder = tmp_path_factory.mktemp("engine")
    make(folder / "tiny", layers=1)
    with engine.server(folder / "tiny", folder / "server.log") as url:
        yield url, folder / "tiny"


def test_no_call_is_invalid_with_our_tags_and_some_are_with_stocks(
    engine: ModuleType, served: tuple[str, Path]
) -> None:
    found = engine.run(*served, calls=1, size=REQUESTS)

    ours, stock = found["ours"], found["stock"]
    assert (ours.requests, ours.invalid, ours.refused, ours.silent) == (REQUESTS, 0, 0, 0), ours.faults
    assert ours.valid > REQUESTS / 4
    assert ours.deltas > 3 * ours.valid  # arguments come in pieces
    assert stock.invalid > 0


def test_the_counters_appear_in_the_servers_metrics(engine: ModuleType, served: tuple[str, Path]) -> None:
    told = engine.counters(served[0])

    assert told['dynamo_structural_tags_calls_total{outcome="valid"}'] > 0
    assert told['dynamo_structural_tags_tags_total{result="built"}'] >= REQUESTS
    assert told['dynamo_structural_tags_tags_total{result="unrecognised"}'] == REQUESTS  # stock's, as they are
    assert told['dynamo_structural_tags_tools_total{level="full"}'] > 0
    assert told["dynamo_structural_tags_compile_seconds_count"] > 0
    assert told["dynamo_structural_tags_streamed_bytes_total"] > 0
    assert 'dynamo_structural_tags_calls_total{outcome="invalid"}' not in told


def test_the_doctor_sees_the_tag_and_the_counters(served: tuple[str, Path]) -> None:
    found = {finding.code: finding for finding in probe(served[0])}

    assert found["endpoint"].level == "ok"
    assert found["tag"].level in ("ok", "note")  # an untrained model may not come to an end
    assert "valid" in found["metrics"].seen


def test_an_undeclared_call_cannot_be_made_and_a_cut_one_says_so(engine: ModuleType, served: tuple[str, Path]) -> None:
    body: dict[str, Any] = {
        "model": "glm",
        "messages": [{"role": "user", "content": "x"}],
        "tools": importlib.import_module("tool_call_requests").TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "write_file"}},
        "chat_template_kwargs": {"enable_thinking": False},
        "max_tokens": 12,
        "seed": 1,
    }

    whole = engine.ask(served[0], {**body, "stream": False})
    streamed = engine.ask(served[0], {**body, "stream": True})

    for answer in (whole, streamed):
        assert answer.finish_reason == "length"
        assert answer.calls == []
        assert [note["code"] for note in answer.notes] == ["truncated_call"]
        assert json.dumps(answer.notes)
