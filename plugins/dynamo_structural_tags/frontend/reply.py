"""Chunks of a chat completion around the choices: usage, log probabilities, notes, and Dynamo's own figures."""

from __future__ import annotations

import json
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

    request: the client's. prompt, prompt_tokens: its rendered prompt and how many tokens it has.
    """

    id: str
    created: int
    model: str
    request: Mapping[str, Any]
    prompt: str
    prompt_tokens: int
    table: TokenBytes
    _usage: dict[str, Any] = field(default_factory=dict)
    _logprobs: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    _unreported: int = 0

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
        before = choice.tokens
        made = choice.feed(numbers, data.get("finish_reason"))
        self._unreported += choice.tokens - before
        if self.request.get("logprobs"):
            self._add_logprobs(choice, made, numbers[: choice.tokens - before], data)
        chunks = []
        for one in made:
            nvext = self._nvext(choice, one, numbers, data)
            chunks.append(self._chunk([one], nvext, choice))
        return chunks

    def end(self, choices: Mapping[int, Choice]) -> Iterator[dict[str, Any]]:
        """What follows the last choice: the usage, if the client wants it or the response is one object."""
        if not self.request.get("stream") or (self.request.get("stream_options") or {}).get("include_usage"):
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
            if (self.request.get("stream_options") or {}).get("continuous_usage_stats"):
                data["usage"] = self._total([choice])
            data["llm_metrics"] = {
                "input_tokens": self.prompt_tokens,
                "output_tokens": choice.tokens,
                "chunk_tokens": self._unreported,
            }
            self._unreported = 0
        return {"_dynamo_annotated": True, "data": data}

    def _nvext(
        self, choice: Choice, made: Mapping[str, Any], numbers: Any, data: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        wanted = (self.request.get("nvext") or {}).get("extra_fields") or ()
        nvext: dict[str, Any] = {}
        if made["finish_reason"] is not None:
            if choice.notes:
                nvext[NOTES_KEY] = choice.notes
            if "stop_reason" in wanted:
                reason = choice.stopped_by if choice.stopped_by is not None else data.get("stop_reason")
                if reason is not None:
                    nvext["stop_reason"] = reason
        if "completion_token_ids" in wanted:
            nvext["completion_token_ids"] = list(numbers)
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
