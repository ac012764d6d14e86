"""Writes a pattern's tree for xgrammar: over the text between the quotes of a JSON string."""

from __future__ import annotations

from . import charsets
from .pattern_tree import Alt, Anything, Chars, Node, Repeat, Seq

__all__ = ["json_regex"]


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
