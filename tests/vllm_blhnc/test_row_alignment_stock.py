"""``row_alignment_tokens`` and the plan, on real engines: strides, tokens, refusals, and what stock does alone."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from refusal_table import says

from vllm_blhnc.plan import Caches, Layout, plan_transfer

if TYPE_CHECKING:
    from conftest import Engine, StartEngine, StartServer

BLOCK = 64  # tokens
MLA_ROW = 576 * 4  # bytes: float32 latent and rotary values
PAYLOAD = 4 * BLOCK * MLA_ROW + 3 * BLOCK * 132  # bytes of KV in a block of the small model
ALIGNED = {rows: math.ceil(PAYLOAD / (rows * MLA_ROW)) * rows * MLA_ROW for rows in (32, 64)}
LENGTHS = (40, 70, 128, 450)  # tokens

STOCK_ROWS = {"VLLM_KV_CACHE_LAYOUT": "BLHNC"}


def _prompts(lengths: tuple[int, ...]) -> list[list[int]]:
    return [[random.Random(n + i).randrange(33, 127) for i in range(n)] for n in lengths]


def _aligned(start_engine: StartEngine, role: str, tokens: int, **options: Any) -> Engine:
    return start_engine(role, "BLHNC", blhnc={"row_alignment_tokens": tokens}, **options)


@pytest.fixture(scope="module")
def caches(model: Path) -> Caches:
    return Caches.of(json.loads((model / "config.json").read_text()))


@pytest.fixture(scope="module")
def decode_aligned(start_engine: StartEngine) -> Engine:
    engine = _aligned(start_engine, "kv_consumer", 64)
    engine.answer()
    return engine


@pytest.fixture(scope="module")
def stock_pair(start_engine: StartEngine) -> tuple[Engine, Engine]:
    """Rows as vLLM plans and registers them by itself, told to by its environment variable alone."""
    pair = [start_engine(role, "stock", environment=STOCK_ROWS) for role in ("kv_producer", "kv_consumer")]
    for engine in pair:
        engine.answer()
    return pair[0], pair[1]


def test_stock_alone_costs_what_the_plan_says(stock_pair: tuple[Engine, Engine], caches: Caches, release: str) -> None:
    """Before 0.33 the pull connector registers each page of a row by itself, and NIXL merges none of them."""
    prompts = _prompts(LENGTHS)

    stock_pair[1].decode(prompts, stock_pair[0].prefill(prompts))

    planned: dict[int, Layout] = {}
    for tokens in LENGTHS:
        plan = plan_transfer(caches, tokens=tokens, run_length=None, release=release, dtype="float32")
        planned[plan.blocks] = plan.blhnc_stock
    transfers = stock_pair[1].transfers
    assert len(transfers) == len(LENGTHS)
    for transfer in transfers:
        seen = planned[transfer["blocks"]]
        assert (transfer["regions"], transfer["nbytes"]) == (seen.regions, seen.nbytes)
        assert (transfer["runs"], transfer["descriptors"]) == (1, seen.descriptors)


def test_rows_are_whole_pages_apart_and_give_the_tokens_of_unaligned_ones(
    start_engine: StartEngine, decode_aligned: Engine, stock_pair: tuple[Engine, Engine], caches: Caches, release: str
) -> None:
    prefill = _aligned(start_engine, "kv_producer", 64)
    prefill.answer()
    prompts = _prompts(LENGTHS)

    outputs = decode_aligned.decode(prompts, prefill.prefill(prompts))

    assert [output["tokens"] for output in outputs] == [o["tokens"] for o in stock_pair[0].generate(prompts)]
    planned = {
        plan.blocks: plan.blhnc.nbytes
        for plan in (
            plan_transfer(caches, tokens=n, run_length=None, release=release, dtype="float32", row_alignment=64)
            for n in LENGTHS
        )
    }
    transfers = decode_aligned.transfers
    assert {t["blocks"]: t["nbytes"] for t in transfers} == planned == {n: n * ALIGNED[64] for n in (1, 2, 8)}
    assert {(t["regions"], t["descriptors"], t["runs"]) for t in transfers} == {(1, 1, 1)}
    for engine in (prefill, decode_aligned):
        assert (
            f"vllm_blhnc: row_alignment_tokens=64: block rows of {ALIGNED[64]} bytes instead of {PAYLOAD}, "
            f"{ALIGNED[64] - PAYLOAD} bytes ({100 * (ALIGNED[64] - PAYLOAD) / PAYLOAD:.2f} %) more memory and traffic "
            "a block"
        ) in engine.log
        assert f"{ALIGNED[64]} bytes each ({PAYLOAD} of KV, aligned to {64 * MLA_ROW})" in engine.log
    for engine in (prefill, *stock_pair):
        engine.kill()


def test_a_peer_with_another_alignment_is_refused(start_engine: StartEngine, decode_aligned: Engine) -> None:
    prefill = _aligned(start_engine, "kv_producer", 32)
    prefill.answer()
    before = len(decode_aligned.transfers)
    prompts = _prompts((70,))

    (output,) = decode_aligned.decode(prompts, prefill.prefill(prompts))

    assert (output["tokens"], output["finish_reason"]) == ([], "error")
    assert len(decode_aligned.transfers) == before
    assert f"1 regions of [{ALIGNED[64]}] bytes here and 1 regions of [{ALIGNED[32]}] bytes at the peer" in (
        decode_aligned.log
    )
    assert "row_alignment_tokens" in decode_aligned.log.partition("HandshakeMismatch")[2]
    prefill.kill()
    decode_aligned.kill()


def test_an_engine_whose_rows_are_not_as_asked_does_not_start(start_engine: StartEngine) -> None:
    """With the environment variable vLLM plans the cache without a question to the connector."""
    forced = _aligned(start_engine, "kv_producer", 64, environment=STOCK_ROWS)
    uneven = _aligned(start_engine, "kv_producer", 48)

    with pytest.raises(RuntimeError, match="LayoutError: .*row_alignment_tokens=64 asks for") as failed:
        forced.answer()
    says("start-row-alignment", str(failed.value))
    assert f"a multiple of {64 * MLA_ROW} bytes, but this engine has rows of {PAYLOAD}" in str(failed.value)
    assert "Unset VLLM_KV_CACHE_LAYOUT, or leave row_alignment_tokens out" in str(failed.value)
    with pytest.raises(RuntimeError, match="row_alignment_tokens=48 does not divide block_size=64") as failed:
        uneven.answer()
    says("start-row-divisor", str(failed.value))
    assert "a divisor such as 16 or 64" in str(failed.value)


def test_workers_in_processes_of_their_own_get_aligned_rows(start_server: StartServer) -> None:
    """The engine core plans the cache; the workers know of the alignment only what it tells them.

    Inside MultiConnector the connector is asked with a configuration that is not the engine's own.
    """

    def aligned(config: dict[str, Any]) -> dict[str, Any]:
        config["kv_connector_extra_config"]["blhnc"]["row_alignment_tokens"] = 64
        within = {"kv_role": config["kv_role"], "kv_load_failure_policy": "fail"}
        return {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [config]}} | within

    server = start_server("kv_producer", "BLHNC", arguments=("--tensor-parallel-size", "2"), within=aligned)
    server.wait()

    registered = f"{ALIGNED[64]} bytes each ({PAYLOAD} of KV, aligned to {64 * MLA_ROW})"
    assert server.log.count(registered) == 2
    assert server.log.count(f"row_alignment_tokens=64: block rows of {ALIGNED[64]} bytes instead of {PAYLOAD}") == 1
    server.kill()
