"""One choice of a response: tokens in, OpenAI's deltas out. This is all the Python that runs for every token."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynamo_structural_tags import metrics
from dynamo_structural_tags.events import (
    ArgumentsDelta,
    CallCounts,
    CallEnd,
    CallStart,
    ContentDelta,
    Event,
    Finish,
    Note,
    ReasoningDelta,
)
from dynamo_structural_tags.frontend.detokenize import Detokenizer
from dynamo_structural_tags.frontend.stops import StopStrings
from dynamo_structural_tags.stream import GlmStream

__all__ = ["Choice", "CountedCalls"]


class CountedCalls(CallCounts):
    """Counts the calls of one choice, and in the process's metrics all but valid ones, of which `Choice` knows more."""

    def add(self, outcome: str) -> None:
        """Count one call."""
        super().add(outcome)
        if outcome != "valid":
            metrics.call(outcome)


@dataclass
class Choice:
    """The state of one choice.

    index: its number. whole_calls: hand a call out when it is complete, and not at all if it was cut off, for
    responses that are one JSON object. end_tokens: ids that end the output and show no text. min_tokens: ids and stop
    strings among the first tokens end nothing. tools: the request's. think_end: the id that ends the reasoning, None
    if there is none.
    """

    index: int
    detokenizer: Detokenizer
    stops: StopStrings
    stream: GlmStream
    whole_calls: bool = False
    end_tokens: frozenset[int] = frozenset()
    min_tokens: int = 0
    tools: Sequence[Any] = ()
    think_end: int | None = None
    tokens: int = 0
    reasoning_tokens: int = 0
    finished: bool = False
    ended_by_engine: bool = False
    notes: list[dict[str, Any]] = field(default_factory=list)
    _open: dict[int, tuple[str, list[str]]] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=dict)
    _begun: bool = False

    def feed(self, numbers: Sequence[int], reason: str | None) -> list[dict[str, Any]]:
        """The choices to send for the next tokens; the last one, with a finish reason, once the output is over.

        reason: the engine's finish reason with its last tokens.
        """
        if self.finished:
            return []
        free = self.min_tokens - self.tokens
        if 0 < free < len(numbers):
            return self.feed(numbers[:free], None) + self.feed(numbers[free:], reason)
        numbers, ended = self._until_end(numbers)
        self.tokens += len(numbers) + ended
        text = self.detokenizer.feed(numbers)
        over = ended or reason is not None
        if over:
            text += self.detokenizer.finish()
        if self.tokens > self.min_tokens or over:
            text = self.stops.feed(text)
            if over and self.stops.hit is None:
                text += self.stops.finish()
        stopped = self.stops.hit is not None
        events = self.stream.feed(text)
        if over or stopped:
            self.finished, self.ended_by_engine = True, reason is not None
            hidden = None if self.stops.shown else self.stops.hit
            events += self.stream.finish("stop" if stopped or ended else reason, stopped_by=hidden)
        if self.think_end is not None:
            self._count_reasoning(numbers, events)
        return list(self._deltas(events))

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the output."""
        return self.stops.hit

    def _count_reasoning(self, numbers: Sequence[int], events: Sequence[Event]) -> None:
        """Tokens in front of ``</think>``, or of content or a call if that is missing."""
        if self.think_end in numbers:
            self.reasoning_tokens += [*numbers].index(self.think_end)  # type: ignore[arg-type]  # it is among them
            self.think_end = None
        elif any(isinstance(event, ContentDelta | CallStart) for event in events):
            self.think_end = None
        else:
            self.reasoning_tokens += len(numbers)

    def _until_end(self, numbers: Sequence[int]) -> tuple[Sequence[int], bool]:
        """The tokens in front of one that ends the output, and whether there is one."""
        if self.end_tokens:
            for place, number in enumerate(numbers):
                if number in self.end_tokens and self.tokens + place >= self.min_tokens:
                    return numbers[:place], True
        return numbers, False

    def _deltas(self, events: Sequence[Event]) -> Iterator[dict[str, Any]]:
        """OpenAI's choices for the events: one delta holds reasoning, content and calls, in this order."""
        delta: dict[str, Any] = {}
        for event in events:
            match event:
                case ReasoningDelta(text):
                    if "content" in delta or "tool_calls" in delta:
                        yield self._choice(delta)
                        delta = {}
                    delta["reasoning_content"] = delta.get("reasoning_content", "") + text
                case ContentDelta(text):
                    if "tool_calls" in delta:
                        yield self._choice(delta)
                        delta = {}
                    delta["content"] = delta.get("content", "") + text
                case CallStart(number, name):
                    if self.whole_calls:
                        self._open[number] = (name, [])
                    else:
                        delta.setdefault("tool_calls", []).append(self._opened(number, name, ""))
                case ArgumentsDelta(number, text):
                    if self.whole_calls:
                        self._open[number][1].append(text)
                    else:
                        metrics.streamed(text)
                        self._extend(delta, number, text)
                case CallEnd(number, name, outcome):
                    if outcome == "valid":
                        metrics.call(outcome, relaxed=self._relaxed(name))
                    if self.whole_calls:
                        texts = self._open.pop(number)[1]
                        if outcome != "truncated":
                            delta.setdefault("tool_calls", []).append(self._opened(number, name, "".join(texts)))
                case Note():
                    self.notes.append(_note(self.index, event))
                case Finish(reason):
                    yield self._choice(delta, reason)
                    return
        if delta:
            yield self._choice(delta)

    def _relaxed(self, name: str) -> bool:
        """Whether the grammar enforces less than the tool's schema."""
        from dynamo_structural_tags.tags import relaxed_names

        return bool(relaxed_names([tool for tool in self.tools if (tool.get("function") or {}).get("name") == name]))

    def _opened(self, number: int, name: str, arguments: str) -> dict[str, Any]:
        return {
            "index": self._numbers.setdefault(number, len(self._numbers)),
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _extend(self, delta: dict[str, Any], number: int, text: str) -> None:
        """Add to a call's arguments, in the entry of this delta if there is one."""
        calls = delta.setdefault("tool_calls", [])
        index = self._numbers[number]
        if not calls or calls[-1]["index"] != index:
            calls.append({"index": index, "function": {"arguments": text}})
        else:
            calls[-1]["function"]["arguments"] += text

    def _choice(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        if not self._begun:
            self._begun = True
            delta["role"] = "assistant"
        return {"index": self.index, "delta": delta, "finish_reason": reason}


def _note(index: int, note: Note) -> dict[str, Any]:
    found = {"choice": index, "code": note.code, "text": note.text, "call": note.call, "name": note.name}
    return {key: value for key, value in found.items() if value is not None}
