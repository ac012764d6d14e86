"""transformers' own GlmMoeDsa and DeepseekV32 as the judge of right answers.

They keep the indexer's queries and keys in full precision where vLLM quantizes both to FP8. So their one
product of queries and keys is given fake-quantized operands; nothing else of them is touched.

FP8 makes the choice of tokens a matter of the last bit now and then: two correct programs round one element
of a query to neighbouring codes, and a token at the edge of the top-k is swapped for its neighbour. Each
step therefore carries the margin of its choice, in standard deviations of the scores: `EDGE` is above what
one element moves (0.013 observed) and below what a mistake moves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

__all__ = ["EDGE", "Continuation", "Oracle", "fake_quantized"]

EDGE = 0.03


def fake_quantized(x: torch.Tensor) -> torch.Tensor:
    """``x`` [..., n] rounded to FP8 e4m3 with one power-of-two scale a row, in float32."""
    x = x.float()
    mantissa, exponent = torch.frexp(x.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448)
    scale = 2.0 ** (exponent - (mantissa == 0.5).int()).float()
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


@dataclass
class Continuation:
    """tokens: greedy. logprobs: of each, in nats. margins: of each step's choice of tokens (inf: none)."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)


class _TorchSeenByModel:
    """The ``torch`` of a modeling module, with the indexer's first product watched."""

    def __init__(self) -> None:
        self.inside = False
        self.scores: list[torch.Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def matmul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if not self.inside:
            return torch.matmul(a, b)
        if a.shape[-1] == 128:  # queries [.., heads, 128] by keys [.., 128, tokens]
            return torch.matmul(fake_quantized(a), fake_quantized(b.mT).mT)
        product = torch.matmul(a, b)  # head weights by scores
        self.scores.append(product.squeeze(-2)[0])
        return product


class Oracle:
    """A model folder, loaded in float32 by transformers; ``changed`` config values make it a wrong judge."""

    def __init__(self, folder: Path | str, **changed: Any) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(folder)
        for name, value in changed.items():
            setattr(config, name, value)
        self.model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32).eval()

    @property
    def indexers(self) -> list[torch.nn.Module]:
        return [m for name, m in self.model.named_modules() if name.endswith(".indexer")]

    @contextmanager
    def _watched(self) -> Iterator[_TorchSeenByModel]:
        module = sys.modules[type(self.model).__module__]
        seen = _TorchSeenByModel()

        def enter(*_: Any) -> None:
            seen.inside = True

        def leave(*_: Any) -> None:
            seen.inside = False

        hooks = [i.register_forward_pre_hook(enter) for i in self.indexers]
        hooks += [i.register_forward_hook(leave) for i in self.indexers]
        module.torch = seen  # type: ignore[attr-defined]
        try:
            yield seen
        finally:
            module.torch = torch  # type: ignore[attr-defined]
            for hook in hooks:
                hook.remove()

    def logprobs(self, ids: list[int], **inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens, vocabulary] log probabilities after each token, and the margin [tokens] of its choice.

        inputs: what to feed the model instead of the embeddings of ``ids``.
        """
        with torch.no_grad(), self._watched() as seen:
            fed = inputs or {"input_ids": torch.tensor([ids])}
            logits = self.model(use_cache=False, **fed).logits[0]
        assert len(seen.scores) == len(self.indexers), "the hook missed an indexer"
        margins = torch.full((len(ids),), float("inf"))
        topk = self.model.config.index_topk
        for scores in seen.scores:
            for position in range(topk, len(ids)):
                past = scores[position, : position + 1]
                best = past.topk(topk + 1).values
                margins[position] = min(margins[position], (best[-2] - best[-1]) / past.std())
        return logits.log_softmax(-1), margins

    def hidden(self, ids: list[int]) -> torch.Tensor:
        """[1, tokens, width], the states after the last norm."""
        with torch.no_grad(), self._watched():
            return self.model.model(torch.tensor([ids]), use_cache=False).last_hidden_state

    def prompt_logprobs(self, ids: list[int]) -> torch.Tensor:
        """[tokens - 1], the log probability of each token but the first."""
        return self.logprobs(ids)[0][torch.arange(len(ids) - 1), torch.tensor(ids[1:])]

    def continued(self, ids: list[int], tokens: int) -> Continuation:
        """The greedy continuation, recomputed from nothing for every token."""
        found, ids = Continuation(), list(ids)
        for _ in range(tokens):
            logprobs, margins = self.logprobs(ids)
            best = int(logprobs[-1].argmax())
            found.tokens.append(best)
            found.logprobs.append(float(logprobs[-1, best]))
            found.margins.append(float(margins[-1]))
            ids.append(best)
        return found
