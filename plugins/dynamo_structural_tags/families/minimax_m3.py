"""MiniMax M3: all calls in one section, one element per call, per key and per item of a list, strings as they are.

Every tag stands behind the mark ``]<]minimax[>[``; the source names the tags, Dynamo's reader the types: it takes a
value's type from the schema, strings before all others, and replaces the entities of XML in strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..allowed import allowed
from ..ebnf.json_values import JsonValues
from ..ebnf.markers import Markers
from ..ebnf.rules import Rules, quote
from ..schema import Verdict
from ..schema.shapes import Object, Part, Shape, Text
from ..type_names import TYPES
from .dynamo_text import ENTITIES
from .dynamo_types import listing
from .family import Call, Family

__all__ = ["MINIMAX_M3"]

_MARK = "]<]minimax[>["
_KEY_BARRED = "<>\"'&/=[](){};:,!?\\"
_Place = tuple[str | int, ...]
_NOT_FOLLOWED = ("patternProperties", "prefixItems", "allOf")


@dataclass(frozen=True, slots=True)
class _MiniMax(Family):
    def call(self, rules: Rules, call: Call) -> str:
        for place, keyword, text in _unsure(call.parameters, call.parameters, ()):
            call.shapes.note(place, keyword, Verdict.RELAXED, text)
        shapes = call.shapes
        if not shapes.definitions.has_values(shapes.shape):
            raise ValueError("no arguments satisfy the schema")
        values = _Values(rules, Markers((_MARK[1:], *ENTITIES)), shapes, call.strict, '"\\n"?')
        begin, end = f'{_MARK}<invoke name="{call.name}">', f"{_MARK}</invoke>\n"
        return f"{quote(begin)} {values.value(shapes.shape)} {quote(end)}"

    def calls(self, rules: Rules, call: str, parallel: bool) -> tuple[str, bool]:
        return f'"\\n" {call} {f"({call})*" if parallel else ""} {quote(f"{_MARK}</tool_call>")}', False


class _Values(JsonValues):
    """Elements in place of JSON's brackets, commas and colons."""

    def __init__(self, rules: Rules, markers: Markers, shapes: Any, strict: bool, blank: str) -> None:
        super().__init__(rules, markers, shapes, strict, blank)
        self.comma = self.blank

    def any_value(self) -> str:
        return self.texts.any_raw()

    def literal(self, value: Any) -> str:
        match value:
            case str():
                if self.markers.inside(value):
                    raise ValueError(f"{value!r}: a listed value holds a marker, which no escape can write")
                return quote(value) if value else '""'
            case list():
                return self._brackets(
                    f" {self.comma} ".join(_element("item", self.literal(one)) for one in value) or '""'
                )
        return super().literal(value)

    def item(self, shape: Shape) -> str:
        return self.rules.add(_element("item", self.value(shape)))

    def _part(self, part: Part) -> Sequence[str]:
        if isinstance(part, Text):
            return [self.texts.raw(part, self.strict, self._note(part.place))]
        return super()._part(part)

    def _other(self, found: Object) -> None:
        """None: an element's name is there twice, and no grammar keeps two texts equal that nobody listed."""

    def _speaks(self, key: str) -> bool:
        return key != "" and not any(char in _KEY_BARRED or char.isspace() for char in key)

    def _pair(self, key: str, value: str) -> str:
        if not self._speaks(key):
            raise ValueError(f"{key!r}: no element can have this name")
        return self.rules.add(_element(key, value))

    def _brackets(self, inner: str) -> str:
        return f"{self.blank} {inner} {self.blank}"

    def _braces(self, inner: str) -> str:
        return self._brackets(inner)


def _element(name: str, value: str) -> str:
    return f"{quote(f'{_MARK}<{name}>')} {value} {quote(f'{_MARK}</{name}>')}"


def _unsure(schema: Any, root: Any, place: _Place) -> Iterator[tuple[_Place, str, str]]:
    """Places and keywords of what the reader may give another type: all that has not one type, named by `type`."""
    if not isinstance(schema, dict) or len(place) > 20:
        return
    found = allowed(schema, root)
    kinds = found.kinds()
    others = kinds - {"null"}
    single = _is_named(schema.get("type")) and (len(others) < 2 or others == {"integer", "number"})
    if place and len(kinds) < 7 and not (kinds <= {"string"} or single):
        for keyword in ("type", *(listing(tuple(found.values)) if found.values else ())):
            yield place, keyword, "the reader takes a value of several types, or of none that is named, for a string"
    for keyword in _NOT_FOLLOWED:
        if keyword in schema:
            yield place, keyword, "the reader does not look for types here"
    properties = schema.get("properties")
    for key, value in properties.items() if isinstance(properties, dict) else ():
        yield from _unsure(value, root, (*place, "properties", key))
    if isinstance(schema.get("items"), dict):
        yield from _unsure(schema["items"], root, (*place, "items"))


def _is_named(types: Any) -> bool:
    """Whether the types are named, by JSON Schema's own names, which the reader knows no others beside."""
    return bool(types) and all(name in TYPES for name in (types if isinstance(types, list) else [types]))


MINIMAX_M3 = _MiniMax(
    "minimax_m3",
    "xgrammar's builder for MiniMax M3",
    f"{_MARK}<tool_call>",
    (f"{_MARK}</tool_call>", f"{_MARK}<invoke", f"{_MARK}</invoke", "<mm:think>", "</mm:think>"),
    think_end="</mm:think>",
    think="<mm:think>",
    name_markers=("<", ">", '"', "\n"),
)
