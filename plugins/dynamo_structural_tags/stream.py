"""The incremental parser: reasoning, content and calls out of text that comes in pieces of any size."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from typing import Any

from dynamo_structural_tags.events import NOTES, CallCounts, CallEnd, Event, Finish, Note
from dynamo_structural_tags.glm_format import MARKS
from dynamo_structural_tags.offer import Offer
from dynamo_structural_tags.turn_reader import TurnReader

__all__ = ["GlmStream"]

_STOPS = ("stop", "eos", "tool_calls", "")

_MARKERS_ONLY = re.compile(r"(?:\s|" + "|".join(map(re.escape, sorted(MARKS))) + ")+")


class GlmStream:
    """Parses one output of a GLM-4.5, 4.6, 4.7 or 5.x model. No text and no bytes make it raise.

    tools, tool_choice: as in the request, see `Offer`.
    thinking: whether the prompt ended inside ``<think>``, as the template's prompts do unless thinking is off.
    counts: where to count the calls.

    Every event comes as soon as it is certain, so strings of arguments come in pieces. Four things wait: values of
    other types for their end; text behind a call for the next `AFTERTHOUGHT` characters; what follows a call inside
    the reasoning for ``</think>``, which makes it part of the thought, or the end, which makes it a call; and what is
    behind a place in a value that rule 4 of `value_reader` may come back to, as behind a lone ``<arg_value>``.
    """

    def __init__(
        self,
        tools: Iterable[Any] | None = None,
        tool_choice: Any = "auto",
        *,
        thinking: bool = True,
        counts: CallCounts | None = None,
    ) -> None:
        offer = Offer(tools, tool_choice)
        self._refusal = offer.refusal()
        self._observer = TurnReader(offer, thinking) if self._refusal else None
        self._machine = TurnReader(offer, thinking, plain=self._refusal is not None)
        self._forced = offer.forced
        self._counts = counts if counts is not None else CallCounts()
        self._calls = 0
        self._cut = False
        self._finished = False
        self._decoder: codecs.IncrementalDecoder | None = None

    @property
    def handled(self) -> int:
        """Steps taken so far, for tests of linearity."""
        return self._machine.tape.handled

    def feed(self, text: str | bytes) -> list[Event]:
        """Take the next piece of text; returns the events that it makes certain. After `finish` nothing happens.

        Bytes are UTF-8. Those that are not become lone surrogates as with Python's "surrogateescape", from which a
        client gets them back: none is lost.
        """
        if self._finished or not text:
            return []
        if isinstance(text, bytes | bytearray):
            if self._decoder is None:
                self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
            text = self._decoder.decode(text)
        elif self._decoder is not None:
            text = self._decoder.decode(b"", final=True) + text
        events = self._passed(self._machine.feed(text))
        if self._observer is not None:
            events += self._observed(self._observer.feed(text))
        return events

    def finish(self, reason: str | None = "stop", *, stopped_by: str | None = None) -> list[Event]:
        """End the output with the engine's finish reason; returns the remaining events, `Finish` last.

        stopped_by: the client's stop string that ended the output and is not in the text. The model did write it, so
        inside of a call its markers close what they would have closed.
        """
        if self._finished:
            return []
        events = self.feed("" if self._decoder is None else self._decoder.decode(b"", final=True))
        if stopped_by and self._machine.inside_a_call and _MARKERS_ONLY.fullmatch(stopped_by):
            events += self.feed(stopped_by)
        self._finished = True
        word = "stop" if reason is None else str(reason)
        stopped = word in _STOPS
        events += self._passed(self._machine.finish(stopped))
        if self._observer is not None:
            events += self._observed(self._observer.finish(stopped))
        if self._forced and not self._calls and not self._cut and stopped:
            events.append(Note("no_call", NOTES["no_call"]))
        if stopped:
            word = "length" if self._cut else "tool_calls" if self._calls else "stop"
        events.append(Finish(word))
        return events

    def _passed(self, events: list[Event]) -> list[Event]:
        for event in events:
            if isinstance(event, CallEnd):
                self._counts.add(event.outcome)
                self._cut = self._cut or event.outcome == "truncated"
                self._calls += event.outcome != "truncated"
            elif isinstance(event, Note) and event.code == "truncated_call" and event.call is None:
                self._counts.add("truncated")
                self._cut = True
        return events

    def _observed(self, events: list[Event]) -> list[Event]:
        """Notes of the calls in a text that must not have any."""
        notes: list[Event] = []
        for event in events:
            if isinstance(event, CallEnd) and self._refusal is not None:
                self._counts.add("undeclared")
                notes.append(Note(self._refusal, f"{event.name}: {NOTES[self._refusal]}", None, event.name))
        return notes
