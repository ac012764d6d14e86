"""Stop strings: found across token borders, and nothing of them shown that might have to be taken back."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["StopStrings"]


class StopStrings:
    """Passes text on up to the first stop string.

    stops: the strings, empty ones left out. shown: whether the stop string itself is part of the text.
    """

    def __init__(self, stops: Iterable[str], *, shown: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self.shown = shown
        self._beginnings = tuple(stop[:size] for stop in self._stops for size in range(1, len(stop)))
        self._held = ""
        self.hit: str | None = None

    def feed(self, text: str) -> str:
        """What may be shown. After a hit, which `hit` names, nothing more comes."""
        if not self._stops or self.hit is not None:
            return text if self.hit is None else ""
        text = self._held + text
        found = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            # The one that is complete first, so that it does not matter how the text was cut.
            place, self.hit = min(found, key=lambda pair: (pair[0] + len(pair[1]), pair[0]))
            self._held = ""
            return text[: place + len(self.hit)] if self.shown else text[:place]
        if not text.endswith(self._beginnings):
            self._held = ""
            return text
        kept = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def finish(self) -> str:
        """What was held back and did not become a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
