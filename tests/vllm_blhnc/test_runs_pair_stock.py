"""Prefill and decode engines that hand out blocks in runs, beside a pair that does not."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Engine, StartEngine

WINDOW = 64  # blocks of 436


def _turns() -> list[list[int]]:
    """Prompts of four sessions in turn, each beginning with its last one: three times what a cache holds."""
    rng = random.Random(0)
    sessions: list[list[int]] = [[] for _ in range(4)]
    turns = []
    for number in range(60):
        session = sessions[number % 4]
        if len(session) > 800:
            session.clear()
        session += [rng.randrange(33, 127) for _ in range(rng.randrange(130, 400))]
        turns.append(list(session[:1000]))
    return turns


def _serve(prefill: Engine, decode: Engine) -> tuple[list[list[int]], list[dict[str, Any]]]:
    outputs = []
    for prompt in _turns():
        (output,) = decode.decode([prompt], prefill.prefill([prompt]))
        outputs.append(output["tokens"])
    return outputs, decode.transfers


@pytest.fixture(scope="module")
def served(start_engine: StartEngine) -> dict[str, Any]:
    settings = {"block_allocation": "runs", "eviction_window": WINDOW}
    pairs = {
        name: [start_engine(role, "BLHNC", blhnc=blhnc) for role in ("kv_producer", "kv_consumer")]
        for name, blhnc in (("stock", {}), ("runs", settings))
    }
    for engine in [engine for pair in pairs.values() for engine in pair]:
        engine.answer()
    found: dict[str, Any] = {name: _serve(*pair) for name, pair in pairs.items()}
    found["log"] = pairs["runs"][0].log + pairs["runs"][1].log
    return found


def test_runs_give_the_tokens_of_stocks_order(served: dict[str, Any]) -> None:
    assert served["runs"][0] == served["stock"][0]


def test_runs_move_the_same_blocks_in_fewer_descriptors(served: dict[str, Any]) -> None:
    (_, stock), (_, runs) = served["stock"], served["runs"]

    assert [t["blocks"] for t in runs] == [t["blocks"] for t in stock]
    assert all(t["descriptors"] == t["runs"] for t in runs)
    late = slice(len(runs) // 2, None)  # when both caches have been full
    assert sum(t["runs"] for t in runs[late]) * 2 < sum(t["runs"] for t in stock[late])


def test_both_engines_say_so(served: dict[str, Any]) -> None:
    assert served["log"].count(f"blocks are handed out in runs, eviction window {WINDOW}") == 2


def test_an_engine_with_a_window_as_large_as_its_cache_does_not_start(start_engine: StartEngine) -> None:
    engine = start_engine("kv_producer", "BLHNC", blhnc={"block_allocation": "runs", "eviction_window": 10_000})

    with pytest.raises(RuntimeError, match="AllocationError: .*eviction_window=10000 blocks, but this engine has"):
        engine.answer()
