"""The experts of one rank, with a double of vLLM's kernel; the real one is in test_data_parallel_stock."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the pinned stock environment: make test")

import torch

from vllm_cpu_dsa.experts import of_this_rank

EXPERTS = 4
CHOICES = torch.tensor([[0, 1], [2, 3], [3, 0], [1, 2], [3, 2]], dtype=torch.int32)
WEIGHTS = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 1.0]])
ROWS = torch.arange(10.0).view(5, 2)


def kernel(
    self: Any,
    *,
    output: torch.Tensor,
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    expert_map: torch.Tensor | None,
) -> None:
    """Expert e multiplies by w1[e]. Like the real kernel it knows no map; unlike it, it notices a foreign id."""
    assert topk_ids.dtype == torch.int32
    assert 0 <= int(topk_ids.min()) <= int(topk_ids.max()) < len(w1)
    output.copy_((hidden_states[:, None] * (w1[topk_ids.long()] * topk_weights)[..., None]).sum(1))


def ranks_part(expert_map: list[int] | None, factors: list[float]) -> list[list[float]]:
    output = torch.full_like(ROWS, torch.nan)
    of_this_rank(kernel)(
        None,
        output=output,
        hidden_states=ROWS,
        w1=torch.tensor(factors),
        topk_weights=WEIGHTS,
        topk_ids=CHOICES,
        expert_map=None if expert_map is None else torch.tensor(expert_map, dtype=torch.int32),
    )
    return output.tolist()


def _expected(factors: list[float]) -> list[list[float]]:
    """factors: of all experts, 0 for those of another rank."""
    pairs = zip(ROWS.tolist(), CHOICES.tolist(), WEIGHTS.tolist(), strict=True)
    return [
        [value * sum(factors[e] * w for e, w in zip(ids, weights, strict=True)) for value in row]
        for row, ids, weights in pairs
    ]


@pytest.mark.parametrize(
    ("expert_map", "here", "everywhere"),
    [
        (None, [2.0, 3.0, 5.0, 7.0], [2.0, 3.0, 5.0, 7.0]),
        ([0, 1, -1, -1], [2.0, 3.0], [2.0, 3.0, 0.0, 0.0]),
        ([-1, -1, 0, 1], [5.0, 7.0], [0.0, 0.0, 5.0, 7.0]),
        ([-1, 1, -1, 0], [7.0, 3.0], [0.0, 3.0, 0.0, 7.0]),
        ([-1, -1, -1, -1], [11.0], [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_a_rank_sums_over_its_own_experts_only(
    expert_map: list[int] | None, here: list[float], everywhere: list[float]
) -> None:
    assert ranks_part(expert_map, here) == _expected(everywhere)
