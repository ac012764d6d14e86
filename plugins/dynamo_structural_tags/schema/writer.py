"""Writes shapes as the JSON Schema that xgrammar enforces faithfully."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from .definitions import Definitions
from .pattern_tree import any_text, literal, none_of
from .pattern_writer import json_regex
from .shapes import ANY, NEVER, Anything, Array, Literals, Number, Object, Part, Ref, Shape, Text
from .typed import Note, settle_number, settle_text
from .verdicts import LIMITS, Verdict

__all__ = ["Writer"]

Path = tuple[str | int, ...]

_EXCLUDED_NAMES, _EXCLUDED_CHARACTERS = 32, 512  # of declared keys that other keys are kept apart from by pattern


class Writer:
    """Writes one document; `note` hears of what could not be written."""

    def __init__(self, definitions: Definitions, strict: bool, note: Callable[[Path, str, Verdict, str], None]) -> None:
        self.definitions, self.strict, self.note = definitions, strict, note
        self.has_values = self.definitions.has_values
        self.pattern_bytes = 0

    def _at(self, place: Path) -> Note:
        return lambda keyword, verdict, text: self.note(place, keyword, verdict, text)

    def document(self, root: Shape) -> dict[str, Any] | None:
        """The schema of a shape with the definitions it needs; None if no value has the shape."""
        if not self.has_values(root):
            return None
        written = self.schema(root)
        needed: dict[str, Any] = {}
        queue = _references(written)
        while queue:
            name = queue.pop()
            if name not in needed:
                needed[name] = self.schema(self.definitions.shapes[name])
                queue |= _references(needed[name])
        if needed:
            written = {**written, "$defs": {name: needed[name] for name in sorted(needed)}}
        return written

    def schema(self, shape: Shape) -> dict[str, Any]:
        """A shape that has values, as JSON Schema."""
        if shape == ANY:
            return {}
        parts = [part for part in shape if self.definitions.part_has_values(part)]
        if any(isinstance(part, Anything) for part in parts):
            return {}
        written: dict[str, dict[str, Any]] = {}  # by their text: Python calls 1 and True equal
        for part in parts:
            written.update((json.dumps(one), one) for one in self._part(part))
        return next(iter(written.values())) if len(written) == 1 else {"anyOf": list(written.values())}

    def _part(self, part: Part) -> list[dict[str, Any]]:
        match part:
            case Ref(name):
                return [{"$ref": f"#/$defs/{name}"}]
            case Number():
                return self._number(settle_number(part, self.strict, self._at(part.place)))
            case Text():
                return [self._text(settle_text(part, self._at(part.place)))]
            case Literals(values):
                return _literals(values)
            case Array():
                return [self._array(part)]
            case Object():
                return [self._object(part)]
        return [{}]

    def _number(self, found: Number | Literals) -> list[dict[str, Any]]:
        if isinstance(found, Literals):
            return _literals(found.values)
        written: dict[str, Any] = {"type": "integer" if found.integer else "number"}
        for keyword, bound, is_open in (("inimum", found.low, found.low_open), ("aximum", found.high, found.high_open)):
            if bound is not None:
                name = ("exclusiveM" if is_open else "m") + keyword
                written[name] = int(bound) if bound.denominator == 1 else float(bound)
        if found.step is not None:
            written["multipleOf"] = int(found.step)
        return [written]

    def _text(self, text: Text) -> dict[str, Any]:
        if text.pattern is not None:
            return {"type": "string", "pattern": json_regex(text.pattern)}
        if text.low == 0 and text.high is None:
            return {"type": "string"}
        return {"type": "string", "pattern": json_regex(any_text(text.low, text.high))}

    def _array(self, array: Array) -> dict[str, Any]:
        prefix, high = list(array.prefix), array.high
        if high is not None:
            prefix = prefix[:high]
        for place, shape in enumerate(prefix):
            if not self.has_values(shape):
                prefix = prefix[:place]
                return self._items(prefix, NEVER, array.low, place)
        return self._items(prefix, array.rest, array.low, high)

    def _items(self, prefix: list[Shape], rest: Shape, low: int, high: int | None) -> dict[str, Any]:
        written: dict[str, Any] = {"type": "array"}
        if prefix:
            written["prefixItems"] = [self.schema(shape) for shape in prefix]
        more = self.has_values(rest) and (high is None or high > len(prefix))
        written["items"] = self.schema(rest) if more else False
        if low:
            written["minItems"] = low
        if high is not None and more:
            written["maxItems"] = high
        return written

    def _object(self, found: Object) -> dict[str, Any]:
        usable = {name: shape for name, shape in found.properties.items() if self.has_values(shape)}
        written: dict[str, Any] = {"type": "object"}
        if usable:
            written["properties"] = {name: self.schema(shape) for name, shape in usable.items()}
        if found.required:
            written["required"] = [name for name in usable if name in found.required]
        rest = self.schema(found.rest) if self.has_values(found.rest) else None
        if rest is None:
            written["additionalProperties"] = False
        elif found.keys is not None:
            written["patternProperties"] = {json_regex(found.keys): rest}
            written["additionalProperties"] = False
        elif found.properties:
            self._others(written, tuple(found.properties), rest)
        else:
            written["additionalProperties"] = rest or True
        if found.low:
            written["minProperties"] = found.low
        if found.high is not None:
            written["maxProperties"] = found.high
        return written

    def _others(self, written: dict[str, Any], names: tuple[str, ...], rest: dict[str, Any]) -> None:
        """Keys beside the declared ones, which must not come again in another spelling."""
        small = len(names) <= _EXCLUDED_NAMES and sum(map(len, names)) <= _EXCLUDED_CHARACTERS
        if small and self.pattern_bytes < LIMITS.key_pattern_bytes:
            pattern = json_regex(none_of(names))
            self.pattern_bytes += len(pattern)
            written["patternProperties"] = {pattern: rest}
            written["additionalProperties"] = False
        else:
            self.note(
                (), "additionalProperties", Verdict.RELAXED, "a declared key may come again, written with escapes"
            )
            written["additionalProperties"] = rest or True


def _literals(values: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Scalars as an enum; lists and objects by their structure, so that spaces are free in them."""
    plain = [v for v in values if not isinstance(v, list | dict) and not _is_odd(v)]
    written: list[dict[str, Any]] = []
    if plain:
        written.append({"const": plain[0]} if len(plain) == 1 else {"enum": plain})
    for value in values:
        if isinstance(value, list):
            places = [_one(v) for v in value]
            front = {"prefixItems": places, "minItems": len(places)} if places else {}
            written.append({"type": "array", **front, "items": False})
        elif isinstance(value, dict):
            keys = {name: _one(v) for name, v in value.items()}
            declared = {"properties": keys, "required": list(keys)} if keys else {}
            written.append({"type": "object", **declared, "additionalProperties": False})
        elif _is_odd(value) and isinstance(value, str):
            written.append({"type": "string", "pattern": json_regex(literal(value))})
        elif _is_odd(value):
            written.append({"type": "number", "minimum": value, "maximum": value})
    return written


def _is_odd(value: Any) -> bool:
    """Whether xgrammar spells a literal in an unusual way: DEL as an escape, 0.1 with 17 digits."""
    if isinstance(value, float):
        return (
            format(value, ".17g") != repr(value)
            and "e" not in repr(value)
            and (Fraction(repr(value)) * 10**6).denominator == 1
        )
    return isinstance(value, str) and "\x7f" in value


def _one(value: Any) -> dict[str, Any]:
    return _literals((value,))[0]


def _references(written: Any) -> set[str]:
    found: set[str] = set()
    queue = [written]
    while queue:
        node = queue.pop()
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                found.add(node["$ref"].rpartition("/")[2])
            queue += node.values()
        elif isinstance(node, list):
            queue += node
    return found
