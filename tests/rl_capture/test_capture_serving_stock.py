"""What a real ``vllm serve`` records of clients that know nothing of it: one server on the CPU, random weights.

A record is held against what a client gets that asks for ids and log-probabilities itself, against the tokenizer, and
against the engine's own word on its weights. The last test kills the server.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the pinned stock environment: make test")
pytest.importorskip("safetensors", reason="needs the demo extra: make test")

from glm53.model import make
from rl_capture.files import Writer
from rl_capture.reading import faults, files, records

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SECRET = "ghp_" + "a1B2" * 9
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


@dataclass
class Served:
    """A server that records, and its records."""

    url: str
    model: Path
    other: Path
    folder: Path

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        """The answer's JSON; of a stream all its chunks."""
        request = urllib.request.Request(
            f"{self.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"} | (headers or {})
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            if not body.get("stream"):
                return json.loads(answer.read() or b"null")
            lines = [line.removeprefix(b"data: ").strip() for line in answer if line.startswith(b"data: ")]
        return [json.loads(line) for line in lines if line != b"[DONE]"]

    def complete(self, prompt: str, headers: dict[str, str] | None = None, **more: Any) -> Any:
        body = {"model": "glm", "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **more}
        return self.post("/v1/completions", body, headers)

    def record(self, matches: Callable[[dict[str, Any]], bool], number: int = 1) -> list[dict[str, Any]]:
        """The records that match, once there are so many: they are written beside the answer, not before it."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            found = [one for path in files(self.folder) for one in records(path) if matches(one)]
            if len(found) >= number:
                return found
            time.sleep(0.05)
        raise AssertionError(f"fewer than {number} records match")

    def of(self, answer: Any, number: int = 1) -> list[dict[str, Any]]:
        return self.record(lambda one: one["request"].startswith(answer["id"]), number)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("capture")
    make(folder / "tiny", layers=1)
    make(folder / "other", layers=1, seed=1)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        engine = importlib.import_module("tool_calls_engine")
    finally:
        sys.path.remove(str(BENCHMARKS))
    environment = {"RL_CAPTURE": "on", "RL_CAPTURE_DIR": str(folder / "records"), "VLLM_SERVER_DEV_MODE": "1"}
    with engine.server(folder / "tiny", folder / "server.log", (), environment) as url:
        yield Served(url, folder / "tiny", folder / "other", folder / "records")


def test_a_record_has_what_a_client_gets_that_asks_for_ids_and_logprobs(served: Served) -> None:
    plain = served.complete("The quick brown fox")
    asked = served.complete("The quick brown fox", logprobs=0, return_token_ids=True)

    (record,) = served.of(plain)
    choice = asked["choices"][0]
    assert record["output"]["ids"] == choice["token_ids"]
    assert record["output"]["logprobs"] == pytest.approx(choice["logprobs"]["token_logprobs"], abs=1e-6)
    assert record["prompt"]["ids"] == choice["prompt_token_ids"]
    assert (record["finish"], record["model"], record["session"]) == ("length", "glm", None)
    assert record["sampling"]["temperature"] == 0
    assert record["output"]["logprobs_mode"] == "raw_logprobs"
    # The client that asked is recorded, too, and was given what it asked for.
    assert served.of(asked)[0]["output"]["logprobs"] == record["output"]["logprobs"]


def test_a_client_sees_nothing_that_it_did_not_ask_for(served: Served) -> None:
    whole = served.complete("A client", n=2, seed=1, temperature=1)
    chunks = served.complete("A client", stream=True)

    for choice in whole["choices"] + [one["choices"][0] for one in chunks if one["choices"]]:
        assert choice["logprobs"] is None
        assert choice.get("token_ids") is None
        assert choice.get("prompt_token_ids") is None
    assert [one["choice"] for one in sorted(served.of(whole, 2), key=lambda one: one["choice"])] == [0, 1]


def test_recorded_ids_are_the_streamed_text(served: Served) -> None:
    from vllm.tokenizers import get_tokenizer

    chunks = served.complete("Stream this, please", stream=True, skip_special_tokens=False)

    (record,) = served.of(chunks[0])
    told = "".join(one["choices"][0]["text"] for one in chunks if one["choices"])
    tokenizer = get_tokenizer(str(served.model))
    assert tokenizer.decode(record["output"]["ids"]) == told
    assert tokenizer.decode(record["prompt"]["ids"]).endswith("Stream this, please")
    assert len(record["output"]["logprobs"]) == 12


def test_logprobs_that_a_client_asks_for_reach_it(served: Served) -> None:
    body = {
        "model": "glm",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 4,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
    }
    answer = served.post("/v1/chat/completions", body)

    told = answer["choices"][0]["logprobs"]["content"]
    assert [len(one["top_logprobs"]) for one in told] == [3] * 4
    assert served.of(answer)[0]["output"]["logprobs"] == pytest.approx([one["logprob"] for one in told], abs=1e-6)


def test_turns_of_a_session_are_joined_and_calls_have_outcomes(served: Served) -> None:
    body: dict[str, Any] = {
        "model": "glm",
        "messages": [{"role": "user", "content": "weather?"}],
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "chat_template_kwargs": {"enable_thinking": False},
        "max_tokens": 300,
        "seed": 3,
    }
    first = served.post("/v1/chat/completions", body, {"X-Session-ID": "agent-7"})
    message = first["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "12 degrees"}
    second = served.post(
        "/v1/chat/completions",
        {**body, "messages": [*body["messages"], message, result], "tool_choice": "none", "max_tokens": 3},
        {"X-Session-ID": "agent-7"},
    )

    [one], [two] = served.of(first), served.of(second)
    assert one["session"] == two["session"] == "agent-7"
    assert one["calls"] == [{"outcome": "valid"}]  # names are text, which is not stored
    assert (two["calls"], one["sampling"]["constrained"]) == ([], True)
    # The result of the first turn's call is in the prompt of the second.
    from vllm.tokenizers import get_tokenizer

    assert "12 degrees" in get_tokenizer(str(served.model)).decode(two["prompt"]["ids"])


def test_a_secret_is_masked_in_the_ids(served: Served) -> None:
    from vllm.tokenizers import get_tokenizer

    answer = served.complete(f"export TOKEN={SECRET} && run")

    (record,) = served.of(answer)
    kept = get_tokenizer(str(served.model)).decode([one for one in record["prompt"]["ids"] if one >= 0])
    assert SECRET not in kept
    assert "ghp_" not in kept
    assert kept.startswith("export TOKEN=")
    assert kept.endswith(" && run")
    assert record["masked"]["prompt"] == record["prompt"]["ids"].count(-1) > 0
    assert "text" not in record


def test_a_client_that_leaves_is_an_abort_with_what_it_had(served: Served) -> None:
    body = {"model": "glm", "prompt": "leave", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(
        f"{served.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        line = next(one for one in answer if one.startswith(b"data: "))
    name = json.loads(line.removeprefix(b"data: "))["id"]

    (record,) = served.record(lambda one: one["request"].startswith(name))
    assert record["finish"] == "abort"
    assert 0 < len(record["output"]["ids"]) == len(record["output"]["logprobs"]) < 3000


def test_the_weights_of_an_answer_are_told(served: Served) -> None:
    before = served.of(served.complete("weights"))[0]
    served.post("/update_weight_version", {"new_version": "step-1"})
    declared = served.of(served.complete("weights"))[0]
    served.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(served.other)}})
    served.post("/reset_prefix_cache", {})
    served.post("/update_weight_version", {"new_version": "step-2"})
    after = served.of(served.complete("weights"))[0]

    assert before["weights"]["base"] == str(served.model)
    assert (before["weights"]["begin"], before["weights"]["end"]) in ((None, None), ("default", "default"))
    assert (declared["weights"]["begin"], declared["weights"]["end"]) == ("step-1", "step-1")
    assert declared["output"] == before["output"]
    assert (after["weights"]["begin"], after["weights"]["end"]) == ("step-2", "step-2")
    assert [one["weights"]["epoch"] for one in (before, declared, after)] == [[0, 0], [0, 0], [2, 2]]
    assert after["output"]["logprobs"] != before["output"]["logprobs"]


def test_counters_are_in_the_servers_metrics(served: Served) -> None:
    with urllib.request.urlopen(f"{served.url}/metrics", timeout=30) as answer:
        told = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line.startswith("rl_capt"))

    assert float(told['rl_capture_records_total{result="written"}']) >= 10
    assert float(told['rl_capture_records_total{result="failed"}']) == 0
    assert float(told["rl_capture_masked_tokens_total"]) > 0


def test_a_killed_server_leaves_whole_records(served: Served) -> None:
    """All that a client has seen the end of, in a file that the next writer closes."""
    seen = [served.complete(f"number {number}")["id"] for number in range(5)]
    served.record(lambda one: one["request"].startswith(seen[-1]))
    (under_way,) = [path for path in files(served.folder) if path.name.endswith(".open")]
    os.kill(int(under_way.name.split("-")[-2]), signal.SIGKILL)

    writer = None
    until = time.monotonic() + 30
    while time.monotonic() < until and (writer is None or not writer.recovered):
        writer = Writer(served.folder, 1 << 20, 1 << 30)  # the lock goes with the process
        writer.close()
        time.sleep(0.1)

    assert [path.name.endswith(".open") for path in files(served.folder)] == [False]
    assert [fault for path in files(served.folder) for fault in faults(path)] == []
    told = [one["request"] for path in files(served.folder) for one in records(path)]
    assert all(any(name.startswith(one) for name in told) for one in seen)
