"""Multi-token prediction: the draft layer's own indexer and caches, and answers that drafts do not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the pinned stock environment: make test")
pytest.importorskip("transformers", reason="needs the pinned stock environment: make test")

import torch
from dsa_engine import ask, engine, generate, prompt, runner
from dsa_oracle import Oracle

TOPK = 64
TOKENS = 16
PROMPTS = [prompt(30, 1), prompt(150, 2), prompt(400, 3)]


@pytest.fixture(scope="module")
def model(folder: Any) -> Path:
    return folder(mtp=True, index_topk=TOPK)


@pytest.fixture(scope="module")
def alone(run: Callable[..., Any], model: Path) -> Any:
    return run(generate, model, PROMPTS, tokens=TOKENS)


def _mtp(tokens: int) -> dict[str, Any]:
    return {"speculative_config": {"method": "mtp", "num_speculative_tokens": tokens}}


@pytest.mark.parametrize(
    ("drafts", "options"),
    [
        (1, {}),
        (3, {"max_num_batched_tokens": 64}),
        (2, {"environ": {"VLLM_KV_CACHE_LAYOUT": "BLHNC"}}),
    ],
)
def test_drafts_change_no_token(
    run: Callable[..., Any], model: Path, alone: Any, drafts: int, options: dict[str, Any]
) -> None:
    drafted = run(generate, model, PROMPTS, tokens=TOKENS, rounds=2, **options, **_mtp(drafts))

    assert [[a.tokens for a in answers] for answers in drafted.rounds] == [alone.tokens] * 2
    proposed = drafted.metrics["vllm:spec_decode_num_draft_tokens"]
    assert proposed == drafts * drafted.metrics["vllm:spec_decode_num_drafts"]
    assert proposed > 2 * len(PROMPTS) * TOKENS // 2
    assert any(1 < queries <= drafts + 1 < context for step in drafted.steps for queries, context in step)
    assert any(name.startswith("model.layers.4.") and "indexer" in name for name in drafted.strides)


def proposals(model: Path, ids: list[int], tokens: int) -> tuple[list[int], list[int]]:
    """The greedy answer to one prompt, and the draft made after each of its tokens."""
    with engine(model, **_mtp(1)) as llm:
        drafter, made = runner(llm).drafter, []
        propose = drafter.propose

        def recording(*args: Any, **kwargs: Any) -> Any:
            drafts = propose(*args, **kwargs)
            made.append(drafts.tolist())
            return drafts

        drafter.propose = recording
        answer = ask(llm, [ids], tokens, one_by_one=False, prompt_logprobs=False)[0]
        return answer.tokens, [draft for ((draft,),) in made]


class _DraftLayer(Oracle):
    """transformers' decoder layer with the draft layer's weights, joined as the DeepSeek-V3 report defines.

    Token i's input is ``eh_proj(cat(norm(embedding of token i + 1), norm(hidden state i)))``, with the first
    embedding zeroed as vLLM does; the hidden states are those after the model's last norm.
    """

    def __init__(self, folder: Path) -> None:
        from safetensors.torch import load_file

        super().__init__(
            folder,
            num_hidden_layers=5,
            indexer_types=["full", "full", "full", "shared", "full"],
            mlp_layer_types=["dense", *["sparse"] * 4],
            layer_types=["deepseek_sparse_attention"] * 5,
        )
        weights = load_file(folder / "model.safetensors")
        self.own = {
            name.removeprefix("model.layers.4."): value
            for name, value in weights.items()
            if name.startswith("model.layers.4.")
        }
        self.main = Oracle(folder)
        base = self.model.model
        base.layers = torch.nn.ModuleList([base.layers[4]])
        base.config.num_hidden_layers = 1
        base.norm.weight = torch.nn.Parameter(self.own["shared_head.norm.weight"])
        self.model.lm_head.weight = torch.nn.Parameter(self.own["shared_head.head.weight"])

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.model.config.rms_norm_eps) * weight

    def draft(self, sequence: list[int]) -> int:
        """The token proposed to follow ``sequence``."""
        hidden = self.main.hidden(sequence[:-1])
        with torch.no_grad():
            following = self.main.model.model.embed_tokens(torch.tensor([sequence[1:]]))
            following[:, 0] = 0
            joined = torch.cat(
                (self._norm(following, self.own["enorm.weight"]), self._norm(hidden, self.own["hnorm.weight"])),
                dim=-1,
            )
        logprobs, _ = self.logprobs(sequence[:-1], inputs_embeds=joined @ self.own["eh_proj.weight"].T)
        return int(logprobs[-1].argmax())


@pytest.mark.parametrize(("length", "least"), [(30, 1.0), (300, 0.7)])
def test_each_draft_is_what_the_draft_layer_says(
    run: Callable[..., Any], model: Path, length: int, least: float
) -> None:
    """With the same weights in transformers' layer. Beyond index_topk a last bit may swap a selected token."""
    ids = prompt(length, 5)
    tokens, drafts = run(proposals, model, ids, TOKENS)
    judge = _DraftLayer(model)

    expected = [judge.draft(ids + tokens[: made + 1]) for made in range(len(drafts))]
    assert len(drafts) >= TOKENS // 2
    assert sum(a == b for a, b in zip(drafts, expected, strict=True)) >= least * len(drafts)
