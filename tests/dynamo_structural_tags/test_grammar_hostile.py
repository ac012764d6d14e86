"""Hostile schemas in a tag: a bounded grammar for each tool, what falls leaves nothing behind, and time has an end."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hostile_schemas import HOSTILE

from dynamo_structural_tags import grammar
from dynamo_structural_tags.grammar import MOST_CHARACTERS, build
from dynamo_structural_tags.ladder import Level
from dynamo_structural_tags.schema import LIMITS

#: Of a grammar without any tool, and of the rules that all tools share.
_COMMON = 20_000
_WIDE = "wide and deep"


def _tool(parameters: Any, name: str = "t") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def _size(tools: list[dict[str, Any]]) -> int:
    return len(build(tools).tag["format"]["grammar"])


#: Python objects that share their parts, and that no JSON text has room for, are left to `normalise`.
_AS_JSON = [name for name in HOSTILE if not name.startswith("2**")]


@pytest.mark.parametrize("name", _AS_JSON)
def test_a_hostile_schema_gets_a_grammar_of_a_bounded_size(name: str) -> None:
    tools = [_tool({"type": "object", "properties": {"a": HOSTILE[name]}}), _tool(HOSTILE[name], "u")]

    built = build(tools)

    assert [made.name for made in built.tools] == ["t", "u"]
    assert len(built.tag["format"]["grammar"]) < 2 * MOST_CHARACTERS + _COMMON
    assert all(len(made.messages) <= LIMITS.messages + 1 for made in built.tools)


def test_a_level_that_a_tool_falls_from_leaves_no_rules_behind() -> None:
    """A hundred such tools make a grammar as large as that of what is left of them."""
    hostile = HOSTILE[_WIDE]
    (made,) = build([_tool(hostile)]).tools
    left = {"type": "object", "properties": {key: {"type": "object"} for key in hostile["properties"]}}

    assert made.level is Level.TYPES
    assert _size([_tool(hostile, f"t{i}") for i in range(5)]) < 1.5 * _size([_tool(left, f"t{i}") for i in range(5)])


def test_tools_after_the_time_is_spent_are_enforced_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def monotonic() -> float:
        clock[0] += 1
        return clock[0]

    monkeypatch.setattr(grammar.time, "monotonic", monotonic)
    tools = [_tool({"type": "object", "properties": {"a": {"type": "integer"}}}, f"t{i}") for i in range(5)]

    late = build(tools, until=2.5).tools

    assert [made.level for made in late] == [Level.FULL, Level.FULL, Level.NAMES, Level.NAMES, Level.NAMES]
    assert late[2].falls[0] == (Level.FULL, "the time for this request's tools is spent")
    assert [made.level for made in build(tools).tools] == [Level.FULL] * 5


def test_a_late_result_is_not_kept_for_the_next_request() -> None:
    tools = [_tool({"type": "object", "properties": {"b": {"type": "integer"}}})]

    assert build(tools, until=time.monotonic() - 1).tools[0].level is Level.NAMES
    assert build(tools).tools[0].level is Level.FULL
