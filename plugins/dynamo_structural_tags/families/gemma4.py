"""Gemma 4: a notation of its own, with bare keys and strings as they are between two marks.

``<|tool_call>call:NAME{key:<|"|>text<|"|>,other:[1,true]}<tool_call|>``. vLLM's reader takes everything but lists and
objects for strings first, and then looks at the types of those that `properties` and `items` lead to: see `vllm_types`.
Dynamo's reader is another one: see `gemma4_dynamo`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..allowed import allowed
from ..ebnf.json_values import JsonValues
from ..ebnf.keys import Entries, Entry
from ..ebnf.markers import Markers
from ..ebnf.rules import Rules, one_of, quote
from ..schema import Verdict
from ..schema.charsets import CharSet, charset, complement, minus
from ..schema.shapes import Object, Part, Text
from .family import Call, Family
from .vllm_types import kept, misreadings, types_read

__all__ = ["GEMMA4", "GemmaFamily", "GemmaValues"]

_CALL, _CALL_END, _STRING = "<|tool_call>", "<tool_call|>", '<|"|>'
_THINK, _THINK_END = "<|channel>", "<channel|>"
_KEY_BARRED = charset((ord(char), ord(char)) for char in "<>\"'{}[](),:\\")
_SCALARS = frozenset(("null", "boolean", "integer", "number"))
_NEVER_REACHED = ("$ref", "anyOf", "oneOf", "allOf", "patternProperties", "prefixItems")


class GemmaValues(JsonValues):
    """JSON's structure with bare keys, and strings as they are.

    key_chars: what a key consists of. types_kept: whether the reader takes values for what they are.
    """

    key_chars: CharSet = complement(_KEY_BARRED)
    types_kept = False

    def any_value(self) -> str:
        key = " ".join(("any", type(self).__name__, *self.markers.words))
        found = self.rules.named.get(key)
        if found is None:
            found = self.rules.named[key] = self.rules.reserve()
            pair = self.rules.add(f'{self.texts.word((), self.key_chars)} ":" {found}')
            choices = [self._string(self.texts.any_raw()), self.any_number(), '"true"', '"false"', '"null"']
            choices += [self.any_array(), self._braces(self._list(pair))]
            self.rules.define(found, one_of(choices))
        return found

    def literal(self, value: Any) -> str:
        match value:
            case str():
                if self.markers.inside(value):
                    raise ValueError(f"{value!r}: a listed value holds a marker, which no escape can write")
                return quote(_STRING + value + _STRING)
            case dict():
                entries = [Entry(self._pair(key, self.literal(one)), True) for key, one in value.items()]
                return self._braces(Entries(entries, None, self.comma).write(self.rules))
        return super().literal(value)

    def _part(self, part: Part) -> Sequence[str]:
        if isinstance(part, Text):
            return [self._string(self.texts.raw(part, self.strict, self._note(part.place)))]
        return super()._part(part)

    def _string(self, text: str) -> str:
        return self.rules.add(f"{quote(_STRING)} {text} {quote(_STRING)}")

    def _other(self, found: Object) -> str:
        if found.keys is not None:
            self._note(())("propertyNames", Verdict.RELAXED, "not enforced for names that are not declared")
        key = self.texts.word(tuple(found.properties), self.key_chars)
        return self.rules.add(f'{key} ":" {self.value(found.rest)}')

    def _speaks(self, key: str) -> bool:
        return key.strip() == key != "" and not minus(charset((ord(char), ord(char)) for char in key), self.key_chars)

    def _pair(self, key: str, value: str) -> str:
        if not self._speaks(key):
            raise ValueError(f"{key!r}: a key of this name cannot be written without quotes")
        return self.rules.add(f"{quote(key + ':')} {value}")


@dataclass(frozen=True, slots=True)
class GemmaFamily(Family):
    """values: writes the arguments, as the reader takes them."""

    values: type[GemmaValues] = GemmaValues

    def call(self, rules: Rules, call: Call) -> str:
        for place, text in () if self.values.types_kept else _misread(call.parameters, call.parameters, ()):
            call.shapes.note(place, "type", Verdict.RELAXED, text)
        shapes = call.shapes
        if not shapes.definitions.has_values(shapes.shape):
            raise ValueError("no arguments satisfy the schema")
        markers = Markers((_STRING, _CALL_END, _CALL, _THINK, _THINK_END))
        arguments = self.values(rules, markers, shapes, call.strict, '""').value(shapes.shape)
        return f"{quote(f'call:{call.name}')} {arguments} {quote(_CALL_END)}"

    def calls(self, rules: Rules, call: str, parallel: bool) -> tuple[str, bool]:
        return (f"{call} ({quote(_CALL)} {call})*" if parallel else call), False


def _misread(schema: Any, root: Any, place: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The places whose values the reader does not give back as they were."""
    if not isinstance(schema, dict) or len(place) > 20:
        return
    kinds, types = allowed(schema, root).kinds(), types_read(schema)
    lost = sorted(kind for kind in kinds & _SCALARS if not kept(kind, types))
    if place and len(kinds) < 7 and lost:
        yield place, f"the reader makes a string of {' or '.join(lost)}: its type is not beside it"
    elif place and (text := misreadings(schema, root)) is not None:
        yield place, text
    if any(keyword in schema for keyword in _NEVER_REACHED) and kinds & {"object", "array"}:
        yield place, "the reader leaves numbers, booleans and null in branches, references and patterns as strings"
    rest = schema.get("additionalProperties")
    if isinstance(rest, dict) and not ({"string"} <= allowed(rest, root).kinds() or not rest):
        yield (*place, "additionalProperties"), "the reader leaves values of undeclared keys as strings"
    properties = schema.get("properties")
    for key, value in properties.items() if isinstance(properties, dict) else ():
        yield from _misread(value, root, (*place, "properties", key))
    if place and isinstance(schema.get("items"), dict):
        yield from _misread(schema["items"], root, (*place, "items"))


GEMMA4 = GemmaFamily(
    "gemma4",
    "chat template of Gemma 4",
    _CALL,
    (_CALL_END, _STRING, _THINK, _THINK_END, "<|turn>", "<turn|>", "<|tool_response>"),
    think_end=_THINK_END,
    think=_THINK,
    name_markers=("{", "(", ":", "\n"),
)
