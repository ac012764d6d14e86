"""Sets of code points, and their spelling as a regular expression over JSON-encoded text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

__all__ = ["ALL", "CharSet", "charset", "complement", "json_spelling", "minus", "utf8_blocks"]

_TOP = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x2F: "/", 0x5C: "\\"}

CharSet = tuple[tuple[int, int], ...]
"""Ascending, disjoint, non-adjacent ranges of code points, both ends included, without surrogates."""


def charset(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """The union of some ranges."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(_without_surrogates(ranges)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    cut = []
    for low, high in ranges:
        for part in ((low, min(high, _SURROGATES[0] - 1)), (max(low, _SURROGATES[1] + 1), high)):
            if part[0] <= part[1]:
                cut.append(part)
    return cut


@lru_cache(4096)
def complement(chars: CharSet) -> CharSet:
    """Every code point that is not in the set."""
    gaps, start = [], 0
    for low, high in chars:
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= _TOP:
        gaps.append((start, _TOP))
    return charset(gaps)


def minus(chars: CharSet, other: CharSet) -> CharSet:
    """The code points of the first set that are not in the second."""
    return complement(charset(complement(chars) + other))


ALL = charset([(0, _TOP)])
DIGIT = charset([(0x30, 0x39)])
WORD = charset([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
# ECMA-262: WhiteSpace and LineTerminator.
SPACE = charset(
    (
        *((9, 13), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
        *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
    )
)
DOT = complement(charset([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]))

# One character of a JSON string, in any spelling; a pair of surrogate escapes is one character, a lone one is none.
_HEX = "[0-9a-fA-F]"
_ANY_ESCAPE = (
    rf"\\u(?:[0-9a-cefA-CEF]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}|[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}})"
)
_CONTROL = charset([(0, 0x1F), (0x7F, 0x7F)])
_UNWRITABLE = charset([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])


def _class(chars: CharSet) -> str:
    def one(code: int) -> str:
        return ("\\" if chr(code) in "[]\\^-" else "") + chr(code)

    if len(chars) == 1 and chars[0][0] == chars[0][1]:
        code = chars[0][0]
        return ("\\" if chr(code) in ".*+?()[]{}|^$\\/" else "") + chr(code)
    blocks = [block for low, high in chars for block in utf8_blocks(low, high)]
    return "[" + "".join(one(a) if a == b else f"{one(a)}-{one(b)}" for a, b in blocks) + "]"


def utf8_blocks(low: int, high: int) -> list[tuple[int, int]]:
    """A range in pieces in whose UTF-8 one byte varies and those after it take every value.

    xgrammar gets other ranges wrong: some forbid characters at their end, or allow a first byte that nothing may
    follow, or overlong forms.
    """
    blocks = []
    for start, end in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, _TOP)):
        code, last = max(low, start), min(high, end)
        while code <= last:
            size = next(s for s in (1 << 18, 1 << 12, 1 << 6, 1) if code % s == 0 and code + s - 1 <= last)
            parent_end = (code // (size << 6) + 1) * (size << 6)
            stop = min(parent_end, code + (last - code + 1) // size * size)
            blocks.append((code, stop - 1))
            code = stop
    return blocks


@lru_cache(4096)
def json_spelling(chars: CharSet, *, any_escape: bool) -> str:
    """A regular expression of the spellings of one of these characters inside a JSON string.

    Raw where JSON allows it, the short escapes, and `\\u00XX` for control characters. `any_escape` adds every
    `\\uXXXX`: right only for the set of all characters.
    """
    choices = []
    raw = minus(chars, _UNWRITABLE)
    if raw:
        choices.append(_class(raw))
    short = "".join(
        "\\" * (letter == "\\") + letter for code, letter in _SHORT.items() if any(a <= code <= b for a, b in chars)
    )
    if short:
        choices.append(rf"\\[{short}]")
    if any_escape:
        choices.append(_ANY_ESCAPE)
    else:
        control = minus(_CONTROL, complement(chars))
        if control and control[0] == (0, 0x1F):
            choices.append(rf"\\u00[01]{_HEX}")
            control = control[1:]
        for low, high in control:
            choices += [rf"\\u00{_hex_pair(code)}" for code in range(low, high + 1)]
    if not choices:
        return ""
    return choices[0] if len(choices) == 1 else "(?:" + "|".join(choices) + ")"


def _hex_pair(code: int) -> str:
    return "".join(f"[{d.lower()}{d.upper()}]" if d.isalpha() else d for d in f"{code:02x}")
