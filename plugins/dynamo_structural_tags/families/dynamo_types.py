"""What Dynamo's v1 parser of XML calls makes of the text of an argument: `qwen3_coder`, `minimax_m2`.

It takes the word null for null, and then looks at a `type` that is one name. Where there is none, but `anyOf` or
`oneOf`, a value is JSON, or the same in Python, if it can be; without any of these it is a string. It knows neither
lists of types nor `enum`, `const`, `allOf` and `$ref`.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from .dynamo_text import ENTITIES, stripped

__all__ = ["JSON", "listing", "read_as", "type_read"]

#: The type of what is JSON if it can be.
JSON = "json"
_STRINGS = ("string", "str", "text", "varchar", "char", "enum")
_BOOLEANS = ("boolean", "bool", "binary")
#: Types by the beginnings of their names.
_BEGINS = {"integer": ("int", "uint", "long", "short", "unsigned"), "number": ("num", "float")}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_WORDS = {"'": '"', "True": "true", "False": "false", "None": "null"}


def type_read(schema: Any) -> str:
    """The type that the parser reads an argument as: string, integer, number, boolean or `JSON`."""
    named = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(named, str):
        name = named.lower()
        if name in _STRINGS:
            return "string"
        if name in _BOOLEANS:
            return "boolean"
        return next((kind for kind, begins in _BEGINS.items() if name.startswith(begins)), JSON)
    return JSON if isinstance(schema, dict) and ("anyOf" in schema or "oneOf" in schema) else "string"


def listing(values: Sequence[Any]) -> tuple[str, ...]:
    """The keywords that may have listed these values."""
    return ("enum", "const") if len(values) == 1 else ("enum",)


def read_as(text: str, kind: str) -> Any:
    """What the parser makes of a text."""
    text = stripped(text)
    for entity in ENTITIES:
        text = text.replace(entity, html.unescape(entity))
    if text.lower() == "null":
        return None
    match kind:
        case "integer":
            number = int(text) if _INTEGER.fullmatch(text) else None
            return number if number is not None and -(2**63) <= number < 2**63 else text
        case "number":
            return _number(text)
        case "boolean":
            return text.lower() == "true"
        case "json":
            return _json(text)
    return text


def _number(text: str) -> Any:
    try:
        number = int(text) if _INTEGER.fullmatch(text) else float(text)
    except ValueError:
        return text
    return number if "_" not in text and (isinstance(number, int) or math.isfinite(number)) else text


def _json(text: str) -> Any:
    python = text
    for word, meant in _WORDS.items():
        python = python.replace(word, meant)
    for one in (text, python):
        try:
            value = json.loads(one)
            json.dumps(value, allow_nan=False)
            return value
        except ValueError:  # also for NaN and 1e999, which are no numbers of JSON
            continue
    return text
