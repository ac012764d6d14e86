"""The tool parser ``glm47_safe`` of ``vllm serve``: this plugin's reader behind vLLM's interface.

vLLM's reasoning parser takes the text up to ``</think>``, the rest comes here. A call of a tool that the request does
not offer, or under ``tool_choice: none``, is not dropped; what is unusual about an output is told in the field
`tool_call_notes` of the message and of the streamed deltas.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaMessage, ExtractedToolCallInformation
from vllm.tool_parsers.abstract_tool_parser import ToolParser

from dynamo_structural_tags import metrics, stock
from dynamo_structural_tags.events import CallEnd, Event, Note
from dynamo_structural_tags.glm_format import CALL, MARKS, THINK, THINK_END
from dynamo_structural_tags.patches import ANSWERS, REGISTER
from dynamo_structural_tags.stream import GlmStream
from dynamo_structural_tags.tags import relaxed_names
from dynamo_structural_tags.vllm_deltas import delta_of, join, note_fields, whole_output
from dynamo_structural_tags.vllm_request import choice_of, tools_of
from dynamo_structural_tags.vllm_tags import makes_tags, with_tag

__all__ = ["GlmToolParser"]

#: Last tokens in which a stop string is looked for: more than a long one and a step with speculated tokens have.
_TAIL = 512
_FIRST = re.compile(f"{re.escape(THINK_END)}|{re.escape(CALL)}")

# Whoever loads this module has chosen the parser by name.
if not stock.untested():
    REGISTER.apply(ANSWERS)


class GlmToolParser(ToolParser):
    """Reads GLM's calls out of one answer; vLLM makes one for each."""

    # The calls of every tool choice come in GLM's own format, never as a JSON list.
    supports_required_and_named = False
    # vLLM's own tag, except where `with_tag` makes a better one.
    structural_tag_model = None if makes_tags() else "glm_4_7"
    # vLLM hands over each piece once, and calls `finish_streaming` at the end.
    engine_based_streaming = True
    # vLLM sets it where the server has no reasoning parser.
    skip_reasoning_parsing = False

    def __init__(self, tokenizer: Any, tools: list[Any] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self._stream: GlmStream | None = None
        self._relaxed: frozenset[str] | None = None
        self._tools: list[dict[str, Any]] = []
        self._request: Any = None
        self._tail: deque[int] = deque(maxlen=_TAIL)
        self.notes: list[dict[str, Any]] = []
        self._sent = 0

    def adjust_request(self, request: Any) -> Any:
        """Let the markers through to the text, and put a tag into the request that this parser reads back."""
        request.skip_special_tokens = False
        if not makes_tags():
            return request
        return with_tag(request)

    def note_tokens(self, token_ids: Sequence[int]) -> None:
        """What the engine generated last, or in whole: how it ends tells whether the engine stopped by itself."""
        self._tail.extend(token_ids[-_TAIL:])

    def split_reasoning(self, model_output: str) -> tuple[str | None, str | None]:
        """Reasoning and the rest of a whole answer that begins inside the reasoning, as vLLM's streaming has them."""
        found = _FIRST.search(model_output)
        reasoning = model_output[: found.start()] if found else model_output
        rest = model_output[found.start() :].removeprefix(THINK_END) if found else ""
        return reasoning.replace(THINK, "").rstrip() or None, rest or None

    def divided(self, text: str, token_ids: list[int]) -> list[tuple[str, list[int]]]:
        """The delta in two pieces if the reasoning ends inside of it, so that vLLM sees no more than its end."""
        found = _FIRST.search(text) if self._stream is None else None
        marker = self.vocab.get(found.group()) if found else None
        if found is None or found.end() == len(text) or marker not in token_ids:
            return [(text, token_ids)]
        place = token_ids.index(marker) + 1
        return [(text[: found.end()], token_ids[:place]), (text[found.end() :], token_ids[place:])]

    def joined(self, deltas: list[DeltaMessage | None]) -> DeltaMessage | None:
        """One delta of these, with the notes that no delta has carried so far; None if that is nothing."""
        notes, self._sent = self.notes[self._sent :], len(self.notes)
        return join(deltas, notes)

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        """Content and calls of a whole answer, behind the reasoning."""
        stream = self._open(request)
        events = self._counted([*stream.feed(model_output), *self._finished(stream)])
        self._stream = None
        return whole_output(events)

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> DeltaMessage | None:
        """What the next piece of text makes certain; None if that is nothing."""
        if self._stream is None:
            self._stream = self._open(request)
        self.note_tokens(delta_token_ids)
        return delta_of(self._counted(self._stream.feed(delta_text)))

    def finish_streaming(self) -> DeltaMessage | None:
        """The rest of a streamed answer."""
        if self._stream is None:
            return None
        events = self._counted(self._finished(self._stream))
        self._stream = None
        return delta_of(events)

    def _open(self, request: Any) -> GlmStream:
        self._tools, self._relaxed, self.notes, self._sent = tools_of(request), None, [], 0
        self._request = request
        return GlmStream(self._tools, choice_of(request), thinking=False)

    def _finished(self, stream: GlmStream) -> list[Event]:
        """The end of an output. vLLM does not say what ended it, so the last tokens have to."""
        hit = self._stop()
        shown = getattr(self._request, "include_stop_str_in_output", False)
        return stream.finish("stop" if hit or self._stopped() else "length", stopped_by=None if shown else hit)

    def _stopped(self) -> bool:
        """Whether the engine ended the output by itself: with a token that is not text."""
        if not self._tail:
            return True
        last, tokenizer = self._tail[-1], self.model_tokenizer
        return last in tokenizer.all_special_ids and tokenizer.decode([last]) not in MARKS

    def _stop(self) -> str | None:
        """What ended the output because the client says so: the last token, or the string that is complete first."""
        if not self._tail:
            return None
        last, tokenizer = self._tail[-1], self.model_tokenizer
        if last in (getattr(self._request, "stop_token_ids", None) or ()):
            return str(tokenizer.decode([last]))
        wanted = getattr(self._request, "stop", None) or ()
        stops = [stop for stop in ([wanted] if isinstance(wanted, str) else wanted) if stop]
        if not stops:
            return None
        text = tokenizer.decode([*self._tail], skip_special_tokens=False)
        ends = [(place + len(stop), stop) for stop in stops if (place := text.find(stop)) >= 0]
        return min(ends)[1] if ends else None

    def _counted(self, events: list[Event]) -> list[Event]:
        for event in events:
            if isinstance(event, CallEnd):
                metrics.call(event.outcome, relaxed=event.outcome == "valid" and event.name in self._relaxed_names())
            elif isinstance(event, Note):
                self.notes.append(note_fields(event))
                if event.call is None and event.code in ("call_under_none", "call_without_tools", "truncated_call"):
                    metrics.call("truncated" if event.code == "truncated_call" else "undeclared")
        return events

    def _relaxed_names(self) -> frozenset[str]:
        if self._relaxed is None:
            self._relaxed = relaxed_names(self._tools)
        return self._relaxed
