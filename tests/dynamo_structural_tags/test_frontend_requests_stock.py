"""What a client can ask of the frontend and gets: stops, choices, usage, log probabilities, refusals, failures."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_stack import OURS, Front, script, started

TOOLS = [
    {
        "type": "function",
        "function": {"name": "run", "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}},
    }
]
CALL = "<tool_call>run<arg_key>cmd</arg_key><arg_value>ls -l</arg_value></tool_call>"


def _user(text: str, **options: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": script(text, **options)}]}


def _content(front: Front, **body: Any) -> tuple[str, str]:
    """Content and finish reason, the same whether streamed or not."""
    [choice] = front.post(**body).json()["choices"]
    events = [event["choices"][0] for event in front.events(**body) if event["choices"]]
    streamed = "".join(event["delta"].get("content") or "" for event in events)

    assert (streamed, events[-1]["finish_reason"]) == (choice["message"]["content"] or "", choice["finish_reason"])
    return streamed, choice["finish_reason"]


@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"stop": ["cde"]}, "ab"),
        ({"stop": "cde", "include_stop_str_in_output": True}, "abcde"),
        ({"stop": ["ef", "cd"]}, "ab"),
        ({"stop": ["xyz"]}, "abcdefcde"),
        ({"stop": ["cdex"]}, "abcdefcde"),
        ({"stop": [100]}, "abc"),
        # "a", "</think>", "a", "b", "c", "d", "e": the first "cde" ends with token 7.
        ({"stop": ["cde"], "min_tokens": 7}, "abcdef"),
        ({"stop": ["cde"], "ignore_eos": True}, "abcdefcde"),
        ({"stop": [100], "min_tokens": 6}, "abcdefc"),
    ],
    ids=str,
)
def test_stops_are_those_of_the_stock_frontend(
    fronts: dict[str, Front], step: int, options: dict[str, Any], expected: str
) -> None:
    body = _user("a</think>abcdefcde", step=step) | {"max_tokens": 50} | options

    assert _content(fronts["ours"], **body) == (expected, "stop")
    if step == 1:
        stock = fronts["stock"].post(**body).json()["choices"][0]["message"]
        assert stock["content"] == expected


def test_an_end_token_is_not_shown_and_ends_the_output(fronts: dict[str, Front]) -> None:
    assert _content(fronts["ours"], **_user("a</think>ok<|user|>more")) == ("ok", "stop")
    assert _content(fronts["ours"], **_user("a</think>ok<|user|>more", finish="length"), ignore_eos=True) == (
        "ok<|user|>more",
        "length",
    )


def test_special_tokens_are_shown_unless_the_client_declines(fronts: dict[str, Front]) -> None:
    body = _user("a</think>x[MASK]<sop>y")

    assert _content(fronts["ours"], **body) == ("x[MASK]<sop>y", "stop")
    assert _content(fronts["ours"], **body, skip_special_tokens=True) == ("xy", "stop")


def test_bytes_that_are_no_text_become_replacement_characters_as_in_stock(fronts: dict[str, Front]) -> None:
    broken = [*b"a", 278, *b"h", 0xC3, 0x28, 0xE4, 0xB8, 0xF0, 0x9F, 0x98, 0x80, 0xC3]
    for step in (0, 1, 2):
        message = f"@@{json.dumps({'text': '', 'tokens': broken, 'step': step})}@@"
        body = {"messages": [{"role": "user", "content": message}]}

        assert _content(fronts["ours"], **body)[0] == bytes(broken[2:]).decode("utf-8", "replace")
    stock = fronts["stock"].post(**body).json()["choices"][0]["message"]["content"]
    assert stock == bytes(broken[2:]).decode("utf-8", "replace")


def test_several_choices_are_told_apart(fronts: dict[str, Front]) -> None:
    body = {**_user(f"a</think>b{CALL}", step=2), "n": 3, "temperature": 1, "tools": TOOLS}
    choices = fronts["ours"].post(**body).json()["choices"]
    events = [choice for event in fronts["ours"].events(**body) for choice in event["choices"]]

    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert {choice["message"]["tool_calls"][0]["function"]["arguments"] for choice in choices} == {'{"cmd": "ls -l"}'}
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in choices}) == 3
    assert [choice["index"] for choice in events if choice["finish_reason"]] == [0, 1, 2]


def test_a_choice_that_the_worker_never_ends_is_an_error(fronts: dict[str, Front]) -> None:
    answer = fronts["ours"].post(**_user("abc", step=1, stop=2))
    events = fronts["ours"].events(**_user("abc", step=1, stop=2))

    assert answer.status_code == 503
    assert events[-1]["error"]["code"] == 503
    assert "ended without a finish reason after 2 tokens" in fronts["ours"].log.read_text()


def test_usage_counts_prompt_output_and_reasoning(fronts: dict[str, Front]) -> None:
    body = _user("ab</think>cd", step=1, fields={"completion_usage": _usage()}) | {"max_tokens": 20}
    usage = fronts["ours"].post(**body).json()["usage"]
    prompt = len(fronts["ours"].seen()["token_ids"])
    streamed = fronts["ours"].events(**body, stream_options={"include_usage": True})
    plain = fronts["ours"].events(**body)
    running = fronts["ours"].events(**body, stream_options={"include_usage": True, "continuous_usage_stats": True})

    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 2
    assert usage["prompt_tokens_details"]["cached_tokens"] == 16
    assert usage["prompt_tokens"] == 29
    assert prompt > 29
    assert streamed[-1]["choices"] == []
    assert streamed[-1]["usage"] == usage
    assert not any(event.get("usage") for event in plain)
    counts = [event["usage"]["completion_tokens"] for event in running]
    assert counts == sorted(counts)
    assert counts[-2:] == [5, 5]


def _usage() -> dict[str, Any]:
    return {
        "prompt_tokens": 29,
        "completion_tokens": 1,
        "total_tokens": 30,
        "prompt_tokens_details": {"cached_tokens": 16},
    }


def test_every_token_has_its_log_probability_once(fronts: dict[str, Front]) -> None:
    """Stock with its v2 parser drops them all."""
    ids = [97, 278, 98, 0xC3, 0xA9, 279]
    top = [{"rank": 2, "token_id": 99, "logprob": -2.0}, {"rank": 1, "token_id": 98, "logprob": -0.5}]
    message = {"tokens": ids, "text": "", "step": 1, "fields": {"log_probs": [-0.5], "top_logprobs": [top]}}
    body = {"messages": [{"role": "user", "content": f"@@{json.dumps(message)}@@"}], "logprobs": True}
    [choice] = fronts["ours"].post(**body, top_logprobs=1).json()["choices"]
    streamed = [
        entry
        for event in fronts["ours"].events(**body, top_logprobs=1)
        for one in event["choices"]
        for entry in (one.get("logprobs") or {}).get("content", [])
    ]
    [bare] = fronts["ours"].post(**body, return_tokens_as_token_ids=True).json()["choices"]

    entries = choice["logprobs"]["content"]
    assert [entry["bytes"] for entry in entries] == [[97], [*b"</think>"], [98], [0xC3], [0xA9], [*b"<tool_call>"]]
    assert entries[0] == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [{"token": "b", "logprob": -0.5, "bytes": [98]}],
    }
    assert streamed == entries
    assert [entry["token"] for entry in bare["logprobs"]["content"]] == [f"token_id:{number}" for number in ids]
    assert not any(entry["top_logprobs"] for entry in bare["logprobs"]["content"])


def test_notes_tell_what_became_of_a_call(fronts: dict[str, Front]) -> None:
    expected: dict[str, tuple[str, dict[str, Any], str]] = {
        "undeclared_tool": (f"a</think>{CALL.replace('run', 'bash')}", {"tools": TOOLS}, "tool_calls"),
        "call_under_none": (f"a</think>{CALL}", {"tools": TOOLS, "tool_choice": "none"}, "stop"),
        "call_without_tools": (f"a</think>{CALL}", {}, "stop"),
        "truncated_call": (f"a</think>{CALL[:-25]}", {"tools": TOOLS}, "length"),
        "no_call": ("a</think>No.", {"tools": TOOLS, "tool_choice": "required"}, "stop"),
    }
    for code, (text, options, reason) in expected.items():
        finish = "length" if code == "truncated_call" else "stop"
        answer = fronts["ours"].post(**_user(text, finish=finish), **options).json()

        assert [note["code"] for note in answer["nvext"]["tool_call_notes"]] == [code]
        assert answer["choices"][0]["finish_reason"] == reason
        assert bool(answer["choices"][0]["message"].get("tool_calls")) == (code == "undeclared_tool")


def test_a_cut_call_is_not_in_a_response_in_one_piece(fronts: dict[str, Front]) -> None:
    cut = _user(f"a</think>{CALL}{CALL[:-15]}", finish="length", step=3)
    [choice] = fronts["ours"].post(**cut, tools=TOOLS).json()["choices"]

    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == ['{"cmd": "ls -l"}']


def test_d25_arguments_arrive_while_the_model_writes_them(fronts: dict[str, Front]) -> None:
    """Stock sends them in one piece with the call's end."""
    text = f"a</think><tool_call>run<arg_key>cmd</arg_key><arg_value>{'x' * 40}</arg_value></tool_call>"

    def pieces(front: Front) -> list[str]:
        return [
            call["function"]["arguments"]
            for event in front.events(**_user(text, step=1, wait=0.005), tools=TOOLS)
            for choice in event["choices"]
            for call in choice["delta"].get("tool_calls") or ()
            if call["function"].get("arguments")
        ]

    assert len(pieces(fronts["ours"])) > 20
    assert len(pieces(fronts["stock"])) == 1


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"guided_decoding_backend": "x"}, "guided_decoding_backend"),
        ({"guided_regex": "a", "tools": TOOLS, "tool_choice": "required"}, "guided_regex"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"nvext": {"greed_sampling": True}}, "nvext.greed_sampling"),
        ({"nvext": {"extra_fields": ["timing", "worker_id"]}}, "worker_id"),
        ({"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "messages[0].content[0].type='image_url'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_would_have_no_effect_is_a_400_that_names_the_field(
    fronts: dict[str, Front], body: dict[str, Any], named: str, stream: bool
) -> None:
    answer = fronts["ours"].post(stream=stream, **body)

    assert answer.status_code == 400
    assert named in answer.json()["message"]


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        ("broken", 500, "Internal server error"),
        ("value", 400, "ValueError: the scripted engine wants another value"),
        ("http", 400, "the scripted engine wants another field"),
        ("invalid", 400, "the scripted engine wants another argument"),
    ],
)
def test_a_failing_engine_reaches_the_client(fronts: dict[str, Front], error: str, status: int, reason: str) -> None:
    at_once = fronts["ours"].post(**_user("abc", step=1, error=error, **{"raise": 0}))
    later = fronts["ours"].events(**_user("abc", step=1, error=error, **{"raise": 2}))

    assert (at_once.status_code, at_once.json()["message"]) == (status, reason)
    assert [choice["delta"].get("reasoning_content") for choice in later[1]["choices"]] == ["b"]
    assert (later[2]["error"]["code"], later[2]["error"]["message"]) == (status, reason)


def test_an_engines_own_reasons_to_end_are_kept(fronts: dict[str, Front]) -> None:
    [choice] = fronts["ours"].post(**_user("abc", finish="content_filter")).json()["choices"]

    assert choice["finish_reason"] == "content_filter"
    assert fronts["ours"].post(**_user("abc", finish="error")).status_code == 500


def test_a_client_that_leaves_stops_the_worker(fronts: dict[str, Front]) -> None:
    ours = fronts["ours"]
    body = {"model": "tiny", "stream": True, **_user("x" * 400, step=1, wait=0.02)}
    before = ours.requests.read_text().count('"stopped"')
    with ours.client.stream("POST", f"{ours.url}/v1/chat/completions", json=body) as response:
        next(response.iter_lines())
    for _ in range(100):
        if ours.requests.read_text().count('"stopped"') > before:
            break
        time.sleep(0.05)

    assert ours.requests.read_text().count('"stopped"') == before + 1


def test_a_stop_string_stops_the_worker(fronts: dict[str, Front]) -> None:
    ours = fronts["ours"]
    before = ours.requests.read_text().count('"stopped"')
    answer = ours.post(**_user("a</think>b" + "x" * 400, step=1, wait=0.02), stop=["b"])
    for _ in range(100):
        if ours.requests.read_text().count('"stopped"') > before:
            break
        time.sleep(0.05)

    assert answer.json()["usage"]["completion_tokens"] == 3
    assert ours.requests.read_text().count('"stopped"') == before + 1


def test_nvext_events_and_fields(fronts: dict[str, Front]) -> None:
    nvext = {
        "annotations": ["formatted_prompt", "token_ids"],
        "extra_fields": ["stop_reason", "completion_token_ids", "timing"],
    }
    body = {**_user("a</think>bc", step=1), "stop": ["c"], "nvext": nvext, "stream": True}
    ours, stock = (fronts[name].post(**body).text for name in ("ours", "stock"))
    chunks = [json.loads(line.removeprefix("data: ")) for line in ours.splitlines() if line.startswith("data: {")]
    told = [chunk["nvext"] for chunk in chunks if chunk.get("nvext")]
    ids = [one for each in told for one in each.pop("completion_token_ids", [])]  # a slow reader gets several at once

    def annotations(text: str) -> list[str]:
        return sorted(line for line in text.splitlines() if line.startswith(("event:", ": ")))

    assert annotations(ours) == annotations(stock)
    timing = told[-1].pop("timing")
    assert ids == [97, 278, 98, 99]
    assert told[-1] == {"stop_reason": "c"}
    assert 0 < timing["ttft_ms"] <= timing["total_time_ms"]


def test_token_ids_and_notes_of_all_choices_come_with_a_response_in_one_piece(fronts: dict[str, Front]) -> None:
    body = {**_user("a</think>bc", step=1), "nvext": {"extra_fields": ["completion_token_ids"]}}
    ours, stock = (fronts[name].post(**body).json() for name in ("ours", "stock"))
    twice = fronts["ours"].post(**_user(f"a</think>{CALL}"), n=2, temperature=1).json()

    assert ours["nvext"]["completion_token_ids"] == stock["nvext"]["completion_token_ids"] == [97, 278, 98, 99]
    assert [(note["choice"], note["code"]) for note in twice["nvext"]["tool_call_notes"]] == [
        (0, "call_without_tools"),
        (1, "call_without_tools"),
    ]


def test_the_rest_of_the_frontend_is_there(fronts: dict[str, Front]) -> None:
    ours, stock = fronts["ours"], fronts["stock"]
    completion = {"model": "tiny", "prompt": script("text <tool_call>"), "max_tokens": 9}
    texts = [front.client.post(f"{front.url}/v1/completions", json=completion).json() for front in (ours, stock)]

    assert texts[0]["choices"][0]["text"] == texts[1]["choices"][0]["text"]
    assert ours.client.get(f"{ours.url}/health").status_code == 200
    assert ours.client.get(f"{ours.url}/v1/models").json()["data"][0]["id"] == "tiny"


def test_dynamos_metrics_count_the_tokens_of_both(fronts: dict[str, Front]) -> None:
    def counted() -> float:
        lines = fronts["ours"].client.get(f"{fronts['ours'].url}/metrics").text.splitlines()
        name = "dynamo_frontend_output_sequence_tokens_sum"
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and 'model="tiny"' in line)

    before = counted()
    fronts["ours"].post(**_user("ab</think>cd", step=2))
    fronts["ours"].events(**_user("ab</think>cd", step=2))

    assert counted() - before == 10


def test_calls_tags_and_bytes_are_counted(fronts: dict[str, Front]) -> None:
    def counted() -> dict[str, Any]:
        return fronts["ours"].client.get(f"{fronts['ours'].url}/structural_tags").json()

    before = counted()
    undeclared = CALL.replace("run", "bash")
    fronts["ours"].events(**_user(f"a</think>{CALL}{undeclared}{CALL[:-15]}", finish="length"), tools=TOOLS)
    after = counted()

    calls, tags = "dynamo_structural_tags_calls_total", "dynamo_structural_tags_tags_total"
    grown = {outcome: after[calls][outcome] - before[calls][outcome] for outcome in after[calls]}
    assert {outcome: count for outcome, count in grown.items() if count} == {
        "valid": 1,
        "undeclared": 1,
        "truncated": 1,
    }
    assert after[tags]["built"] - before[tags]["built"] == 1
    bytes_ = "dynamo_structural_tags_streamed_bytes_total"
    assert after[bytes_] - before[bytes_] == 2 * len('{"cmd": "ls -l"}') + len('{"cmd": "ls -l</arg_val')


def test_a_worker_that_dies_is_an_error_and_not_a_hang(served_model: Path, tmp_path: Path) -> None:
    with started(tmp_path, served_model, {"ours": OURS}, "--no-tags") as running:
        ours = running["ours"]
        events = ours.events(**_user("x" * 100, step=1, wait=0.01, die=30))
        with contextlib.suppress(httpx.HTTPError):
            late = ours.post(**_user("x"))

    assert 20 < len(events) < 40
    assert events[-1]["error"]["code"] >= 500
    assert late.status_code in (404, 503)
