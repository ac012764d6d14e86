"""Llama 3.2 and 4, ToolACE: the whole answer is a list of calls in Python, or text.

``[NAME(key="text", other=[1, True, None])]``. vLLM's reader takes it with Python's own parser; where it streams, only
an answer that begins with a bracket holds calls. Dynamo 1.6.1 reads it as well, but loses negative numbers.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..ebnf.json_values import JsonValues
from ..ebnf.markers import Markers
from ..ebnf.numbers import ANY_NUMBER
from ..ebnf.rules import Rules, char_class, one_of, quote
from ..ebnf.spelling import JsonSpelling
from ..ebnf.tagged import PairFormat, TaggedArguments
from ..ebnf.text import Texts
from ..schema import Shapes
from ..schema.charsets import ALL, CharSet, charset, minus
from ..schema.shapes import Object, Shape
from ..schema.verdicts import Verdict
from .family import Call, Family

__all__ = ["PYTHONIC"]

_FORM = PairFormat(("", "="), ("", ""), (), (), ", ")
_WORD = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")
_REST = "[a-zA-Z0-9_]"
#: JSON's escapes that mean the same in Python: no slash, and no halves of pairs.
_ESCAPE = (
    '"\\\\" (["\\\\bfnrt] | "u" ([0-9a-cA-Ce-fE-F] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F]'
    " | [dD] [0-7] [0-9a-fA-F] [0-9a-fA-F]))"
)
_ALPHABET = "".join(map(chr, (*range(0x30, 0x3A), *range(0x41, 0x5B), 0x5F, *range(0x61, 0x7B))))
_WORDS = {True: "True", False: "False", None: "None"}


@dataclass(frozen=True, slots=True)
class _Pythonic(Family):
    def speaks(self, name: str) -> bool:
        return _WORD.fullmatch(name) is not None and not keyword.iskeyword(name)

    def call(self, rules: Rules, call: Call) -> str:
        arguments = _Arguments(rules, _FORM, call.shapes, call.strict, lambda _: frozenset()).write()
        return f"{quote(call.name + '(')} {arguments} {quote(')')}"

    def calls(self, rules: Rules, call: str, parallel: bool) -> tuple[str, bool]:
        more = f"({quote(', ')} {call})*" if parallel else ""
        return f'{call} {more} "]"', False

    def answer(self, rules: Rules) -> str | None:
        first = minus(ALL, charset([(ord("["), ord("["))]))
        return rules.add(f'"" | {char_class(first)} {char_class(ALL)}*')


class _Arguments(TaggedArguments):
    """Keyword arguments."""

    def __init__(self, *wishes: Any) -> None:
        super().__init__(*wishes)
        self.json = _Values(self.rules, self.markers, self.shapes, self.strict)

    def _unspeakable(self, name: str) -> bool:
        return _WORD.fullmatch(name) is None or keyword.iskeyword(name) or super()._unspeakable(name)

    def _other(self, found: Object) -> str | None:
        if found.keys is not None:
            self.shapes.note((), "propertyNames", Verdict.RELAXED, "not enforced for names that are not declared")
        key = _other_word(self.rules, (*keyword.kwlist, *found.properties))
        return self.rules.add(f'{key} "=" {self.json.value(found.rest)}')

    def _value(self, shape: Shape, kinds: frozenset[str], place: tuple[str, ...]) -> str:
        return self.json.value(shape)


def _other_word(rules: Rules, words: Iterable[str]) -> str:
    """A rule for a name that is none of `words`: letter by letter along them, and off at any place."""
    kept = frozenset(word for word in words if _WORD.fullmatch(word))

    def behind(start: str) -> str:
        steps = sorted({word[len(start)] for word in kept if word.startswith(start) and len(word) > len(start)})
        if start and not steps:
            return f"{_REST}+"
        choices = [f"{quote(char)} {rules.add(behind(start + char))}" for char in steps]
        others = "".join(char for char in _ALPHABET if char not in steps and (start or char.isalpha()))
        choices.append(f"[{others}] {_REST}*")
        if start and start not in kept:
            choices.append('""')
        return " | ".join(choices)

    return rules.add(behind(""))


class _Spelling(JsonSpelling):
    def escapes(self, chars: CharSet) -> str | None:
        return _ESCAPE if chars == ALL else super().escapes(chars)


class _Texts(Texts):
    def __init__(self, rules: Rules, markers: Markers) -> None:
        super().__init__(rules, markers)
        self._json = _Spelling(rules, markers)


class _Values(JsonValues):
    """JSON with Python's words and escapes."""

    def __init__(self, rules: Rules, markers: Markers, shapes: Shapes, strict: bool) -> None:
        super().__init__(rules, markers, shapes, strict, '" "?')
        self.texts = _Texts(rules, markers)

    def any_value(self) -> str:
        found = self.rules.named.get("any python")
        if found is None:
            found = self.rules.named["any python"] = self.rules.reserve()
            text = self.texts.any_json()
            pair = self.rules.add(f"{text} {self.colon} {found}")
            choices = [text, self.rules.add(ANY_NUMBER), *map(quote, _WORDS.values())]
            choices += [self.any_array(), self._braces(self._list(pair))]
            self.rules.define(found, one_of(choices))
        return found

    def literal(self, value: Any) -> str:
        return quote(_WORDS[value]) if value is None or isinstance(value, bool) else super().literal(value)


PYTHONIC = _Pythonic("pythonic", "chat templates of Llama 3.2 and ToolACE", "[", (), name_markers=("\n",))
