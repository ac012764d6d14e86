"""What one request's outputs say, gathered as they pass: ids, log-probabilities and ends of each of its answers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Answer", "Request", "chosen_logprobs"]


@dataclass
class Answer:
    """One of a request's answers.

    ids: tokens so far. logprobs: of each, natural logarithms; None once the engine left one out. finish, stop: as the
    engine says; "abort" until it does. spans: weights of the tokens, where the engine tells them.
    """

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    finish: str = "abort"
    stop: int | str | None = None
    spans: list[list[Any]] | None = None
    ended: float = 0.0


class Request:
    """One request under way.

    name, session, adapter: as the server knows them. params: vLLM's sampling parameters, as the client asked. deltas:
    whether outputs bring what is new, or all so far. begin: the weights at the start, filled in by the caller.
    """

    def __init__(self, name: str, session: str | None, adapter: str | None, params: Any, deltas: bool) -> None:
        self.name, self.session, self.adapter, self.params = name, session, adapter, params
        self._deltas = deltas
        self.started = time.time()
        self.prompt: list[int] = []
        self.answers: dict[int, Answer] = {}
        self.begin: str | None = None
        self.end: str | None = None
        self.epochs = [0, 0]

    def take(self, output: Any) -> None:
        """One `RequestOutput` of the engine's."""
        if not self.prompt and output.prompt_token_ids:
            self.prompt = output.prompt_token_ids  # the engine's own list, which it does not change
        for one in output.outputs:
            answer = self.answers.setdefault(one.index, Answer())
            # What is not a delta is vLLM's own list, and grows.
            ids, logprobs = list(one.token_ids), chosen_logprobs(one.logprobs, one.token_ids)
            if self._deltas:
                answer.ids += ids
                if logprobs is None:
                    answer.logprobs = None
                elif answer.logprobs is not None:
                    answer.logprobs += logprobs
            else:
                answer.ids, answer.logprobs = ids, logprobs
            if one.finish_reason is not None:
                answer.finish, answer.stop, answer.ended = one.finish_reason, one.stop_reason, time.time()
                spans = getattr(one, "weight_versions", None)
                answer.spans = spans and [[span.version, span.start, span.end] for span in spans]

    def broke(self, reason: str) -> None:
        """The request ended before its answers did. reason: "abort" or "error"."""
        for answer in self.answers.values():
            if not answer.ended:
                answer.finish, answer.ended = reason, time.time()

    @property
    def tokens(self) -> int:
        """Of prompt and answers."""
        return len(self.prompt) + sum(len(answer.ids) for answer in self.answers.values())


def chosen_logprobs(found: Any, ids: Any) -> list[float] | None:
    """The log-probability of each of these ids; None if any is not there.

    found: vLLM's `FlatLogprobs`, or its list of one dictionary a position. An empty delta has neither.
    """
    if len(ids) == 0:
        return []
    if not found or len(found) != len(ids):
        return None
    if hasattr(found, "start_indices"):  # the sampled token is the first of its position
        pairs = zip(found.start_indices, ids, strict=True)
        if any(found.token_ids[start] != token for start, token in pairs):
            return None
        return [found.logprobs[start] for start in found.start_indices]
    if any(position is None or token not in position for position, token in zip(found, ids, strict=True)):
        return None
    return [position[token].logprob for position, token in zip(found, ids, strict=True)]
