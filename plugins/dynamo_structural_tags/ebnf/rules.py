"""Rules of one grammar by name; equal bodies share one rule."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..schema.charsets import ALL, CharSet, complement, utf8_blocks

__all__ = ["Rules", "char_class", "one_of", "quote"]

_UNPLAIN = re.compile(r"[^ !#-\[\]-~]")


def quote(text: str) -> str:
    """A literal of EBNF. A lone surrogate cannot be in one (ValueError)."""
    text.encode("utf-8")
    return '"' + _UNPLAIN.sub(lambda match: _escape(ord(match[0])), text) + '"'


def char_class(chars: CharSet) -> str:
    """A class of EBNF: one character of the set, which is not empty.

    Negative classes hold ASCII only, and other ranges come in the pieces that xgrammar gets right.
    """
    if chars == ALL:
        return "[\\u0000-\\U0010ffff]"
    gaps = complement(chars)
    if gaps and gaps[-1][1] < 0x80:
        return "[^" + _ranges(gaps) + "]"
    return "[" + _ranges(tuple(block for low, high in chars for block in utf8_blocks(low, high))) + "]"


def one_of(choices: Iterable[str]) -> str:
    """Alternatives in brackets; a single one as it is."""
    kept = list(dict.fromkeys(choices))
    return kept[0] if len(kept) == 1 else "(" + " | ".join(kept) + ")"


def _ranges(ranges: Iterable[tuple[int, int]]) -> str:
    return "".join(_escape(a) if a == b else f"{_escape(a)}-{_escape(b)}" for a, b in ranges)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class Rules:
    """Collects rules; `size` is their text so far, in characters.

    taken: characters that no undeclared key begins with; empty if each object may have its own.
    first_letters: those that undeclared keys do not begin with, one set for each kind of object so far.
    """

    def __init__(self, taken: CharSet = ()) -> None:
        self.taken = taken
        self.first_letters: set[CharSet] = set()
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self.named: dict[str, str] = {}  # rules that refer to themselves, by what they are
        self.size = 0

    def add(self, body: str, *, most_characters: int | None = None) -> str:
        """The name of a rule with this body, at most so many characters long if asked; of a name, the name itself."""
        if most_characters is None and body in self._bodies:
            return body
        limit = "" if most_characters is None else f"[max_chars={most_characters}]"
        name = self._names.get(limit + body)
        if name is None:
            name = self.reserve()
            self._names[limit + body] = name
            self._bodies[name] = f"{name}{limit} ::= {body}"
            self.size += len(body) + len(name) + 6
        return name

    def reserve(self) -> str:
        """A new name, for a rule that `define` gives its body later: rules may refer to themselves."""
        name = f"r{len(self._bodies)}"
        self._bodies[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        """Give a reserved name its body."""
        self._bodies[name] = f"{name} ::= {body}"
        self.size += len(body) + len(name) + 6

    def mark(self) -> tuple[int, int, int, int, frozenset[CharSet]]:
        """Where the collection stands, for `back_to`."""
        return len(self._bodies), len(self._names), len(self.named), self.size, frozenset(self.first_letters)

    def back_to(self, mark: tuple[int, int, int, int, frozenset[CharSet]]) -> None:
        """Forget what was added since `mark`."""
        bodies, names, named, self.size, letters = mark
        for table, length in ((self._bodies, bodies), (self._names, names), (self.named, named)):
            while len(table) > length:
                table.popitem()
        self.first_letters = set(letters)

    def text(self, first: Iterable[str]) -> str:
        """The whole grammar. first: its first rules, root among them, which may refer to all others."""
        return "\n".join([*first, *self._bodies.values()]) + "\n"
