"""What the parser reports: typed events of a stream, notes with codes, outcomes of calls, and the whole output."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

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
    "Note",
    "ParsedOutput",
    "ReasoningDelta",
    "collect",
]

#: Outcomes of calls, worst last: a call has the worst one that applies.
OUTCOMES: dict[str, str] = {
    "valid": "well formed, offered by the request, and its values have the types that the schema asks for",
    "recovered": "malformed, and read in the one way that makes sense",
    "invalid": "a required argument is missing, or a value does not have the type that the schema asks for",
    "undeclared": "the request did not offer this tool: not declared, not the named one, or no call allowed at all",
    "truncated": "the output ended inside the call; it is not among the calls",
}

#: Codes of notes.
NOTES: dict[str, str] = {
    "undeclared_tool": "the request declares no tool of this name",
    "tool_not_allowed": "`tool_choice` names another tool, or its list of allowed tools lacks this one",
    "call_under_none": "a call although `tool_choice` is none; its text is left in the content",
    "call_without_tools": "a call although the request has no tools; its text is left in the content",
    "no_call": "`tool_choice` asks for a call and there is none",
    "truncated_call": "the output ended inside a call",
    "call_in_reasoning": "the reasoning contains a call and went on to its end; the call is part of the thought",
    "call_before_think_end": "a call came before `</think>`, which never came",
    "marker_as_text": "`<tool_call>` that no tool name follows; it is left in the text",
    "marker_in_value": "a value contains `</arg_value>` or `</tool_call>`, read as text",
    "missing_argument": "a required argument is missing",
    "unknown_argument": "the schema allows no argument of this name",
    "wrong_type": "the value does not have a type or is not one of the values that the schema allows",
    "value_repaired": "the value was not quite the JSON, or one of the values, that the schema asks for; now it is",
    "duplicate_argument": "the argument is there twice; the last one counts",
    "missing_key_close": "`</arg_key>` is missing",
    "missing_value_open": "`<arg_value>` is missing",
    "missing_value_close": "`</arg_value>` is missing",
    "missing_call_close": "`</tool_call>` is missing",
    "stray_markup": "text or markers between the arguments, left out",
}


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Call number `index` (from 0) begins; its name is complete."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of a call's arguments: a fragment of one JSON object's text, always encodable as UTF-8."""

    index: int
    json: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is over. Its fragments are one JSON object, except if `outcome` is "truncated"."""

    index: int
    name: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something a client should know.

    code: a key of `NOTES`.
    text: one sentence for people.
    call: index of the call, None if it is about the whole output or about no returned call.
    name: the tool's name as the model wrote it, None if there is none.
    """

    code: str
    text: str
    call: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of the output, with the finish reason for the client."""

    reason: str


Event = ReasoningDelta | ContentDelta | CallStart | ArgumentsDelta | CallEnd | Note | Finish


class CallCounts:
    """How many calls had which outcome; one object may count for many outputs."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(OUTCOMES, 0)

    def add(self, outcome: str) -> None:
        """Count one call. `outcome` is a key of `OUTCOMES` (KeyError if not)."""
        self._counts[outcome] += 1

    def __getitem__(self, outcome: str) -> int:
        return self._counts[outcome]

    def as_dict(self) -> dict[str, int]:
        """All outcomes with their counts, zeros included."""
        return dict(self._counts)


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """A whole output.

    calls: name and arguments of each call that is complete, in the order of the text.
    outcomes: the outcome of each of them.
    truncated: name and JSON text so far of a call that the output ended in.
    """

    reasoning: str
    content: str
    calls: list[tuple[str, dict[str, Any]]]
    finish_reason: str
    notes: list[Note]
    outcomes: list[str] = field(default_factory=list)
    truncated: list[tuple[str, str]] = field(default_factory=list)


def collect(events: Iterable[Event]) -> ParsedOutput:
    """Put the events of one stream together."""
    reasoning: list[str] = []
    content: list[str] = []
    fragments: dict[int, list[str]] = {}
    calls: list[tuple[str, dict[str, Any]]] = []
    outcomes: list[str] = []
    truncated: list[tuple[str, str]] = []
    notes: list[Note] = []
    reason = "stop"
    for event in events:
        match event:
            case ReasoningDelta(text):
                reasoning.append(text)
            case ContentDelta(text):
                content.append(text)
            case ArgumentsDelta(index, text):
                fragments.setdefault(index, []).append(text)
            case CallEnd(index, name, "truncated"):
                truncated.append((name, "".join(fragments.pop(index, ()))))
            case CallEnd(index, name, outcome):
                calls.append((name, json.loads("".join(fragments.pop(index, ())))))
                outcomes.append(outcome)
            case Note():
                notes.append(event)
            case Finish(reason):
                pass
    return ParsedOutput("".join(reasoning), "".join(content), calls, reason, notes, outcomes, truncated)
