"""Arguments as pairs of key and value for Dynamo's v1 parser of XML calls, which reads them as in `dynamo_types`.

What it cannot read as the schema wants is left out where other values remain, and relaxed with a message else.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ..ebnf.rules import Rules, char_class
from ..ebnf.spelling import Spelling
from ..ebnf.tagged import PairFormat
from ..schema.charsets import ALL, charset, minus
from ..schema.pattern_matcher import matches
from ..schema.shapes import Shape, Text, is_member, same_json
from ..schema.typed import Note
from ..schema.verdicts import Verdict
from .dynamo_text import BLANK_CHARS, BLANKS, ENTITIES, note_blanks, stripped
from .dynamo_types import JSON, listing, read_as, type_read
from .family import Call
from .vllm_tagged import JSON_BEGINS, VllmArguments, declared

__all__ = ["dynamo_arguments"]


def dynamo_arguments(rules: Rules, call: Call, form: PairFormat) -> str:
    """An expression for the arguments of a call; ValueError if there is none."""
    properties = declared(call.parameters)
    form = replace(form, markers=(*form.markers, *ENTITIES))

    def types(key: str | None) -> frozenset[str]:
        return frozenset((type_read(None if key is None else properties.get(key)),))

    return _DynamoArguments(rules, form, call.shapes, call.strict, types).write()


class _DynamoArguments(VllmArguments):
    reader = "Dynamo's v1 parser"

    def __init__(self, *wishes: Any) -> None:
        super().__init__(*wishes)
        self.json.long_integers = False

    def _unspeakable(self, name: str) -> bool:
        return stripped(name) != name or name[:1] in ("'", '"') or super()._unspeakable(name)

    def _kept(self, kind: str, kinds: frozenset[str]) -> bool:
        return kind == "null" or kind in kinds or JSON in kinds or (kind == "integer" and "number" in kinds)

    def _listed(
        self, values: tuple[Any, ...], parts: Shape, kinds: frozenset[str], place: tuple[str, ...]
    ) -> list[str]:
        speakable = [value for value in values if not (isinstance(value, str) and self.markers.inside(value))]
        given_back = [value for value in speakable if self._gives_back(value, kinds)]
        if speakable and not given_back:
            for keyword in listing(values):
                self._relaxed(place, keyword, f"{self.reader} makes other values of its values")
        return [self._literal(value, kinds, place) for value in given_back or speakable]

    def _gives_back(self, value: Any, kinds: frozenset[str]) -> bool:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return all(same_json(read_as(text, kind), value) for kind in kinds)

    def _string(self, text: Text, parts: Shape, kinds: frozenset[str], place: tuple[str, ...]) -> str:
        def note(keyword: str, verdict: Verdict, message: str) -> None:
            self.shapes.note(place, keyword, verdict, message)

        note_blanks(text, note)
        if JSON in kinds:
            return self._beside_json(text, place, note)
        written = self.json.texts.raw(text, self.strict, note)
        if is_member(None, parts):
            return written
        if text.pattern is not None:
            if any(matches(text.pattern, word) for word in ("null", "NULL", "Null")):
                note("type", Verdict.RELAXED, f"{self.reader} reads the word null as null")
            return written
        counted = text.high if self.strict else None
        return self.rules.add(self._not_null(empty=not text.low), most_characters=counted)

    def _beside_json(self, text: Text, place: tuple[str, ...], note: Note) -> str:
        self._relaxed(place, "anyOf", f"{self.reader} reads a string that looks like JSON, or a word of it, as that")
        if text.pattern is not None or text.low or text.high is not None:
            return self.json.texts.raw(text, self.strict, note)
        return self.json.texts.unlike(f"{JSON_BEGINS}'{BLANK_CHARS}")

    def _not_null(self, *, empty: bool) -> str:
        """Any text but the word null, in any case, between blanks or not."""
        add, raw = self.rules.add, Spelling(self.rules, self.markers).nonempty
        blanks = f"{char_class(BLANKS)}*"
        behind = add(f"{blanks} {raw(minus(ALL, BLANKS))}")  # of the whole word: more than blanks
        for letter in reversed("null"):
            both = charset((ord(char), ord(char)) for char in (letter, letter.upper()))
            first = letter == "n"
            others = raw(minus(ALL, charset((*both, *(BLANKS if first else ())))))
            choices = ['""'] * (empty or not first) + [others, f"{char_class(both)} {behind}"]
            behind = add(" | ".join(choices))
        return add(f"{blanks} {behind}")
