"""The text format of GLM-4.5, 4.6, 4.7 and 5.x: its markers, tool names, and a lexer for text that comes in pieces.

A turn is ``reasoning</think>content`` with calls in the content, each
``<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>...</tool_call>``; GLM-4.5 and 4.6 put newlines between
the parts. A string is written as it is, without any escape, and every other value as JSON.
"""

from __future__ import annotations

import re

__all__ = [
    "CALL",
    "CALL_END",
    "KEY",
    "KEY_END",
    "MARKS",
    "THINK",
    "THINK_END",
    "TOOL_NAME",
    "VALUE",
    "VALUE_END",
    "Lexer",
]

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"

MARKS = frozenset((THINK, THINK_END, CALL, CALL_END, KEY, KEY_END, VALUE, VALUE_END))

#: What an undeclared tool's name may look like. `<tool_call>` before anything else is a word of the text.
TOOL_NAME = re.compile(r"[\w.:/-]{1,128}")

_SPLIT = re.compile("(" + "|".join(map(re.escape, sorted(MARKS))) + ")")
_BEGINNINGS = frozenset(mark[:length] for mark in MARKS for length in range(1, len(mark)))
_LONGEST = max(map(len, MARKS))


class Lexer:
    """Cuts text into tokens: a marker is one token, text between markers is one or more.

    No token of text contains a whole marker, however the text was cut, so a token is a marker if it is in `MARKS`.
    What may be the beginning of a marker is kept back, eleven characters at most.
    """

    __slots__ = ("rest",)

    def __init__(self) -> None:
        self.rest = ""

    def feed(self, text: str) -> list[str]:
        """The tokens that `text` completes. Takes time linear in its length."""
        if self.rest:
            text, self.rest = self.rest + text, ""
        if "<" not in text:
            return [text] if text else []
        tokens = _SPLIT.split(text) if ">" in text else [text]
        # Markers have one "<" each, at their beginning: only the last one of the text can open an incomplete one.
        last = tokens[-1]
        start = last.rfind("<", max(0, len(last) - _LONGEST))
        if start >= 0 and last[start:] in _BEGINNINGS:
            tokens[-1], self.rest = last[:start], last[start:]
        return [token for token in tokens if token]
