"""Keywords that speak about one JSON type: numbers, strings, arrays."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from .formats import FORMATS
from .meet import fits, is_empty_range
from .pattern_matcher import length_range
from .pattern_reader import PatternError, read_pattern
from .pattern_tree import Chars, Repeat
from .shapes import Literals, Number, Text
from .verdicts import LIMITS, Verdict

__all__ = ["Note", "count", "read_number", "read_text"]

Note = Callable[[str, Verdict, str], None]
"""Records a keyword of the schema at hand, its verdict, and what happens."""

_INT64 = 2**63
_OF_TEXTS = frozenset(("minLength", "maxLength", "pattern", "format"))
_OF_NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))


def number(schema: Mapping[str, Any], keyword: str, note: Note) -> Fraction | None:
    """A numeric keyword; None if absent or no finite number."""
    value = schema.get(keyword)
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        note(keyword, Verdict.RELAXED, "a number of more than 308 digits: ignored")
        return None
    if not isinstance(value, int | float) or not math.isfinite(value):
        note(keyword, Verdict.RELAXED, f"{value!r:.60} is no number: ignored")
        return None
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def count(schema: Mapping[str, Any], keyword: str, note: Note) -> int | None:
    """A keyword that counts, such as `maxItems`; None if absent or no natural number."""
    value = schema.get(keyword)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value < 0 or value % 1:
        note(keyword, Verdict.RELAXED, f"{value!r:.60} is no natural number: ignored")
        return None
    return int(value)


def bounds(schema: Mapping[str, Any], least: str, most: str, note: Note) -> tuple[int, int | None] | None:
    """A lower and an upper count within the limits; None if they exclude each other."""
    low, high = count(schema, least, note) or 0, count(schema, most, note)
    if high is not None and low > high:
        return None
    if low > LIMITS.minimum_count:
        note(least, Verdict.RELAXED, f"{low} is enforced as {LIMITS.minimum_count}: more costs time at every token")
        low = LIMITS.minimum_count
    if high is not None and high > LIMITS.maximum_count:
        note(most, Verdict.RELAXED, f"{high} is not enforced: more than {LIMITS.maximum_count}")
        high = None
    return low, high


def read_number(
    schema: Mapping[str, Any], integer: bool, place: tuple[str | int, ...], note: Note
) -> tuple[Number, ...]:
    """Bounds and `multipleOf`, as far as xgrammar enforces them without forbidding valid numbers."""
    if _OF_NUMBERS.isdisjoint(schema):
        return (Number(integer, place=place),)
    low, high, low_open, high_open = number(schema, "minimum", note), number(schema, "maximum", note), False, False
    for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        flag, value = schema.get(keyword), number(schema, keyword, note)
        if keyword == "exclusiveMinimum":
            low_open = flag is True  # draft 4
            if value is not None and (low is None or value >= low):
                low, low_open = value, True
        else:
            high_open = flag is True
            if value is not None and (high is None or value <= high):
                high, high_open = value, True
    step = number(schema, "multipleOf", note)
    if step is not None and step <= 0:
        note("multipleOf", Verdict.RELAXED, f"{step} is not greater than 0: ignored")
        step = None
    if step is not None and step.denominator == 1:
        integer, step = True, (None if step == 1 else step)
    found = Number(integer, low, high, low_open, high_open, step, place)
    if is_empty_range(found):
        return ()
    return (found,)


def settle_number(found: Number, strict: bool, note: Note) -> Number | Literals:
    """What the grammar can say of a number: called once all constraints on it are known."""
    low, high, step = found.low, found.high, found.step
    if found.integer:
        if low is not None:
            low = Fraction(math.floor(low) + 1 if found.low_open else math.ceil(low))
        if high is not None:
            high = Fraction(math.ceil(high) - 1 if found.high_open else math.floor(high))
        if step is not None:
            if low is not None and high is not None:
                first, last = math.ceil(low / step), math.floor(high / step)
                if last - first < LIMITS.minimum_count:
                    values = (i * step for i in range(first, last + 1))
                    return Literals(tuple(int(v) for v in values if v.denominator == 1))
            if low is not None or high is not None or step.denominator != 1 or step > 100:
                note("multipleOf", Verdict.RELAXED, "not enforced: xgrammar cannot, with open or wide bounds")
                step = None
        for keyword, bound in (("minimum", low), ("maximum", high)):
            if bound is not None and not -_INT64 <= bound < _INT64:
                note(keyword, Verdict.RELAXED, f"{bound} is not enforced: beyond 64 bits")
        low = low if low is not None and -_INT64 <= low < _INT64 else None
        high = high if high is not None and -_INT64 <= high < _INT64 else None
        return Number(True, low, high, step=step)
    if step is not None:
        note("multipleOf", Verdict.RELAXED, "not enforced: xgrammar ignores it for fractions")
    if low is None and high is None:
        return Number()
    if strict and all(b is None or (abs(b) < 10**15 and (b * 10**6).denominator == 1) for b in (low, high)):
        note("minimum", Verdict.EXACT, "enforced; a bounded fraction has at most 6 decimals and no exponent")
        return Number(False, low, high, found.low_open, found.high_open)
    for keyword, bound in (("minimum", low), ("maximum", high)):
        if bound is not None:
            note(keyword, Verdict.RELAXED, "not enforced: xgrammar's bounded fractions end after 6 decimals and "
                 "have no exponent, so valid numbers would be forbidden")  # fmt: skip
    return Number()


def read_text(schema: Mapping[str, Any], strict: bool, place: tuple[str | int, ...], note: Note) -> tuple[Text, ...]:
    """Length, `pattern` and `format`."""
    if _OF_TEXTS.isdisjoint(schema):
        return (Text(place=place),)
    found = bounds(schema, "minLength", "maxLength", note)
    if found is None:
        return ()
    low, high = found
    text = Text(low, high, None, place)
    source = schema.get("pattern")
    if isinstance(source, str):
        text = _with_pattern(text, source, note)
    elif source is not None:
        note("pattern", Verdict.RELAXED, f"{source!r:.60} is no string: ignored")
    form = schema.get("format")
    if isinstance(form, str):
        if strict and form in FORMATS and text.pattern is None:
            return (_with_pattern(text, FORMATS[form], note),)
        note("format", Verdict.RELAXED, f"{form!r:.60} is an annotation of JSON Schema: not enforced")
    return (text,)


def _with_pattern(text: Text, source: str, note: Note) -> Text:
    try:
        search = read_pattern(source)
    except (PatternError, RecursionError) as error:
        note("pattern", Verdict.RELAXED, f"not enforced: {error}")
        return text
    if search.widened:
        note("pattern", Verdict.RELAXED, f"enforced without {', '.join(search.widened)}, which no grammar can say")
    return Text(text.low, text.high, search.node, text.place)


def settle_text(text: Text, note: Note) -> Text:
    """One pattern that says as much of length and pattern as one automaton can."""
    low, high = text.low, text.high
    if text.pattern is None or (low == 0 and high is None) or fits(length_range(text.pattern), low, high):
        return Text(0, None, text.pattern) if text.pattern is not None else text
    node = text.pattern
    while not isinstance(node, Repeat) and (items := getattr(node, "items", ())) and len(items) == 1:
        node = items[0]
    if isinstance(node, Repeat) and isinstance(node.item, Chars):
        least = max(node.low, low)
        most = min((h for h in (node.high, high) if h is not None), default=None)
        if most is None or least <= most:
            return Text(0, None, Repeat(node.item, least, most))
    for keyword, bound in (("minLength", low or None), ("maxLength", high)):
        if bound is not None:
            note(keyword, Verdict.RELAXED, "not enforced next to this pattern")
    return Text(0, None, text.pattern)
