"""Prefill and decode with NIXL between them, both with the store inside MultiConnector."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import store_engine
from store_engine import Engine, prompt, tier
from tier_nodes import running_node

from glm53.local.processes import free_ports

for package in ("vllm", "nixl"):
    if find_spec(package) is None:
        pytest.skip(f"needs {package}: run make test, which installs it", allow_module_level=True)
pytest.importorskip("mooncake.store", reason="needs Mooncake and what it links to: make test", exc_type=ImportError)

BLOCK = 64  # tokens

#: What `kv_transfer_params` must say so that prefill keeps the blocks for decode.
HANDOFF = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    folder = tmp_path_factory.mktemp("pair")
    model = folder / "glm"
    subprocess.run([sys.executable, "-m", "glm53.model", "make", str(model)], check=True, capture_output=True)
    store_engine.preload()
    with running_node(folder / "node", pool_bytes=128 << 20, lease_s=5.0) as node:
        metrics = f"{node.settings.host}:{node.settings.metrics_port}"
        engines = []
        for role in ("kv_producer", "kv_consumer"):
            nixl = {
                "kv_connector": "NixlConnector",
                "kv_connector_module_path": "vllm_blhnc.connector",
                "kv_role": role,
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"blhnc": {"layout": "BLHNC", "progress_delay_us": 2000}},
            }
            both: dict[str, Any] = {
                "kv_connector": "MultiConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {
                    "connectors": [nixl, tier(metrics, master=node.settings.store.master, lease_s=5.0, lookup_s=2.0)]
                },
            }
            environment = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_ports(1, "127.0.0.1")[0])}
            arguments = {"model": str(model), "kv_transfer_config": both}
            engines.append(Engine(folder / f"{role}.log", environment, arguments))
        try:
            prefill, decode = (engine.ready() for engine in engines)
            yield prefill, decode
        finally:
            for engine in engines:
                engine.kill()


def test_a_prompt_goes_from_the_store_to_prefill_and_over_nixl_to_decode(pair: tuple[Engine, Engine]) -> None:
    prefill, decode = pair
    ids = prompt(450, seed=1)
    fresh = prefill.ask(ids, 1, HANDOFF)
    truth = decode.ask(ids, 70, fresh.kv)
    for engine in pair:
        engine.forget()

    again = prefill.ask(ids, 1, HANDOFF)
    answer = decode.ask(ids, 70, again.kv)

    assert (fresh.cached, again.cached) == (0, 7 * BLOCK)
    assert answer.tokens == truth.tokens
    assert prefill.ask(ids, 70).tokens == truth.tokens
    # Decode's prompt came over NIXL both times: it never asked the store.
    assert not any(name.startswith("mooncake_tier_lookups/") for name in decode.call(store_engine.figures))


def test_prefill_finds_what_decode_computed_in_the_turn_before(pair: tuple[Engine, Engine]) -> None:
    """Decode stores the answer's blocks, so that the next turn's prefill need not compute them."""
    prefill, decode = pair
    ids = prompt(100, seed=2)
    answered = decode.ask(ids, 100, prefill.ask(ids, 1, HANDOFF).kv)
    for engine in pair:
        engine.forget()

    turn = ids + answered.tokens + prompt(30, seed=3)
    second = prefill.ask(turn, 1, HANDOFF)

    assert second.cached == 199 // BLOCK * BLOCK  # the last token of an answer is never computed
    assert decode.ask(turn, 8, second.kv).tokens == prefill.ask(turn, 8).tokens


def test_a_prompt_that_only_decode_gets_is_found_in_the_store_too(pair: tuple[Engine, Engine]) -> None:
    prefill, decode = pair
    ids = prompt(450, seed=4)
    truth = prefill.ask(ids, 8)
    prefill.forget()

    answer = decode.ask(ids, 8)

    assert (answer.cached, answer.tokens) == (7 * BLOCK, truth.tokens)
