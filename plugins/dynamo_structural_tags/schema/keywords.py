"""The table of keywords in docs/structural_tags.md: what is enforced of each, with an example that proves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .verdicts import LIMITS, Verdict

__all__ = ["KEYWORDS", "Keyword", "table"]

_EXACT, _RELAXED = Verdict.EXACT, Verdict.RELAXED
_KEY = {"a": {"type": "integer"}}


@dataclass(frozen=True, slots=True)
class Keyword:
    """One row: a form of a keyword, its verdict, and what the grammar enforces."""

    name: str
    verdict: Verdict
    enforced: str
    example: Any


KEYWORDS = (
    Keyword("`type`, a list of types", _EXACT, "the types; bounds hold for their type", {"type": ["integer", "null"]}),
    Keyword("`type: any`, ...", _RELAXED, "nothing", {"type": "any"}),
    Keyword("`type: str`, `int`, `dict`, `String`, ...", _RELAXED, "the type that is meant", {"type": "str"}),
    Keyword("`true`, `{}`, no keyword", _EXACT, "any value", {}),
    Keyword("`enum`, `const`", _EXACT, "the values that the other keywords allow", {"enum": ["a", 1], "minimum": 2}),
    Keyword(f"`enum` of more than {LIMITS.literals}", _RELAXED, "the type", {"enum": list(range(LIMITS.literals + 1))}),
    Keyword("integers beyond 64 bits", _RELAXED, "the type", {"const": 2**64}),
    Keyword("`pattern`", _EXACT, "as a search, over all spellings of JSON", {"pattern": "^https?://"}),
    Keyword("lookaround, `\\b`, `\\1`, `\\p{..}`", _RELAXED, "the pattern without them", {"pattern": r"^(?=a)\p{L}"}),
    Keyword("`minLength`, `maxLength`", _EXACT, "characters, escapes counted as one", {"minLength": 1, "maxLength": 9}),
    Keyword("length beside `pattern`", _EXACT, "both, if one set of characters repeats",
            {"pattern": "^[a-z]+$", "maxLength": 64}),
    Keyword("length beside another `pattern`", _RELAXED, "the pattern", {"pattern": "^https?://", "maxLength": 64}),
    Keyword("`format`", _RELAXED, "nothing; strict tools: date, time, date-time, uuid, ipv4", {"format": "uri"}),
    Keyword("bounds of `integer`", _EXACT, "the bounds, fractions and draft 4 included",
            {"type": "integer", "minimum": 0.5, "exclusiveMaximum": 9}),
    Keyword("bounds of `number`", _RELAXED, "nothing; strict tools: the bounds, with at most 6 decimals",
            {"type": "number", "minimum": 0}),
    Keyword("`multipleOf` of `integer`", _EXACT, "without bounds up to 100, or within narrow bounds",
            {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}),
    Keyword("other `multipleOf`", _RELAXED, "for whole numbers the type", {"type": "number", "multipleOf": 0.5}),
    Keyword("`properties`, `required`", _EXACT, "each key once, in the schema's order; undeclared required keys too",
            {"type": "object", "properties": _KEY, "required": ["b"]}),
    Keyword("`additionalProperties`", _EXACT, "missing: open, for strict tools closed; no declared key twice",
            {"type": "object", "properties": _KEY, "additionalProperties": {"type": "string"}}),
    Keyword("`patternProperties` alone in a closed object", _EXACT, "keys by search and their values",
            {"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": False}),
    Keyword("other `patternProperties`", _RELAXED, "declared keys; others may hold what any pattern allows",
            {"type": "object", "patternProperties": {"^x": _KEY}}),
    Keyword("`propertyNames`", _EXACT, "an enum, or a pattern without declared keys",
            {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}),
    Keyword("other `propertyNames`", _RELAXED, "declared keys",
            {"type": "object", "properties": {"a": {}}, "propertyNames": {"pattern": "^[a-z]+$"}}),
    Keyword("`minProperties`, `maxProperties`", _EXACT, "closed objects of up to 20 keys",
            {"type": "object", "properties": _KEY, "additionalProperties": False, "minProperties": 1}),
    Keyword("`items`, none, `prefixItems`, a list", _EXACT, "each place; without `items` any",
            {"type": "array", "items": [{"type": "integer"}]}),
    Keyword("`minItems`, `maxItems`", _EXACT, f"up to {LIMITS.minimum_count} and {LIMITS.maximum_count}",
            {"type": "array", "minItems": 2, "maxItems": 5}),
    Keyword("`uniqueItems`, `contains`", _RELAXED, "nothing", {"type": "array", "uniqueItems": True}),
    Keyword("`anyOf`", _EXACT, "the branches, each with the keywords beside it",
            {"anyOf": [{"type": "integer"}, {"type": "null"}], "minimum": 3}),
    Keyword("`oneOf` whose branches exclude each other", _EXACT, "the branches",
            {"oneOf": [{"type": "integer"}, {"type": "string"}]}),
    Keyword("other `oneOf`", _RELAXED, "as `anyOf`", {"oneOf": [{"type": "integer"}, {"type": "number"}]}),
    Keyword("`allOf`", _EXACT, "the intersection", {"allOf": [{"type": "integer"}, {"type": "integer", "minimum": 3}]}),
    Keyword("two patterns for one string", _RELAXED, "the first",
            {"allOf": [{"pattern": "a"}, {"pattern": "b"}]}),
    Keyword("`not` of types, or of literals among literals", _EXACT, "what is left",
            {"type": ["string", "null"], "not": {"type": "null"}}),
    Keyword("other `not`, `if`, `dependent...`, `unevaluated...`", _RELAXED, "nothing", {"not": {"required": ["a"]}}),
    Keyword("`$ref` into the document", _EXACT, "pointers, anchors, ids, recursion; siblings since 2019-09",
            {"$ref": "#/$defs/N", "$defs": {"N": {"type": "array", "items": {"$ref": "#/$defs/N"}}}}),
    Keyword("`$ref` to elsewhere", _RELAXED, "nothing; nothing is fetched", {"$ref": "https://example.org/s.json"}),
    Keyword("`nullable: true`", _RELAXED, "null is allowed as well", {"type": "string", "nullable": True}),
    Keyword("no value possible", Verdict.IMPOSSIBLE, "nothing; an optional key with it is left out", {"enum": []}),
)  # fmt: skip


def table() -> str:
    """The rows as Markdown."""
    rows = (f"| {row.name.replace('|', chr(92) + '|')} | {row.verdict} | {row.enforced} |" for row in KEYWORDS)
    return "\n".join(("| Keyword | Verdict | What the grammar enforces |", "|---|---|---|", *rows))
