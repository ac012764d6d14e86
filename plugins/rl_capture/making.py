"""Makes records of captured requests: masks, decodes, asks for outcomes. Runs in the recorder's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_capture import metrics
from rl_capture.answers import Answer, Request
from rl_capture.outcomes import Reader
from rl_capture.record import MASKED, VERSION, digest, line
from rl_capture.redaction import Expression, masked_places, masked_text
from rl_capture.token_bytes import TokenBytes
from rl_capture.weights import Weights

__all__ = ["Maker"]

#: What a token was drawn with, as vLLM's sampling parameters name it.
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("seed", "max_tokens", "min_tokens", "n", "ignore_eos"),
)


class Maker:
    """Makes the lines of one engine's answers.

    model, logprobs_mode: as served. weights: of the engine. known: bytes of tokens; None where nothing needs them.
    expressions: what is masked. text: store it. prompt_tokens: longest prompt whose ids are stored. readers: of
    outcomes.
    """

    def __init__(
        self,
        model: str,
        logprobs_mode: str,
        weights: Weights,
        known: TokenBytes | None,
        expressions: list[Expression],
        *,
        text: bool = False,
        prompt_tokens: int = 1 << 18,
        readers: Sequence[Reader] = (),
    ) -> None:
        self._model, self._mode, self._weights, self._known = model, logprobs_mode, weights, known
        self._expressions, self._text, self._longest, self._readers = expressions, text, prompt_tokens, readers

    def lines(self, request: Request) -> list[bytes]:
        """One line an answer that has ended; each is whole in itself."""
        # The prompt of all a request's answers is the same.
        prompt, masked = self._masked(list(request.prompt))
        return [line(self._record(request, index, answer, prompt, masked)) for index, answer in request.answers.items()]

    def _record(self, request: Request, index: int, answer: Answer, prompt: list[int], masked: int) -> dict[str, Any]:
        ids, hidden = self._masked(answer.ids)
        logprobs: list[float | None] | None = None
        if answer.logprobs is not None:
            # Rounding can leave a certain token a little above 0.
            pairs = zip(ids, answer.logprobs, strict=True)
            logprobs = [None if token == MASKED else min(value, 0.0) for token, value in pairs]
        metrics.count("masked_tokens", masked + hidden)
        record: dict[str, Any] = {
            "v": VERSION,
            "request": request.name,
            "choice": index,
            "session": request.session,
            "model": self._model,
            "adapter": request.adapter,
            "started": round(request.started, 3),
            "ended": round(answer.ended, 3),
            "prompt": {
                "tokens": len(prompt),
                "sha256": digest(prompt),
                "ids": prompt if len(prompt) <= self._longest else None,
            },
            "output": {"ids": ids, "logprobs": logprobs, "logprobs_mode": self._mode},
            "masked": {"prompt": masked, "output": hidden},
            "finish": answer.finish,
            "stop": answer.stop if self._text or not isinstance(answer.stop, str) else None,
            "weights": self._of(request, answer),
            "sampling": _sampling(request.params),
            "calls": self._calls(request, answer),
        }
        if self._text and self._known is not None:
            whole = prompt if len(prompt) <= self._longest else []
            record["text"] = {"prompt": masked_text(whole, self._known), "output": masked_text(ids, self._known)}
        return record

    def _masked(self, ids: list[int]) -> tuple[list[int], int]:
        """The ids with those of secrets masked, and how many they are."""
        if self._known is None or not self._expressions:
            return ids, 0
        places = masked_places(ids, self._known, self._expressions)
        if not places:
            return ids, 0
        return [MASKED if place in places else token for place, token in enumerate(ids)], len(places)

    def _of(self, request: Request, answer: Answer) -> dict[str, Any]:
        begin, end = request.begin, request.end
        if answer.spans and begin is None and end is None:
            begin, end = answer.spans[0][0], answer.spans[-1][0]
        return {
            "base": self._weights.base,
            "begin": begin,
            "end": end,
            "epoch": list(request.epochs),
            "spans": answer.spans,
        }

    def _calls(self, request: Request, answer: Answer) -> list[dict[str, Any]] | None:
        """Outcomes are of what the model wrote, before anything is masked; names are text."""
        if self._known is None or not self._readers:
            return None
        prompt = self._known.join(request.prompt).decode("utf-8", "replace")
        written = self._known.join(answer.ids).decode("utf-8", "replace")
        for reader in self._readers:
            found = reader(prompt, written, answer.finish)
            if found is not None:
                return found if self._text else [{"outcome": one["outcome"]} for one in found]
        return None


def _sampling(params: Any) -> dict[str, Any]:
    told = {name: getattr(params, name) for name in _SAMPLING}
    return told | {"constrained": getattr(params, "structured_outputs", None) is not None}
