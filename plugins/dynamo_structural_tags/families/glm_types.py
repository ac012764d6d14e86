"""Which types Dynamo's parsers of GLM's calls, v1 and v2, consider for an argument, and what they misread by that.

They look at `type`, into `anyOf`, `oneOf` and `allOf`, and follow `$ref`, but know no `enum` and `const`. A string
comes before all other types. Where no type is named, numbers and booleans are strings, and what looks like an array, an
object or null is that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..allowed import json_type, resolve
from ..schema import Shapes, Verdict
from ..schema.shapes import Anything, Array, Literals, Number, Object, Part, Shape, Text
from ..type_names import TYPES
from .dynamo_types import listing

__all__ = ["note_misreadings", "types_read"]

_NAMES = {**{name: name for name in TYPES}, "int": "integer", "float": "number", "bool": "boolean"}
_NAMES |= {"dict": "object", "list": "array"}
#: What is a string where no type is named.
_UNNAMED_LOST = frozenset(("integer", "number", "boolean"))
_MOST_DEPTH = 50


def types_read(schema: Any, root: Any, depth: int = 0) -> frozenset[str]:
    """The types that are named, by JSON Schema's names; empty if there is none that the parsers know."""
    if not isinstance(schema, dict) or depth > _MOST_DEPTH:
        return frozenset()
    named = schema.get("type")
    names = named if isinstance(named, list) else [named]
    found = {_NAMES[name] for name in names if isinstance(name, str) and name in _NAMES}
    found |= {"null"} if schema.get("nullable") is True else set()
    branches = [branch for keyword in ("anyOf", "oneOf", "allOf") for branch in _list(schema.get(keyword))]
    if "$ref" in schema:
        branches.append(resolve(schema["$ref"], root))
    return frozenset(found.union(*(types_read(branch, root, depth + 1) for branch in branches)))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def note_misreadings(shapes: Shapes, parameters: Any) -> None:
    """A message for each argument whose values the parsers do not give back as they were."""
    opened = shapes.definitions.opened
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    for root in opened(shapes.shape):
        if not isinstance(root, Object):
            continue
        arguments: list[tuple[tuple[str, ...], Shape, frozenset[str]]]
        arguments = [(("additionalProperties",), opened(root.rest), frozenset())]
        for name, shape in root.properties.items():
            schema = properties.get(name) if isinstance(properties, dict) else None
            arguments.append((("properties", name), opened(shape), types_read(schema, parameters)))
        for place, parts, types in arguments:
            lost = set(_lost(parts, types))
            for keyword in sorted({keyword for keyword, _ in lost}):
                kinds = " and ".join(sorted(kind for found, kind in lost if found == keyword))
                text = f"Dynamo's parser may give {kinds} another type, by what `type` names"
                shapes.note(place, keyword, Verdict.RELAXED, text)


def _lost(parts: Shape, types: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Keyword and type of those values that come back as something that is not allowed."""
    any_string = any(isinstance(part, Anything) or part == Text() for part in parts)
    known = types | {"integer"} if "number" in types else types
    for keyword, kind, value in (found for part in parts for found in _kinds(part)):
        if kind == "string":
            lost = _is_json(value) if "string" not in types else value == "null" and "null" in types
        elif kind in known:
            lost = "string" in types and kind != "null"
        else:
            lost = bool(types) or kind in _UNNAMED_LOST
        if lost and not (any_string and kind != "string"):
            yield keyword, kind


def _is_json(value: str | None) -> bool:
    """Whether a listed string is JSON; any other may be."""
    try:
        json.loads("0" if value is None else value)
    except ValueError:
        return False
    return True


def _kinds(part: Part) -> Iterator[tuple[str, str, Any]]:
    """Keyword and type of a part's values, each with the value if it is a listed one."""
    match part:
        case Literals(values):
            for keyword in listing(values):
                yield from ((keyword, json_type(value), value) for value in values)
        case Number(integer=is_integer):
            yield "type", ("integer" if is_integer else "number"), None
        case Text():
            yield "type", "string", None
        case Array():
            yield "type", "array", None
        case Object():
            yield "type", "object", None
