"""Data and expert parallelism: collectives that are exact, and the same answers as one rank gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the pinned stock environment: make test")
pytest.importorskip("vllm", reason="needs the pinned stock environment: make test")

import torch
from dp_ranks import RANKS, answered, pair
from dsa_engine import environment, generate, prompt

TOPK = 64
TOKENS = 8
LENGTHS = (30, 150, 300, 7)
COLUMNS = 3
DTYPES = ("float32", "bfloat16", "int64", "int32", "uint8")
SIZES: tuple[list[int], ...] = ([3, 1], [0, 2], [2, 2], [0, 0])


@pytest.fixture(scope="module")
def ranks() -> Iterator[Callable[..., list[Any]]]:
    with pair() as run:
        yield run


def _value(rank: int, row: int, column: int) -> int:
    """Different for each place, and small enough that bfloat16 holds sums of two."""
    return 64 * rank + 8 * row + column


def exchanged(rank: int, store: str) -> dict[str, Any]:
    """What vLLM's CPU communicator gives this rank, as numbers; and its refusals, as texts."""
    import torch.distributed as dist
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.platforms import current_platform

    current_platform.register_triton_kernel_overrides()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    try:
        group = CpuCommunicator(dist.group.WORLD, torch.device("cpu"), dist.group.WORLD, "dp:0")

        def rows(count: int, dtype: str) -> torch.Tensor:
            places = [[_value(rank, row, column) for column in range(COLUMNS)] for row in range(count)]
            return torch.tensor(places, dtype=getattr(torch, dtype)).view(count, COLUMNS)

        def refusal(call: Callable[..., Any], *arguments: Any) -> str:
            with pytest.raises((ValueError, NotImplementedError)) as refused:
                call(*arguments)
            return str(refused.value)

        gathered = {
            (dtype, tuple(sizes)): group.all_gatherv(rows(sizes[rank], dtype), 0, sizes)
            for dtype in DTYPES
            for sizes in SIZES
        }
        gathered["equal", ()] = group.all_gatherv(rows(2, "float32"))
        every = [rows(SIZES[0][rank], dtype) for dtype in DTYPES]
        parts = {
            (dtype, dim, tuple(sizes)): group.reduce_scatterv(
                rows(sum(sizes), dtype).movedim(0, dim), dim if dim == 0 else -1, sizes
            )
            for dtype in DTYPES
            for dim in (0, 1)
            for sizes in SIZES
        }
        parts["equal", 0, ()] = group.reduce_scatterv(rows(4, "float32"), 0)
        return {
            "gathered": {key: (str(value.dtype), value.tolist()) for key, value in gathered.items()},
            "list": [(str(value.dtype), value.tolist()) for value in group.all_gatherv(every, 0, SIZES[0])],
            "parts": {key: (str(value.dtype), value.tolist()) for key, value in parts.items()},
            "refusals": [
                refusal(group.all_gatherv, rows(3, "float32"), 1),
                refusal(group.all_gatherv, rows(3, "float32"), 0, [3]),
                refusal(group.all_gatherv, rows(3, "float32"), 0, [2, 2]),
                refusal(group.reduce_scatterv, rows(3, "float32"), 0, [2, 2]),
                refusal(group.reduce_scatterv, rows(3, "float32"), 0),
            ],
        }
    finally:
        dist.destroy_process_group()


def _gathered(sizes: tuple[int, ...]) -> list[list[int]]:
    return [
        [_value(rank, row, column) for column in range(COLUMNS)] for rank in range(RANKS) for row in range(sizes[rank])
    ]


def _part(rank: int, dim: int, sizes: tuple[int, ...]) -> list[list[int]]:
    own = range(sum(sizes[:rank]), sum(sizes[: rank + 1]))
    sums = [[sum(_value(one, row, column) for one in range(RANKS)) for column in range(COLUMNS)] for row in own]
    return sums if dim == 0 else [[row[column] for row in sums] for column in range(COLUMNS)]


@pytest.fixture(scope="module")
def exchange(ranks: Callable[..., list[Any]], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    store = str(tmp_path_factory.mktemp("gloo") / "store")
    return ranks(exchanged, [(rank, store) for rank in range(RANKS)])


def test_both_collectives_are_exact_for_every_dtype_and_for_uneven_and_empty_parts(
    exchange: list[dict[str, Any]],
) -> None:
    for rank, seen in enumerate(exchange):
        assert seen["gathered"] == {
            **{
                (dtype, tuple(sizes)): (f"torch.{dtype}", _gathered(tuple(sizes)))
                for dtype in DTYPES
                for sizes in SIZES
            },
            ("equal", ()): ("torch.float32", _gathered((2, 2))),
        }
        assert seen["list"] == [(f"torch.{dtype}", _gathered((3, 1))) for dtype in DTYPES]
        assert seen["parts"] == {
            **{
                (dtype, dim, tuple(sizes)): (f"torch.{dtype}", _part(rank, dim, tuple(sizes)))
                for dtype in DTYPES
                for dim in (0, 1)
                for sizes in SIZES
            },
            ("equal", 0, ()): ("torch.float32", _part(rank, 0, (2, 2))),
        }


def test_sizes_that_would_leave_ranks_waiting_are_refused_before_anything_is_sent(
    exchange: list[dict[str, Any]],
) -> None:
    for rank, seen in enumerate(exchange):
        columns, length, own, whole, odd = seen["refusals"]
        assert columns.startswith("all_gatherv over dim=1: ")
        assert length.startswith("sizes=[3] for a group of 2 ranks: ")
        assert own.startswith(f"all_gatherv of 3 rows with sizes=[2, 2] on rank {rank}: ")
        assert whole.startswith("reduce_scatterv of 3 rows with sizes=[2, 2]: ")
        assert odd.startswith("reduce_scatterv of 3 rows with sizes=[1, 1]: ")


def memory_nodes(binding: str, workers: int) -> list[int]:
    from vllm.platforms import current_platform

    with environment(VLLM_CPU_OMP_THREADS_BIND=binding):
        return [current_platform.device_id_to_physical_device_id(worker) for worker in range(workers)]


def test_workers_share_memory_nodes_unless_each_is_bound_to_its_own(run: Callable[..., Any]) -> None:
    """vLLM 0.33 does not start a worker whose node the machine lacks. Linux says which ones this process may use."""
    [allowed] = re.findall(r"^Mems_allowed_list:\s*(\S+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    first, *_, last = [int(node) for node in re.findall(r"\d+", allowed) * 2]
    workers = last + 2

    shared = run(memory_nodes, "nobind", workers)
    assert shared[0] == first
    assert shared[-1] < workers - 1
    assert run(memory_nodes, "auto", workers) == list(range(workers))


def test_two_ranks_answer_as_one_whether_both_are_busy_or_one_is_idle(
    ranks: Callable[..., list[Any]], run: Callable[..., Any], folder: Callable[..., Path]
) -> None:
    model = folder(layers=2, index_topk=TOPK)
    prompts = [prompt(length, length) for length in LENGTHS]
    alone = run(generate, model, prompts, tokens=TOKENS).tokens

    first, second = ranks(
        answered,
        [
            (model, [prompts[:2], prompts], TOKENS, {"enable_expert_parallel": True}),
            (model, [prompts[2:], []], TOKENS, {"enable_expert_parallel": True}),
        ],
    )

    assert first.tokens == [alone[:2], alone]
    assert second.tokens == [alone[2:], []]
    assert first.dummies == [0, 0]
    assert second.dummies[0] == 0
    assert second.dummies[1] >= TOKENS
    assert (first.experts, second.experts) == ([0, 1, 2, 3], [4, 5, 6, 7])
