"""JSON values of a shape: no raw control characters, no markers in strings, at most one blank between the parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from math import ceil, floor
from typing import Any

from ..schema import Shapes
from ..schema.shapes import ANY, Anything, Array, Literals, Number, Object, Part, Ref, Shape, Text
from ..schema.typed import Note, settle_number
from ..schema.verdicts import Verdict
from .json_strings import BEHIND
from .keys import Entries, Entry
from .markers import Markers
from .numbers import SAFE_DIGITS, fraction_range, integer_range, multiples
from .rules import Rules, one_of, quote
from .text import Texts, json_literal
from .words import spelled

__all__ = ["ONE_LINE", "JsonValues"]

#: What may stand between two parts of a value, for readers that take a value's text from one line.
ONE_LINE = '" "?'

_MOST_ITEMS = 64


class JsonValues:
    """Writes the rules of JSON values of one document into a grammar that others may share.

    blank: an expression for what may stand between two parts.
    long_integers: whether the reader takes integers that 64 bits do not hold. exponents: and numbers with an exponent.
    behind: what may follow a value, see `json_strings.BEHIND`.
    """

    behind = BEHIND
    long_integers = True
    exponents = True

    def __init__(
        self, rules: Rules, markers: Markers, shapes: Shapes, strict: bool, blank: str = "[ \\n\\r\\t]?"
    ) -> None:
        self.rules, self.markers, self.shapes, self.strict = rules, markers, shapes, strict
        self.texts = Texts(rules, markers)
        self.blank = rules.add(blank)
        self.comma, self.colon = (rules.add(_spaced(blank, mark, blank)) for mark in ",:")
        self.close_array, self.close_object = (rules.add(_spaced(blank, mark, "")) for mark in "]}")
        self._references: dict[str, str | None] = {}

    def value(self, shape: Shape) -> str:
        """The name of a rule for the values of a shape that has some."""
        if shape == ANY or any(isinstance(part, Anything) for part in shape):
            return self.any_value()
        kept = [part for part in shape if self.shapes.definitions.part_has_values(part)]
        return self.rules.add(one_of(choice for part in kept for choice in self._part(part)))

    def any_value(self) -> str:
        """Any JSON value."""
        key = " ".join(("any", self.blank, *self.markers.words))
        found = self.rules.named.get(key)
        if found is None:
            found = self.rules.named[key] = self.rules.reserve()
            text, number = self.texts.any_json(), self.any_number()
            pair = self.rules.add(f"{self.texts.any_json(':')} {self.colon} {found}")
            choices = [text, number, '"true"', '"false"', '"null"', self.any_array(), self._several(pair, self._braces)]
            self.rules.define(found, one_of(choices))
        return found

    def any_number(self) -> str:
        """Any number."""
        return self.rules.add(fraction_range(None, None, long=self.long_integers, exponents=self.exponents))

    def any_array(self) -> str:
        """Any array."""
        return self.rules.add(self._several(self.item(ANY), self._brackets))

    def item(self, shape: Shape) -> str:
        """A rule for one value of an array."""
        return self._before(",]").value(shape)

    def _before(self, behind: str) -> JsonValues:
        """The same for values that one of these characters follows, perhaps after blanks."""
        found = copy(self)
        found.behind = behind
        return found

    def literal(self, value: Any) -> str:
        """One value; arrays and objects by their structure, so that blanks are free in them."""
        if isinstance(value, list):
            return self._brackets(f" {self.comma} ".join(map(self.literal, value)) or '""')
        if isinstance(value, dict):
            entries = [Entry(self._pair(key, self.literal(one)), True) for key, one in value.items()]
            return self._braces(Entries(entries, None, self.comma).write(self.rules))
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        return quote(json_literal(json.dumps(value, ensure_ascii=False), self.markers))

    def number(self, part: Number) -> list[str]:
        """The choices for numbers of one part."""
        settled = settle_number(part, True, self._note(part.place)) if part.integer else part
        if isinstance(settled, Literals):
            return [self.literal(value) for value in settled.values]
        low, high = settled.low, settled.high
        if settled.integer:
            if settled.step is not None and settled.step > 1:
                longest = None if self.long_integers else SAFE_DIGITS
                return [self.rules.add(multiples(self.rules, int(settled.step)), most_characters=longest)]
            return [self.rules.add(integer_range(_whole(low), _whole(high), long=self.long_integers))]
        note = self._note(part.place)
        if settled.step is not None:
            note("multipleOf", Verdict.RELAXED, "not enforced: no grammar can, for fractions")
        for keyword, bound, is_open in (("minimum", low, settled.low_open), ("maximum", high, settled.high_open)):
            if bound is not None and (is_open or bound.denominator != 1):
                keyword = f"exclusive{keyword.capitalize()}" if is_open else keyword
                note(keyword, Verdict.RELAXED, f"{float(bound):g} is not enforced exactly: whole bounds are")
        least, most = None if low is None else floor(low), None if high is None else ceil(high)
        return [self.rules.add(fraction_range(least, most, long=self.long_integers, exponents=self.exponents))]

    def _part(self, part: Part) -> Sequence[str]:
        match part:
            case Ref(name):
                return [self._reference(name)]
            case Number():
                return self.number(part)
            case Text():
                return [self.texts.json(part, self.strict, self._note(part.place), self.behind)]
            case Literals(values):
                return [self.literal(value) for value in values]
            case Array():
                return [self.array(part)]
            case Object():
                return [self.object(part)]
        return [self.any_value()]

    def _note(self, place: tuple[str | int, ...]) -> Note:
        return lambda keyword, verdict, text: self.shapes.note(place, keyword, verdict, text)

    def _reference(self, name: str) -> str:
        if name not in self._references:
            self._references[name] = None
            value = self._before(BEHIND).value(self.shapes.definitions.shapes[name])
            own = self._references[name]  # only a definition that refers to itself has got a name meanwhile
            if own is None:
                self._references[name] = value
            else:
                self.rules.define(own, value)
        found = self._references[name]
        if found is None:
            found = self._references[name] = self.rules.reserve()
        return found

    def array(self, array: Array) -> str:
        """A rule for arrays of one part."""
        has_values = self.shapes.definitions.has_values
        low, high = array.low, array.high
        prefix = list(array.prefix if high is None else array.prefix[:high])
        for place, shape in enumerate(prefix):
            if not has_values(shape):
                prefix, high = prefix[:place], place
                break
        more = has_values(array.rest) and (high is None or high > len(prefix))
        rest = self.item(array.rest) if more else None
        if high is not None and high - len(prefix) > _MOST_ITEMS and more:
            self._note(())("maxItems", Verdict.RELAXED, f"{high} is not enforced: more than {_MOST_ITEMS}")
            high = None
        if low - len(prefix) > _MOST_ITEMS:
            self._note(())("minItems", Verdict.RELAXED, f"{low} is enforced as {_MOST_ITEMS}")
            low = len(prefix) + _MOST_ITEMS
        # Behind place i: nothing, if there are enough, or a comma and the next place.
        tail = '""'
        if rest is not None:
            least, most = max(0, low - len(prefix)), None if high is None else high - len(prefix)
            counted = "*" if (least, most) == (0, None) else f"{{{least},{'' if most is None else most}}}"
            tail = f"({self.comma} {rest}){counted}"
        for place in range(len(prefix) - 1, 0, -1):
            step = f"{self.comma} {self.item(prefix[place])} {self.rules.add(tail)}"
            tail = step if place < low else f"({step})?"
        if prefix:
            inner = f"{self.item(prefix[0])} {self.rules.add(tail)}"
        elif rest is not None and low < 2 and high is None:
            return self.rules.add(self._several(rest, self._brackets, empty=low == 0))
        elif rest is not None:
            least, most = max(0, low - 1), None if high is None else high - 1
            counted = "*" if (least, most) == (0, None) else f"{{{least},{'' if most is None else most}}}"
            inner = f"{rest} ({self.comma} {rest}){counted}" if most != 0 else rest
        else:
            inner = '""'
        if low == 0 and inner != '""':
            inner = f"({inner})?"
        return self.rules.add(self._brackets(inner))

    def object(self, found: Object) -> str:
        """A rule for objects of one part."""
        has_values = self.shapes.definitions.has_values
        usable = {name: shape for name, shape in found.properties.items() if has_values(shape)}
        for name in [name for name in usable if name not in found.required and not self._speaks(name)]:
            self._note(("properties", name))("", Verdict.RELAXED, "its name cannot be written: left out")
            del usable[name]
        inside = self._before(",}")
        entries = [Entry(self._pair(name, inside.value(one)), name in found.required) for name, one in usable.items()]
        entries = [entry for entry in entries if entry.rule]
        other = self._other(found) if has_values(found.rest) else None
        written = Entries(entries, other, self.comma, found.low, found.high)
        if (found.low or found.high is not None) and not written.counted:
            self._note(())("minProperties" if found.low else "maxProperties", Verdict.RELAXED, "not enforced")
        return self.rules.add(self._braces(written.write(self.rules)))

    def _speaks(self, key: str) -> bool:
        """Whether a key can be written; a required one that cannot is a ValueError of `_pair`."""
        return True

    def _other(self, found: Object) -> str | None:
        """A key that is not declared, with its value; None if it cannot be written."""
        value = self._before(",}").value(found.rest)
        if found.keys is not None:
            key = self.texts.json(Text(pattern=found.keys), self.strict, self._note(()), ":")
        elif not found.properties:
            key = self.texts.any_json(":")
        else:
            key = self.texts.other_key(tuple(found.properties))
        return self.rules.add(f"{key} {self.colon} {value}")

    def _pair(self, key: str, value: str) -> str:
        name = json_literal(json.dumps(key, ensure_ascii=False), self.markers)
        return self.rules.add(f'"\\"" {spelled(self.rules, name[1:-1], name[-1])} "\\"" {self.colon} {value}')

    def _list(self, item: str) -> str:
        return f"({item} ({self.comma} {item})*)?"

    def _several(self, item: str, around: Callable[[str], str], *, empty: bool = True) -> str:
        """Any number of items in brackets. empty: also none, as a way apart: what may be missing in a sequence is a
        rule of its own for the compiler, which the matcher goes through at the end of each item."""
        more = self.rules.add(f"{self.comma} {item}")
        return one_of([around(f"{item} {more}*"), *([around('""')] if empty else [])])

    def _brackets(self, inner: str) -> str:
        return f'"[" {self.blank} {inner} {self.close_array}'

    def _braces(self, inner: str) -> str:
        return f'"{{" {self.blank} {inner} {self.close_object}'


@lru_cache(256)
def _spaced(before: str, mark: str, after: str) -> str:
    """A mark in each of the ways that blanks, which may be missing, are beside it: these are one automaton."""
    left, right = (("", blank[:-1]) if blank.endswith("?") else ("",) for blank in (before, after))
    return one_of(f"{one} {quote(mark)} {other}".strip() for one in left for other in right)


def _whole(bound: Any) -> int | None:
    return None if bound is None else int(bound)
