"""Messages about a part of a schema that may stand in many schemas, at another place in each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .verdicts import Message, Verdict, pointer

__all__ = ["Notes", "PlacedNote"]

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class PlacedNote:
    """What becomes of a keyword. path: from the part on if `below`, else from the root of the schema."""

    path: Place
    below: bool
    keyword: str
    verdict: Verdict
    text: str

    def at(self, place: Place) -> tuple[Place, str, Verdict, str]:
        """The same, as `Shapes.note` takes it, about a part that stands at `place`."""
        return ((*place, *self.path) if self.below else self.path), self.keyword, self.verdict, self.text


class Notes:
    """Collects messages in place of a `Reader`."""

    def __init__(self) -> None:
        self._found: list[PlacedNote] = []

    def note(self, path: Place, keyword: str, verdict: Verdict, text: str) -> None:
        """Record what becomes of a keyword."""
        self._found.append(PlacedNote(path, False, keyword, verdict, text))

    @property
    def messages(self) -> dict[tuple[str, str, str], Message]:
        """As a `Reader` has them."""
        made = [Message(pointer(note.path), note.keyword, note.verdict, note.text) for note in self._found]
        return {(message.path, message.keyword, message.text): message for message in made}

    def seen_from(self, place: Place) -> tuple[PlacedNote, ...]:
        """All notes, those about something at or below a place as seen from there."""
        size = len(place)
        return tuple(
            replace(note, path=note.path[size:], below=True) if note.path[:size] == place else note
            for note in self._found
        )
