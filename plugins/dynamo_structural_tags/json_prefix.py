"""Whether text that comes in pieces is the beginning of a JSON array or object, by RFC 8259."""

from __future__ import annotations

import re

from dynamo_structural_tags.values import MOST_NESTED

__all__ = ["JsonPrefix"]

_LEXEME = re.compile(r"[ \t\n\r]+|[-+.0-9A-Za-z]+|[\s\S]")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_LONGEST_SCALAR = 4096
_CHARACTERS = re.compile(r'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*')
_ESCAPE_BEGINNING = re.compile(r"\\(?:u[0-9A-Fa-f]{0,3})?")

# What may come next, outside of strings and scalars.
_BEGIN, _VALUE, _VALUE_OR_CLOSE, _KEY, _KEY_OR_CLOSE, _COLON, _COMMA_OR_CLOSE, _NOTHING = range(8)


class JsonPrefix:
    """Follows text of which it is not known whether it is JSON.

    possible: the text so far is an array or object, or the beginning of one.
    in_string: it ends inside one of its strings, where any marker may stand.
    """

    __slots__ = ("_next", "_rest", "_scalar", "_stack", "in_string", "possible")

    def __init__(self) -> None:
        self.possible, self.in_string = True, False
        self._next = _BEGIN
        self._stack: list[str] = []
        self._scalar = ""  # a number or name that may go on
        self._rest = ""  # an escape that is not complete

    @property
    def complete(self) -> bool:
        """Whether it is a whole array or object."""
        return self.possible and self._next == _NOTHING

    @property
    def is_json(self) -> bool:
        """Whether its brackets tell where it ends."""
        return self.complete or self.in_string

    @property
    def inside(self) -> bool:
        """Whether a marker that stands here is part of it: only inside of a string."""
        return self.in_string

    def feed(self, text: str) -> None:
        """Take the next piece. Linear in its length."""
        if not self.possible:
            return
        text, self._rest = self._rest + text, ""
        position = 0
        while position < len(text) and self.possible:
            position = self._string(text, position) if self.in_string else self._lexeme(text, position)
        self.in_string = self.in_string and self.possible

    def _string(self, text: str, position: int) -> int:
        match = _CHARACTERS.match(text, position)
        assert match is not None
        position = match.end()
        if position == len(text):
            return position
        if text[position] == '"':
            self.in_string = False
            return position + 1
        self._rest = text[position:]
        self.possible = _ESCAPE_BEGINNING.fullmatch(self._rest) is not None
        return len(text)

    def _lexeme(self, text: str, position: int) -> int:
        match = _LEXEME.match(text, position)
        assert match is not None
        lexeme = match[0]
        if lexeme[0].isascii() and (lexeme[0].isalnum() or lexeme[0] in "-+."):
            self._scalar += lexeme
            self.possible = self._next in (_VALUE, _VALUE_OR_CLOSE) and len(self._scalar) <= _LONGEST_SCALAR
            return match.end()
        if self._scalar:
            self.possible = _SCALAR.fullmatch(self._scalar) is not None
            self._scalar, self._next = "", _COMMA_OR_CLOSE
        if self.possible and lexeme[0] not in " \t\n\r":
            self.possible = self._sign(lexeme)
        elif self._next == _BEGIN or self._next == _NOTHING:
            self.possible = False  # a text with blanks around it is a string
        return match.end()

    def _sign(self, sign: str) -> bool:
        """Take one character that is no blank, outside of strings and scalars; whether it can stand there."""
        what = self._next
        if sign in "{[":
            if what not in (_BEGIN, _VALUE, _VALUE_OR_CLOSE):
                return False
            self._stack.append(sign)
            self._next = _KEY_OR_CLOSE if sign == "{" else _VALUE_OR_CLOSE
            return len(self._stack) <= MOST_NESTED
        if sign == '"':
            self.in_string = True
            self._next = _COLON if what in (_KEY, _KEY_OR_CLOSE) else _COMMA_OR_CLOSE
            return what in (_KEY, _KEY_OR_CLOSE, _VALUE, _VALUE_OR_CLOSE)
        if sign == ":":
            self._next = _VALUE
            return what == _COLON
        if sign == ",":
            self._next = _KEY if self._stack[-1:] == ["{"] else _VALUE
            return what == _COMMA_OR_CLOSE
        if sign not in "}]" or what not in (_COMMA_OR_CLOSE, _KEY_OR_CLOSE if sign == "}" else _VALUE_OR_CLOSE):
            return False
        opened = self._stack.pop()
        self._next = _COMMA_OR_CLOSE if self._stack else _NOTHING
        return opened + sign in ("{}", "[]")
