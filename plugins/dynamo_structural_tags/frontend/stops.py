"""Stop strings: found across token borders, and nothing of them shown that might have to be taken back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

__all__ = ["StopStrings"]


class StopStrings:
    """Passes text on up to the first stop string.

    stops: the strings, empty ones left out. shown: whether the stop string itself is part of the text.
    hit: the one that was found. The one that is complete first, so that it does not matter how the text was cut.
    steps: comparisons of characters so far, for tests of linearity: at most two a character and stop string.
    """

    def __init__(self, stops: Iterable[str], *, shown: bool = False) -> None:
        self._words = [_Word(stop) for stop in dict.fromkeys(stops) if stop]
        self._first = {word.text[0] for word in self._words}
        self.shown = shown
        self._held = _Queue()
        self.hit: str | None = None

    @property
    def steps(self) -> int:
        """What was compared so far."""
        return sum(word.steps for word in self._words)

    def feed(self, text: str) -> str:
        """What may be shown. After a hit, which `hit` names, nothing more comes."""
        if not self._words or self.hit is not None:
            return text if self.hit is None else ""
        if not self._held.size and not any(letter in text for letter in self._first):
            return text
        ends = [(end, -len(word.text), word.text) for word in self._words if (end := word.feed(text)) is not None]
        if ends:
            end, _, self.hit = min(ends)
            whole = self._held.take(self._held.size) + text[:end]
            return whole if self.shown else whole[: -len(self.hit)]
        self._held.put(text)
        return self._held.take(self._held.size - max(word.matched for word in self._words))

    def finish(self) -> str:
        """What was held back and did not become a stop string."""
        return self._held.take(self._held.size)


class _Queue:
    """Text that is put in in pieces and taken out from its beginning; `size` is its length. Nothing is copied twice."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: deque[str] = deque()
        self._offset = 0  # what was taken of the first piece

    def put(self, text: str) -> None:
        self._pieces.append(text)
        self.size += len(text)

    def take(self, count: int) -> str:
        taken: list[str] = []
        self.size -= count
        while count > 0:
            first = self._pieces[0]
            part = first[self._offset : self._offset + count]
            taken.append(part)
            count -= len(part)
            self._offset += len(part)
            if self._offset == len(first):
                self._pieces.popleft()
                self._offset = 0
        return "".join(taken)


class _Word:
    """One string, looked for by Knuth, Morris and Pratt; `matched` of its characters are the end of the text so far."""

    def __init__(self, text: str) -> None:
        self.text, self.matched, self.steps = text, 0, 0
        self._borders = [0]
        border = 0
        for letter in text[1:]:
            while border and letter != text[border]:
                border = self._borders[border - 1]
            border += letter == text[border]
            self._borders.append(border)

    def feed(self, text: str) -> int | None:
        """Where in this piece the string is complete, None if it is not."""
        word, borders, matched, place = self.text, self._borders, self.matched, 0
        while place < len(text):
            if not matched:  # far to the next place where it may begin
                place = text.find(word[0], place)
                if place < 0:
                    break
            letter = text[place]
            self.steps += 1
            while matched and letter != word[matched]:
                matched = borders[matched - 1]
                self.steps += 1
            matched += letter == word[matched]
            place += 1
            if matched == len(word):
                self.matched = 0
                return place
        self.matched = matched
        return None
