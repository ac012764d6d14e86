"""A JSON Schema as a union of parts, each about one JSON type: the form in which schemas are intersected.

A shape is a tuple of parts and denotes the union of their values; `NEVER`, the empty tuple, has none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from .pattern_matcher import matches
from .pattern_tree import Node

__all__ = [
    "ANY",
    "NEVER",
    "Array",
    "Literals",
    "Number",
    "Object",
    "Part",
    "Ref",
    "Shape",
    "Text",
    "is_member",
    "union",
]


@dataclass(frozen=True, slots=True)
class Anything:
    """Every JSON value."""


@dataclass(frozen=True, slots=True, eq=False)
class Literals:
    """Some values, as Python's json module reads them."""

    values: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literals) and _keys(self) == _keys(other)

    def __hash__(self) -> int:
        return hash(_keys(self))


@dataclass(frozen=True, slots=True)
class Number:
    """Numbers between two bounds; None for no bound."""

    integer: bool = False
    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False
    step: Fraction | None = None  # multipleOf
    place: tuple[str | int, ...] = field(default=(), compare=False)  # where the original says so


@dataclass(frozen=True, slots=True)
class Text:
    """Strings of `low` to `high` characters that match `pattern`, a whole match."""

    low: int = 0
    high: int | None = None
    pattern: Node | None = None
    place: tuple[str | int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Array:
    """Lists: one shape per place in front, then `rest`."""

    prefix: tuple[Shape, ...] = ()
    rest: Shape = ()
    low: int = 0
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Object:
    """Objects: declared keys, then other keys with values of shape `rest`.

    `keys` restricts the names of other keys to one pattern, a whole match.
    """

    properties: Mapping[str, Shape] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    rest: Shape = ()
    keys: Node | None = None
    low: int = 0
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Ref:
    """A named definition, which may contain itself."""

    name: str


Part = Anything | Literals | Number | Text | Array | Object | Ref
Shape = tuple[Part, ...]

NEVER: Shape = ()
ANY: Shape = (Anything(),)
NULL = Literals((None,))
BOOLEAN = Literals((False, True))


def union(shapes: Iterable[Shape]) -> Shape:
    """Values of any of some shapes, each part once."""
    shapes = list(shapes)
    if len(shapes) == 1:
        return shapes[0]
    parts: list[Part] = []
    for shape in shapes:
        if shape == ANY:
            return ANY
        parts += [part for part in shape if part not in parts]
    return tuple(parts)


def literal_key(value: Any) -> str:
    """The same text for equal JSON values: 1 and 1.0, but not 1 and true."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, dict):
        return "{" + ",".join(sorted(json.dumps(k) + ":" + literal_key(v) for k, v in value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(literal_key, value)) + "]"
    return json.dumps(value)


def _keys(literals: Literals) -> tuple[str, ...]:
    return tuple(map(literal_key, literals.values))


def same_json(a: Any, b: Any) -> bool:
    """Equality of JSON values: 1 equals 1.0, but not true."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_json, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_json(a[k], b[k]) for k in a)
    return (type(a) is type(b) and a == b) or (_is_number(a) and _is_number(b) and a == b)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_member(value: Any, shape: Shape) -> bool:
    """Whether a literal may belong to a shape; a reference counts as yes."""
    return any(_in_part(value, part) for part in shape)


def _in_part(value: Any, part: Part) -> bool:
    match part:
        case Anything() | Ref():
            return True
        case Literals(values):
            return any(same_json(value, other) for other in values)
        case Number():
            return _is_number(value) and math.isfinite(value) and _in_number(Fraction(repr(value)), part)
        case Text(low, high, pattern):
            if not isinstance(value, str) or not low <= len(value) <= (len(value) if high is None else high):
                return False
            return pattern is None or matches(pattern, value)
        case Array(prefix, rest, low, high):
            if not isinstance(value, list) or not low <= len(value) <= (len(value) if high is None else high):
                return False
            return all(is_member(v, prefix[i] if i < len(prefix) else rest) for i, v in enumerate(value))
        case Object(properties, required, rest, _, low, high):
            if not isinstance(value, dict) or not required <= value.keys():
                return False
            if not low <= len(value) <= (len(value) if high is None else high):
                return False
            return all(is_member(v, properties.get(k, rest)) for k, v in value.items())


def _in_number(value: Fraction, part: Number) -> bool:
    if part.integer and value.denominator != 1:
        return False
    if part.low is not None and (value < part.low or (part.low_open and value == part.low)):
        return False
    if part.high is not None and (value > part.high or (part.high_open and value == part.high)):
        return False
    return part.step is None or (value / part.step).denominator == 1
