"""One streamed answer of a model: text, reasoning and tool calls, each as soon as it arrives."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from glm53.client.server import FAILED, Problem, Server, refusal, unreachable

__all__ = ["Answer", "Piece", "ToolCall", "ask", "parameters"]

#: Prompts of agents take long to prefill, and a full deployment queues; a server that is gone is noticed at once.
_TIMEOUT = httpx.Timeout(600.0, connect=10.0)


@dataclass
class ToolCall:
    """A tool the model wants run. arguments: JSON text, as the model wrote it."""

    name: str = ""
    arguments: str = ""


@dataclass
class Answer:
    """What has arrived. ttft_s: seconds to the first piece, None before it. finish_reason: "" before the end."""

    model: str
    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    ttft_s: float | None = None


@dataclass(frozen=True)
class Piece:
    """A part of the answer, in the order of arrival."""

    kind: Literal["content", "reasoning"]
    text: str


def parameters(
    model: str, message: str, *, system: str | None = None, tools: list[Any] | None = None, **more: Any
) -> dict[str, Any]:
    """The request's body. more: further keys; those that are None are left out."""
    messages = [{"role": "system", "content": system}] if system else []
    body = {"model": model, "messages": [*messages, {"role": "user", "content": message}]}
    optional = {"tools": tools, **more}
    return body | {key: value for key, value in optional.items() if value is not None}


def ask(server: Server, body: dict[str, Any], show: Callable[[Piece], None]) -> Answer:
    """Send `body` and hand each piece to `show` as it comes.

    Raises Problem where nothing listens, the server refuses, or the stream ends before the answer does.
    """
    answer = Answer(model=body["model"])
    began = time.monotonic()
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    try:
        with (
            httpx.Client(timeout=_TIMEOUT, **server.options) as client,
            client.stream("POST", f"{server.url}/chat/completions", json=body) as response,
        ):
            if response.status_code != 200:
                text = response.read().decode("utf-8", "replace")
                raise refusal(server, response.status_code, text, response.headers.get("retry-after"), body["model"])
            for event in _events(response):
                for piece in _take(answer, event):
                    if answer.ttft_s is None:
                        answer.ttft_s = time.monotonic() - began
                    show(piece)
    except httpx.TransportError as error:
        if answer.ttft_s is None:
            raise unreachable(server, error) from error
        raise Problem(f"the stream broke after {_size(answer)} ({error}); the answer is not whole.", FAILED) from error
    if not answer.finish_reason:
        raise Problem(f"the stream ended after {_size(answer)} without a finish reason; it is not whole.", FAILED)
    return answer


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data and data != "[DONE]":
            yield json.loads(data)


def _take(answer: Answer, event: dict[str, Any]) -> Iterator[Piece]:
    """Add one event to the answer. Raises Problem for the error that a server sends once a stream has begun."""
    if error := event.get("error"):
        said = error.get("message", error) if isinstance(error, dict) else error
        raise Problem(f"the deployment failed after {_size(answer)}: {said}. The answer is not whole.", FAILED)
    answer.usage = event.get("usage") or answer.usage
    for choice in event.get("choices", []):
        delta = choice.get("delta", {})
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            answer.reasoning += thought
            yield Piece("reasoning", thought)
        if text := delta.get("content"):
            answer.content += text
            yield Piece("content", text)
        for part in delta.get("tool_calls") or []:
            while len(answer.tool_calls) <= part.get("index", 0):
                answer.tool_calls.append(ToolCall())
            call, function = answer.tool_calls[part.get("index", 0)], part.get("function") or {}
            call.name += function.get("name") or ""
            call.arguments += function.get("arguments") or ""


def _size(answer: Answer) -> str:
    return f"{len(answer.content)} characters of text and {len(answer.reasoning)} of reasoning"
