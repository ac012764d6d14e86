"""DeepSeek-V3.2: all calls in one section of DSML, one element per call and per argument.

``<｜DSML｜parameter name="KEY" string="true">VALUE</｜DSML｜parameter>``: strings as they are, other values as JSON
with ``string="false"``. The reader drops what stands behind the section. vLLM's looks at the types of the values
again: see `vllm_types`. Arguments that are nothing but an undeclared ``arguments`` or ``input`` it takes for a wrapper.
Dynamo's parsers take blanks off the ends of keys, v1 of strings, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..ebnf.rules import Rules, one_of, quote
from ..ebnf.tagged import PairFormat, TaggedArguments
from ..schema.shapes import ANY, Anything, Array, Literals, Number, Object, Shape, Text
from ..schema.verdicts import Verdict
from .dynamo_text import note_blanks, stripped
from .family import Call, Family, StockForm
from .vllm_types import note_misreadings

__all__ = ["DEEPSEEK_V32", "DEEPSEEK_V32_DYNAMO_V1", "DsmlFamily", "stock_form"]

_OPEN, _CLOSE = "<｜DSML｜", "</｜DSML｜"
_STRING, _OTHER = '"true">', '"false">'
_WRAPPERS = ("arguments", "input")
_NO_STRING: Shape = (Number(), Literals((True, False, None)), Array(rest=ANY), Object(rest=ANY))


@dataclass(frozen=True, slots=True)
class DsmlFamily(Family):
    """gap: what stands between DSML's mark and the name of an element. dynamo_v1: whether that parser is the reader."""

    gap: str = ""
    dynamo_v1: bool = False

    def call(self, rules: Rules, call: Call) -> str:
        if not self.dynamo_v1:
            note_misreadings(call.shapes, call.parameters)
        key = f'{_OPEN}{self.gap}parameter name="'
        form = PairFormat((key, '" string='), ("", f"{_CLOSE}{self.gap}parameter>\n"), ("<", ">", '"'), (_OPEN, _CLOSE))
        pairs = _StrippedArguments if self.dynamo_v1 else _DsmlArguments
        arguments = pairs(rules, form, call.shapes, call.strict, lambda _: frozenset()).write()
        begin, end = f'{_OPEN}{self.gap}invoke name="{call.name}">\n', f"{_CLOSE}{self.gap}invoke>\n"
        return f"{quote(begin)} {arguments} {quote(end)}"

    def calls(self, rules: Rules, call: str, parallel: bool) -> tuple[str, bool]:
        end = self.trigger.replace(_OPEN, _CLOSE)
        return f'"\\n" {call} {f"({call})*" if parallel else ""} {quote(end)}', False


class _DsmlArguments(TaggedArguments):
    def _other(self, found: Object) -> str | None:
        if found.keys is not None:
            self.shapes.note((), "propertyNames", Verdict.RELAXED, "not enforced for names that are not declared")
        key = self.json.texts.other_word((*found.properties, *_WRAPPERS), '<>"')
        value = self._value(found.rest, frozenset(), ("additionalProperties",))
        return self.rules.add(f"{quote(self.form.key[0])} {key} {self._framed(value)}")

    def _unspeakable(self, name: str) -> bool:
        return not name or stripped(name) != name or super()._unspeakable(name)

    def _value(self, shape: Shape, kinds: frozenset[str], place: tuple[str, ...]) -> str:
        definitions, choices = self.shapes.definitions, []
        texts, other = quote(_STRING), quote(_OTHER)
        for part in definitions.opened(shape):
            match part:
                case Anything():
                    choices += [f"{texts} {self.json.texts.any_raw()}", f"{other} {self.json.value(_NO_STRING)}"]
                case Text():
                    choices.append(f"{texts} {self._string(part, place)}")
                case Literals(values):
                    choices += [self._literal(value) for value in values if not self._barred(value)]
                case _ if definitions.part_has_values(part):
                    choices.append(f"{other} {self.json.value((part,))}")
        if not choices:
            raise ValueError(f"{'/'.join(place)}: none of its values can be written")
        return self.rules.add(one_of(choices))

    def _string(self, text: Text, place: tuple[str, ...]) -> str:
        return self.json.texts.raw(text, self.strict, lambda k, v, t: self.shapes.note(place, k, v, t))

    def _barred(self, value: object) -> bool:
        return isinstance(value, str) and self.markers.inside(value)

    def _literal(self, value: object) -> str:
        return quote(_STRING + value) if isinstance(value, str) else f"{quote(_OTHER)} {self.json.literal(value)}"


class _StrippedArguments(_DsmlArguments):
    """For a reader that takes blanks off the ends of strings, and keeps integers of 64 bits."""

    def __init__(self, *wishes: Any) -> None:
        super().__init__(*wishes)
        self.json.long_integers = False

    def _string(self, text: Text, place: tuple[str, ...]) -> str:
        note_blanks(text, lambda k, v, t: self.shapes.note(place, k, v, t))
        return super()._string(text, place)

    def _barred(self, value: object) -> bool:
        return (isinstance(value, str) and stripped(value) != value) or super()._barred(value)


def stock_form(section: str) -> StockForm:
    """Dynamo's tags, for a section of this name."""
    around = (f"{_OPEN}{section}>\n", f"{_CLOSE}{section}>")
    return StockForm(f'{_OPEN}invoke name="', '">\n', f"{_CLOSE}invoke>\n", "deepseek_xml", around)


DEEPSEEK_V32 = DsmlFamily(
    "deepseek_v32",
    "encoding of DeepSeek-V3.2, which comes with the model in place of a chat template",
    f"{_OPEN}function_calls>",
    (
        *(f"{_CLOSE}function_calls>", f"{_OPEN}invoke", f"{_OPEN}parameter", f"{_CLOSE}invoke", f"{_CLOSE}parameter"),
        *("<think>", "</think>"),
    ),
    name_markers=("<", ">", '"', "\n"),
    lead="\n\n",
    stock=stock_form("function_calls"),
)
DEEPSEEK_V32_DYNAMO_V1 = replace(DEEPSEEK_V32, name="deepseek_v32-dynamo-v1", stock=None, dynamo_v1=True)
