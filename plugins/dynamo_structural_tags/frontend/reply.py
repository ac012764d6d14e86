"""Chunks of a chat completion around the choices: usage, log probabilities, notes, and Dynamo's own figures."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dynamo_structural_tags.frontend.choice import Choice
from dynamo_structural_tags.frontend.detokenize import TokenBytes
from dynamo_structural_tags.frontend.logprobs import entries

__all__ = ["NOTES_KEY", "Reply"]

#: Key of ``nvext`` under which a client finds the notes of its calls.
NOTES_KEY = "tool_call_notes"


@dataclass
class Reply:
    """What the chunks of one response have in common.

    request: the client's. prompt, prompt_tokens: its rendered prompt and how many tokens it has. received: seconds
    since the epoch.
    """

    id: str
    created: int
    model: str
    request: Mapping[str, Any]
    prompt: str
    prompt_tokens: int
    table: TokenBytes
    received: float = field(default_factory=time.time)
    _began: float = field(default_factory=time.monotonic)
    _first: float | None = None
    _usage: dict[str, Any] = field(default_factory=dict)
    _logprobs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    _ids: dict[int, list[int]] = field(default_factory=dict)
    _notes: list[dict[str, Any]] = field(default_factory=list)
    _unreported: int = 0

    def __post_init__(self) -> None:
        options = self.request.get("stream_options") or {}
        self._streamed = bool(self.request.get("stream"))
        self._running_usage = bool(options.get("continuous_usage_stats"))
        self._shows_usage = not self._streamed or bool(options.get("include_usage"))
        self._logs = bool(self.request.get("logprobs"))
        self._wanted = frozenset((self.request.get("nvext") or {}).get("extra_fields") or ())

    def annotations(self, sent: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """What ``nvext.annotations`` asks to see of the prompt, as events in front of the stream."""
        tokens = json.dumps(sent["token_ids"], separators=(",", ":"))
        shown = {"formatted_prompt": self.prompt, "token_ids": tokens}
        for name in sent["annotations"]:
            if name in shown:
                text = json.dumps(shown[name], ensure_ascii=False)
                yield {"_dynamo_annotated": True, "event": name, "comment": [text]}

    def chunks(self, choice: Choice, data: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Chunks for the next tokens of a choice. data: what the worker sent."""
        if data.get("completion_usage"):
            self._note_usage(data["completion_usage"])
        numbers = data.get("token_ids") or ()
        if self._first is None and numbers:
            self._first = time.monotonic()
        before = choice.tokens
        made = choice.feed(numbers, data.get("finish_reason"))
        self._unreported += choice.tokens - before
        if self._logs:
            self._add_logprobs(choice, made, numbers[: choice.tokens - before], data)
        if "completion_token_ids" in self._wanted:
            self._ids.setdefault(choice.index, []).extend(numbers)
        return [self._chunk([one], self._nvext(choice, one, data), choice) for one in made]

    def end(self, choices: Mapping[int, Choice]) -> Iterator[dict[str, Any]]:
        """What follows the last choice: the usage, if the client wants it or the response is one object."""
        if self._shows_usage:
            data = self._chunk([], None, None)["data"] | {"usage": self._total(choices.values())}
            yield {"_dynamo_annotated": True, "data": data}

    @staticmethod
    def tokens(choices: Mapping[int, Choice]) -> int:
        """Tokens of all choices so far."""
        return sum(choice.tokens for choice in choices.values())

    def _chunk(
        self, choices: list[dict[str, Any]], nvext: dict[str, Any] | None, choice: Choice | None
    ) -> dict[str, Any]:
        data: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        if nvext:
            data["nvext"] = nvext
        if choice is not None:
            if self._running_usage:
                data["usage"] = self._total([choice])
            data["llm_metrics"] = {
                "input_tokens": self.prompt_tokens,
                "output_tokens": choice.tokens,
                "chunk_tokens": self._unreported,
            }
            self._unreported = 0
        return {"_dynamo_annotated": True, "data": data}

    def _nvext(self, choice: Choice, made: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any] | None:
        nvext: dict[str, Any] = {}
        if self._ids.get(choice.index):
            nvext["completion_token_ids"] = self._ids.pop(choice.index)
        if made["finish_reason"] is None:
            return nvext or None
        self._notes += choice.notes
        # Of a response in one piece Dynamo keeps the last of several notes, so that one has those of all choices.
        if notes := choice.notes if self._streamed else self._notes:
            nvext[NOTES_KEY] = list(notes)
        if "stop_reason" in self._wanted:
            reason = choice.stopped_by if choice.stopped_by is not None else data.get("stop_reason")
            if reason is not None:
                nvext["stop_reason"] = reason
        if "timing" in self._wanted:
            nvext["timing"] = self._timing()
        return nvext or None

    def _add_logprobs(self, choice: Choice, made: list[dict[str, Any]], numbers: Any, data: Mapping[str, Any]) -> None:
        """Every token's entry goes out once, with the first delta that comes with it or after it."""
        waiting = self._logprobs.setdefault(choice.index, [])
        waiting += entries(
            numbers,
            data.get("log_probs"),
            data.get("top_logprobs"),
            self.request.get("top_logprobs") or 0,
            self.table,
            as_ids=bool(self.request.get("return_tokens_as_token_ids")),
        )
        if made and waiting:
            made[0]["logprobs"] = {"content": waiting}
            self._logprobs[choice.index] = []

    def _timing(self) -> dict[str, float]:
        """Times as Dynamo names them, without those that only its own engine knows."""
        now = time.monotonic()
        return {
            "request_received_ms": int(self.received * 1000),
            "ttft_ms": ((self._first or now) - self._began) * 1000,
            "total_time_ms": (now - self._began) * 1000,
        }

    def _note_usage(self, usage: Mapping[str, Any]) -> None:
        for key in ("prompt_tokens", "prompt_tokens_details", "completion_tokens_details"):
            if usage.get(key) is not None:
                self._usage[key] = usage[key]

    def _total(self, choices: Any) -> dict[str, Any]:
        choices = list(choices)
        prompt = self._usage.get("prompt_tokens", self.prompt_tokens)
        written = sum(choice.tokens for choice in choices)
        thought = sum(choice.reasoning_tokens for choice in choices)
        details = dict(self._usage.get("completion_tokens_details") or {})
        details["reasoning_tokens"] = details.get("reasoning_tokens") or thought
        return {
            **self._usage,
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "completion_tokens_details": details,
        }
