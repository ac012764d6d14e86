"""Prefill that writes to decode, under load: real servers on both sides, whose engines keep stepping by themselves."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from vllm_process import HANDOFF

if TYPE_CHECKING:
    from conftest import StartServer
    from vllm_server import Server

ROW = 4 * 64 * 576 * 4 + 3 * 64 * 132  # bytes: 4 float32 MLA pages and 3 indexer pages of 64 tokens
BATCHES, AT_ONCE = 4, 4


def _prompt(length: int, seed: int) -> list[int]:
    """Random printable bytes; all prompts end alike."""
    rng = random.Random(seed)
    return [rng.randrange(33, 127) for _ in range(length - 1)] + [126]


@dataclass
class Pair:
    """Prefill and decode; `push` takes prompts from one to the other, all at once."""

    prefill: Server
    decode: Server

    def push(self, prompts: list[list[int]], contexts: list[list[int]] | None = None) -> list[dict[str, Any]]:
        """What decode answers to the contexts (the prompts, unless given) with prefill's KV of the prompts."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(self._push_one, prompts, contexts or prompts))

    def _push_one(self, prompt: list[int], context: list[int]) -> dict[str, Any]:
        handoff = self.prefill.complete(prompt, 1, HANDOFF)["kv"]
        return self.decode.complete(context, 16, handoff)


@pytest.fixture(scope="module")
def pair(start_server: StartServer) -> Pair:
    prefill, decode = (
        start_server(role, "BLHNC", connector="NixlPushConnector") for role in ("kv_producer", "kv_consumer")
    )
    prefill.wait()
    decode.wait()
    return Pair(prefill, decode)


def test_batch_after_batch_gives_the_tokens_of_one_engine_and_one_descriptor_a_run(pair: Pair) -> None:
    """More prompts than a cache of 109 blocks holds: later ones get freed blocks, in another order."""
    prompts = [_prompt(40 + 60 * i, seed=i) for i in range(BATCHES * AT_ONCE)]
    blocks = [-(-len(prompt) // 64) for prompt in prompts]
    assert sum(blocks) > 109

    answers = []
    for batch in range(BATCHES):
        answers += pair.push(prompts[batch * AT_ONCE :][:AT_ONCE])

    _until_shown(pair, len(prompts))
    transfers = pair.prefill.transfers
    assert sorted((t["blocks"], t["nbytes"]) for t in transfers) == [(n, n * ROW) for n in sorted(blocks)]
    for transfer in transfers:
        assert (transfer["operation"], transfer["layout"], transfer["regions"]) == ("WRITE", "BLHNC", 1)
        assert transfer["descriptors"] == transfer["runs"]
    assert max(transfer["runs"] for transfer in transfers) > 1
    assert pair.decode.transfers == []
    # Afterwards, because prefill then has their prefixes cached.
    alone = [pair.prefill.complete(prompt, 16)["tokens"] for prompt in prompts]
    assert [answer["tokens"] for answer in answers] == alone


def _until_shown(pair: Pair, transfers: int) -> None:
    """A write is recorded in prefill's next step, which may come after decode's answer."""
    until = time.monotonic() + 60
    while len(pair.prefill.transfers) < transfers and time.monotonic() < until:
        time.sleep(0.2)


def test_decode_continues_the_context_of_prefill_and_not_its_own(pair: Pair) -> None:
    theirs = [_prompt(129, seed=101), _prompt(257, seed=102)]
    own = [_prompt(129, seed=103), _prompt(257, seed=104)]

    tokens = [answer["tokens"] for answer in pair.push(theirs, own)]

    assert tokens == [pair.prefill.complete(prompt, 16)["tokens"] for prompt in theirs]
    assert tokens != [pair.prefill.complete(prompt, 16)["tokens"] for prompt in own]


def test_requests_under_one_client_id_get_their_own_blocks(pair: Pair) -> None:
    """Stock tells requests apart by that id, which a client may use twice: each would get the other's KV."""
    prompts = [_prompt(130, seed=201), _prompt(130, seed=202)]
    handoffs = [pair.prefill.complete(prompt, 1, HANDOFF, "same")["kv"] for prompt in prompts]

    answers = [
        pair.decode.complete(prompt, 16, handoff, "same")["tokens"]
        for prompt, handoff in reversed(list(zip(prompts, handoffs, strict=True)))
    ]

    alone = [pair.prefill.complete(prompt, 16)["tokens"] for prompt in prompts]
    assert alone[0] != alone[1]
    assert answers == alone[::-1]


def test_writes_are_counted_at_prefill(pair: Pair) -> None:
    """They are prefill's transfers; decode has none to show."""
    recorded = len(pair.prefill.transfers)
    name = "vllm:blhnc_descriptors_count"
    labels = (("engine", "0"), ("model_name", "glm"))

    assert pair.prefill.metrics(name) == {name: {labels: recorded}}
    assert pair.decode.metrics(name) == {name: {labels: 0}}
