"""Real vLLM engines on a real master and pool: what one stores another finds; nothing goes wrong or stands still."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import store_engine
from store_engine import Engine, prompt, tier
from tier_memory import Memory
from tier_nodes import eventually, kill, revive, running_node

from mooncake_tier.node.processes import Node
from mooncake_tier.stock import MooncakeStore

if find_spec("vllm") is None:
    pytest.skip("needs vllm: run make test, which installs it", allow_module_level=True)
pytest.importorskip("mooncake.store", reason="needs Mooncake and what it links to: make test", exc_type=ImportError)

BLOCK = 64  # tokens
PAGES = 4 * 64 * 576 * 4 + 3 * 64 * 132  # bytes of a block: 4 MLA caches in float32, 3 indexers


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("node"), pool_bytes=256 << 20, lease_s=3.0) as one:
        yield one


@pytest.fixture(scope="module")
def start(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Engine]]:
    """``start(owner, seed)`` begins an engine on the model ``owner/glm``; tier: settings, others: of the engine."""
    folder = tmp_path_factory.mktemp("engines")
    store_engine.preload()
    started: list[Engine] = []

    def begin(owner: str, seed: int = 0, *, settings: dict[str, Any] | None = None, **changed: Any) -> Engine:
        model = folder / owner / "glm"
        if not model.exists():
            make = [sys.executable, "-m", "glm53.model", "make", str(model), "--seed", str(seed)]
            subprocess.run(make, check=True, capture_output=True)
        master, metrics = node.settings.store.master, f"{node.settings.host}:{node.settings.metrics_port}"
        given = {"master": master, "lease_s": 3.0, "lookup_s": 1.0, "remember_s": 600.0, "poll_s": 0.5}
        entry = tier(metrics, **given | {"model": f"{owner}/glm"} | (settings or {}))
        arguments = {"model": str(model), "kv_transfer_config": entry} | changed
        started.append(Engine(folder / f"{len(started)}.log", {}, arguments))
        return started[-1]

    yield begin
    for engine in started:
        engine.kill()


@pytest.fixture(scope="module")
def engines(start: Callable[..., Engine]) -> dict[str, Engine]:
    """writer and reader are one deployment; the others differ in weights or in dtype."""
    events = {"enable_kv_cache_events": True, "publisher": "null"}
    # The first one alone: it inspects the model's class in another process, and vLLM keeps the result for the others.
    first = start("one", kv_events_config=events).ready()
    others = {
        "reader": start("one", settings={"failures": 1, "cooldown_s": 0.5, "longest_cooldown_s": 0.5, "lookup_s": 3.0}),
        "weights": start("two", seed=1),
        "dtype": start("one", dtype="bfloat16"),
    }
    return {"writer": first} | {name: engine.ready() for name, engine in others.items()}


def _keys(node: Node) -> set[str]:
    return set(node.master.keys())


def _stored(engine: Engine, ids: list[int], tokens: int = 8) -> list[int]:
    """Compute a prompt whose blocks are then in the store and no longer in the engine."""
    answer = engine.ask(ids, tokens)
    engine.forget()
    return answer.tokens


def test_another_process_finds_the_blocks_and_gives_the_same_tokens(engines: dict[str, Engine]) -> None:
    ids = prompt(450, seed=1)
    truth = _stored(engines["writer"], ids)

    answer = engines["reader"].ask(ids)

    assert answer.cached == 7 * BLOCK
    assert answer.tokens == truth
    found = engines["reader"].call(store_engine.figures)
    assert found["mooncake_tier_loads/ok"] == 7
    assert found["mooncake_tier_loaded_bytes"] == 7 * PAGES


def test_vllms_own_metrics_have_the_figures(engines: dict[str, Engine]) -> None:
    for name in ("writer", "reader"):
        engine = engines[name]
        engine.ask(prompt(20, seed=14))  # statistics come with a step

        told, counted = engine.call(store_engine.metrics), engine.call(store_engine.figures)

        for figure in ("lookups", "loads", "stores"):
            assert told.get(f"vllm:mooncake_tier_{figure}/ok") == counted.get(f"mooncake_tier_{figure}/ok", 0.0)
        assert told["vllm:mooncake_tier_loads/corrupt"] == 0.0


def test_the_blocks_of_an_answer_are_found_with_the_next_turn(engines: dict[str, Engine]) -> None:
    ids = prompt(100, seed=2)
    answered = _stored(engines["writer"], ids, tokens=60)

    turn = ids + answered + prompt(50, seed=3)
    answer = engines["reader"].ask(turn)

    assert answer.cached == 2 * BLOCK  # 159 computed tokens: the last one's cache is not known yet
    assert answer.tokens == engines["writer"].ask(turn).tokens


@pytest.mark.parametrize("other", ["weights", "dtype"])
def test_a_model_with_other_bytes_finds_nothing_and_stores_beside(engines: dict[str, Engine], other: str) -> None:
    """Stock's keys have the last part of the model's path and no dtype: wrong tokens, or a load without an end."""
    ids = prompt(450, seed=4)
    _stored(engines["writer"], ids)

    fresh = engines[other].ask(ids)
    engines[other].forget()
    again = engines[other].ask(ids)

    assert (fresh.cached, again.cached) == (0, 7 * BLOCK)
    assert again.tokens == fresh.tokens
    assert len({engines[name].call(store_engine.namespace) for name in ("writer", "reader", other)}) == 2


def test_a_block_that_was_changed_in_the_store_is_computed_anew_and_replaced(
    engines: dict[str, Engine], node: Node
) -> None:
    ids = prompt(450, seed=5)
    truth = _stored(engines["writer"], ids)
    before = _keys(node)
    name = engines["writer"].call(store_engine.namespace)
    _stored(engines["writer"], ids + prompt(BLOCK, seed=6))
    mine = [key for key in _keys(node) if key.startswith(name) and key not in before]
    assert len(mine) == 1
    (key,) = mine
    _flip(node, key)

    answer = engines["reader"].ask(ids + prompt(BLOCK, seed=6))

    assert answer.tokens == engines["writer"].ask(ids + prompt(BLOCK, seed=6)).tokens
    assert engines["reader"].call(store_engine.figures)["mooncake_tier_corrupt/checksum"] == 1
    engines["reader"].forget()
    assert key in _keys(node)
    engines["writer"].forget()
    assert engines["writer"].ask(ids + prompt(BLOCK, seed=6)).cached == 8 * BLOCK
    assert engines["writer"].ask(ids).tokens == truth


def _flip(node: Node, key: str) -> None:
    """Change one byte of an object's payload, and nothing of its trailer."""
    store = node.settings.store
    native = MooncakeStore(store.host, store.master, store.protocol, store.device, 1 << 20)
    memory = Memory(PAGES + 64)
    assert native.register(memory.address, memory.size) == 0
    assert native.get([key], [[memory.address]], [[memory.size]]) == [memory.size]
    memory.write(PAGES // 2, bytes([memory.read(PAGES // 2, 1)[0] ^ 1]))
    assert native.remove(key) == 0
    assert native.put([key], [[memory.address]], [[memory.size]]) == [0]
    native.close()


def test_the_router_is_told_what_is_stored_and_what_is_gone(engines: dict[str, Engine], node: Node) -> None:
    """In the words of vLLM's own events of its own cache, with another medium."""
    engine, ids = engines["writer"], prompt(200, seed=7)
    engine.call(store_engine.record_events)
    _stored(engine, ids)

    stored = [event for event in engine.call(store_engine.take_events) if event["type"] == "BlockStored"]
    by_medium = {medium: [one for one in stored if one["medium"] == medium] for medium in ("GPU", "CPU")}

    fields = set(stored[0]) - {"medium", "session_id"}
    own, ours = (_by_block(by_medium[medium], fields) for medium in ("GPU", "CPU"))
    assert len(ours) == 3
    assert ours == own
    assert engine.ask(ids).cached == 3 * BLOCK  # told again, because the engine's own cache was emptied
    assert engine.call(store_engine.settle)
    engine.call(store_engine.take_events)
    native = MooncakeStore(node.settings.host, node.settings.store.master, "tcp", "", 1 << 20)
    hashes = list(ours)  # vLLM publishes the last 64 bits
    name = engine.call(store_engine.namespace)
    (key,) = [one for one in _keys(node) if one.startswith(name) and int(one[-16:], 16) == hashes[1]]
    assert native.remove(key) == 0
    native.close()

    gone: list[dict[str, Any]] = []

    def told() -> bool:
        assert engine.call(store_engine.settle)
        gone.extend(engine.call(store_engine.take_events))
        return bool(gone)

    eventually(told)
    assert [(one["type"], one["medium"], one["block_hashes"]) for one in gone] == [("BlockRemoved", "CPU", [hashes[1]])]


def test_the_router_is_told_again_after_a_reset_of_the_gpus_cache_alone(engines: dict[str, Engine]) -> None:
    """Dynamo takes that for a reset of every tier, and the blocks are in the store as before."""
    engine, ids = engines["writer"], prompt(200, seed=11)
    engine.call(store_engine.record_events)
    _stored(engine, ids)  # empties the engine's cache
    assert engine.ask(ids).cached == 3 * BLOCK
    assert engine.call(store_engine.settle)

    events = engine.call(store_engine.take_events)
    (at,) = [at for at, one in enumerate(events) if one["type"] == "AllBlocksCleared"]
    before, after = (
        [
            block
            for event in part
            if event["type"] == "BlockStored" and event["medium"] == "CPU"
            for block in event["block_hashes"]
        ]
        for part in (events[:at], events[at:])
    )
    assert len(before) == 3
    assert after == before


def _by_block(events: list[dict[str, Any]], fields: set[str]) -> dict[int, dict[str, Any]]:
    """One entry a block, however many an event has."""
    found = {}
    for event in events:
        parent = event["parent_block_hash"]
        for at, block in enumerate(event["block_hashes"]):
            extra = event["extra_keys"][at] if event["extra_keys"] else None
            tokens = event["token_ids"][at * BLOCK : (at + 1) * BLOCK]
            found[block] = {name: event[name] for name in fields - {"block_hashes"}} | {
                "parent_block_hash": parent,
                "token_ids": tokens,
                "extra_keys": extra,
            }
            parent = block
    return found


def test_a_reset_removes_the_blocks_of_its_own_deployment_only(engines: dict[str, Engine], node: Node) -> None:
    """Stock's removes everything in the master."""
    ids = prompt(200, seed=8)
    for name in ("writer", "weights"):
        _stored(engines[name], ids)
    mine, theirs = (engines[name].call(store_engine.namespace) for name in ("writer", "weights"))
    kept = {key for key in _keys(node) if key.startswith(theirs)}

    assert engines["writer"].call(store_engine.reset, True)

    left = _keys(node)
    assert kept
    assert not {key for key in left if key.startswith(mine)}
    assert kept <= left
    assert engines["reader"].ask(ids).cached == 0


def test_blocks_of_a_killed_pool_are_computed_anew(engines: dict[str, Engine], node: Node) -> None:
    """For 2 s here, 10 by default, the master goes on promising them."""
    ids = prompt(450, seed=9)
    truth = _stored(engines["writer"], ids)
    kill(node, "pool")
    try:
        answer = engines["reader"].ask(ids)

        assert (answer.tokens, answer.finish_reason) == (truth, "length")
        assert engines["reader"].call(store_engine.figures)["mooncake_tier_loads/ok"] >= 7
    finally:
        revive(node)


def test_decoding_goes_on_while_the_master_hangs_and_when_it_is_dead(engines: dict[str, Engine], node: Node) -> None:
    """Stock's lookup stops the engine for 4.5 s, with every new request, for ever."""
    engine, ids = engines["reader"], prompt(200, seed=10)
    _passes(engines)  # the pool of the test before is whole again
    truth = engines["writer"].ask(ids, 4).tokens
    assert engine.call(store_engine.begin, "running", prompt(100, seed=12), 1500) >= 2
    eventually(lambda: engine.call(store_engine.usable))
    os.kill(node.processes["master"].pid, signal.SIGSTOP)
    try:
        waited, answer = engine.call(store_engine.beside, "running", "new", ids, 4)
        assert answer.tokens == truth
        assert len(waited) >= 2  # steps in which it waited for its lookup, until the deadline
        assert sum(waited) >= len(waited) - 1  # and the running one went on; a step's tokens may come with the next

        kill(node, "master")
        more = [engine.call(store_engine.beside, "running", f"more-{n}", prompt(200, seed=20 + n), 4) for n in range(3)]
        assert [steps for steps, _ in more] == [[]] * 3  # the breaker is open: nobody waits any more
    finally:
        if "master" in node.processes:
            kill(node, "master")
        engine.call(store_engine.abort, "running")
        revive(node)


def test_the_store_is_used_again_when_it_answers(engines: dict[str, Engine]) -> None:
    _passes(engines)


def _passes(engines: dict[str, Engine]) -> None:
    """Wait until what the writer stores is found by the reader; each try has a prompt of its own."""
    seeds = itertools.count(time.monotonic_ns())

    def found() -> bool:
        ids = prompt(200, seed=next(seeds))
        _stored(engines["writer"], ids)
        return engines["reader"].ask(ids).cached == 3 * BLOCK

    eventually(found, 120)


def test_ranks_of_tensor_parallelism_share_the_storing_and_find_everything(start: Callable[..., Engine]) -> None:
    """Workers in processes of their own: the scheduler learns the namespace from them."""
    engine, ids = start("one", tensor_parallel_size=2, distributed_executor_backend="mp").ready(), prompt(450, seed=13)
    truth = _stored(engine, ids)

    answer = engine.ask(ids)

    assert (answer.cached, answer.tokens) == (7 * BLOCK, truth)
    engine.kill()


TRANSFER = "config.kv_transfer_config."
PARALLEL = "config.parallel_config."


@pytest.mark.parametrize(
    ("changed", "around", "why"),
    [
        pytest.param({}, {}, "^$", id="nothing"),
        pytest.param({TRANSFER + "kv_load_failure_policy": "fail"}, {}, "kv_load_failure_policy='fail'", id="policy"),
        pytest.param({}, {TRANSFER + "kv_load_failure_policy": "fail"}, "kv_load_failure_policy='fail'", id="around"),
        pytest.param({"config.cache_config.enable_prefix_caching": False}, {}, "blocks have no hashes", id="hashes"),
        pytest.param({PARALLEL + "decode_context_parallel_size": 2}, {}, "decode_context_parallel_size=2", id="dcp"),
        pytest.param({PARALLEL + "prefill_context_parallel_size": 2}, {}, "prefill_context_parallel_size=2", id="pcp"),
        pytest.param({PARALLEL + "tensor_parallel_size": 2}, {}, "ranks hold different bytes", id="ranks"),
        pytest.param({"caches.kv_cache_groups": "twice"}, {}, "2 groups of caches", id="groups"),
        pytest.param(
            {TRANSFER + "kv_connector_extra_config": {"mooncake_tier": {"master": "127.0.0.1:9"}}},
            {},
            "KV events are enabled, and mooncake_tier.metrics is not set",
            id="events",
        ),
        pytest.param(
            {TRANSFER + "kv_connector_extra_config": {"mooncake_tier": {"master": "127.0.0.1:9", "events": False}}},
            {},
            r"no connection to 127\.0\.0\.1:9 .*mooncake-tier serve",
            id="store",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_way_out(
    engines: dict[str, Engine], changed: dict[str, Any], around: dict[str, Any], why: str
) -> None:
    assert re.search(why, engines["writer"].call(store_engine.refusal, changed, around))
