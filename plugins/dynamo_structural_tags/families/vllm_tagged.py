"""Arguments as pairs of key and value for vLLM's parsers, which take a value's type from the schema as in `vllm_types`.

What they cannot read as the schema wants is left out where other values remain, and relaxed with a message else.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from ..allowed import json_type
from ..ebnf.rules import Rules, one_of, quote
from ..ebnf.tagged import PairFormat, TaggedArguments
from ..schema.shapes import Anything, Array, Literals, Number, Object, Part, Shape, Text, is_member
from ..schema.verdicts import Verdict
from .family import Call
from .vllm_types import STRUCTURES, kept, read_as, types_read

__all__ = ["JSON_BEGINS", "VllmArguments", "declared", "spaced", "vllm_arguments"]

#: What JSON text can begin with, but for the words true, false and null.
JSON_BEGINS = '{["-0123456789 \t\n\r'
#: What an undeclared key cannot contain.
_BARRED = "<>\"'="
_TEXT = frozenset(("string",))


def spaced(*parts: str) -> tuple[str, ...]:
    """A tag in the forms with and without a blank between its parts: vLLM reads it with any number of them."""
    return tuple("".join(pieces) for pieces in product(*([*((part, part + " ") for part in parts[:-1]), parts[-1:]])))


def vllm_arguments(rules: Rules, call: Call, form: PairFormat, undeclared: frozenset[str] = _TEXT) -> str:
    """An expression for the arguments of a call; ValueError if there is none.

    undeclared: the types that the reader considers for an argument that is not declared.
    """
    properties = declared(call.parameters)

    def types(key: str | None) -> frozenset[str]:
        return undeclared if key is None else types_read(properties.get(key))

    return VllmArguments(rules, form, call.shapes, call.strict, types).write()


def declared(parameters: Any) -> dict[str, Any]:
    """The arguments that a schema declares by itself, which is where readers look for their types."""
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    return properties if isinstance(properties, dict) else {}


class VllmArguments(TaggedArguments):
    """reader: who reads the arguments, as messages name it."""

    reader = "vLLM's parser"

    def _unspeakable(self, name: str) -> bool:
        return not name or name.strip() != name or super()._unspeakable(name)

    def _other(self, found: Object) -> str | None:
        rest = self.shapes.definitions.opened(found.rest)
        texts = tuple(part for part in rest if isinstance(part, Text | Anything))
        if not texts:
            return None  # without a type, an argument is read as a string
        if found.keys is not None:
            self.shapes.note((), "propertyNames", Verdict.RELAXED, "not enforced for names that are not declared")
        key = self.json.texts.other_word(tuple(found.properties), _BARRED)
        value = self._value(texts, self.kinds(None), ("additionalProperties",))
        return self.rules.add(f"{quote(self.form.key[0])} {key} {self._framed(value)}")

    def _value(self, shape: Shape, kinds: frozenset[str], place: tuple[str, ...]) -> str:
        definitions = self.shapes.definitions
        parts = tuple(part for part in definitions.opened(shape) if definitions.part_has_values(part))
        if any(isinstance(part, Anything) for part in parts):
            return self.json.texts.any_raw()
        choices: list[str] = []
        for part in parts:
            match part:
                case Literals(values):
                    choices += self._listed(values, parts, kinds, place)
                case Text():
                    choices.append(self._string(part, parts, kinds, place))
                case Number() | Array() | Object():
                    self._check(_kind(part), kinds, place)
                    choices += self._other_than_text(part, lambda keyword, text: self._relaxed(place, keyword, text))
        if not choices:
            self._relaxed(place, "enum", "none of its values can be written: any text is allowed")
            return self.json.texts.any_raw()
        return self.rules.add(one_of(choices))

    def _relaxed(self, place: tuple[str, ...], keyword: str, text: str) -> None:
        self.shapes.note(place, keyword, Verdict.RELAXED, text)

    def _check(self, kind: str, kinds: frozenset[str], place: tuple[str, ...]) -> None:
        if not self._kept(kind, kinds):
            self._relaxed(place, "type", f"{self.reader} makes a string of {kind}: its type is not beside it")

    def _kept(self, kind: str, kinds: frozenset[str]) -> bool:
        """Whether the reader gives back values of a type that are no strings."""
        return kept(kind, kinds)

    def _listed(
        self, values: tuple[Any, ...], parts: Shape, kinds: frozenset[str], place: tuple[str, ...]
    ) -> list[str]:
        readable = [value for value in values if self._readable(value, parts, kinds)]
        return [self._literal(value, kinds, place) for value in readable]

    def _readable(self, value: Any, parts: Shape, kinds: frozenset[str]) -> bool:
        """Whether a listed value can be written: a string so that it is read as something that is allowed."""
        if not isinstance(value, str):
            return True
        return not self.markers.inside(value) and is_member(read_as(value, kinds), parts)

    def _literal(self, value: Any, kinds: frozenset[str], place: tuple[str, ...]) -> str:
        if isinstance(value, str):
            return quote(value)
        self._check(json_type(value), kinds, place)
        return self.json.literal(value)

    def _string(self, text: Text, parts: Shape, kinds: frozenset[str], place: tuple[str, ...]) -> str:
        """Strings that are read as strings, or as other values that are allowed too."""
        free = text.pattern is None and text.low == 0 and text.high is None
        as_json = bool(kinds & STRUCTURES) or "string" not in kinds
        if as_json and free:
            self._relaxed(place, "anyOf", "the words true, false and null are read as JSON")
            return self.json.texts.unlike(JSON_BEGINS)
        uncovered = [kind for kind in sorted(kinds - _TEXT) if not _covered(kind, parts)]
        if uncovered:
            self._relaxed(place, "anyOf", f"a string that looks like {' or '.join(uncovered)} is read as that")
        return self.json.texts.raw(text, self.strict, lambda k, v, t: self.shapes.note(place, k, v, t))


def _kind(part: Part) -> str:
    match part:
        case Number(integer=True):
            return "integer"
        case Number():
            return "number"
        case Array():
            return "array"
    return "object"


def _covered(kind: str, parts: Shape) -> bool:
    """Whether every value of a type belongs to one of the parts."""
    match kind:
        case "null":
            return is_member(None, parts)
        case "boolean":
            return is_member(True, parts) and is_member(False, parts)
        case "integer":
            return Number(integer=True) in parts or Number() in parts
        case "number":
            return Number() in parts
    return False
