"""JSON Schema as xgrammar enforces it: lint, normalise, and say what is enforced.

`normalise` is pure Python and never raises: whatever comes in, a schema comes out that compiles, accepts every value
the original accepts, and accepts no other unless a message says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .definitions import Definitions
from .meet import Meeting
from .notes import Notes, PlacedNote
from .reader import Reader
from .shapes import ANY, Object, Shape
from .verdicts import LIMITS, Limits, Message, Normalised, Verdict, worst
from .writer import Writer

__all__ = [
    "LIMITS",
    "Limits",
    "Message",
    "Normalised",
    "Notes",
    "PlacedNote",
    "Shapes",
    "Verdict",
    "normalise",
    "read_shapes",
    "worst",
]


@dataclass(frozen=True, slots=True)
class Shapes:
    """A schema as shapes. `note` adds a message about a place (a path of the original) to those of `reader`."""

    shape: Shape
    definitions: Definitions
    reader: Reader | Notes

    def note(self, place: tuple[str | int, ...], keyword: str, verdict: Verdict, text: str) -> None:
        """Record what becomes of a keyword."""
        self.reader.note(place, keyword, verdict, text)

    @property
    def messages(self) -> tuple[Message, ...]:
        """Every message so far."""
        return tuple(self.reader.messages.values())


def read_shapes(schema: Any, *, strict: bool = False, arguments: bool = False) -> Shapes:
    """What `normalise` reads, for whoever writes it in other ways. Never raises; as bounded as `normalise`."""
    reader = Reader(schema, strict)
    try:
        shape = reader.read(schema, (), 0)
        if arguments:
            meeting = Meeting(reader.resolve, lambda keyword, text: reader.note((), keyword, Verdict.RELAXED, text))
            shape = meeting.both((Object(rest=ANY),), shape)
        definitions = Definitions(reader.read_definitions(), strict, reader.note)
    except RecursionError:
        reader.note((), "", Verdict.RELAXED, "nested too deep for Python: any value")
        shape, definitions = (Object(rest=ANY),) if arguments else ANY, Definitions({}, strict, reader.note)
    return Shapes(shape, definitions, reader)


def normalise(schema: Any, *, strict: bool = False, arguments: bool = False) -> Normalised:
    """A JSON Schema (drafts 4 to 2020-12, as tools are described with it) in the forms xgrammar enforces as written.

    Args:
        schema: the schema; anything that is no schema allows any value, with a message.
        strict: the tool's `strict`: objects that do not say otherwise are closed, bounds of fractions hold (with at
            most 6 decimals), and known formats are enforced.
        arguments: the schema is that of a tool's arguments: only objects count.

    Never raises, and takes time and memory bounded by `LIMITS` and linear in the schema's size.
    """
    found = read_shapes(schema, strict=strict, arguments=arguments)
    reader = found.reader
    try:
        written = Writer(found.definitions, strict, reader.note).document(found.shape)
    except RecursionError:
        reader.note((), "", Verdict.RELAXED, "nested too deep for Python: any value")
        written = {}
    if written is None:
        written = {}
        reader.note((), "", Verdict.IMPOSSIBLE, "no value satisfies the schema: nothing is enforced")
    if arguments and "type" not in written and "anyOf" not in written and "$ref" not in written:
        written = {"type": "object", "additionalProperties": True}
    messages = tuple(reader.messages.values())
    return Normalised(written, worst([message.verdict for message in messages]), messages)
