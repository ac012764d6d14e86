"""Answers through vLLM's own parsers of an API server, with glm47_safe as the tool parser, whole and streamed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glm_turns import Case
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponseChoice,
    ChatCompletionResponseStreamChoice,
)
from vllm.parser.parser_manager import ParserManager
from vllm.tokenizers import get_tokenizer

from dynamo_structural_tags.glm_format import MARKS

_UNITS = re.compile("|".join(map(re.escape, sorted(MARKS))) + "|.", re.DOTALL)


@dataclass
class Answer:
    """What a client has in the end."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)


class Server:
    """The parsers of one API server; model: a folder with a GLM tokenizer."""

    def __init__(self, model: Path, tool_parser: str = "glm47_safe") -> None:
        self.model = model
        self.tokenizer = get_tokenizer(str(model))
        self.parsers = ParserManager.get_parser(
            tool_parser_name=tool_parser, reasoning_parser_name="glm45", enable_auto_tools=True
        )
        self._prompt = self.tokenizer.encode("<|user|>hi<|assistant|><think>", add_special_tokens=False)
        (self._stop,) = self.tokenizer.encode("<|user|>", add_special_tokens=False)

    def units(self, text: str) -> list[str]:
        """The smallest pieces that tokens make of a text: markers and characters."""
        return _UNITS.findall(text)

    def request(self, case: Case, **fields: Any) -> ChatCompletionRequest:
        """The request that a case answers."""
        fields = {"tools": case.tools, "tool_choice": case.tool_choice} | fields if case.tools else fields
        return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "hi"}], **fields)

    def whole(self, case: Case) -> Answer:
        """A case's output in one piece, not streamed."""
        parser, request = self._parser(case)
        reasoning, content, calls = parser.parse(
            case.raw, request, enable_auto_tools=True, model_output_token_ids=self._tokens(case.raw, case.finish)
        )
        found = [(call.name, call.arguments) for call in calls or ()]
        return Answer(reasoning or "", content or "", found, parser.tool_parser.notes)

    def streamed(self, case: Case, pieces: Iterable[str]) -> Answer:
        """A case's output in these pieces, as a client puts the deltas together; truncated calls left out."""
        answer = Answer()
        calls: dict[int, list[str]] = {}
        for delta in self.deltas(case, pieces):
            answer.reasoning += delta.reasoning or ""
            answer.content += delta.content or ""
            answer.notes += getattr(delta, "tool_call_notes", ())
            for call in delta.tool_calls or ():
                name, arguments = calls.setdefault(call.index, ["", ""])
                calls[call.index] = [
                    name + (call.function.name or ""),
                    arguments + (call.function.arguments or ""),
                ]
        cut = {note.get("call") for note in answer.notes if note["code"] == "truncated_call"}
        answer.calls = [(name, arguments) for index, (name, arguments) in sorted(calls.items()) if index not in cut]
        return answer

    def deltas(self, case: Case, pieces: Iterable[str]) -> Iterator[Any]:
        """What vLLM streams for a case's output in these pieces."""
        parser, request = self._parser(case)
        pieces = list(pieces)
        for place, piece in enumerate(pieces):
            last = place == len(pieces) - 1
            delta = parser.parse_delta(
                piece,
                self._tokens(piece, case.finish if last else "length"),
                request,
                prompt_token_ids=self._prompt,
                finished=last,
            )
            if delta is not None:
                yield delta

    def _parser(self, case: Case) -> tuple[Any, ChatCompletionRequest]:
        request = self.request(case)
        return self.parsers(self.tokenizer, request.tools), request

    def _tokens(self, text: str, finish: str) -> list[int]:
        tokens = self.tokenizer.encode(text, add_special_tokens=False) if text else []
        return [*tokens, self._stop] if finish == "stop" else tokens


def choice_of(message: Any, reason: str) -> ChatCompletionResponseChoice:
    """A choice as vLLM's serving code makes it."""
    from vllm.entrypoints.openai.chat_completion import serving

    return serving.ChatCompletionResponseChoice(index=0, message=message, finish_reason=reason)


def streamed_choice_of(delta: Any, reason: str) -> ChatCompletionResponseStreamChoice:
    """A streamed choice as vLLM's serving code makes it."""
    from vllm.entrypoints.openai.chat_completion import serving

    return serving.ChatCompletionResponseStreamChoice(index=0, delta=delta, finish_reason=reason)
