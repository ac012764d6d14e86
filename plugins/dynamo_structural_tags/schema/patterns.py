"""Regular expressions of JSON Schema (ECMA-262 as search) rewritten for xgrammar (whole match over encoded text).

`read_pattern` gives a tree whose language contains the pattern's: what a regular grammar cannot say (lookaround,
backreferences, word boundaries, Unicode properties) is widened, and the result says so. `json_regex` writes the tree
for the text between the quotes of a JSON string, where a character has several spellings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from . import charsets
from .charsets import CharSet, charset, complement
from .verdicts import LIMITS

__all__ = [
    "Node",
    "PatternError",
    "Search",
    "any_text",
    "finds",
    "json_regex",
    "length_range",
    "literal",
    "matches",
    "none_of",
    "read_pattern",
]


class PatternError(ValueError):
    """The pattern is no regular expression of ECMA-262, or larger than the limits allow."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class Anything:
    """One character, in any spelling."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """The start (`^`) or the end (`$`) of the text."""

    start: bool


@dataclass(frozen=True, slots=True)
class Seq:
    """One after the other; empty text if there is none."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of several."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """From `low` to `high` times, or more."""

    item: Node
    low: int
    high: int | None


Node = Chars | Anything | Anchor | Seq | Alt | Repeat

_EMPTY = Seq(())
_ANY_TEXT = Repeat(Anything(), 0, None)


@dataclass(frozen=True, slots=True)
class Search:
    """A pattern as a whole match; `widened` names the constructs that were replaced by something wider."""

    node: Node
    widened: tuple[str, ...]


def any_text(low: int = 0, high: int | None = None) -> Node:
    """Text of a number of characters."""
    return Repeat(Anything(), low, high)


def literal(text: str) -> Node:
    """Exactly this text."""
    return Seq(tuple(Chars(charset([(ord(c), ord(c))])) for c in text))


def none_of(names: tuple[str, ...]) -> Node:
    """Text that is none of `names`, written without escapes where JSON needs none.

    Walks the prefix tree of the names: at each node the text may end unless a name ends there, leave the tree by any
    other character, or go on along it. Size and depth are bounded by the caller's limits on names.
    """
    other = Repeat(Chars(charsets.ALL), 0, None)
    first = {name[0] for name in names if name}
    leave = Chars(complement(charset((ord(c), ord(c)) for c in first)))
    choices: list[Node] = [Seq((leave, other))]
    if "" not in names:
        choices.append(_EMPTY)
    for c in sorted(first):
        rest = tuple(name[1:] for name in names if name.startswith(c))
        choices.append(Seq((Chars(charset([(ord(c), ord(c))])), none_of(rest))))
    return Alt(tuple(choices))


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
            return _EMPTY
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
            return _EMPTY
        return node

    def escape(self) -> Node:
        if self.at >= len(self.text):
            raise self.fail("a backslash at the end")
        char = self.text[self.at]
        if char in "bB":
            self.at += 1
            self.widened.append(f"\\{char}")
            return _EMPTY
        if char in "123456789k":
            self.widened.append("backreference")
            self.at += 1
            if char == "k" and self.take("<"):
                self.at = self.text.find(">", self.at) + 1 or len(self.text)
            while char != "k" and self.at < len(self.text) and self.text[self.at].isdecimal():
                self.at += 1
            return _ANY_TEXT
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
    whole = _whole(node, reader.widened, 0)
    return Search(whole, tuple(dict.fromkeys(reader.widened)))


def _read(pattern: str) -> Search | None:
    try:
        return read_pattern(pattern)
    except (PatternError, RecursionError):
        return None


def finds(pattern: str, text: str) -> bool | None:
    """Whether a search for the pattern succeeds; None if that cannot be told."""
    search = _read(pattern)
    if search is None or len(text) > 1000:
        return None
    if not matches(search.node, text):
        return False
    return None if search.widened else True


def matches(node: Node, text: str) -> bool:
    """Whether the tree matches the whole text: positions advance together, so no pattern makes it exponential."""
    return len(text) in _ends(node, text, {0})


def _ends(node: Node, text: str, starts: set[int]) -> set[int]:
    match node:
        case Chars(chars):
            within = (i for i in starts if i < len(text))
            return {i + 1 for i in within if any(low <= ord(text[i]) <= high for low, high in chars)}
        case Anything():
            return {i + 1 for i in starts if i < len(text)}
        case Seq(items):
            for item in items:
                starts = _ends(item, text, starts)
            return starts
        case Alt(items):
            return set().union(*(_ends(item, text, starts) for item in items))
        case Repeat(Anything(), 0, None):
            return set(range(min(starts), len(text) + 1)) if starts else set()
        case Repeat(item, low, high):
            return _repeated_ends(item, low, high, text, starts)
    return starts


def _repeated_ends(item: Node, low: int, high: int | None, text: str, starts: set[int]) -> set[int]:
    for _ in range(low):
        after = _ends(item, text, starts)
        if after == starts:
            break
        starts = after
    reached, fresh = set(starts), set(starts)
    for _ in range(len(text) + 1 if high is None else high - low):
        fresh = _ends(item, text, fresh) - reached
        if not fresh:
            break
        reached |= fresh
    return reached


def _size(node: Node) -> int:
    match node:
        case Seq(items) | Alt(items):
            return 1 + sum(_size(item) for item in items)
        case Repeat(Chars(), low, high) if (high or low) <= LIMITS.minimum_count:
            return 1 + (high or low) // 16  # xgrammar counts single characters without copying
        case Repeat(item, low, high):
            return _size(item) * max(high or 0, low, 1)
    return 1


def _whole(node: Node, widened: list[str], depth: int) -> Node:
    """Search semantics and anchors at the ends as a whole match, branch by branch."""
    if isinstance(node, Alt):
        return Alt(tuple(_whole(item, widened, depth) for item in node.items))
    items = list(_flat(node))
    for end in (0, -1):  # a group of branches at an end, each with its own anchor: one sequence per branch
        if items and isinstance(items[end], Alt) and _anchored(items[end]):
            branches = items[end].items  # type: ignore[union-attr]
            if depth < 4 and len(branches) <= 32:
                rest = items[1:] if end == 0 else items[:-1]
                made = (Seq((b, *rest)) if end == 0 else Seq((*rest, b)) for b in branches)
                return Alt(tuple(_whole(item, widened, depth + 1) for item in made))
    start = bool(items) and items[0] == Anchor(True)
    while items and items[0] == Anchor(True):
        items.pop(0)
    end_anchor = bool(items) and items[-1] == Anchor(False)
    while items and items[-1] == Anchor(False):
        items.pop()
    inner = [_drop_anchors(item, widened) for item in items]
    return Seq((*([] if start else [_ANY_TEXT]), *inner, *([] if end_anchor else [_ANY_TEXT])))


def _flat(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Seq):
        return tuple(part for item in node.items for part in _flat(item))
    return (node,)


def _anchored(node: Node) -> bool:
    match node:
        case Anchor():
            return True
        case Seq(items) | Alt(items):
            return any(_anchored(item) for item in items)
        case Repeat(item):
            return _anchored(item)
    return False


def _drop_anchors(node: Node, widened: list[str]) -> Node:
    match node:
        case Anchor():
            widened.append("anchor inside")
            return _EMPTY
        case Seq(items):
            return Seq(tuple(_drop_anchors(item, widened) for item in items))
        case Alt(items):
            return Alt(tuple(_drop_anchors(item, widened) for item in items))
        case Repeat(item, low, high):
            return Repeat(_drop_anchors(item, widened), low, high)
    return node


def length_range(node: Node) -> tuple[int, int | None]:
    """Fewest and most characters of a match; None for no bound."""
    match node:
        case Chars() | Anything():
            return 1, 1
        case Seq(items):
            parts = [length_range(item) for item in items]
            highs = [high for _, high in parts]
            return sum(low for low, _ in parts), None if None in highs else sum(h for h in highs if h is not None)
        case Alt(items):
            parts = [length_range(item) for item in items]
            highs = [high for _, high in parts]
            return min(low for low, _ in parts), None if None in highs else max(h for h in highs if h is not None)
        case Repeat(item, low, high):
            inner = length_range(item)
            if inner[1] == 0 or high == 0:
                return 0, 0
            return inner[0] * low, None if high is None or inner[1] is None else inner[1] * high
    return 0, 0


def json_regex(node: Node) -> str:
    """The tree as xgrammar's `pattern`: over the text between the quotes of a JSON string, anchored.

    xgrammar leaves what JSON must escape out of every character class, unless the pattern holds a character beyond
    ASCII: then it takes the pattern as it is. So a pattern with escapes ends in such a character, zero times.
    """
    text = _write(node)
    return f"^{text}\u00e9{{0}}$" if "\\\\" in text and text.isascii() else f"^{text}$"


def _write(node: Node) -> str:
    match node:
        case Chars(chars):
            return charsets.json_spelling(chars, any_escape=False)
        case Anything():
            return charsets.json_spelling(charsets.ALL, any_escape=True)
        case Seq(items):
            return "".join(f"(?:{_write(i)})" if isinstance(i, Alt) else _write(i) for i in items)
        case Alt(items):
            return "|".join(_write(item) for item in items)
        case Repeat(item, low, high):
            inner = _write(item)
            single = isinstance(item, Chars | Anything) and not inner.startswith("\\\\")  # an escape is two parts
            count = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
            if count is None:
                count = f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
            return (inner if single else f"(?:{inner})") + count
    return ""
