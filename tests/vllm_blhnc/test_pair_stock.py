"""Prefill and decode engines with real NIXL between them: tokens, descriptors, refusals and a killed peer."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Engine, StartEngine

BLOCK = 64  # tokens
CACHES = 7  # 4 MLA layers, 3 of them with an indexer
ROW = 4 * BLOCK * 576 * 4 + 3 * BLOCK * 132  # bytes: float32 latent and rotary values, 132-byte index keys
ALIGNMENT = 576 * 4  # bytes of one token in the MLA cache
LAST = 126  # token


def _prompt(length: int, seed: int) -> list[int]:
    """Random printable bytes; all prompts end alike."""
    rng = random.Random(seed)
    return [rng.randrange(33, 127) for _ in range(length - 1)] + [LAST]


# Less than a block; a block and a bit; exactly two blocks; more than is prefilled in one step, or attended to.
PROMPTS = [_prompt(length, seed=length) for length in (40, 70, 128, 450)]
BLOCKS = [1, 2, 2, 8]


@dataclass
class Engines:
    """Two prefill and two decode engines, of each one with block rows and one with vLLM's default layout."""

    prefill_rows: Engine
    decode_rows: Engine
    prefill_stock: Engine
    decode_stock: Engine


@pytest.fixture(scope="module")
def engines(start_engine: StartEngine) -> Engines:
    started = []
    for layout in ("BLHNC", "stock"):
        pair = [start_engine(role, layout) for role in ("kv_producer", "kv_consumer")]
        for engine in pair:
            engine.answer()
        started += pair
    return Engines(*started)


@pytest.fixture(scope="module")
def aggregated(engines: Engines) -> list[list[int]]:
    """What one engine alone answers, on the default layout and without any transfer."""
    return [output["tokens"] for output in engines.prefill_stock.generate(PROMPTS)]


def test_engines_may_run_on_every_core(engines: Engines) -> None:
    """Stock would put all of them onto the machine's last one."""
    for engine in vars(engines).values():
        assert os.sched_getaffinity(engine.pid) == os.sched_getaffinity(0)


def _continued(prefill: Engine, decode: Engine, prompts: list[list[int]]) -> list[dict[str, Any]]:
    return decode.decode(prompts, prefill.prefill(prompts))


def _refused(outputs: list[dict[str, Any]]) -> bool:
    return [(output["tokens"], output["finish_reason"]) for output in outputs] == [([], "error")] * len(outputs)


def test_rows_give_the_tokens_of_one_engine_and_one_descriptor_a_run(
    engines: Engines, aggregated: list[list[int]]
) -> None:
    outputs = _continued(engines.prefill_rows, engines.decode_rows, PROMPTS)

    assert [output["tokens"] for output in outputs] == aggregated
    transfers = engines.decode_rows.transfers
    nbytes = -(-ROW // ALIGNMENT) * ALIGNMENT
    assert sorted((t["blocks"], t["nbytes"]) for t in transfers) == [(n, n * nbytes) for n in sorted(BLOCKS)]
    for transfer in transfers:
        assert transfer["regions"] == 1
        assert transfer["descriptors"] == transfer["runs"]
        assert (transfer["operation"], transfer["layout"]) == ("READ", "BLHNC")
        assert transfer["post_us"] >= 0
        assert transfer["transfer_us"] > 0
    # Both engines were fresh, so the blocks of a prompt lie side by side.
    assert [transfer["runs"] for transfer in transfers] == [1] * len(PROMPTS)


def test_the_default_layout_gives_the_same_tokens_for_a_descriptor_a_cache_and_run(
    engines: Engines, aggregated: list[list[int]]
) -> None:
    outputs = _continued(engines.prefill_stock, engines.decode_stock, PROMPTS)

    assert [output["tokens"] for output in outputs] == aggregated
    transfers = engines.decode_stock.transfers
    assert sorted((t["blocks"], t["nbytes"]) for t in transfers) == [(n, n * ROW) for n in sorted(BLOCKS)]
    for transfer in transfers:
        assert transfer["regions"] == CACHES
        assert transfer["descriptors"] == CACHES * transfer["runs"]


def test_decode_continues_the_context_of_prefill_and_not_its_own(engines: Engines) -> None:
    theirs, own = [_prompt(129, seed=1), _prompt(257, seed=2)], [_prompt(129, seed=3), _prompt(257, seed=4)]
    handoffs = engines.prefill_rows.prefill(theirs)

    outputs = engines.decode_rows.decode(own, handoffs)

    tokens = [output["tokens"] for output in outputs]
    assert tokens == [output["tokens"] for output in engines.prefill_stock.generate(theirs)]
    assert tokens != [output["tokens"] for output in engines.prefill_stock.generate(own)]


def test_runs_break_where_freed_blocks_come_back_in_another_order(
    engines: Engines, aggregated: list[list[int]]
) -> None:
    """More prompts than the cache holds: blocks of earlier ones are handed out anew."""
    prompts = [_prompt(600, seed=seed) for seed in range(10, 24)]
    before = len(engines.decode_rows.transfers)

    outputs = [_continued(engines.prefill_rows, engines.decode_rows, [prompt])[0] for prompt in prompts]

    transfers = engines.decode_rows.transfers[before:]
    assert [transfer["descriptors"] for transfer in transfers] == [transfer["runs"] for transfer in transfers]
    assert max(transfer["runs"] for transfer in transfers) > 1
    alone = engines.prefill_stock.generate(prompts[-2:])
    assert [output["tokens"] for output in outputs[-2:]] == [output["tokens"] for output in alone]


@pytest.mark.parametrize(
    ("prefill", "decode", "here", "there"),
    [
        pytest.param("prefill_stock", "decode_rows", "BLHNC", "LBNHC", id="rows-only-at-decode"),
        pytest.param("prefill_rows", "decode_stock", "LBNHC", "BLHNC", id="rows-only-at-prefill"),
    ],
)
def test_a_peer_with_another_layout_is_refused_by_name_and_harms_nobody(
    engines: Engines, aggregated: list[list[int]], prefill: str, decode: str, here: str, there: str
) -> None:
    producer, consumer = getattr(engines, prefill), getattr(engines, decode)
    before = len(consumer.transfers)

    assert _refused(_continued(producer, consumer, PROMPTS[:2]))

    assert len(consumer.transfers) == before
    assert "HandshakeMismatch: prefill and decode do not agree, nothing is read from peer" in consumer.log
    assert (
        f"kv_cache_layout is '{here}' here and '{there}' at the peer: make VLLM_KV_CACHE_LAYOUT and "
        "kv_connector_extra_config.blhnc.layout equal"
    ) in consumer.log
    (output,) = consumer.generate([PROMPTS[1]])
    assert output["tokens"] == aggregated[1]


def test_a_request_whose_prefill_is_killed_fails_without_tokens(engines: Engines, aggregated: list[list[int]]) -> None:
    """During the transfer, before it, and before decode has met the peer at all."""
    prompts = [_prompt(140, seed=5), _prompt(40, seed=6)]
    during, before = (engines.prefill_rows.prefill(prompts) for _ in range(2))
    unmet = engines.prefill_stock.prefill(prompts)
    answered = len(engines.decode_rows.transfers)

    # A stopped process lets decode post its reads and serves none of them.
    engines.prefill_rows.stop()
    engines.decode_rows.send_decode(prompts, during)
    assert not engines.decode_rows.answers_within(3)
    engines.prefill_rows.kill()
    engines.prefill_stock.kill()

    assert _refused(engines.decode_rows.answer())
    assert _refused(engines.decode_rows.decode(prompts, before))
    assert _refused(engines.decode_rows.decode(prompts, unmet))
    assert len(engines.decode_rows.transfers) == answered
    (output,) = engines.decode_rows.generate([PROMPTS[3]])
    assert output["tokens"] == aggregated[3]
