"""The tokens of an output, fed to a reader that may give back those it has looked at."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence

__all__ = ["Reader", "Tail", "Tape", "Token", "blank"]

#: A marker, text without markers, or None for the end of the output.
Token = str | None


def blank(token: str) -> bool:
    """Whether a token is layout: blanks, tabs, and line ends only."""
    return not token.strip(" \t\r\n")


class Tail(str):
    """The incomplete marker at the end of an output, as a token: text, or the rest of a marker that was cut."""


#: Takes a token at each yield.
Reader = Generator[None, Token, None]


class Tape:
    """Hands tokens to the reader one by one.

    stopped: whether the engine ended the output by itself, known with the last token.
    returns: how often the reader went back from the end (value_reader, rule 4).
    closed: the reader has read the end of a call, and looks whether rule 3 takes it back.
    record: the tokens handled since somebody set it to a list; what is given back leaves it.
    handled: tokens handled so far, those that were given back each time. At most a fixed multiple of the tokens fed.
    """

    def __init__(self) -> None:
        self._again: deque[Token] = deque()
        self._reader: Reader | None = None
        self.stopped = False
        self.returns = 0
        self.closed = False
        self.record: list[Token] | None = None
        self.handled = 0

    def start(self, reader: Reader) -> None:
        """Run the reader up to its first yield."""
        self._reader = reader
        next(reader)

    def push(self, token: Token) -> None:
        """Let the reader handle the token, and all that it gives back."""
        self._handle(token)
        while self._again:
            self._handle(self._again.popleft())

    def again(self, tokens: Sequence[Token]) -> None:
        """Give back the last tokens: they come next, in this order."""
        self._again.extendleft(reversed(tokens))
        if self.record is not None and tokens:
            del self.record[-len(tokens) :]

    def _handle(self, token: Token) -> None:
        assert self._reader is not None
        self.handled += 1
        if self.record is not None:
            self.record.append(token)
        self._reader.send(token)
