"""What the parser's tests share: the outputs of glm_outputs.json, tools, and GLM's format as its template writes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One raw output and what a client must receive. content: None if nothing is said of it."""

    id: str
    raw: str
    tools: list[dict[str, Any]]
    finish: str
    tool_choice: Any
    calls: list[Call]
    content: str | None
    finish_reason: str


def cases() -> list[Case]:
    """The outputs observed with Dynamo and vLLM, each with the values that are right."""
    data = json.loads((Path(__file__).parent / "glm_outputs.json").read_text(encoding="utf-8"))
    return [
        Case(
            row["id"],
            row["raw"],
            data["tools"][row["tools"]],
            row["finish"],
            row.get("tool_choice", "auto"),
            [(name, arguments) for name, arguments in row["calls"]],
            row.get("content"),
            row["finish_reason"],
        )
        for row in data["cases"]
    ]


def common_tools() -> list[dict[str, Any]]:
    """The tools of most cases: write_file(path, content), run(cmd), noargs, noparams and typed with every type."""
    return next(case.tools for case in cases() if case.id == "s_lt")


def tool(name: str, properties: dict[str, Any] | None = None, **parameters: Any) -> dict[str, Any]:
    """A tool as OpenAI's chat API has it."""
    schema = {"type": "object", "properties": properties or {}, **parameters}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def value_text(value: Any) -> str:
    """A value as the template writes it: a string as it is, anything else as JSON (`tojson` of chat templates)."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """A call as the template writes it; test_parser_template_stock.py compares with the template."""
    pairs = (f"<arg_key>{key}</arg_key><arg_value>{value_text(value)}</arg_value>" for key, value in arguments.items())
    return f"<tool_call>{name}{''.join(pairs)}</tool_call>"


def equal_json(one: Any, other: Any) -> bool:
    """Equality that tells 1 from True and 1.0, and minds the order of keys."""
    return json.dumps(one) == json.dumps(other)
