"""Random tool lists: as MCP servers describe them, and with any schema for an argument."""

from __future__ import annotations

import random
from typing import Any

from json_schemas import random_schema

_NAMES = ["run", "r", "read_file", "mcp__fs__write", "a.b", "search-web"]
_KEYS = ["path", "p", "pattern", "n", "limit", "é", "a b", "mode", "edits", "x-y", "content", "deep"]
_COMMON: list[Any] = [
    {"type": "string"},
    {"type": "string"},
    {"type": "integer", "minimum": 1, "maximum": 100},
    {"type": "boolean", "default": False},
    {"type": "array", "items": {"type": "string"}},
    {"type": "array"},
    {"type": "object"},
    {},
    {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    {"type": ["string", "array"], "items": {"type": "string"}},
    {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}]},
    {"type": "string", "pattern": "^https?://"},
    {"type": "string", "pattern": r"^[\w.-]+$"},
    {"type": "string", "enum": ["asc", "desc", ""]},
    {"enum": ["red", "1", 2, None]},
    {"type": "number"},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "integer", "minimum": -7},
    {"type": "string", "minLength": 1},
    {"type": "array", "items": {"$ref": "#/$defs/word"}, "minItems": 1, "maxItems": 3},
    {"$ref": "#/$defs/node"},
    {
        "type": "object",
        "properties": {"old": {"type": "string"}, "new": {"type": "string"}, "all": {"type": "boolean"}},
        "required": ["new", "old"],
    },
]
_DEFS = {
    "word": {"type": "string"},
    "pair": {"type": "array", "prefixItems": [{"$ref": "#/$defs/word"}, {"type": "integer"}], "items": False},
    "node": {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
        "required": ["v"],
        "additionalProperties": False,
    },
}


def random_parameters(rng: random.Random) -> dict[str, Any]:
    """A schema of arguments."""
    keys = rng.sample(_KEYS, rng.randint(0, 7))
    odd = rng.random() < 0.4
    properties = {
        key: random_schema(rng, 1, True) if odd and rng.random() < 0.5 else rng.choice(_COMMON) for key in keys
    }
    schema: dict[str, Any] = {"type": "object", "properties": properties, "$defs": _DEFS}
    schema["required"] = [key for key in keys if rng.random() < 0.4]
    if rng.random() < 0.6:
        schema["additionalProperties"] = rng.choice([False, False, False, True, {"type": "integer"}])
    return schema


def random_tools(rng: random.Random, *, strict: bool = True) -> list[dict[str, Any]]:
    """One to three tools as OpenAI's chat API has them."""
    tools = []
    for name in rng.sample(_NAMES, rng.randint(1, 3)):
        function: dict[str, Any] = {"name": name, "parameters": random_parameters(rng)}
        if strict and rng.random() < 0.2:
            function["strict"] = True
        tools.append({"type": "function", "function": function})
    return tools
