"""Which types vLLM's parsers consider for an argument, and what they make of a text by them.

vLLM looks at `type`, at the values of `enum` and into `anyOf`, `oneOf` and `allOf`; where these say nothing, as with a
`$ref` or a `const`, it takes the argument for a string. A string it then reads as the first of null, integer, number,
boolean, object, array and string that fits, so a string beside other types may come out as one of those. Arguments that
were JSON before are looked at in the same way, as far as `properties` and `items` lead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from ..allowed import allowed, json_type
from ..schema import Shapes, Verdict

__all__ = ["STRUCTURES", "kept", "misreadings", "note_misreadings", "read_as", "types_read"]

STRUCTURES = frozenset(("object", "array"))
_BRANCHES = ("anyOf", "oneOf", "allOf")
_MOST_DEPTH = 50
#: Type names that vLLM takes for others.
_ALIASES = {
    **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "uint", "uint32", "uint64", "long", "short", "unsigned"), "integer"),
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    **dict.fromkeys(("arr", "list", "sequence"), "array"),
    "bool": "boolean",
    "dict": "object",
}


def types_read(schema: Any, depth: int = 0) -> frozenset[str]:
    """The types that vLLM considers, by JSON Schema's names where it knows them."""
    if not isinstance(schema, dict) or depth > _MOST_DEPTH:
        return frozenset(("string",))
    named = schema.get("type")
    names = [name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)]
    found = {_ALIASES.get(name.strip().lower(), name.strip().lower()) for name in names}
    if isinstance(schema.get("enum"), list):
        found |= {"number" if isinstance(value, float) else json_type(value) for value in schema["enum"]}
    for keyword in _BRANCHES:
        for branch in schema[keyword] if isinstance(schema.get(keyword), list) else ():
            found |= types_read(branch, depth + 1)
    return frozenset(found or ("string",))


def read_as(text: str, types: Iterable[str]) -> Any:
    """What vLLM makes of a text."""
    kinds = frozenset(types)
    if "null" in kinds and text.lower() == "null":
        return None
    for kind, convert in (("integer", int), ("number", float)):
        try:
            number = convert(text) if kind in kinds else math.nan
        except ValueError:
            continue
        if isinstance(number, int) or math.isfinite(number):
            return int(number) if number == int(number) else number
    if "boolean" in kinds and text.lower().strip() in ("true", "1", "false", "0"):
        return text.lower().strip() in ("true", "1")
    if kinds & STRUCTURES or "string" not in kinds:
        try:
            value = json.loads(text)
            json.dumps(value, allow_nan=False)
            return value
        except ValueError:  # also for 1e999, which is no number of JSON
            pass
    return text


def kept(kind: str, types: frozenset[str]) -> bool:
    """Whether the JSON text of a value of this type is read as JSON; a string as a string, if nothing else fits."""
    if kind in types or "string" not in types or types & STRUCTURES:
        return True
    return kind == "integer" and "number" in types


def misreadings(schema: Any, root: Any) -> str | None:
    """What becomes of an argument that was JSON before vLLM looked at its type; None if it stays as it is."""
    types, kinds = types_read(schema), allowed(schema, root).kinds()
    if len(kinds) == 7 and types == {"string"}:
        return None  # any value will do, also a string
    scalars = {kind for kind in kinds - STRUCTURES - {"string"} if kind not in types}
    scalars -= {"integer"} if "number" in types else set()
    if "string" in types and scalars and not types & STRUCTURES:
        return f"vLLM's parser makes a string of {' or '.join(sorted(scalars))}: its type is not beside it"
    values = schema.get("enum") if isinstance(schema, dict) else None
    if isinstance(values, list):
        if all(read_as(value, types) in values for value in values if isinstance(value, str)):
            return None
    elif "string" not in kinds or types <= {"string", "null"}:
        return None
    return "vLLM's parser reads a string that looks like another type as that"


def note_misreadings(shapes: Shapes, parameters: Any) -> None:
    """A message for each place of JSON arguments whose values vLLM changes."""
    for place, text in _misread(parameters, parameters, ()):
        shapes.note(place, "type", Verdict.RELAXED, text)


def _misread(schema: Any, root: Any, place: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if not isinstance(schema, dict) or len(place) > 20:
        return
    if place and (text := misreadings(schema, root)) is not None:
        yield place, text
    properties = schema.get("properties")
    for key, value in properties.items() if isinstance(properties, dict) else ():
        yield from _misread(value, root, (*place, "properties", key))
    if place and isinstance(schema.get("items"), dict):
        yield from _misread(schema["items"], root, (*place, "items"))
