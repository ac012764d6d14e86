"""Handoffs that cannot be read: their request fails, the engine goes on."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from refusal_table import says

if TYPE_CHECKING:
    from conftest import Engine, StartEngine


def _prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(33, 127) for _ in range(length)]


@pytest.fixture(scope="module")
def pair(start_engine: StartEngine) -> tuple[Engine, Engine]:
    """Decode without prefix caching, so that it reads everything."""
    prefill = start_engine("kv_producer", "BLHNC")
    decode = start_engine("kv_consumer", "BLHNC", engine={"enable_prefix_caching": False})
    for engine in (prefill, decode):
        engine.answer()
    return prefill, decode


def _failed(outputs: list[dict[str, Any]]) -> bool:
    return [(output["tokens"], output["finish_reason"]) for output in outputs] == [([], "error")]


def test_a_handoff_is_read_once(pair: tuple[Engine, Engine]) -> None:
    """After the first read prefill gives the blocks to others, and stock would read what those wrote."""
    prefill, decode = pair
    prompt = _prompt(300, seed=1)
    (handoff,) = prefill.prefill([prompt])
    (first,) = decode.decode([prompt], [dict(handoff)])
    reads = len(decode.transfers)

    assert first["finish_reason"] == "length"
    assert _failed(decode.decode([prompt], [dict(handoff)]))
    assert len(decode.transfers) == reads
    says("request-handoff-used", decode.log)
    (again,) = decode.decode([prompt], prefill.prefill([prompt]))
    assert again["tokens"] == first["tokens"]


def test_a_handoff_with_too_few_blocks_fails_its_request_alone(pair: tuple[Engine, Engine]) -> None:
    """Stock's worker asserts here, and the engine ends."""
    prefill, decode = pair
    prompt = _prompt(300, seed=2)
    (handoff,) = prefill.prefill([prompt])
    short = handoff | {"remote_block_ids": [ids[:2] for ids in handoff["remote_block_ids"]]}
    reads = len(decode.transfers)

    assert _failed(decode.decode([prompt], [short]))

    says("request-handoff-short", decode.log)
    assert "has [2] blocks" in decode.log
    assert "needs [5]" in decode.log
    assert len(decode.transfers) == reads
    (output,) = decode.decode([prompt], [handoff])
    assert output["finish_reason"] == "length"
