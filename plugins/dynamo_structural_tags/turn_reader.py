"""A turn outside of its calls: reasoning, content, and whether ``<tool_call>`` opens a call or is a word."""

from __future__ import annotations

from collections.abc import Generator

from dynamo_structural_tags.call_reader import CallReader
from dynamo_structural_tags.events import NOTES, CallEnd, CallStart, ContentDelta, Event, Note, ReasoningDelta
from dynamo_structural_tags.glm_format import (
    CALL,
    CALL_END,
    KEY,
    KEY_END,
    MARKS,
    THINK,
    THINK_END,
    TOOL_NAME,
    VALUE,
    VALUE_END,
    Lexer,
)
from dynamo_structural_tags.offer import Offer
from dynamo_structural_tags.tape import Reader, Tail, Tape, Token, blank

__all__ = ["TurnReader"]

_LAYOUT = " \t\r\n"
_QUOTES = ("`", '"', "'")
_BEHIND_NAME = frozenset((KEY, KEY_END, VALUE, VALUE_END, CALL_END))


class TurnReader:
    """The reader of one output: reasoning, then content with calls. With `plain`, calls are text."""

    def __init__(self, offer: Offer, thinking: bool, *, plain: bool = False) -> None:
        self.tape = Tape()
        self._lexer = Lexer()
        self._offer = offer
        self._plain = plain
        self._longest = max(map(len, offer.tools), default=0) + 300
        self._index = 0
        self._calling = False
        self._last = ""
        self._out: list[Event] = []
        self._pending: list[Event] | None = None  # while a call inside the reasoning is undecided
        self.tape.start(self._read(thinking))

    @property
    def inside_a_call(self) -> bool:
        """Whether a call has its name and, so far, no end."""
        return self._calling and not self.tape.closed

    def feed(self, text: str) -> list[Event]:
        for token in self._lexer.feed(text):
            self.tape.push(token)
        out, self._out = self._out, []
        return out

    def finish(self, stopped: bool) -> list[Event]:
        self.tape.stopped = stopped
        if self._lexer.rest:
            self.tape.push(Tail(self._lexer.rest))
        self.tape.push(None)
        out, self._out = self._out, []
        return out

    def _emit(self, event: Event) -> None:
        (self._out if self._pending is None else self._pending).append(event)

    def _read(self, thinking: bool) -> Reader:
        lead: list[Token] = []
        while True:  # the engine may or may not repeat the <think> of the prompt
            token = yield
            lead.append(token)
            if token is None or not blank(token):
                break
        if token == THINK:
            thinking = True
        else:
            self.tape.again(lead)
        if thinking:
            yield from self._reasoning()
        yield from self._content()
        while True:
            yield

    def _say(self, text: str, event: type[ReasoningDelta] | type[ContentDelta]) -> None:
        if text:
            self._last = text[-1]
            self._emit(event(text))

    def _content(self) -> Generator[None, Token, None]:
        while True:
            token = yield
            if token is None:
                return
            if token != CALL or self._plain:
                self._say(token, ContentDelta)
                continue
            name, text = yield from self._name()
            if name is None:
                self._say(text, ContentDelta)
                continue
            yield from self._read_call(self._call(name))

    def _reasoning(self) -> Generator[None, Token, None]:
        """Up to ``</think>``. A call on the way is decided by whether that comes."""
        tape = self.tape
        while True:
            token = yield
            if token is None:
                self._commit()
                tape.again([None])
                return
            if token == THINK_END:
                if tape.record is not None:
                    self._retract(tape.record[:-1])
                return
            if token != CALL or self._plain:
                self._say(token, ReasoningDelta)
                continue
            if self._pending is None:
                self._pending, tape.record = [], [token]
            name, text = yield from self._name()
            if name is None:
                self._say(text, ReasoningDelta)
                if not self._index:
                    self._release()
                continue
            call = self._call(name)
            yield from self._read_call(call)
            if call.cut and tape.record is not None and THINK_END in tape.record:
                seen = tape.record
                end = seen.index(THINK_END)
                self._retract(seen[:end])
                tape.again(seen[end + 1 :])
                return

    def _read_call(self, call: CallReader) -> Generator[None, Token, None]:
        self._calling = True
        yield from call.read()
        self._calling = False

    def _call(self, name: str) -> CallReader:
        self._index += 1
        return CallReader(self.tape, self._offer, self._index - 1, name, self._emit)

    def _release(self) -> None:
        events, self._pending, self.tape.record = self._pending, None, None
        self._out += events or ()

    def _commit(self) -> None:
        """The reasoning never ended: its calls are calls."""
        if self._pending is None:
            return
        events: list[Event] = []
        for event in self._pending:
            if isinstance(event, CallEnd):
                code = "call_before_think_end"
                events.append(Note(code, f"{event.name}: {NOTES[code]}", event.index, event.name))
                if event.outcome == "valid":
                    event = CallEnd(event.index, event.name, "recovered")
            events.append(event)
        self._pending = events
        self._release()

    def _retract(self, tokens: list[Token]) -> None:
        """The reasoning ended: what looked like calls was thought."""
        started = [event for event in self._pending or () if isinstance(event, CallStart)]
        self._pending, self.tape.record, self._index = None, None, 0
        self._say("".join(token for token in tokens if token is not None), ReasoningDelta)
        for event in started:
            code = "call_in_reasoning"
            self._emit(Note(code, f"{event.name}: {NOTES[code]}", None, event.name))

    def _name(self) -> Generator[None, Token, tuple[str | None, str]]:
        """Behind ``<tool_call>``: the tool's name, or None and the text that the marker turned out to be."""
        text, tail = "", ""
        quote = self._last in _QUOTES
        while True:
            token = yield
            if token is None:
                self.tape.again([None])
                return self._name_at_end(text, tail, quote)
            if token in MARKS:
                self.tape.again([token])
                name = text.strip(_LAYOUT)
                if token in _BEHIND_NAME and self._is_name(name, quote):
                    return name, ""
                break
            if isinstance(token, Tail):
                tail = token
                continue
            text += token
            if not self._may_be_name(text):
                break
        return self._no_name(text + tail)

    def _no_name(self, text: str) -> tuple[None, str]:
        self._emit(Note("marker_as_text", NOTES["marker_as_text"]))
        return None, CALL + text

    def _name_at_end(self, text: str, tail: str, quote: bool) -> tuple[str | None, str]:
        """The output ends in the name: a call if it is a whole name, truncated if it may become one."""
        name = text.strip(_LAYOUT)
        if quote or text[:1] in (" ", "\t"):
            return self._no_name(text + tail)
        if name in self._offer.tools:
            return name, ""
        if not self.tape.stopped and any(tool.startswith(name) for tool in self._offer.tools):
            self._emit(Note("truncated_call", f"{name}: {NOTES['truncated_call']}", None, name))
            return None, ""
        return self._no_name(text + tail)

    def _is_name(self, name: str, quote: bool) -> bool:
        return name in self._offer.tools or (not quote and TOOL_NAME.fullmatch(name) is not None)

    def _may_be_name(self, text: str) -> bool:
        if len(text) > self._longest:
            return False
        name = text.strip(_LAYOUT)
        if not name or TOOL_NAME.fullmatch(name):
            return True
        return any(tool.startswith(name) for tool in self._offer.tools)
