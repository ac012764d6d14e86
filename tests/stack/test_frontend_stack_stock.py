"""The structural tags plugin's frontend over the real engine: vLLM on the CPU, Dynamo's router, official clients.

The weights are random, so calls are forced through the grammar, and their values are whatever it allows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from stacks import deployment_for, needs_stack

from glm53.local.stack import Stack, running_stack

pytestmark = [needs_stack, pytest.mark.timeout(900)]

PARAMETERS: dict[str, dict[str, Any]] = {
    "set_level": {
        "type": "object",
        "properties": {"level": {"type": "integer", "minimum": 0, "maximum": 9}, "mode": {"enum": ["on", "off"]}},
        "required": ["level", "mode"],
        "additionalProperties": False,
    },
    "list_urls": {
        "type": "object",
        "properties": {
            "urls": {
                "type": "array",
                "items": {"type": "string", "pattern": "^https?://", "maxLength": 12},
                "maxItems": 2,
            }
        },
        "required": ["urls"],
        "additionalProperties": False,
    },
}
TOOLS: Any = [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in PARAMETERS.items()]


def _valid(name: str, arguments: Any) -> bool:
    if name == "set_level":
        return (
            set(arguments) == {"level", "mode"}
            and arguments["level"] in range(10)
            and arguments["mode"] in ("on", "off")
        )
    urls = arguments["urls"]
    return isinstance(urls, list) and all(url.startswith(("http://", "https://")) and len(url) <= 12 for url in urls)


@pytest.fixture(scope="module")
def stack(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One worker that does both phases, behind the plugin's frontend with KV routing."""
    deployment = deployment_for(model, workers={"aggregated": 1}, tools={"frontend": "structural_tags"})
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DYN_ENABLE_ANTHROPIC_API", "true")  # processes of the stack inherit it
        with running_stack(Stack(deployment, tmp_path_factory.mktemp("tags")), print) as running:
            yield running


@pytest.fixture
def client(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", timeout=300, max_retries=0)


QUIET: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}


def test_forced_calls_are_valid_streamed_and_in_one_piece(client: openai.OpenAI) -> None:
    for turn, tool in enumerate([*PARAMETERS, *PARAMETERS]):
        asked: dict[str, Any] = {
            "model": "tiny",
            "messages": [{"role": "user", "content": f"Call {tool}, {turn}."}],
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": tool}},
            "max_tokens": 300,
            "temperature": 1.0,
            "seed": turn,
            "extra_body": QUIET,
        }
        [choice] = client.chat.completions.create(**asked).choices
        with client.chat.completions.stream(**asked) as stream:
            streamed = stream.get_final_completion().choices[0]

        for one in (choice, streamed):
            assert one.finish_reason == "tool_calls"
            [call] = one.message.tool_calls or []
            assert call.function.name == tool
            assert _valid(tool, json.loads(call.function.arguments)), call.function.arguments


def test_a_conversation_of_openais_client_goes_on_after_tool_results(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "Set the level."}]
    for _ in range(2):
        with client.chat.completions.stream(
            model="tiny",
            messages=messages,
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=300,
            temperature=0,
            extra_body=QUIET,
        ) as stream:
            kinds = [event.type for event in stream]
            message = stream.get_final_completion().choices[0].message
        [call] = message.tool_calls or []
        messages += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "ok"}]

        assert _valid(call.function.name, json.loads(call.function.arguments))
        assert kinds.count("tool_calls.function.arguments.delta") > 1
    answer = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=5, extra_body=QUIET | {"ignore_eos": True}
    )

    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_anthropics_client_streams_what_the_engine_thinks_behind_a_tools_result(stack: Stack) -> None:
    """Its API reaches no template arguments in Dynamo, so the model always thinks; random weights go on for long."""
    client = anthropic.Anthropic(base_url=stack.url, api_key="none", timeout=300, max_retries=0)
    tools: Any = [{"name": name, "input_schema": schema} for name, schema in PARAMETERS.items()]
    called = {"type": "tool_use", "id": "t1", "name": "set_level", "input": {"level": 3, "mode": "on"}}
    messages: list[Any] = [
        {"role": "user", "content": "Set the level."},
        {"role": "assistant", "content": [called]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]},
    ]
    with client.messages.stream(
        model="tiny", max_tokens=20, messages=messages, tools=tools, tool_choice={"type": "any"}
    ) as stream:
        pieces = [event.thinking for event in stream if event.type == "thinking"]
        answer = stream.get_final_message()

    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 20)
    assert [block.type for block in answer.content] == ["thinking"]
    assert len(pieces) > 1


def test_the_responses_api_streams_a_forced_call(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "name": n, "parameters": p, "strict": False} for n, p in PARAMETERS.items()]
    events = list(
        client.responses.create(
            model="tiny",
            input="Set the level.",
            tools=tools,
            tool_choice={"type": "function", "name": "set_level"},
            max_output_tokens=2000,
            temperature=0,
            reasoning={"effort": "none"},
            stream=True,
        )
    )
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]

    assert _valid("set_level", json.loads(done.arguments))


def test_log_probabilities_stop_strings_and_choices_come_from_the_engine(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Say something."}],
        max_tokens=6,
        logprobs=True,
        top_logprobs=2,
        n=2,
        temperature=0.7,
        seed=1,
        extra_body=QUIET | {"ignore_eos": True},
    )

    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.finish_reason == "length"
        assert choice.logprobs is not None
        entries = choice.logprobs.content or []
        assert len(entries) == 6
        assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)


def test_the_router_finds_what_the_worker_has_cached(stack: Stack) -> None:
    """KV routing is Dynamo's own; prompts have to be the same tokens for it."""
    asked = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "The router should remember this. " * 12}],
        "max_tokens": 1,
        **QUIET,
    }
    usages = [httpx.post(f"{stack.url}/v1/chat/completions", json=asked, timeout=120).json()["usage"] for _ in range(2)]

    assert usages[1]["prompt_tokens_details"]["cached_tokens"] >= 0.8 * usages[1]["prompt_tokens"] - 64


def test_a_request_that_the_engine_refuses_says_why(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"(?i)context|length|tokens"):
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x" * 5000}], max_tokens=4, extra_body=QUIET
        )
