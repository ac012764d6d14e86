"""Tool calls, reasoning and content out of what a GLM-4.5, 4.6, 4.7 or 5.x model writes.

`parse_output` takes a whole output, `GlmStream` one that comes in pieces; both give the same. They never raise and
never drop a call: what the request did not offer, what is malformed and what was cut off is reported with a note, see
`NOTES`, and counted, see `OUTCOMES`. The rules that tell a marker from the same text inside a value are in
`value_reader`, those that tell a string from other JSON in `values`, both also in docs/structural_tags.md.

Finish reasons: a reason of the engine other than "stop" (or "eos") stays as it is, also with complete calls. For
"stop" it is "length" if the output ended inside a call, else "tool_calls" if there is a call, else "stop".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dynamo_structural_tags.events import (
    NOTES,
    OUTCOMES,
    ArgumentsDelta,
    CallCounts,
    CallEnd,
    CallStart,
    ContentDelta,
    Event,
    Finish,
    Note,
    ParsedOutput,
    ReasoningDelta,
    collect,
)
from dynamo_structural_tags.stream import GlmStream

__all__ = [
    "NOTES",
    "OUTCOMES",
    "ArgumentsDelta",
    "CallCounts",
    "CallEnd",
    "CallStart",
    "ContentDelta",
    "Event",
    "Finish",
    "GlmStream",
    "Note",
    "ParsedOutput",
    "ReasoningDelta",
    "collect",
    "parse_output",
]


def parse_output(
    text: str | bytes,
    tools: Iterable[Any] | None,
    *,
    finish_reason: str | None = "stop",
    tool_choice: Any = "auto",
    chunks: Iterable[str | bytes] | None = None,
    thinking: bool = True,
    counts: CallCounts | None = None,
    stopped_by: str | None = None,
) -> ParsedOutput:
    """Parse one output.

    text: what the model wrote behind the prompt, markers included. Bytes are UTF-8, and none is lost: what is not
        comes back with ``.encode("utf-8", "surrogateescape")``.
    tools, tool_choice: as in the request, see `offer.Offer`.
    finish_reason: the engine's.
    chunks: the same text in pieces, to be read instead of `text`; the result is the same.
    thinking: whether the prompt ended inside ``<think>``.
    counts: where to count the calls.
    stopped_by: the client's stop string that ended the output and is not in the text.
    """
    stream = GlmStream(tools, tool_choice, thinking=thinking, counts=counts)
    events: list[Event] = []
    for piece in [text] if chunks is None else chunks:
        events += stream.feed(piece)
    return collect([*events, *stream.finish(finish_reason, stopped_by=stopped_by)])
