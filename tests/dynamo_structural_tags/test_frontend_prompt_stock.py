"""The frontend sends workers what the stock frontend sends them: the same token ids, sampling, stops and routing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted_stack import Front

RUN = {"type": "object", "properties": {"cmd": {"type": "string"}, "n": {"type": "number", "minimum": 1e-6}}}
TOOLS = [
    {"type": "function", "function": {"name": "run", "description": "d'<&>é", "parameters": RUN}},
    {"type": "function", "function": {"name": "bare"}},
    {"type": "function", "function": {"name": "empty", "parameters": {}}},
    {"type": "function", "function": {"name": "loose", "parameters": {"properties": {"x": {"default": 1.50}}}}},
]
NUMBERS = [
    "1e-6",
    "1e-06",
    "1e-5",
    "0.00001",
    "1.0e-6",
    "1e16",
    "1e+16",
    "1E16",
    "1e22",
    "1.5e3",
    "0.10",
    "10.0",
    "12e-7",
    "1.25e-6",
    "1e-100",
    "9007199254740993",
    "0.0",
    "-0",
    "-0.0",
    "18446744073709551616",
    "123456789012345678901234567890",
    "1.7976931348623157e308",
    "5e-324",
    "0.30000000000000004",
    "7",
    "-5",
]


def _called(arguments: str, **fields: Any) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": arguments}}
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call], **fields},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]


MESSAGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "system, unicode and late system": {
        "messages": [
            {"role": "system", "content": "é 中 😀 <|user|>"},
            {"role": "user", "content": " two\n\nlines \t", "name": "bob"},
            {"role": "system", "content": "late"},
        ]
    },
    "developer": {"messages": [{"role": "developer", "content": "d"}, {"role": "user", "content": ""}]},
    "text parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "<b>"}]}]
    },
    "tools": {"tools": TOOLS},
    "tools hidden under none": {"tools": TOOLS, "tool_choice": "none"},
    "required": {"tools": TOOLS, "tool_choice": "required"},
    "a call": {"tools": TOOLS, "messages": _called('{"cmd": "ls <x> && \\"é\\"\\n", "n": 3}')},
    "a call with numbers": {
        "messages": _called("{" + ", ".join(f'"k{place}": {text}' for place, text in enumerate(NUMBERS)) + "}")
    },
    "a call with nested values": {
        "messages": _called(
            '{"o": {"k": 1.0, "u":"é", "l": [1e-7,1.50,123456789012345678901234567890,null,true]}, "b":false}'
        )
    },
    "a call with a key twice, and items": {
        "messages": _called('{"a": 1, "b": 2, "a": 3, "items": [], "keys": {"x": 1, "x": 2}}')
    },
    "a call without arguments": {"messages": _called("{}")},
    "a call with empty arguments": {"messages": _called("")},
    "a surrogate pair": {"messages": _called('{"cmd": "\\ud83d\\ude00"}')},
    "reasoning": {"messages": _called("{}", reasoning_content="I think\n")},
    "reasoning in parts": {"messages": _called("{}", reasoning_content=["one", "", "two"])},
    "no thinking": {"chat_template_kwargs": {"enable_thinking": False}},
    "template arguments": {"chat_template_kwargs": {"clear_thinking": True, "other": 1.5}, "messages": _called("{}")},
    "effort": {"reasoning_effort": "low"},
    "thinking disabled": {"thinking": {"type": "disabled"}},
    "a prefill": {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The ans"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "assistant last": {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x"}]},
    "token data": {"nvext": {"token_data": [70, 71, 72]}},
}

QUIET: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
OPTIONS: dict[str, dict[str, Any]] = {
    "sampling": {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 1,
        "n": 2,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
        "repetition_penalty": 1.1,
    },
    "lengths": {"max_tokens": 5, "min_tokens": 2},
    "completion tokens": {"max_completion_tokens": 7, "max_tokens": 9},
    "ignore_eos": {"ignore_eos": True, "stop": ["x"], "max_tokens": 4},
    "stop strings": {"stop": ["a", "b"], "include_stop_str_in_output": True},
    "stop string": {"stop": "a"},
    "stop ids": {"stop": [5, 6]},
    "logprobs": {"logprobs": True},
    "top logprobs": {"logprobs": True, "top_logprobs": 3},
    "no top logprobs": {"logprobs": True, "top_logprobs": 0, "return_tokens_as_token_ids": True},
    "prompt logprobs": {"prompt_logprobs": 1},
    "special tokens": {"skip_special_tokens": True},
    "thinking budget": {"thinking_token_budget": 3},
    "nvext budget": {"nvext": {"max_thinking_tokens": 5}},
    "json object": {"response_format": {"type": "json_object"}, **QUIET},
    "json schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": RUN}}, **QUIET},
    "regex": {"guided_regex": "a+"},
    "choice": {"guided_choice": ["a", "b"]},
    "grammar": {"guided_grammar": 'root ::= "a"'},
    "guided json": {"guided_json": {"type": "object"}, "guided_whitespace_pattern": " "},
    "guided json beside tools": {"guided_json": {"type": "object"}, "tools": TOOLS},
    "routing": {
        "nvext": {
            "agent_hints": {"priority": 3, "osl": 4, "strict_priority": 1},
            "cache_salt": "tenant",
            "extra_fields": ["stop_reason"],
            "annotations": ["note"],
        }
    },
    "no effect": {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "prompt_cache_key": "k"},
}

#: What only Dynamo's own preprocessor adds: a checksum, a hint for SGLang, and which tag or arguments it chose.
_OWN = ("mdc_sum", "require_reasoning", "multi_modal_data", "media_io_kwargs")


def _both(fronts: dict[str, Front], request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    sent = []
    for name in ("ours", "stock"):
        answer = fronts[name].post(**{"max_tokens": 8} | request)
        assert answer.status_code == 200, (name, answer.text)
        sent.append(fronts[name].seen())
    return sent[0], sent[1]


def _without_empty(value: Any) -> Any:
    """Without fields that say nothing, and all that hold nothing else."""
    if isinstance(value, dict):
        return {key: inner for key, one in value.items() if (inner := _without_empty(one)) not in (None, {}, [])}
    return value


@pytest.mark.parametrize("name", MESSAGES)
def test_prompts_have_the_token_ids_of_the_stock_frontend(fronts: dict[str, Front], name: str) -> None:
    ours, stock = _both(fronts, MESSAGES[name])

    assert ours["token_ids"] == stock["token_ids"]
    assert len(ours["token_ids"]) > 2


@pytest.mark.parametrize("name", OPTIONS)
def test_options_reach_the_worker_as_from_the_stock_frontend(fronts: dict[str, Front], name: str) -> None:
    ours, stock = (_without_empty(sent) for sent in _both(fronts, OPTIONS[name]))
    for sent in (ours, stock):
        for key in _OWN:
            sent.pop(key, None)

    ours, stock = _without_empty(ours), _without_empty(stock)
    assert json.dumps(ours, sort_keys=True) == json.dumps(stock, sort_keys=True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/responses",
            {
                "input": [
                    {"role": "user", "content": "hi"},
                    {"type": "function_call", "call_id": "c", "name": "run", "arguments": '{"cmd":"ls"}'},
                    {"type": "function_call_output", "call_id": "c", "output": "ok"},
                ],
                "tools": [{"type": "function", "name": "run", "parameters": RUN}],
            },
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 9,
                "messages": [
                    {"role": "user", "content": "hi"},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "hmm", "signature": "s"},
                            {"type": "tool_use", "id": "t", "name": "run", "input": {"cmd": "ls", "n": 1.5}},
                        ],
                    },
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]},
                ],
                "tools": [{"name": "run", "input_schema": RUN}],
            },
        ),
    ],
    ids=["responses", "messages"],
)
def test_the_other_apis_have_the_same_prompts(fronts: dict[str, Front], path: str, body: dict[str, Any]) -> None:
    sent = []
    for name in ("ours", "stock"):
        answer = fronts[name].client.post(fronts[name].url + path, json={"model": "tiny", **body})
        assert answer.status_code == 200, answer.text
        sent.append(fronts[name].seen()["token_ids"])

    assert sent[0] == sent[1]
