"""Arguments that are written as pairs of a key and a value, strings as they are and other values as JSON.

How a reader takes a value's text depends on the types that the schema allows for it, so the texts of one argument
must not be ambiguous: text that the reader takes for a number must be a valid number, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from ..kept import Kept
from ..schema import Notes, PlacedNote, Shapes
from ..schema.shapes import ANY, BOOLEAN, NULL, Anything, Array, Literals, Number, Object, Part, Shape, Text
from ..schema.verdicts import Verdict
from .json_values import JsonValues
from .keys import Entries, Entry
from .markers import Markers
from .rules import Rules, one_of, quote
from .shape_keys import shape_key
from .text import Texts
from .words import spelled

__all__ = ["PairFormat", "TaggedArguments"]

#: Characters of a declared key; readers take very long ones for text.
LONGEST_KEY = 200
#: How an object and an array begin, and any of them.
_BRACKETS = {"{": "object", "[": "array"}
_STRUCTURES = (Object(rest=ANY), Array(rest=ANY))
_NUMBERS = frozenset(("number", "integer"))


#: Values of arguments from behind their keys, by all that decides about them: most tools' arguments are like others'.
_values: Kept[_Written] = Kept(4096)
#: Characters of a value's rules that are kept.
MOST_KEPT = 20_000


@dataclass(frozen=True, slots=True)
class _Written:
    """A value from behind its key as an expression over rules of its own, and what there is to say about it."""

    rules: Rules
    framed: str
    notes: tuple[PlacedNote, ...]


@dataclass(frozen=True, slots=True)
class PairFormat:
    """The texts around a key and around a value, and what an undeclared key and a value may not contain."""

    key: tuple[str, str]
    value: tuple[str, str]
    key_markers: tuple[str, ...]
    markers: tuple[str, ...]
    separator: str = ""


@lru_cache(256)
def _context(*same: object) -> object:
    """Something that is the same for the same arguments, and quickly hashed."""
    return object()


class TaggedArguments:
    """Writes the rules of one tool's arguments.

    kinds: the JSON types that the reader considers for an argument; None for a key that the schema does not speak of.
    """

    def __init__(
        self,
        rules: Rules,
        form: PairFormat,
        shapes: Shapes,
        strict: bool,
        kinds: Callable[[str | None], frozenset[str]],
    ) -> None:
        self.rules, self.form, self.shapes, self.strict, self.kinds = rules, form, shapes, strict, kinds
        self.markers = Markers(form.markers)

    @cached_property
    def json(self) -> JsonValues:
        """Writes what is JSON in the values."""
        return JsonValues(self.rules, self.markers, self.shapes, self.strict)

    def write(self) -> str:
        """An expression for the arguments, in all ways that the schema allows; raises ValueError if there is none."""
        shape = self.shapes.definitions.opened(self.shapes.shape)
        choices = [one for part in shape if self.shapes.definitions.part_has_values(part) for one in self._ways(part)]
        if not choices:
            raise ValueError("no arguments satisfy the schema, or only such as cannot be written")
        return one_of(choices)

    def _ways(self, part: Part) -> list[str]:
        match part:
            case Object():
                written = self._object(part)
                return [] if written is None else [written]
            case Literals(values):
                return [
                    " ".join(
                        self._pair(key, self._value((Literals((one,)),), self.kinds(key), (key,)))
                        for key, one in value.items()
                    )
                    or '""'
                    for value in values
                    if isinstance(value, dict)
                ]
        return [self._object(Object(rest=ANY)) or '""']

    def _object(self, found: Object) -> str | None:
        has_values = self.shapes.definitions.has_values
        entries = []
        for name, shape in found.properties.items():
            if not has_values(shape):
                continue
            if self._unspeakable(name):
                self.shapes.note(
                    ("properties", name), "", Verdict.RELAXED, "its name holds a marker or is very long: left out"
                )
                if name in found.required:
                    return None
                continue
            value = self._shared(shape, self.kinds(name), ("properties", name))
            entries.append(Entry(self.rules.add(self._named(name, value)), name in found.required))
        other = self._other(found) if has_values(found.rest) else None
        written = Entries(
            entries, other, quote(self.form.separator) if self.form.separator else "", found.low, found.high
        )
        if (found.low or found.high is not None) and not written.counted:
            keyword = "minProperties" if found.low else "maxProperties"
            self.shapes.note((), keyword, Verdict.RELAXED, "not enforced for so many arguments, or undeclared ones")
        return written.write(self.rules)

    def _unspeakable(self, name: str) -> bool:
        return len(name) > LONGEST_KEY or any(word in name for word in self.form.key_markers)

    def _pair(self, key: str, value: str) -> str:
        return self._named(key, self._framed(value))

    def _named(self, key: str, framed: str) -> str:
        name = spelled(self.rules, key, (self.form.key[1] + self.form.value[0])[0])
        return f"{self.rules.mark(self.form.key[0])} {name} {framed}"

    def _shared(self, shape: Shape, kinds: frozenset[str], place: tuple[str, ...]) -> str:
        """A value of this shape from behind its key, written once for all tools, unless it is only listed values."""
        definitions, content = self.shapes.definitions, None
        if type(self) is TaggedArguments and not all(isinstance(part, Literals) for part in shape):
            content = shape_key(shape, place, definitions.shapes)
        if content is None:
            return self._framed(self._value(shape, kinds, place))
        key = (_context(self.form, self.strict, self.rules.taken), kinds, content)
        found = _values.get(key)
        if found is None:
            notes, alone = Notes(), Rules(self.rules.taken)
            writer = TaggedArguments(alone, self.form, Shapes(shape, definitions, notes), self.strict, self.kinds)
            framed = writer._framed(writer._value(shape, kinds, place))
            found = _Written(alone, framed, notes.seen_from(place))
            if alone.size <= MOST_KEPT:
                _values.put(key, found)
        for note in found.notes:
            self.shapes.note(*note.at(place))
        return self.rules.part(found.rules, found.framed)

    def _framed(self, value: str) -> str:
        """From behind a key to the end of its value: a rule of its own, shared by all keys with such a value."""
        begin, end = self.rules.mark(self.form.key[1] + self.form.value[0]), self.form.value[1]
        if value == self.json.texts.any_raw():
            # A rule that is used in one place only: the compiler then knows what follows it, and need not look later.
            return self.rules.add(f"{begin} {self.json.texts.closed_raw()} {quote(end)}", alone=True)
        return self.rules.add(f"{begin} {value} {self.rules.mark(end)}")

    def _other(self, found: Object) -> str | None:
        """An argument that is not declared; None if it cannot be written."""
        texts = Texts(self.rules, Markers(self.form.key_markers))
        if found.keys is not None:
            note = lambda keyword, verdict, text: self.shapes.note((), keyword, verdict, text)  # noqa: E731
            key = texts.raw(Text(pattern=found.keys), self.strict, note)
        else:
            key = texts.other_raw_key(tuple(found.properties))
        value = self._value(found.rest, self.kinds(None), ("additionalProperties",))
        return self.rules.add(f"{quote(self.form.key[0])} {key} {self._framed(value)}")

    def _value(self, shape: Shape, kinds: frozenset[str], place: tuple[str, ...]) -> str:
        """The texts of one argument's value, of which the reader makes values of this shape."""

        def relaxed(keyword: str, text: str) -> None:
            self.shapes.note(place, keyword, Verdict.RELAXED, text)

        parts = self.shapes.definitions.opened(shape)
        parts = tuple(part for part in parts if self.shapes.definitions.part_has_values(part))
        texts = [part for part in parts if isinstance(part, Text)]
        if any(isinstance(part, Anything) for part in parts):
            texts = [Text()] if "string" in kinds else []
            structures = _STRUCTURES if kinds & {"object", "array"} else ()
            parts = (Number(), *structures, *(() if texts else (BOOLEAN, NULL)))
        if not texts:
            return self.rules.add(one_of(choice for part in parts for choice in self._other_than_text(part, relaxed)))
        free = any(text.pattern is None and text.low == 0 and text.high is None for text in texts)
        numbers = [part for part in parts if isinstance(part, Number)]
        if kinds & _NUMBERS and not _covers(numbers, kinds):
            for keyword in _bounds(numbers) or ["anyOf"]:
                relaxed(keyword, "a string that looks like a number is read as a number, which no bounds hold for")
        if not free and numbers and any(not number.integer for number in numbers):
            relaxed("pattern", "a number in an unusual form is read as a string")
        choices = self._strings(texts, free, parts, kinds, place)
        for part in parts:
            if not isinstance(part, Text):
                choices += self._other_than_text(part, relaxed)
        any_raw = self.json.texts.any_raw()  # all that is written in other ways is text, too
        if any_raw in choices or not choices:
            return any_raw
        return self.rules.add(one_of(choices))

    def _strings(
        self, texts: list[Text], free: bool, parts: Shape, kinds: frozenset[str], place: tuple[str, ...]
    ) -> list[str]:
        """The strings, `free` if any at all. Where the reader looks for JSON, too, none is like it."""

        def note(keyword: str, verdict: Verdict, text: str) -> None:
            self.shapes.note(place, keyword, verdict, text)

        write = self.json.texts
        brackets = "".join(bracket for bracket, kind in _BRACKETS.items() if kind in kinds)
        if not brackets:
            return [write.any_raw()] if free else [write.raw(text, self.strict, note) for text in texts]
        if free:
            whole = (bracket for bracket, part in zip(_BRACKETS, _STRUCTURES, strict=True) if part in parts)
            return [write.not_json(brackets, "".join(whole))]
        written = [write.raw_unlike(brackets, text, self.strict, note) for text in texts]
        if None in written:
            note(
                "pattern",
                Verdict.RELAXED,
                "strings like the beginning of JSON are left out: the reader takes them for it",
            )
        return [one for one in written if one is not None]

    def _other_than_text(self, part: Part, relaxed: Callable[[str, str], None]) -> list[str]:
        match part:
            case Literals(values):
                return self._literals(values, relaxed)
            case Number():
                return list(self.json.number(part))
            case Array():
                return [self.json.array(part)]
            case Object():
                return [self.json.object(part)]
        return [self.json.value((part,))]

    def _literals(self, values: tuple[Any, ...], relaxed: Callable[[str, str], None]) -> list[str]:
        choices = []
        for value in values:
            if not isinstance(value, str):
                choices.append(self.json.literal(value))
            elif not self.markers.inside(value):
                choices.append(quote(value))
        if not choices:
            relaxed("enum", "its values hold markers: any text is allowed")
            return [self.json.texts.any_raw()]
        return choices


def _covers(numbers: list[Number], kinds: frozenset[str]) -> bool:
    """Whether every number that the reader takes for one is valid."""
    free = [number for number in numbers if number.low is None and number.high is None and number.step is None]
    return any(not number.integer for number in free) or (bool(free) and "number" not in kinds)


def _bounds(numbers: list[Number]) -> list[str]:
    """The keywords of the numbers' bounds, each once."""
    found = []
    for number in numbers:
        if number.low is not None:
            found.append("exclusiveMinimum" if number.low_open else "minimum")
        if number.high is not None:
            found.append("exclusiveMaximum" if number.high_open else "maximum")
        if number.step is not None:
            found.append("multipleOf")
    return list(dict.fromkeys(found))
