"""Two ranks of one data-parallel engine, each in a process of its own, that do the same things at the same time.

vLLM's offline data parallelism: the variables name a rank, and every rank asks its own prompts. A rank without
prompts takes part with dummy batches until the other one has finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsa_engine import ask, child, engine, runner

from glm53.local.processes import free_port_runs

__all__ = ["RANKS", "Rank", "answered", "pair"]

RANKS = 2


@dataclass(frozen=True)
class Rank:
    """tokens: answers to this rank's prompts, a list a round. dummies: dummy batches in each round.

    experts: those on this rank, of each expert layer.
    """

    tokens: list[list[list[int]]]
    dummies: list[int]
    experts: list[int]


@contextmanager
def pair() -> Iterator[Callable[..., list[Any]]]:
    """``run(function, [arguments of rank 0, arguments of rank 1])`` calls it on both and gives both results."""
    port = str(free_port_runs([4], "127.0.0.1")[0])  # vLLM adds one for every further group
    settings = {"VLLM_DP_SIZE": str(RANKS), "VLLM_DP_MASTER_PORT": port}
    with (
        child(VLLM_DP_RANK="0", **settings) as first,
        child(VLLM_DP_RANK="1", **settings) as second,
        ThreadPoolExecutor(RANKS) as threads,
    ):

        def run(function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[Any]:
            calls = [
                threads.submit(rank, function, *each) for rank, each in zip((first, second), arguments, strict=True)
            ]
            return [call.result() for call in calls]

        yield run


def answered(model: Path, rounds: list[list[list[int]]], tokens: int, options: dict[str, Any]) -> Rank:
    """Greedy answers to this rank's prompts, a round after another; in every round both ranks call this."""
    with engine(model, distributed_executor_backend="uni", **options) as llm, _counted_dummies(llm) as dummies:
        answers, counts = [], []
        for prompts in rounds:
            before = len(dummies)
            answers.append([answer.tokens for answer in ask(llm, prompts, tokens, False, False)])
            counts.append(len(dummies) - before)
        return Rank(answers, counts, _experts(llm))


def _experts(llm: Any) -> list[int]:
    maps = [getattr(module, "expert_map", None) for module in runner(llm).model.modules()]
    here = [(found >= 0).nonzero().flatten().tolist() for found in maps if found is not None]
    return sorted({number for numbers in here for number in numbers})


@contextmanager
def _counted_dummies(llm: Any) -> Iterator[list[None]]:
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    run = worker.execute_dummy_batch
    seen: list[None] = []

    def counting() -> None:
        seen.append(None)
        run()

    worker.execute_dummy_batch = counting
    try:
        yield seen
    finally:
        worker.execute_dummy_batch = run
