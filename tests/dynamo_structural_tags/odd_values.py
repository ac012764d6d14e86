"""Values that parsers are known to change, one argument each, and the texts of calls with them in every family."""

from __future__ import annotations

from typing import Any

import glm_turns
from family_texts import FRAMES, turn_text

__all__ = ["ODD_TOOL", "ODD_VALUES", "PLAIN", "call_of", "same"]

_NODES: dict[str, tuple[Any, list[Any]]] = {
    "text": (
        {"type": "string"},
        [
            *("x", "", "a < b > c", " x\n", "\u00a0x", "null", "NULL", " null ", "nullable", "5", "[1]", "True", '"q"'),
            *("&lt;b&gt;", "&amp;lt;", "&quot;&#39;&#x27;&apos;", "```", "````", "a functools.x", "[/TOOL_CALLS]"),
            *("<|tool_call_section_end|>", "<think>a</think>", "</tool_call>", "</function>", "< /parameter>"),
        ],
    ),
    "word": ({"type": "string", "pattern": "^[a-z]+$"}, ["abc", "null"]),
    "blank": ({"type": "string", "pattern": "^.{2,3}$"}, ["ab", "a "]),
    "some": ({"type": "string", "minLength": 1}, ["x", " "]),
    "whole": ({"type": "integer"}, [5, -1, 2**63 - 1, 2**63, -(2**63), 10**25]),
    "large": ({"type": "integer", "minimum": 3}, [3, 2**63 - 1, 2**63]),
    "fifth": ({"type": "integer", "multipleOf": 5}, [10, 10**25]),
    "number": ({"type": "number"}, [5, 0.1, 1e22, 1.5e-7, 10**25]),
    "flag": ({"type": "boolean"}, [True, False]),
    "listed": ({"enum": ["a", 1, None, " b", "[1]"]}, ["a", 1, None, " b", "[1]"]),
    "words": ({"enum": ["true", "null", "5"]}, ["true", "null", "5"]),
    "sized": ({"type": "integer", "enum": [1, 2]}, [1, 2]),
    "five": ({"const": 5}, [5]),
    "small": ({"const": 1e-07}, [1e-07]),
    "either": ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, ["x", "True", "'x'"]),
    "maybe": ({"type": ["integer", "null"]}, [5, None]),
    "optional": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [5, None]),
    "nested": ({"$ref": "#/$defs/whole"}, [5]),
    "both": ({"allOf": [{"type": "integer"}]}, [5]),
    "alias": ({"type": "int64"}, [5]),
    "items": (
        {"type": "array", "items": {"type": "string"}},
        [[], ["x"], ["&lt;", "&quot;", " x "], ["null"], ["```"]],
    ),
    "numbers": ({"type": "array", "items": {"type": "number"}}, [[1, 0.5], [1e22], [1.5e-7]]),
    "open": ({"type": "object"}, [{}, {"a.b-c": 1}, {"é": 1}, {"a b": 1}, {"a$": 1}, {"n": 1e22}, {"s": "null"}]),
    "key $": ({"type": "integer"}, [1]),
    " edge ": ({"type": "string"}, ["x"]),
}
#: What every family can write.
PLAIN: dict[str, list[Any]] = {
    "text": ["x", "a < b > c", "nullable", "5", "True"],
    "word": ["abc"],
    "some": ["x"],
    "whole": [5, -1, 2**63 - 1],
    "large": [3],
    "fifth": [10],
    "number": [5, 0.1],
    "flag": [True, False],
    "sized": [1, 2],
    "items": [[], ["x"]],
}
ODD_TOOL: dict[str, Any] = glm_turns.tool(
    "odd",
    {name: schema for name, (schema, _) in _NODES.items()},
    additionalProperties=False,
    **{"$defs": {"whole": {"type": "integer"}}},
)
ODD_VALUES = [(name, value) for name, (_, values) in _NODES.items() for value in values]

_MARK = "]<]minimax[>["
_LISTS = {"nemotron_deci": ("<TOOLCALL>[", "]</TOOLCALL>"), "phi4": ("functools[", "]")}


def call_of(family: str, name: str, arguments: dict[str, Any]) -> str:
    """A turn of one call as the template of a family writes it."""
    if family in FRAMES:
        return turn_text(family, (name, arguments))
    if family == "glm":
        return glm_turns.call_text(name, arguments)
    if family in _LISTS:
        begin, end = _LISTS[family]
        return begin + turn_text("mistral", (name, arguments)).removeprefix("[TOOL_CALLS] [").removesuffix("]") + end
    pairs = "".join(_element(key, value) for key, value in arguments.items())
    return f'{_MARK}<tool_call>\n{_MARK}<invoke name="{name}">{pairs}{_MARK}</invoke>\n{_MARK}</tool_call>'


def _element(name: str, value: Any) -> str:
    match value:
        case list():
            inner = "".join(_element("item", one) for one in value)
        case dict():
            inner = "".join(_element(key, one) for key, one in value.items())
        case _:
            inner = glm_turns.value_text(value)
    return f"{_MARK}<{name}>{inner}{_MARK}</{name}>"


def same(one: Any, other: Any) -> bool:
    """Equality of JSON, where a number of more than 64 bits may be the nearest double."""
    if isinstance(one, int | float) and isinstance(other, int | float) and abs(one) >= 2**63:
        return float(one) == float(other)
    return glm_turns.equal_json(one, other)
