"""Strings without markers as one regular expression, in the form that the compiler is quick with.

The compiler goes through all tokens for each state that accepts most characters, so there must be few of them. An
automaton that looks for markers has one for each of their characters: behind "<a", anything but "r" leads back. Here
these states share one for the characters that no marker has, and have edges of their own for the others only. As the
expression refers to no rule, the compiler also keeps what it found out about it, for all grammars to come.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..schema.charsets import CharSet, charset, complement, minus
from .rules import quote

__all__ = ["Run", "regex_class", "regex_literal"]

_Rests = frozenset[str]


def regex_literal(expression: str) -> str:
    """A regular expression as an element of EBNF."""
    return f"Regex({quote(expression)})"


def regex_class(chars: CharSet) -> str:
    """One character of the set, which holds some of ASCII, or all characters but some of ASCII."""
    return f"[{_ranges(chars)}]" if chars[-1][1] < 0x80 else f"[^{_ranges(complement(chars))}]"


def _ranges(chars: CharSet) -> str:
    return "".join(f"\\x{low:02x}" if low == high else f"\\x{low:02x}-\\x{high:02x}" for low, high in chars)


class Run:
    """Any number of characters without a marker.

    plain: the characters that stand for themselves: all but some of ASCII.
    escapes: an expression for what stands for others. It holds none of the markers' first character.
    words: the markers, of ASCII. All begin with the same character, which none has a second time.
    """

    def __init__(self, plain: CharSet, escapes: str, words: Iterable[str]) -> None:
        kept = [word for word in words if not minus(_set(word), plain)]
        self.escapes, self.plain = escapes, plain
        self.first = kept[0][0] if kept else ""
        self.tails: _Rests = frozenset(word[1:] for word in kept)
        self.letters = _set("".join(self.tails))

    def any(self) -> str:
        """An expression for any run."""
        if not self.first:
            return self._choice(regex_class(self.plain), self.escapes) + "*"
        return f"{self._units()}*{self._openings()}*"

    def beginning(self, first: CharSet, escapes: str) -> str:
        """An expression for a run that begins with one of `first`, which `plain` has, or with one of `escapes`."""
        opens = self.first and not minus(_set(self.first), first)
        plain = minus(first, _set(self.first)) if self.first else first
        start = self._choice(*([regex_class(plain)] if plain else []), escapes)
        if not opens:
            return start + self.any()
        return self._choice(f"({start}|{self._opening()}){self.any()}", f"{self._openings()}+")

    def _units(self) -> str:
        return self._choice(regex_class(minus(self.plain, _set(self.first))), self.escapes, self._opening())

    def _openings(self) -> str:
        """The first character of a marker and more of it, but not all."""
        return f"({_char(self.first)}{_beginnings(self.tails)})"

    def _opening(self) -> str:
        """The same, and at last a character that leads away from all markers."""
        away = regex_class(minus(self.plain, charset([*_set(self.first), *self.letters])))
        shared = f"{_beginnings(self.tails)}{self._choice(away, self.escapes)}"
        return f"{self._openings()}*{_char(self.first)}({shared}|{self._away(self.tails)})"

    def _away(self, rests: _Rests) -> str:
        """What follows a part of a marker, up to a letter of markers that leads away."""
        after = _by_letter(rests)
        others = minus(self.letters, _set("".join(after)))
        choices = [regex_class(others)] if others else []
        choices += [_char(char) + self._away(more) for char, more in after.items() if "" not in more]
        return self._choice(*choices)

    @staticmethod
    def _choice(*choices: str) -> str:
        return "(" + "|".join(choice for choice in choices if choice) + ")"


def _beginnings(rests: _Rests) -> str:
    """Any part of a marker but all of it, also none."""
    choices = [_char(char) + _beginnings(more) for char, more in _by_letter(rests).items() if "" not in more]
    return f"({'|'.join(choices)})?" if choices else ""


def _by_letter(rests: _Rests) -> dict[str, _Rests]:
    return {char: frozenset(rest[1:] for rest in rests if rest[0] == char) for char in sorted({r[0] for r in rests})}


def _char(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 0x80 else char


def _set(text: str) -> CharSet:
    return charset((ord(char), ord(char)) for char in text)
