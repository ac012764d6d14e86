"""How characters are written: as they are, or inside of a JSON string."""

from __future__ import annotations

from ..schema.charsets import ALL, CharSet, charset, complement, minus
from .json_strings import BEHIND, json_string
from .markers import Markers
from .rules import Rules, char_class, one_of, quote

__all__ = ["JSON_ESCAPE", "JsonSpelling", "Spelling"]

LESS = charset([(0x3C, 0x3C)])

_HEX = "[0-9a-fA-F]"
# No half of a surrogate pair without the other: readers that decode and encode a value again fail on it.
_PAIR = f'[dD] [89abAB] {_HEX} {_HEX} "\\\\u" [dD] [c-fC-F] {_HEX} {_HEX}'
JSON_ESCAPE = (
    f'"\\\\" (["\\\\/bfnrt] | "u" ([0-9a-cA-Ce-fE-F] {_HEX} {_HEX} {_HEX} | [dD] [0-7] {_HEX} {_HEX} | {_PAIR}))'
)
_SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '\\"', 0x5C: "\\\\"}
_CONTROL = charset([(0, 0x1F)])
_UNWRITABLE = charset([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])


class Spelling:
    """Characters as they are; runs of them hold no marker."""

    def __init__(self, rules: Rules, markers: Markers) -> None:
        self.rules, self.markers = rules, markers
        self._runs: dict[CharSet, str] = {}

    def plain(self, chars: CharSet) -> CharSet:
        """Those that stand for themselves."""
        return chars

    def escapes(self, chars: CharSet) -> str | None:
        """The escapes of those that have one."""
        return None

    def char(self, chars: CharSet) -> str:
        """One of these characters."""
        plain, escapes = self.plain(chars), self.escapes(chars)
        return one_of([*([char_class(plain)] if plain else []), *([escapes] if escapes else [])])

    def run(self, chars: CharSet = ALL, also: tuple[str, ...] = ()) -> str | None:
        """Any number of these characters without a marker and without `also`; None if the set is too odd."""
        if not also and chars in self._runs:
            return self._runs[chars]
        plain = self.markers.run(self.rules, self.plain(chars), also=also)
        escapes = self.escapes(chars)
        if plain is None or escapes is None:
            return plain
        if also:
            return self.rules.add(f"{plain} ({escapes} {self.run(chars)})?")
        name = self._runs[chars] = self.rules.reserve()
        self.rules.define(name, f"{plain} ({escapes} {name})?")
        return name

    def nonempty(self, first: CharSet, chars: CharSet = ALL) -> str:
        """A run of these characters that begins with one of `first`, which are among them.

        No marker in it, also none that begins with the first character: no rest of a marker may come behind its first.
        """
        openings = charset((ord(char), ord(char)) for char in self.markers.firsts)
        rest, plain, escapes = self.run(chars), self.plain(minus(first, openings)), self.escapes(first)
        choices = [f"{char_class(plain)} {rest}"] if plain else []
        for char in self.markers.firsts:
            if minus(first, charset([(ord(char), ord(char))])) != first:
                tails = tuple(word[1:] for word in self.markers.words if word[0] == char)
                choices.append(f"{quote(char)} {self.run(chars, tails)}")
        if escapes:
            choices.append(f"{escapes} {rest}")
        return self.rules.add(" | ".join(choices))


class JsonSpelling(Spelling):
    """Characters inside of a JSON string, as the template writes them; any escape counts for the set of all."""

    def plain(self, chars: CharSet) -> CharSet:
        return minus(chars, _UNWRITABLE)

    def escapes(self, chars: CharSet) -> str | None:
        if chars == ALL:
            return JSON_ESCAPE
        odd = minus(chars, complement(_UNWRITABLE))
        codes = [code for low, high in odd for code in range(low, high + 1)]
        choices = [f'"\\\\{_SHORT[code]}"' for code in codes if code in _SHORT]
        choices += [_unicode(code) for code in codes if code < 0x20]
        return one_of(choices) if choices else None

    def whole(self, first: CharSet, *, empty: bool, behind: str = BEHIND) -> str | None:
        """The body of a rule for whole strings, quotes included, in the form that is quick; None if there is none."""
        if self.escapes(ALL) != JSON_ESCAPE or not self.markers.simple:
            return None
        return json_string(self.markers.words, first, empty=empty, behind=behind)


def _unicode(code: int) -> str:
    digits = (f"[{d}{d.upper()}]" if d.isalpha() else f'"{d}"' for d in f"{code:02x}")
    return '"\\\\u00" ' + " ".join(digits)
