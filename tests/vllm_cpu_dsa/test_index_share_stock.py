"""IndexShare: a layer without an indexer attends where the last layer with one has looked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the pinned stock environment: make test")
pytest.importorskip("transformers", reason="needs the pinned stock environment: make test")

import torch
from dsa_engine import ask, engine, generate, prompt
from dsa_oracle import Oracle

TOPK = 64
IDS = prompt(333, 7)


@pytest.fixture(scope="module")
def seven(folder: Any) -> Path:
    """Layers 0, 1, 2 and 6 run an indexer; 3, 4 and 5 share layer 2's selection."""
    return folder(layers=7, index_topk=TOPK)


def selections(model: Path) -> list[tuple[str, list[list[int]]]]:
    """("written" | "read", selection of each token) in the order of one prefill."""
    from vllm_cpu_dsa import indexer_backend, mla_backend

    seen: list[tuple[str, list[list[int]]]] = []
    select, attend = indexer_backend.select, mla_backend.attend

    def selecting(cache: Any, batch: Any, q: Any, weights: Any, topk: int, out: Any) -> None:
        select(cache, batch, q, weights, topk, out)
        seen.append(("written", out.tolist()))

    def attending(cache: Any, batch: Any, q: Any, selected: Any, scale: float, rows: Any, out: Any) -> None:
        seen.append(("read", selected.tolist()))
        attend(cache, batch, q, selected, scale, rows, out)

    indexer_backend.select, mla_backend.attend = selecting, attending
    try:
        with engine(model) as llm:
            ask(llm, [IDS], tokens=1, one_by_one=False, prompt_logprobs=False)
    finally:
        indexer_backend.select, mla_backend.attend = select, attend
    return seen


def test_a_shared_layer_reads_what_the_last_indexer_before_it_wrote(run: Callable[..., Any], seven: Path) -> None:
    seen = run(selections, seven)

    kinds = [kind for kind, _ in seen]
    assert kinds == ["written", "read"] * 3 + ["read"] * 3 + ["written", "read"]
    written = [selected for kind, selected in seen if kind == "written"]
    read = [selected for kind, selected in seen if kind == "read"]
    assert read == [written[source] for source in (0, 1, 2, 2, 2, 2, 3)]
    assert written[2] != written[1] != written[0] != written[3]


class _SharingLayerZero(Oracle):
    """A judge whose shared layers read the first layer's selection instead of the last one's."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        first: list[Any] = []

        def keep(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            first[:] = [output[2]]

        def swap(module: Any, args: Any, kwargs: Any) -> Any:
            return args, {**kwargs, "prev_topk_indices": first[0]}

        attention = [layer.self_attn for layer in self.model.model.layers]
        attention[0].register_forward_hook(keep, with_kwargs=True)
        for layer in attention[3:6]:
            layer.register_forward_pre_hook(swap, with_kwargs=True)


def test_sharing_another_layers_selection_would_give_other_logprobs(run: Callable[..., Any], seven: Path) -> None:
    """So the agreement with transformers in test_oracle_stock proves which selection is shared."""
    answer = run(generate, seven, [IDS], tokens=1, prompt_logprobs=True).answers[0]
    found = torch.tensor(answer.prompt_logprobs)[TOPK:]

    def within(oracle: Oracle) -> float:
        return float(((oracle.prompt_logprobs(IDS)[TOPK:] - found).abs() < 0.1).float().mean())

    assert within(Oracle(seven)) > 0.85
    assert within(_SharingLayerZero(seven)) < 0.7
