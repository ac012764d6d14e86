"""JSON Schema as xgrammar enforces it: lint, normalise, and say what is enforced.

`normalise` is pure Python and never raises: whatever comes in, a schema comes out that compiles, accepts every value
the original accepts, and accepts no other unless a message says so.
"""

from __future__ import annotations

from typing import Any

from .meet import Meeting
from .reader import Reader
from .shapes import ANY, Object
from .verdicts import LIMITS, Limits, Message, Normalised, Verdict, worst
from .writer import Writer

__all__ = ["LIMITS", "Limits", "Message", "Normalised", "Verdict", "normalise"]


def normalise(schema: Any, *, strict: bool = False, arguments: bool = False) -> Normalised:
    """A JSON Schema (drafts 4 to 2020-12, as tools are described with it) in the forms xgrammar enforces as written.

    Args:
        schema: the schema; anything that is no schema allows any value, with a message.
        strict: the tool's `strict`: objects that do not say otherwise are closed, bounds of fractions hold (with at
            most 6 decimals), and known formats are enforced.
        arguments: the schema is that of a tool's arguments: only objects count.

    Never raises, and takes time and memory bounded by `LIMITS` and linear in the schema's size.
    """
    reader = Reader(schema, strict)
    try:
        shape = reader.read(schema, (), 0)
        if arguments:
            meeting = Meeting(reader.resolve, lambda keyword, text: reader.note((), keyword, Verdict.RELAXED, text))
            shape = meeting.both((Object(rest=ANY),), shape)
        writer = Writer(reader.read_definitions(), strict, reader.note)
        written = writer.document(shape)
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
