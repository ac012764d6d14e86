"""From the text of a value to JSON, by what its schema allows.

The template writes a string as it is and any other value as JSON, so the text ``7`` is a string or a number, and
only the schema can tell. The rules, in this order:

1. One of the schema's listed values (`enum`, `const`), as a string or as JSON, is that value.
2. If a string is allowed, the text is a string, letter for letter, unless it is exactly what the template writes for
   another type that is allowed too: ``null``, ``true``, ``false``, a number in JSON's normal form (``7`` and ``1.5``,
   but not ``007``, ``1.50`` or one with a blank before it), or an object or array without anything around it.
3. If no string is allowed, the text is JSON, with white space around it if need be.
4. What is not JSON is repaired if it is Python's notation or has raw control characters in its strings.
5. Anything else stays the text it is, and the caller is told that it does not fit.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from dynamo_structural_tags.allowed import Allowed, value_key

__all__ = ["MOST_NESTED", "JsonDepth", "Reading", "could_be_other", "escaped", "quoted", "read_value", "utf8"]

#: Arrays and objects inside each other that are read as JSON; Python's own reader gives up near 1000.
MOST_NESTED = 200
_LONGEST_NUMBER = 400

_SURROGATE = re.compile("[\ud800-\udfff]")
_NUMBER_BEGINNING = re.compile(r"-?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d*)?)?")
_STRUCTURE = re.compile(r'["\\{}\[\]]')
_LOOSE = re.compile(
    r'"[^"\\]*(?:\\[\s\S][^"\\]*)*"?'
    r"|'[^'\\]*(?:\\[\s\S][^'\\]*)*'?"
    r"|\b(?:True|False|None)\b|,(?=\s*[\]}])"
)
_WORDS = {"True": "true", "False": "false", "None": "null", ",": ""}
_to_json = json.JSONEncoder(ensure_ascii=False).encode


def quoted(text: str) -> str:
    """The text as a JSON string that can be encoded as UTF-8: lone surrogates are escaped."""
    literal = _to_json(text)
    if literal.isascii():
        return literal
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", literal)


def escaped(text: str) -> str:
    """`quoted` without the quotation marks: pieces of a string may be escaped one by one."""
    return quoted(text)[1:-1]


class JsonDepth:
    """Follows JSON text that comes in pieces: how many arrays and objects are open (`depth`), and were at most."""

    __slots__ = ("_escape", "_in_string", "deepest", "depth")

    def __init__(self) -> None:
        self.depth = self.deepest = 0
        self._in_string = self._escape = False

    @property
    def is_json(self) -> bool:
        """Whether there was an array or object: then its brackets tell where it ends."""
        return self.deepest > 0

    @property
    def inside(self) -> bool:
        """Whether one is open."""
        return self.depth > 0

    def feed(self, text: str) -> None:
        """Take the next piece. Linear in its length."""
        position = 0
        if self._escape and text:
            self._escape, position = False, 1
        while match := _STRUCTURE.search(text, position):
            position = match.end()
            sign = match[0]
            if self._in_string:
                if sign == "\\":
                    self._escape = position == len(text)
                    position += 1
                elif sign == '"':
                    self._in_string = False
            elif sign == '"':
                self._in_string = True
            elif sign in "{[":
                self.depth += 1
                self.deepest = max(self.deepest, self.depth)
            elif sign in "}]":
                self.depth -= 1


@dataclass(frozen=True, slots=True)
class Reading:
    """A value that has been read.

    json: its JSON text, encodable as UTF-8.
    fits: whether the schema allows its type.
    repaired: whether the text had to be changed for that.
    """

    json: str
    fits: bool = True
    repaired: bool = False


def could_be_other(text: str, kinds: frozenset[str]) -> bool:
    """Whether text that goes on may still become a value of one of `kinds` that is no string (rule 2)."""
    if not text:
        return True
    first = text[0]
    if first in "{[":
        return ("object" if first == "{" else "array") in kinds
    if "null" in kinds and "null".startswith(text):
        return True
    if "boolean" in kinds and ("true".startswith(text) or "false".startswith(text)):
        return True
    if not kinds & {"integer", "number"} or len(text) > _LONGEST_NUMBER:
        return False
    return _NUMBER_BEGINNING.fullmatch(text) is not None


def read_value(text: str, allow: Allowed) -> Reading:
    """Read one value's whole text by the rules above. Never raises."""
    listed = _listed(text, allow) if allow.values else None
    if listed is not None:
        return listed
    if "string" in allow.types:
        other = _load(text) if could_be_other(text, allow.types) else _NOT_JSON
        if other is not _NOT_JSON and allow.fits(other) and _normal(other, text):
            return Reading(utf8(text))
        return Reading(quoted(text))
    stripped = text.strip()
    value = _load(stripped)
    if value is not _NOT_JSON and allow.fits(value):
        return Reading(utf8(stripped))
    if value is _NOT_JSON:
        loose = _load(_strict(stripped), strict=False)
        if loose is not _NOT_JSON and allow.fits(loose):
            return Reading(utf8(_to_json(loose)), repaired=True)
    if value is _NOT_JSON or isinstance(value, str) or allow.kinds() == {"string"}:
        return Reading(quoted(text), fits=False)
    return Reading(utf8(stripped), fits=False)


class _NotJson:
    """What `_load` returns for text that is not JSON; None is a value."""


_NOT_JSON = _NotJson()


def _refuse(word: str) -> Any:
    raise ValueError(word)


def _float(text: str) -> float:
    number = float(text)
    return number if abs(number) != float("inf") else _refuse(text)


def _load(text: str, *, strict: bool = True) -> Any:
    """Parse JSON as RFC 8259 has it: no NaN, no number beyond a double's range, no more than `MOST_NESTED` levels."""
    depth = JsonDepth()
    depth.feed(text)
    if depth.deepest > MOST_NESTED:
        return _NOT_JSON
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_float, strict=strict)
    except (ValueError, RecursionError):
        return _NOT_JSON


def utf8(text: str) -> str:
    """JSON text with lone surrogates escaped; they can only be inside its strings."""
    return text if text.isascii() else _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _normal(value: Any, text: str) -> bool:
    """Whether the template writes `value` as `text`, but for blanks inside arrays and objects."""
    return text[-1] in "]}" if isinstance(value, dict | list) else _to_json(value) == text


def _listed(text: str, allow: Allowed) -> Reading | None:
    """The value of an `enum` or `const` that the text stands for, if any: as it is, or without blanks around it."""
    stripped = text.strip()
    for candidate in dict.fromkeys((text, stripped)):
        if value_key(candidate) in allow.values:
            return Reading(quoted(candidate), repaired=candidate != text)
    value = _load(stripped)
    if value is _NOT_JSON:
        value = _load(_strict(stripped), strict=False)
    if value is not _NOT_JSON and value_key(value) in allow.values:
        if stripped != text and "string" in allow.types:
            return None
        return Reading(utf8(_to_json(value)), repaired=stripped != text or _load(stripped) is _NOT_JSON)
    return None


def _strict(text: str) -> str:
    """Python's notation of a value as JSON: quotes, True, False, None, a comma before a closing bracket."""

    def word(match: re.Match[str]) -> str:
        found = match[0]
        if found[0] != "'":
            return _WORDS.get(found, found)
        inner = found[1:-1] if len(found) > 1 and found.endswith("'") else found[1:]
        return '"' + re.sub(r"""\\'|"|\\[\s\S]""", lambda m: _REQUOTED.get(m[0], m[0]), inner) + '"'

    return _LOOSE.sub(word, text)


_REQUOTED = {"\\'": "'", '"': '\\"'}
