"""The whole stack on real parts: prefill and decode workers behind Dynamo, driven by the OpenAI client."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import APIError, OpenAI
from prometheus_client.parser import text_string_to_metric_families
from stacks import deployment_for, needs_stack
from tokenizers import Tokenizer

from glm53.dashboards.panels import SERVING
from glm53.demo.client import run_session
from glm53.demo.conversation import TOOLS
from glm53.demo.run import first_difference
from glm53.local.processes import Started, free_ports
from glm53.local.stack import Stack, StackError, report, running_stack
from rl_capture.reading import files, records

pytestmark = [needs_stack, pytest.mark.timeout(900)]


def _client(stack: Stack) -> OpenAI:
    return OpenAI(base_url=f"{stack.url}/v1", api_key="none", timeout=300, max_retries=0)


def _members(stack: Stack) -> list[psutil.Process]:
    """Every process of the stack's sessions."""
    leaders = {one.pid for one in stack.started}
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) in leaders:
                members.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return members


def test_a_chat_completion_streams_and_says_how_it_ended(stack: Stack) -> None:
    stream = _client(stack).chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Write a poem about block tables."}],
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    pieces, finish, usage = "", None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            pieces += choice.delta.content or (choice.delta.model_extra or {}).get("reasoning_content") or ""
            finish = choice.finish_reason or finish

    assert usage is not None
    assert (len(pieces) > 0, finish, usage.completion_tokens) == (True, "length", 12)


def test_a_forced_tool_call_arrives_parsed(stack: Stack) -> None:
    answer = _client(stack).chat.completions.create(  # type: ignore[call-overload]  # plain dicts for tools
        model="tiny",
        messages=[{"role": "user", "content": "List the files."}],
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "list_files"}},
        max_tokens=400,
        temperature=0,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    [choice] = answer.choices
    [call] = choice.message.tool_calls or []

    assert choice.finish_reason == "tool_calls"
    assert call.function.name == "list_files"
    arguments = json.loads(call.function.arguments)
    assert list(arguments) == ["hidden"]
    assert type(arguments["hidden"]) is bool


def test_each_transfer_is_one_descriptor_per_run_of_blocks(stack: Stack) -> None:
    before = len(stack.transfers())
    block = stack.deployment.engine.block_size
    prompt = "A prompt that no other test shares. " * 20
    usage = (
        _client(stack)
        .chat.completions.create(model="tiny", messages=[{"role": "user", "content": prompt}], max_tokens=2)
        .usage
    )
    [transfer] = stack.transfers()[before:]

    assert usage is not None
    assert transfer["blocks"] == -(-usage.prompt_tokens // block)
    assert transfer["regions"] == 1
    assert transfer["descriptors"] == transfer["runs"]
    # 4 MLA pages of 576 float32 values and 3 indexer pages of 132 bytes per token: what a block row holds.
    assert transfer["nbytes"] == transfer["blocks"] * block * (4 * 576 * 4 + 3 * 132)


def test_the_transfer_log_agrees_with_vllms_own_metrics(stack: Stack) -> None:
    log = stack.transfers()
    port = next(one for one in stack.started if one.name == "decode-0").pid
    status = psutil.Process(port).environ()["DYN_SYSTEM_PORT"]
    wanted = {
        "vllm:nixl_num_descriptors_sum": sum(one["descriptors"] for one in log),
        "vllm:nixl_bytes_transferred_sum": sum(one["nbytes"] for one in log),
    }
    seen: dict[str, float] = {}
    for _ in range(60):  # vLLM publishes its statistics at intervals
        text = httpx.get(f"http://127.0.0.1:{status}/metrics", trust_env=False).text
        seen = {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in wanted
        }
        if seen == wanted:
            break
        time.sleep(1)

    assert seen == wanted


def test_every_metric_of_the_dashboard_that_is_vllms_is_shown_by_a_worker(stack: Stack) -> None:
    """The other names are held against Dynamo's frontend, Envoy and the plugins' tables in tests/operations."""
    queries = [query.expression for row in SERVING for panel in row.panels for query in panel.queries]
    asked = {name for query in queries for name in re.findall(r"(vllm:[a-z0-9_]+)\{", query)}
    asked = {name for name in asked if not name.startswith("vllm:mooncake")}  # no tier here
    seen = set()
    for one in stack.started:
        status = psutil.Process(one.pid).environ().get("DYN_SYSTEM_PORT")
        if status is not None:
            text = httpx.get(f"http://127.0.0.1:{status}/metrics", trust_env=False).text
            seen |= {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}

    assert len(asked) >= 15
    assert asked - seen == set()


def test_the_router_finds_what_the_prefill_worker_has_cached(stack: Stack) -> None:
    def ask() -> Any:
        return _client(stack).chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "The router should remember this. " * 12}],
            max_tokens=1,
            extra_body={"nvext": {"extra_fields": ["timing"]}},
        )

    first = ask()
    time.sleep(2)  # events travel apart from answers
    second = ask()

    assert first.model_extra["nvext"]["timing"]["kv_hit_rate"] < 0.5
    assert second.model_extra["nvext"]["timing"]["kv_hit_rate"] > 0.8
    assert second.usage.prompt_tokens_details.cached_tokens >= 0.8 * second.usage.prompt_tokens - 64


def test_nothing_listens_beyond_loopback(stack: Stack) -> None:
    addresses = {
        connection.laddr.ip
        for process in _members(stack)
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }

    assert addresses == {"127.0.0.1"}


def test_decode_continues_the_context_that_prefill_was_given(stack: Stack) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "vllm_blhnc.probe", "--model", "tiny"],
        env={**os.environ, **stack.environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    [line] = [line for line in process.stdout.splitlines() if line.startswith('{"same"')]
    result = json.loads(line)

    assert len(result["same"]) == 24
    assert result["control"] == result["same"]
    assert result["other"] != result["same"]
    assert process.returncode == 0


def test_decode_records_what_ordinary_clients_are_answered(stack: Stack) -> None:
    """Ids are the text, log-probabilities those of a client that asks for them, and versions a trainer's."""

    def ask(**more: Any) -> Any:
        return _client(stack).completions.create(
            **{"model": "tiny", "prompt": "Write down what you say.", "max_tokens": 9, "temperature": 0, **more},
            extra_headers={"X-Dynamo-Session-Id": "agent-3"},
        )

    plain, asked = ask(), ask(logprobs=0)
    [decode] = [one for one in stack.started if one.name == "decode-0"]
    status = psutil.Process(decode.pid).environ()["DYN_SYSTEM_PORT"]
    route = f"http://127.0.0.1:{status}/engine/set_weight_version"
    assert httpx.post(route, json={"weight_version": "step-1"}).json()["status"] == "ok"
    later = ask()

    first, second, third = _recorded(stack, "agent-3", 3)
    assert first["request"] in plain.id
    assert plain.choices[0].logprobs is None
    assert first["output"] == second["output"] == third["output"]
    assert first["output"]["logprobs"] == pytest.approx(asked.choices[0].logprobs.token_logprobs, abs=1e-6)
    tokenizer = Tokenizer.from_file(str(stack.deployment.model.folder / "tokenizer.json"))
    assert tokenizer.decode(first["output"]["ids"]) == plain.choices[0].text == later.choices[0].text
    assert (first["prompt"]["tokens"], len(first["output"]["ids"])) == (plain.usage.prompt_tokens, 9)
    versions = [(one["weights"]["begin"], one["weights"]["end"]) for one in (first, second, third)]
    assert versions == [(None, None), (None, None), ("step-1", "step-1")]
    # Prefill made one token for each of them, which no client saw.
    assert len({path.name.split("-")[-2] for path in stack.run_dir.glob("capture/*")}) == 1


def _recorded(stack: Stack, session: str, number: int) -> list[dict[str, Any]]:
    """A session's records, oldest first, once there are so many."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = [one for path in files(stack.run_dir / "capture") for one in records(path)]
        if len(mine := [one for one in found if one["session"] == session]) == number:
            return sorted(mine, key=lambda one: one["started"])
        time.sleep(0.1)
    raise AssertionError(f"not {number} records of {session}")


def test_status_sees_a_healthy_stack_and_a_second_one_is_refused_its_port(stack: Stack, tmp_path: Path) -> None:
    state = report(stack.run_dir)
    assert state["healthy"]
    assert [one["name"] for one in state["processes"]] == ["broker", "frontend", "prefill-0", "decode-0"]

    port = int(stack.url.rpartition(":")[2])
    with pytest.raises(StackError, match=rf"port {port} on 127\.0\.0\.1 is in use.*--port"):
        Stack(stack.deployment, tmp_path, http_port=port).up(print)
    assert not (tmp_path / "state.json").exists()
    with pytest.raises(StackError, match=r"test already runs in .*broker, frontend.*glm53 down --run-dir"):
        Stack(stack.deployment, stack.run_dir).up(print)
    assert report(stack.run_dir)["healthy"]


def test_two_agents_at_once_answer_as_on_one_aggregated_worker(stack: Stack, tmp_path: Path) -> None:
    """Greedy outputs are equal although batches, chunks and prefix hits differ in every step."""

    def drive(one: Stack) -> list[Any]:
        done: dict[int, list[Any]] = {}

        def session(number: int) -> None:
            done[number] = run_session(_client(one), "tiny", number, turns=3, prompt=700, append=100)

        threads = [threading.Thread(target=session, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [turn for _, turns in sorted(done.items()) for turn in turns]

    apart = drive(stack)
    with running_stack(Stack(stack.deployment.aggregate(), tmp_path), print) as aggregated:
        together = drive(aggregated)

    assert len(apart) == 6
    assert first_difference(together, apart) is None
    assert all(turn.answer.tool_calls for turn in apart if turn.turn < 3)
    assert max(turn.cached_tokens for turn in apart) > 0


def test_a_worker_that_dies_mid_transfer_fails_the_request_and_is_named(stack: Stack) -> None:
    """Last in this module: it destroys the stack. A killed prefill worker must never become wrong tokens."""
    victim = next(one for one in stack.started if one.name == "prefill-0")
    outcome: list[Any] = []

    def ask() -> None:
        try:
            outcome.append(
                _client(stack).chat.completions.create(
                    model="tiny",
                    messages=[{"role": "user", "content": "This prompt takes seconds to prefill. " * 90}],
                    max_tokens=4,
                )
            )
        except APIError as error:
            outcome.append(error)

    request = threading.Thread(target=ask)
    before = _requests_received(victim)
    request.start()
    for _ in range(6000):
        if _requests_received(victim) > before:
            break
        time.sleep(0.02)
    for process in _members(stack):
        if os.getsid(process.pid) == victim.pid:
            process.kill()
    request.join(timeout=240)

    assert not request.is_alive()
    assert isinstance(outcome[0], APIError), outcome
    for _ in range(300):  # gigabytes of memory take a moment to be given back
        if not victim.alive():
            break
        time.sleep(0.1)
    with pytest.raises(StackError, match=r"prefill-0 died; the end of its log"):
        stack.check()
    state = report(stack.run_dir)
    assert (state["answers"], state["healthy"]) == (True, False)
    members = [process.pid for process in _members(stack)]
    stack.down(print)
    assert not [pid for pid in members if _alive(pid)]


def _requests_received(worker: Started) -> int:
    """How many requests a worker's log says have come in."""
    return Path(worker.log).read_text(errors="replace").count("request received")


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_worker_that_cannot_start_is_named_with_its_last_words(model: Path, tmp_path: Path) -> None:
    deployment = deployment_for(model, workers={"aggregated": 1}, engine={"max_model_len": 10_000_000})
    stack = Stack(deployment, tmp_path)

    with pytest.raises(StackError, match=r"(?s)aggregated-0 died; the end of its log .*max_model_len") as caught:
        stack.up(print)
    assert str(tmp_path / "aggregated-0.log") in str(caught.value)
    assert not (tmp_path / "state.json").exists()


def test_an_interrupted_start_leaves_no_process(model: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "small.yaml"
    recipe.write_text(
        f"name: small\nmodel: {{path: {model}, served_name: tiny}}\nworkers: {{aggregated: 1}}\n", encoding="utf-8"
    )
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "glm53", "up", "-d", str(recipe), "--run-dir", str(run_dir)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    state: dict[str, Any] = {}
    for _ in range(600):
        if (run_dir / "state.json").exists():
            state = json.loads((run_dir / "state.json").read_text())
            if len(state["processes"]) == 3:
                break
        time.sleep(0.05)
    process.terminate()
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "interrupted" in errors
    assert not [one["name"] for one in state["processes"] if _alive(one["pid"])]
    assert len(state["processes"]) == 3
    assert not (run_dir / "state.json").exists()
    assert free_ports(1, "127.0.0.1")
