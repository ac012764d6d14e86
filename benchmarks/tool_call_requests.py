"""Requests for calls of tools with hard schemas, and whether an answer's calls are valid: for tool_calls_engine.py."""

from __future__ import annotations

import json
import random
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jsonschema import Draft202012Validator

_PARAMETERS: dict[str, dict[str, Any]] = {
    "write_file": {
        "properties": {
            "path": {"type": "string", "pattern": "^/"},
            "content": {"type": "string"},
            "mode": {"enum": ["w", "a", 644]},
        },
        "required": ["path", "content"],
    },
    "run": {
        "properties": {
            "argv": {"type": "array", "maxItems": 3},
            "env": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "timeout": {"type": "integer", "minimum": 1, "maximum": 600},
        },
        "required": ["timeout", "argv"],
    },
    "fetch": {
        "properties": {
            "url": {"type": "string", "pattern": "^https?://"},
            "retries": {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
            "verify": {"type": "boolean"},
        },
        "required": ["url", "verify"],
        "additionalProperties": False,
    },
    "edit": {
        "properties": {
            "edits": {
                "type": "array",
                "minItems": 1,
                "maxItems": 2,
                "items": {
                    "type": "object",
                    "properties": {
                        "line": {"type": "integer", "minimum": 0, "maximum": 99},
                        "text": {"type": "string"},
                    },
                    "required": ["line", "text"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["edits"],
        "additionalProperties": False,
    },
    "stop": {"properties": {}, "additionalProperties": False},
}
#: Tools whose schemas the plugin's tags enforce in full, so that no call of them may break its schema.
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"} | parameters}}
    for name, parameters in _PARAMETERS.items()
]
_SCHEMAS = {tool["function"]["name"]: Draft202012Validator(tool["function"]["parameters"]) for tool in TOOLS}


@dataclass(frozen=True)
class Kind:
    """What one request asks for. choice: "auto", "required", or a tool's name."""

    choice: str
    stream: bool
    parallel: bool
    thinking: bool

    @property
    def tool_choice(self) -> Any:
        if self.choice in ("auto", "required"):
            return self.choice
        return {"type": "function", "function": {"name": self.choice}}


@dataclass
class Answer:
    """What came back. calls: name and text of the arguments. status: HTTP's; error: the body of a refusal."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    content: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    notes: list[dict[str, Any]] = field(default_factory=list)
    deltas: int = 0
    error: str = ""


def kinds(count: int, seed: int = 0) -> Iterator[Kind]:
    """So many kinds: forced and auto, streamed and not, single and parallel, with and without thinking."""
    rng = random.Random(seed)
    names = [tool["function"]["name"] for tool in TOOLS]
    for number in range(count):
        choice = ("auto", "required", rng.choice(names))[number % 3]
        yield Kind(choice, number // 3 % 2 == 0, number // 6 % 2 == 0, number // 12 % 2 == 0)


def body_of(kind: Kind, seed: int, bias: dict[str, float], tokens: int) -> dict[str, Any]:
    """A chat request. bias: of token ids, so that a model with random weights gets to the markers at all."""
    return {
        "model": "glm",
        "messages": [{"role": "user", "content": f"Work on task {seed}."}],
        "tools": TOOLS,
        "tool_choice": kind.tool_choice,
        "parallel_tool_calls": kind.parallel,
        "chat_template_kwargs": {"enable_thinking": kind.thinking},
        "stream": kind.stream,
        "max_tokens": tokens,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": seed,
        "logit_bias": bias,
    }


def ask(url: str, body: dict[str, Any], timeout: float = 600) -> Answer:
    """Send the request and put its answer together; a refusal is an answer with `error`."""
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            if not body["stream"]:
                return _whole(json.load(response)["choices"][0])
            return _streamed(line[6:] for line in response if line.startswith(b"data: "))
    except urllib.error.HTTPError as error:
        return Answer(error=f"HTTP {error.code}: {error.read().decode('utf-8', 'replace')[:300]}")


def _whole(choice: dict[str, Any]) -> Answer:
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return Answer(
        calls,
        message.get("content") or "",
        message.get("reasoning") or "",
        choice["finish_reason"],
        message.get("tool_call_notes") or [],
    )


def _streamed(lines: Iterator[bytes]) -> Answer:
    answer = Answer()
    calls: dict[int, tuple[str, str]] = {}
    for line in lines:
        if line.strip() == b"[DONE]":
            break
        for choice in json.loads(line).get("choices") or ():
            delta = choice["delta"]
            answer.content += delta.get("content") or ""
            answer.reasoning += delta.get("reasoning") or ""
            answer.notes += delta.get("tool_call_notes") or []
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
            for call in delta.get("tool_calls") or ():
                answer.deltas += 1
                name, text = calls.get(call["index"], ("", ""))
                function = call.get("function") or {}
                calls[call["index"]] = (name + (function.get("name") or ""), text + (function.get("arguments") or ""))
    cut = {note.get("call") for note in answer.notes if note["code"] == "truncated_call"}
    answer.calls = [call for index, call in sorted(calls.items()) if index not in cut]
    return answer


def fault_of(name: str, arguments: str) -> str | None:
    """Why a call is invalid by its tool's own schema, None if it is valid."""
    if name not in _SCHEMAS:
        return f"undeclared tool {name!r}"
    try:
        value = json.loads(arguments)
    except ValueError as error:
        return f"no JSON: {error}"
    fault = next(_SCHEMAS[name].iter_errors(value), None)
    return None if fault is None else f"{fault.json_path}: {fault.message}"[:300]
