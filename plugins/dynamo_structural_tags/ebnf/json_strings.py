"""JSON strings as one element of EBNF each: quickly compiled, and quickly told from what follows them."""

from __future__ import annotations

from functools import lru_cache

from ..schema.charsets import ALL, CharSet, charset, complement, minus
from .rules import char_class
from .runs import Run, regex_literal

__all__ = ["BEHIND", "json_string"]

_H = "[0-9a-fA-F]"
# As `spelling.JSON_ESCAPE`: no half of a surrogate pair without the other.
_PAIR = rf"[dD][89abAB]{_H}{_H}\x5cu[dD][c-fC-F]{_H}{_H}"
_ESCAPE = rf"\x5c([\x22\x5c\x2fbfnrt]|u([0-9a-cA-Ce-fE-F]{_H}{_H}{_H}|[dD][0-7]{_H}{_H}|{_PAIR}))"
_QUOTE = r"\x22"
_SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: r"\x22", 0x5C: r"\x5c"}
_UNWRITABLE = charset([(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)])
_PLAIN = complement(_UNWRITABLE)
#: What may follow a string, perhaps after blanks. A token that ends a string and goes on with something else needs no
#: look at what follows; all others do, at each step inside of a string, so fewer are better where more is known.
BEHIND = ",:]}<"


@lru_cache(1024)
def json_string(words: tuple[str, ...], first: CharSet = ALL, *, empty: bool = True, behind: str = BEHIND) -> str:
    """The body of a rule for strings, quotes included, without `words`, that begin with one of `first`.

    Any escape may stand in them, but at the beginning only those of `first`, unless that is the set of all.
    words: as `runs.Run` takes them. empty: whether the string may be empty. behind: as `BEHIND`.
    """
    run = Run(_PLAIN, _ESCAPE, words)
    if first == ALL:
        inner = run.any() if empty else run.beginning(_PLAIN, _ESCAPE)
    else:
        inner = run.beginning(minus(first, _UNWRITABLE), _escapes(first)) + "?" * empty
    follows = char_class(charset((ord(char), ord(char)) for char in behind))
    return f"{regex_literal(_QUOTE + inner + _QUOTE)} (=[ \\n\\r\\t]* {follows})"


def _escapes(chars: CharSet) -> str:
    """The escapes of those characters that cannot stand for themselves."""
    codes = [code for low, high in minus(chars, _PLAIN) for code in range(low, high + 1)]
    choices = [_SHORT[code] for code in codes if code in _SHORT]
    choices += ["u00" + _either_case(f"{code:02x}") for code in codes if code < 0x20]
    return rf"\x5c({'|'.join(choices)})" if choices else ""


def _either_case(digits: str) -> str:
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in digits)
