"""Regular expressions as trees over characters, a whole match each: the form in which patterns are compared."""

from __future__ import annotations

from dataclasses import dataclass

from . import charsets
from .charsets import CharSet, charset, complement

__all__ = [
    "ANY_TEXT",
    "EMPTY",
    "Alt",
    "Anchor",
    "Anything",
    "Chars",
    "Node",
    "Repeat",
    "Search",
    "Seq",
    "any_text",
    "literal",
    "none_of",
]


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

EMPTY = Seq(())
ANY_TEXT = Repeat(Anything(), 0, None)


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
        choices.append(EMPTY)
    for c in sorted(first):
        rest = tuple(name[1:] for name in names if name.startswith(c))
        choices.append(Seq((Chars(charset([(ord(c), ord(c))])), none_of(rest))))
    return Alt(tuple(choices))
