"""Real clients through the frontend: streamed tool calls over several turns, with their results sent back.

The worker is scripted (a fake): each turn's answer stands in the newest message, so a tool decides what comes next.
tests/stack runs the clients over vLLM.
"""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import FunctionToolCallEvent, PartDeltaEvent, ToolCallPartDelta
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from scripted_stack import Front, script

FILE = "def f(a, b):\n    return a < b and '</arg_value>' or \"é\"\n" * 3
WRITE = (
    "I write it.</think><tool_call>write_file<arg_key>path</arg_key><arg_value>a.py</arg_value>"
    f"<arg_key>content</arg_key><arg_value>{FILE}</arg_value></tool_call>"
)
COUNT = (
    "And now?</think>Two calls.<tool_call>count<arg_key>numbers</arg_key><arg_value>[1, 2.5]</arg_value></tool_call>"
    "<tool_call>count<arg_key>numbers</arg_key><arg_value>[]</arg_value></tool_call>"
)
DONE = "Enough.</think>All is written."
SCHEMAS: dict[str, dict[str, Any]] = {
    "write_file": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
    },
    "count": {"type": "object", "properties": {"numbers": {"type": "array", "items": {"type": "number"}}}},
}
#: What each tool answers, which is the script of the turn that follows.
RESULTS = {"write_file": script(COUNT, step=2), "count": script(DONE, step=2)}
CALLS = [
    ("write_file", {"path": "a.py", "content": FILE}),
    ("count", {"numbers": [1, 2.5]}),
    ("count", {"numbers": []}),
]


def test_openais_client_runs_a_conversation_with_tools(fronts: dict[str, Front]) -> None:
    client = openai.OpenAI(base_url=f"{fronts['ours'].url}/v1", api_key="none", max_retries=0)
    tools: Any = [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in SCHEMAS.items()]
    messages: list[Any] = [{"role": "user", "content": script(WRITE, step=1, wait=0.003)}]
    made, deltas = [], 0
    for _ in range(3):
        with client.chat.completions.stream(model="tiny", messages=messages, tools=tools) as stream:
            deltas += sum(event.type == "tool_calls.function.arguments.delta" for event in stream)
            message = stream.get_final_completion().choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            made.append((call.function.name, json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULTS[call.function.name]})

    assert made == CALLS
    assert deltas > 20
    assert message.content == "All is written."
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "assistant", "tool", "tool", "assistant"]


def test_openais_client_gets_errors_as_its_own_exceptions(fronts: dict[str, Front]) -> None:
    client = openai.OpenAI(base_url=f"{fronts['ours'].url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="logit_bias"):
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x"}], logit_bias={"5": 1}, stream=True
        )


def test_openais_client_streams_arguments_over_the_responses_api(fronts: dict[str, Front]) -> None:
    client = openai.OpenAI(base_url=f"{fronts['ours'].url}/v1", api_key="none", max_retries=0)
    tools: Any = [{"type": "function", "name": name, "parameters": p} for name, p in SCHEMAS.items()]
    pieces = []
    for event in client.responses.create(
        model="tiny", input=script(WRITE, step=1, wait=0.003), tools=tools, stream=True
    ):
        if event.type == "response.function_call_arguments.delta":
            pieces.append(event.delta)

    assert json.loads("".join(pieces)) == CALLS[0][1]
    assert len(pieces) > 20


def test_anthropics_client_runs_a_conversation_with_tools(fronts: dict[str, Front]) -> None:
    client = anthropic.Anthropic(base_url=fronts["ours"].url, api_key="none", max_retries=0)
    tools: Any = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    messages: list[Any] = [{"role": "user", "content": script(WRITE, step=1, wait=0.003)}]
    made, deltas, reasons = [], 0, []
    for _ in range(3):
        with client.messages.stream(model="tiny", max_tokens=5000, messages=messages, tools=tools) as stream:
            deltas += sum(event.type == "input_json" for event in stream)
            answer = stream.get_final_message()
        reasons.append(answer.stop_reason)
        messages.append({"role": "assistant", "content": [block.model_dump() for block in answer.content]})
        results = []
        for block in answer.content:
            if block.type == "tool_use":
                made.append((block.name, block.input))
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": RESULTS[block.name]})
        messages.append({"role": "user", "content": results})

    assert made == CALLS
    assert deltas > 20
    assert reasons == ["tool_use", "tool_use", "end_turn"]
    assert [block.type for block in answer.content] == ["thinking", "text"]


def _models(front: Front) -> dict[str, Model]:
    provider = OpenAIProvider(base_url=f"{front.url}/v1", api_key="none")
    return {
        "chat": OpenAIChatModel("tiny", provider=provider),
        "responses": OpenAIResponsesModel("tiny", provider=provider),
        "messages": AnthropicModel("tiny", provider=AnthropicProvider(base_url=front.url, api_key="none")),
    }


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_an_agent_of_pydantic_ai_runs_to_its_end(fronts: dict[str, Front], api: str) -> None:
    agent = Agent(_models(fronts["ours"])[api])
    made: list[tuple[str, dict[str, Any]]] = []

    @agent.tool_plain
    def write_file(path: str, content: str) -> str:
        """Write a file."""
        made.append(("write_file", {"path": path, "content": content}))
        return RESULTS["write_file"]

    @agent.tool_plain
    def count(numbers: list[float]) -> str:
        """Count numbers."""
        made.append(("count", {"numbers": numbers}))
        return RESULTS["count"]

    events: list[Any] = []

    async def watch(context: RunContext[object], stream: Any) -> None:
        events.extend([event async for event in stream])

    result = agent.run_sync(script(WRITE, step=1, wait=0.003), event_stream_handler=watch)

    assert result.output == "All is written."
    assert sorted(made, key=str) == sorted(CALLS, key=str)
    assert sum(isinstance(event, FunctionToolCallEvent) for event in events) == 3
    arguments = [e for e in events if isinstance(e, PartDeltaEvent) and isinstance(e.delta, ToolCallPartDelta)]
    assert len(arguments) > 20
