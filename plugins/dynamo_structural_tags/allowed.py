"""Which JSON types and values a schema allows, as far as it decides how a text is to be read.

Only what tells a string from the JSON it may look like: `type` (also under other names), `enum`, `const`, `$ref`,
`anyOf`, `oneOf`, `allOf` and `nullable`. Anything else, and what cannot be resolved, allows every type. No pattern
of a schema is ever run, and the work per schema is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from dynamo_structural_tags.type_names import TYPE_NAMES, TYPES

__all__ = ["ANY", "STRING", "Allowed", "allowed", "json_type", "resolve", "value_key"]

_TYPES = frozenset(TYPES)
_BESIDE_TYPE = frozenset(("$ref", "$dynamicRef", "$recursiveRef", "enum", "const", "anyOf", "oneOf", "allOf"))
_BESIDE_TYPE |= {"nullable", "x-nullable"}
_MOST_NODES = 2000
_MOST_DEPTH = 50


def json_type(value: Any) -> str:
    """The JSON Schema type of a parsed value; a float without a fraction is an integer, as in the standard."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def value_key(value: Any) -> str:
    """A text that two values share exactly if JSON Schema calls them equal (at the top: 1 is 1.0, not true)."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Allowed:
    """A value fits if its type is in `types` or it is one of `values` (by `value_key`)."""

    types: frozenset[str]
    values: dict[str, Any] = field(default_factory=dict)

    def fits(self, value: Any) -> bool:
        """Whether the value has an allowed type or is an allowed value."""
        return json_type(value) in self.types or (bool(self.values) and value_key(value) in self.values)

    def __or__(self, other: Allowed) -> Allowed:
        return Allowed(self.types | other.types, {**self.values, **other.values})

    def __and__(self, other: Allowed) -> Allowed:
        if self is ANY:
            return other
        values = {key: value for key, value in self.values.items() if other.fits(value)}
        values |= {key: value for key, value in other.values.items() if self.fits(value)}
        return Allowed(self.types & other.types, values)

    def kinds(self) -> frozenset[str]:
        """All types that a fitting value may have."""
        return self.types | {json_type(value) for value in self.values.values()} if self.values else self.types


ANY = Allowed(_TYPES)
NOTHING = Allowed(frozenset())
STRING = Allowed(frozenset(("string",)))


def resolve(reference: Any, root: Any) -> Any:
    """The schema that a `$ref` means inside `root`; {} (anything) if it cannot be found.

    ``#/a/b`` is a JSON pointer (RFC 6901); of any other address the last part is looked up in the definitions.
    """
    if not isinstance(reference, str):
        return {}
    address, _, pointer = reference.partition("#")
    if not address and (pointer.startswith("/") or not pointer):
        node = root
        for part in pointer.split("/")[1:]:
            part = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping):
                node = node.get(part)
            elif isinstance(node, list) and part.isdecimal() and len(part) < 9 and int(part) < len(node):
                node = node[int(part)]
            else:
                return {}
        return {} if node is None else node
    name = reference.rstrip("/").rpartition("/")[2].lstrip("#")
    definitions = [root.get(where) for where in ("$defs", "definitions")] if isinstance(root, Mapping) else []
    for table in definitions:
        if isinstance(table, Mapping):
            if name in table:
                return table[name]
            for schema in table.values():
                if isinstance(schema, Mapping) and name in (schema.get("$anchor"), schema.get("$dynamicAnchor")):
                    return schema
    return {}


def allowed(schema: Any, root: Any) -> Allowed:
    """What `schema` allows; its references are looked up in `root`."""
    return _Reader(root).read(schema, 0)


class _Reader:
    """One walk over a schema, which gives up (anything is allowed) after `_MOST_NODES` parts."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.nodes = 0

    def read(self, schema: Any, depth: int) -> Allowed:
        self.nodes += 1
        if schema is False:
            return NOTHING
        if not isinstance(schema, Mapping) or depth > _MOST_DEPTH or self.nodes > _MOST_NODES:
            return ANY
        if _BESIDE_TYPE.isdisjoint(schema):
            return _typed(schema["type"]) if "type" in schema else ANY
        result = ANY
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if keyword in schema:
                result &= self.read(resolve(schema[keyword], self.root), depth + 1)
        if "type" in schema:
            result &= _typed(schema["type"])
        if isinstance(schema.get("enum"), list):
            result &= _values(schema["enum"])
        if "const" in schema:
            result &= _values([schema["const"]])
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list) and schema[keyword]:
                either = NOTHING
                for branch in schema[keyword]:
                    either |= self.read(branch, depth + 1)
                    if self.nodes > _MOST_NODES:
                        return ANY
                result &= either
        for part in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
            result &= self.read(part, depth + 1)
            if self.nodes > _MOST_NODES:
                return ANY
        if schema.get("nullable") is True or schema.get("x-nullable") is True:
            result |= Allowed(frozenset(("null",)))
        return result


def _typed(names: Any) -> Allowed:
    return _of_name(names) if isinstance(names, str) else _of_names(names)


@lru_cache(64)
def _of_name(name: str) -> Allowed:
    return _of_names([name])


def _of_names(names: Any) -> Allowed:
    types: set[str] = set()
    for name in names if isinstance(names, list) else [names]:
        if isinstance(name, Mapping):  # draft 3 wrote schemas into the list
            return ANY
        types.update(TYPE_NAMES.get(str(name).lower(), _TYPES))
    return Allowed(frozenset(types)) if types else ANY


def _values(values: list[Any]) -> Allowed:
    table = {}
    for value in values:
        try:
            table[value_key(value)] = value
        except (TypeError, ValueError, RecursionError):
            return ANY
    return Allowed(frozenset(), table)
