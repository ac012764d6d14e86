"""Reads regular expressions of JSON Schema (ECMA-262 as search) into trees that match the whole text.

The tree's language contains the pattern's: what a regular grammar cannot say (lookaround, backreferences, word
boundaries, Unicode properties) is widened, and the result says so.
"""

from __future__ import annotations

from functools import lru_cache

from . import charsets
from .charsets import CharSet, charset, complement
from .pattern_anchors import whole_match
from .pattern_tree import ANY_TEXT, EMPTY, Alt, Anchor, Chars, Node, Repeat, Search, Seq
from .verdicts import LIMITS

__all__ = ["PatternError", "read_pattern"]


class PatternError(ValueError):
    """The pattern is no regular expression of ECMA-262, or larger than the limits allow."""


class _Reader:
    """Recursive descent over the pattern; groups nest at most 50 deep."""

    def __init__(self, pattern: str) -> None:
        self.text, self.at, self.depth = pattern, 0, 0
        self.widened: list[str] = []

    def fail(self, why: str) -> PatternError:
        return PatternError(f"{why} at character {self.at}")

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        found = self.peek(text)
        self.at += len(text) * found
        return found

    def alternatives(self) -> Node:
        self.depth += 1
        if self.depth > 50:
            raise self.fail("groups nest more than 50 deep")
        branches = [self.sequence()]
        while self.take("|"):
            branches.append(self.sequence())
        self.depth -= 1
        return branches[0] if len(branches) == 1 else Alt(tuple(branches))

    def sequence(self) -> Node:
        items: list[Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            items.append(self.quantified(self.atom()))
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def quantified(self, item: Node) -> Node:
        low: int = 1
        high: int | None = 1
        start = self.at
        if self.take("*"):
            low, high = 0, None
        elif self.take("+"):
            low, high = 1, None
        elif self.take("?"):
            low, high = 0, 1
        elif self.take("{"):
            end = self.text.find("}", self.at)
            first, comma, second = self.text[self.at : max(end, self.at)].partition(",")
            if not first.isdecimal() or (second and not second.isdecimal()) or len(first) + len(second) > 12:
                raise self.fail("a brace that is no repeat count")
            low = int(first)
            high = int(second) if second else (None if comma else low)
            if high is not None and high < low:
                raise self.fail(f"a repeat of {{{low},{high}}}")
            self.at = end + 1
        if self.at == start:
            return item
        self.take("?")
        if self.at < len(self.text) and self.text[self.at] in "*+?{":
            raise self.fail("a repeat of a repeat")
        if isinstance(item, Anchor):
            self.widened.append("repeated anchor")
            return EMPTY
        return Repeat(item, low, high)

    def atom(self) -> Node:
        if self.take("("):
            return self.group()
        if self.take("["):
            return self.bracket()
        char = self.text[self.at]
        self.at += 1
        if char == ".":
            return Chars(charsets.DOT)
        if char in "^$":
            return Anchor(start=char == "^")
        if char == "\\":
            return self.escape()
        if char in "*+?{":
            raise self.fail(f"nothing for {char!r} to repeat")
        return Chars(charset([(ord(char), ord(char))]))

    def group(self) -> Node:
        look = next((mark for mark in ("?<=", "?<!", "?=", "?!") if self.take(mark)), None)
        if look is None and not self.take("?:") and self.take("?<"):
            end = self.text.find(">", self.at)
            if end < 0 or not self.text[self.at : end].isidentifier():
                raise self.fail("a group without a name")
            self.at = end + 1
        elif look is None and self.peek("?"):
            raise self.fail("a group of unknown kind")
        node = self.alternatives()
        if not self.take(")"):
            raise self.fail("a group that does not end")
        if look:
            self.widened.append(f"({look}…)")
            return EMPTY
        return node

    def escape(self) -> Node:
        if self.at >= len(self.text):
            raise self.fail("a backslash at the end")
        char = self.text[self.at]
        if char in "bB":
            self.at += 1
            self.widened.append(f"\\{char}")
            return EMPTY
        if char in "123456789k":
            self.widened.append("backreference")
            self.at += 1
            if char == "k" and self.take("<"):
                self.at = self.text.find(">", self.at) + 1 or len(self.text)
            while char != "k" and self.at < len(self.text) and self.text[self.at].isdecimal():
                self.at += 1
            return ANY_TEXT
        return Chars(self.character_escape())

    def character_escape(self) -> CharSet:
        """After a backslash, in or out of brackets."""
        char = self.text[self.at]
        self.at += 1
        known = {"d": charsets.DIGIT, "w": charsets.WORD, "s": charsets.SPACE}
        if char in "dws":
            return known[char]
        if char in "DWS":
            return complement(known[char.lower()])
        if char in "pP" and self.take("{"):
            end = self.text.find("}", self.at)
            if end < 0:
                raise self.fail("a property that does not end")
            self.widened.append(f"\\{char}{{{self.text[self.at : end]}}}")
            self.at = end + 1
            return charsets.ALL
        controls = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0}
        if char in controls:
            return charset([(controls[char],) * 2])
        if char in "xu":
            return charset([(self.hexadecimal(char),) * 2])
        if char.isalnum():
            raise self.fail(f"unknown escape \\{char}")
        return charset([(ord(char), ord(char))])

    def hexadecimal(self, kind: str) -> int:
        if kind == "u" and self.take("{"):
            end = self.text.find("}", self.at)
            digits, self.at = self.text[self.at : max(end, self.at)], end + 1
        else:
            size = 2 if kind == "x" else 4
            digits = self.text[self.at : self.at + size]
            self.at += size
            if len(digits) < size:
                raise self.fail(f"\\{kind} needs {size} digits")
        try:
            code = int(digits, 16)
        except ValueError:
            raise self.fail(f"\\{kind} with digits {digits!r}") from None
        if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
            raise self.fail(f"\\{kind}{digits} is no character")
        return code

    def bracket(self) -> Node:
        negated = self.take("^")
        before = len(self.widened)
        ranges: list[tuple[int, int]] = []
        while not self.take("]"):
            low = self.bracket_item()
            if self.peek("-") and not self.peek("-]") and len(low) == 1 and low[0][0] == low[0][1]:
                self.at += 1
                high = self.bracket_item()
                if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                    raise self.fail("a range out of order")
                ranges.append((low[0][0], high[0][0]))
            else:
                ranges += low
        if negated and len(self.widened) > before:
            return Chars(charsets.ALL)  # a property inside: its complement is unknown too
        chars = complement(charset(ranges)) if negated else charset(ranges)
        if not chars:
            raise self.fail("a bracket that matches nothing")
        return Chars(chars)

    def bracket_item(self) -> CharSet:
        if self.at >= len(self.text):
            raise self.fail("a bracket that does not end")
        char = self.text[self.at]
        self.at += 1
        if char != "\\":
            return charset([(ord(char), ord(char))])
        if self.at >= len(self.text):
            raise self.fail("a backslash at the end")
        if self.take("b"):
            return charset([(8, 8)])
        return self.character_escape()


@lru_cache(1024)
def read_pattern(pattern: str) -> Search:
    """A JSON Schema `pattern` as a whole match.

    Raises:
        PatternError: not ECMA-262, or larger than `LIMITS` allows once repeats are written out.
    """
    if len(pattern) > LIMITS.pattern_length:
        raise PatternError(f"{len(pattern)} characters, more than {LIMITS.pattern_length}")
    reader = _Reader(pattern)
    node = reader.alternatives()
    if reader.at < len(pattern):
        raise reader.fail("a closing bracket without its group")
    if _size(node) > LIMITS.pattern_size:
        raise PatternError(f"its repeats make it longer than {LIMITS.pattern_size} characters")
    whole = whole_match(node, reader.widened, 0)
    return Search(whole, tuple(dict.fromkeys(reader.widened)))


def _size(node: Node) -> int:
    match node:
        case Seq(items) | Alt(items):
            return 1 + sum(_size(item) for item in items)
        case Repeat(Chars(), low, high) if (high or low) <= LIMITS.minimum_count:
            return 1 + (high or low) // 16  # xgrammar counts single characters without copying
        case Repeat(item, low, high):
            return _size(item) * max(high or 0, low, 1)
    return 1
