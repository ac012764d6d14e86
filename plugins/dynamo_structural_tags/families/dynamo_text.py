"""What Dynamo's v1 parsers of tagged arguments do to a string: they take blanks off both ends; some replace entities.

Such a string still fits a schema that says no more than its type, but it is not the one that the model wrote, and a
text between blanks can break a pattern or a length: both are relaxed, with a message.
"""

from __future__ import annotations

from ..schema import Verdict
from ..schema.charsets import ALL, CharSet, charset, minus
from ..schema.pattern_tree import Alt, Anchor, Anything, Chars, Node, Repeat, Seq
from ..schema.shapes import Text
from ..schema.typed import Note

__all__ = ["BLANKS", "BLANK_CHARS", "ENTITIES", "note_blanks", "stripped"]

#: Unicode's White_Space, which Rust's `str::trim` takes off.
BLANKS = charset(
    [
        *((0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
        *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
    ]
)
BLANK_CHARS = "".join(chr(code) for low, high in BLANKS for code in range(low, high + 1))
#: What the parsers of XML replace, also where a value is JSON.
ENTITIES = ("&lt;", "&gt;", "&amp;", "&quot;", "&#39;", "&#x27;")


def stripped(text: str) -> str:
    """The text without blanks at its ends."""
    return text.strip(BLANK_CHARS)


def note_blanks(text: Text, note: Note) -> None:
    """Say what taking blanks off the ends does to such strings, if it does anything."""
    taken = "Dynamo's v1 parser takes blanks off the ends of a string"
    if text.pattern is None:
        note("type", Verdict.RELAXED, taken)
        if text.low:
            note("minLength", Verdict.RELAXED, taken)
    elif any(minus(edge, BLANKS) != edge for edge in (_edge(text.pattern, 1)[0], _edge(text.pattern, -1)[0])):
        note("pattern", Verdict.RELAXED, taken)


def _edge(node: Node, step: int) -> tuple[CharSet, bool]:
    """The characters that matches begin with, or, for the step -1, end with; and whether the empty text is one."""
    match node:
        case Chars(chars):
            return chars, False
        case Anything():
            return ALL, False
        case Seq(items):
            found: CharSet = ()
            for item in items[::step]:
                chars, empty = _edge(item, step)
                found = charset((*found, *chars))
                if not empty:
                    return found, False
            return found, True
        case Alt(items):
            edges = [_edge(item, step) for item in items]
            return charset(span for chars, _ in edges for span in chars), any(empty for _, empty in edges)
        case Repeat(item, low, high):
            if high == 0:
                return (), True
            chars, empty = _edge(item, step)
            return chars, empty or low == 0
        case Anchor():
            return (), True
