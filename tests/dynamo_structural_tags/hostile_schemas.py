"""Schemas that somebody sends to make a server slow, large or fall over."""

from __future__ import annotations

from typing import Any

__all__ = ["HOSTILE"]


def _nested(depth: int, around: Any) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = around(schema)
    return schema


HOSTILE: dict[str, Any] = {
    "900 nested arrays": _nested(900, lambda s: {"type": "array", "items": s}),
    "2**900 branches": _nested(900, lambda s: {"anyOf": [s, s]}),
    "2**30 constraints": _nested(30, lambda s: {"allOf": [s, s]}),
    "10,000 keys": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(10_000)}},
    "10,000 required keys": {"type": "object", "required": [f"p{i}" for i in range(10_000)]},
    "100,000 literals": {"enum": list(range(100_000))},
    "60**20 alternatives": {
        "allOf": [{"anyOf": [{"properties": {f"a{i}": {"const": j}}} for j in range(60)]} for i in range(20)]
    },
    "a ring of references": {
        "$ref": "#/$defs/a0",
        "$defs": {f"a{i}": {"$ref": f"#/$defs/a{(i + 1) % 3000}"} for i in range(3000)},
    },
    "a chain of references": {
        "allOf": [{"$ref": "#/$defs/a0"}],
        "$defs": {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}]} for i in range(3000)},
    },
    "10**9 nulls by reference": {
        "$ref": "#/$defs/l0",
        "$defs": {f"l{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/l{i + 1}"}] * 10} for i in range(9)},
    },
    "wide and deep": _nested(6, lambda s: {"type": "object", "properties": {f"k{i}": s for i in range(5)}}),
    "500 patterns of keys": {
        "type": "object",
        "patternProperties": {f"(a|b)*{i}": {"type": "integer"} for i in range(500)},
        "properties": {"ab" * 20: {}},
    },
    "patterns that backtrack": {"type": "string", "pattern": "((a+)+)+b", "enum": ["a" * 400]},
    "a pattern of 10**6 characters": {"type": "string", "pattern": "((a{1,100}){1,100}){1,100}"},
    "3,000 groups": {"type": "string", "pattern": "(" * 3000},
    "counts of 10**9": {"type": "array", "minItems": 10**9, "items": {"minLength": 10**9, "maxLength": 10**12}},
    "everything of a wrong kind": {
        "type": {"a": 1}, "properties": [1], "required": "x", "items": 7, "enum": "a", "pattern": {}, "minimum": "1",
        "anyOf": {}, "allOf": [1, None], "$ref": [], "additionalProperties": "x", "minLength": -1, "maxLength": 1.5,
        "patternProperties": {"a": 5, "(": {}}, "propertyNames": 3, "not": 9, "format": 4, "nullable": "yes",
        "$schema": 1, "$defs": 3, "const": {"a": [None]}, "multipleOf": 0,
    },
    "numbers that are none": {"type": "number", "minimum": float("nan"), "const": float("inf")},
    "numbers of 400 digits": {
        "type": ["integer", "number", "string"], "minimum": 10**400, "exclusiveMaximum": -(10**400),
        "multipleOf": 10**400, "minLength": 10**400, "enum": ["-" + "9" * 400, "9" * 5000, 10**400],
    },
    "lone surrogates": {"type": "object", "properties": {"\ud800": {"const": "\udfff"}}, "required": ["\ud800"]},
    "a literal nested 800 deep": {"const": _nested(800, lambda s: [s])},
    "no schema": None,
    "text": "string",
    "a list": [{"type": "string"}],
    "a Python object": {"type": "object", "properties": {"a": {"enum": [object()]}}},
}  # fmt: skip
