"""Events of the parser as the messages that vLLM's servers send: streamed deltas, and calls of a whole output."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)

from dynamo_structural_tags import metrics
from dynamo_structural_tags.events import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    ContentDelta,
    Event,
    Note,
    ReasoningDelta,
)

__all__ = ["NOTES_FIELD", "delta_of", "join", "note_fields", "whole_output"]

#: Field of a message, and of a delta, in which a client finds the notes.
NOTES_FIELD = "tool_call_notes"


def note_fields(note: Note) -> dict[str, Any]:
    """A note as JSON: code, text, and the call's index and the tool's name where there are any."""
    fields = {"code": note.code, "text": note.text, "call": note.call, "name": note.name}
    return {key: value for key, value in fields.items() if value is not None}


def delta_of(events: Iterable[Event]) -> DeltaMessage | None:
    """One delta with all that the events say, None if that is nothing."""
    delta = DeltaMessage()
    calls: list[DeltaToolCall] = []
    for event in events:
        match event:
            case ContentDelta(text):
                delta.content = (delta.content or "") + text
            case ReasoningDelta(text):
                delta.reasoning = (delta.reasoning or "") + text
            case CallStart(index, name):
                function = DeltaFunctionCall(name=name, arguments="")
                calls.append(DeltaToolCall(index=index, id=_call_id(), type="function", function=function))
            case ArgumentsDelta(index, fragment):
                metrics.streamed(fragment)
                last = calls[-1].function if calls and calls[-1].index == index else None
                if last is not None:
                    last.arguments = (last.arguments or "") + fragment
                else:
                    calls.append(DeltaToolCall(index=index, function=DeltaFunctionCall(arguments=fragment)))
    if calls:
        delta.tool_calls = calls
    return delta if calls or delta.content or delta.reasoning else None


def join(deltas: Iterable[DeltaMessage | None], notes: list[dict[str, Any]]) -> DeltaMessage | None:
    """Several deltas as one, and notes with it; None if all of that is nothing."""
    found = [delta for delta in deltas if delta is not None]
    if not found and not notes:
        return None
    whole, *others = found or [DeltaMessage()]
    for delta in others:
        for name in ("content", "reasoning"):
            if text := getattr(delta, name):
                setattr(whole, name, (getattr(whole, name) or "") + text)
        if delta.tool_calls:
            whole.tool_calls = [*whole.tool_calls, *delta.tool_calls]
    if notes:
        setattr(whole, NOTES_FIELD, notes)
    return whole


def whole_output(events: Iterable[Event]) -> ExtractedToolCallInformation:
    """Content and complete calls of an output; the text of a call's arguments is the one that streaming sends."""
    content: list[str] = []
    fragments: dict[int, list[str]] = {}
    calls: list[ToolCall] = []
    for event in events:
        match event:
            case ContentDelta(text):
                content.append(text)
            case ArgumentsDelta(index, fragment):
                fragments.setdefault(index, []).append(fragment)
            case CallEnd(index, name, outcome) if outcome != "truncated":
                function = FunctionCall(name=name, arguments="".join(fragments.pop(index, ())))
                calls.append(ToolCall(id=_call_id(), function=function))
    return ExtractedToolCallInformation(tools_called=bool(calls), tool_calls=calls, content="".join(content) or None)


def _call_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex}"
