"""vLLM's CPU engine with host memory and a real Mooncake store behind it: what is cached changes no token."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tier_engine as engines
import tier_parts as parts
import tier_scenes as scenes
from tier_engine import CHUNK, Answer, prompt, transfer_config
from tier_events import Listener
from tier_memory import Memory
from tier_nodes import client_of, eventually, kill, revive, running_node

from mooncake_tier.client.integrity import TRAILER_BYTES
from mooncake_tier.identity.reports import read_reports
from mooncake_tier.node.processes import Node

pytest.importorskip("mooncake.store", reason="needs Mooncake and what it links to: make test", exc_type=ImportError)
if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs the pinned stock environment: make test", allow_module_level=True)

Run = Callable[..., Any]

LENGTH = 5 * CHUNK + 70
WHOLE = 5 * CHUNK
PROMPTS = [prompt(LENGTH, seed) for seed in range(5)]
HIT, ORDERED, UNORDERED, CORRUPT, FAILING = range(5)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("node"), pool_bytes=256 << 20) as one:
        yield one


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from glm53.model import make

    folder = tmp_path_factory.mktemp("first") / "glm"
    make(folder)
    return folder


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with engines.child() as call:
        yield call


@pytest.fixture(scope="module")
def store(node: Node) -> dict[str, Any]:
    """The tier's section of the configuration."""
    one = node.settings
    return {"master": one.store.master, "metrics": f"127.0.0.1:{one.metrics_port}", "poll_s": 0.2, "lease_s": 1.0}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first engine's worker says what its keys follow from."""
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def truth(run: Run, model: Path, store: dict[str, Any], reports: Path) -> list[Answer]:
    """What an engine without anything cached answers; its chunks are in the store from now on."""
    run(engines.start, str(model), transfer_config({**store, "report_dir": str(reports)}))
    return list(run(engines.answers, PROMPTS))


@pytest.fixture(scope="module")
def other_weights(
    run: Run, truth: list[Answer], store: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """An answer, and the figures, of an engine whose model has the same folder name and other weights."""
    from glm53.model import make

    folder = tmp_path_factory.mktemp("second") / "glm"
    make(folder, seed=1)
    run(engines.start, str(folder), transfer_config(store))
    return run(engines.answers, [PROMPTS[HIT]])[0], run(engines.figures)


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    one = Listener()
    yield one
    one.close()


@pytest.fixture(scope="module")
def second(
    run: Run, truth: list[Answer], other_weights: Any, model: Path, store: dict[str, Any], listener: Listener
) -> Run:
    """Another engine with the first one's model, which finds that one's chunks, with host memory for 27 of its own."""
    config = transfer_config(store)
    config["kv_connector_extra_config"] |= {"self_describing_kv_events": True, "cpu_bytes_to_use": 32 << 20}
    run(engines.start, str(model), config, kv_events_config=listener.config)
    return run


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("stock connector", "MooncakeTier under another connector"),
        ("events without metrics", "mooncake_tier.metrics is not set"),
        ("setting in the wrong place", "secondary_tiers has \\['master'\\]"),
        ("misspelt setting", "has \\['lease'\\]"),
        ("no tier", "one, MooncakeTier"),
        ("workers differ", "differs in \\['b'\\]"),
        ("a worker is silent", "1 of 2 workers"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(run: Run, case: str, said: str) -> None:
    assert re.search(said, run(parts.refusal, case))


def test_workers_tell_their_fields_beside_their_jobs(run: Run) -> None:
    assert run(parts.told_by_two) == ({"a": 1}, [2])


def test_figures_survive_a_multi_connector(run: Run) -> None:
    """Stock looks for the class that counted by name, and ends the server if it is not registered."""
    assert run(parts.shown_beside_others) == {"vllm:mooncake_tier_evicted": 3}


def test_what_was_described_to_the_router_and_did_not_come_is_forgotten(run: Run) -> None:
    """0.33 forgets it by itself; before, it would stay for ever."""
    assert run(parts.described_after_failures) == ["came", "in the store"]


def test_blocks_go_where_they_belong_in_their_chunks_and_back(run: Run) -> None:
    assert run(parts.copied, 0) == [(True, True)] * 2


def test_nothing_was_cached_for_the_first_engine(truth: list[Answer]) -> None:
    assert [one.cached for one in truth] == [0] * len(PROMPTS)


def test_other_weights_under_the_same_name_find_nothing(truth: list[Answer], other_weights: Any) -> None:
    answer, figures = other_weights

    assert answer.cached == 0
    assert answer.tokens != truth[HIT].tokens
    assert {label for name, label in figures if name == "mooncake_tier_lookups"} == {"absent"}


def test_the_workers_report_tells_what_its_keys_follow_from(truth: list[Answer], reports: Path, node: Node) -> None:
    """Caches as the small model has them: 4 layers, of which 3 run an indexer."""
    found, unreadable = read_reports([reports])
    [fields] = found.values()
    stored = node.master.keys()

    assert unreadable == {}
    assert fields["namespace"] in {key.partition("/")[0] for key in stored}
    assert (fields["mla_layers"], fields["indexer_layers"], fields["mtp_layers"]) == (4, 3, 0)
    assert {cache["nbytes"] for cache in fields["caches"]} == {64 * 132, 64 * (512 + 64) * 4}
    assert (fields["chunk_blocks"], fields["block_size"]) == (CHUNK // 64, 64)
    assert fields["hash_seed"] == "vllm-none-hash"


def test_another_engine_reads_the_chunks_and_says_the_same(second: Run, truth: list[Answer]) -> None:
    found = second(engines.answers, [PROMPTS[HIT]])[0]

    assert (found.tokens, found.cached) == (truth[HIT].tokens, WHOLE)
    assert second(engines.metrics)["vllm:mooncake_tier_loads ok"] == 5


def test_a_router_hears_of_each_block_once_with_its_tokens(second: Run, listener: Listener) -> None:
    """The chunks of the test before lie both in host memory and in the store."""
    stored = [event for event in listener.hear() if event["type"] == "BlockStored" and event["medium"] == "CPU"]

    tokens = [token for event in stored for token in event["token_ids"]]
    assert tokens == PROMPTS[HIT][:WHOLE]
    assert [len(event["block_hashes"]) for event in stored] == [CHUNK // 64] * 5
    assert {event["block_size"] for event in stored} == {64}
    assert stored[0]["parent_block_hash"] is None
    assert [event["parent_block_hash"] for event in stored[1:]] == [event["block_hashes"][-1] for event in stored[:-1]]
    assert set(listener.resident().values()) == {1}


def test_chunks_are_loaded_while_a_running_request_uses_every_token(second: Run, truth: list[Answer]) -> None:
    """Stock looks for the waiting request's chunks when tokens are left for it, and it begins later by the load."""
    ours = second(scenes.order, prompt(6 * 256, 100), PROMPTS[ORDERED])
    figures = second(engines.figures)
    second(scenes.set_prefetch, False)
    stock = second(scenes.order, prompt(6 * 256, 101), PROMPTS[UNORDERED])
    second(scenes.set_prefetch, True)

    assert ours.index("loaded") < len(ours) - ours[::-1].index("full") - 1
    assert ours.index("loaded") < ours.index("begun")
    assert stock.index("load") > len(stock) - stock[::-1].index("full") - 1
    assert ours.count("full") == stock.count("full") == 6
    assert figures["mooncake_tier_prefetched_chunks", "useful"] == 5


def test_a_router_hears_when_the_last_copy_is_gone(second: Run, node: Node, listener: Listener) -> None:
    """Mooncake says nothing of what it evicts; the test before pushed the blocks out of host memory."""
    hashes = [
        block
        for event in listener.events
        if event["type"] == "BlockStored" and event["medium"] == "CPU"
        for block in event["block_hashes"]
    ]
    hashes = hashes[: WHOLE // 64]
    listener.hear()
    assert set(hashes) <= set(listener.resident())
    keys = second(scenes.names, PROMPTS[HIT])
    with client_of(node, keys[0].partition("/")[0]) as client:
        assert [client._native.remove(key) for key in keys] == [0] * 5

    second(scenes.wait_for_removals)
    second(engines.settle)

    removed = [block for event in listener.hear() if event["type"] == "BlockRemoved" for block in event["block_hashes"]]
    assert set(hashes) <= set(removed)
    assert not set(hashes) & set(listener.resident())


def test_a_router_is_told_again_after_a_reset_of_the_gpus_cache_alone(second: Run, listener: Listener) -> None:
    """Dynamo takes that for a reset of every tier, and the chunks are in the store as before."""
    listener.hear(first_s=0.5)
    second(engines.forget)
    assert second(engines.answers, [PROMPTS[UNORDERED]])[0].cached == WHOLE

    heard = listener.hear()
    at = [event["type"] for event in heard].index("AllBlocksCleared")
    stored = [one for one in heard[at:] if one["type"] == "BlockStored" and one["medium"] == "CPU"]
    assert [token for event in stored for token in event["token_ids"]] == PROMPTS[UNORDERED][:WHOLE]


def test_a_chunk_that_does_not_prove_itself_is_computed(second: Run, node: Node, truth: list[Answer]) -> None:
    keys = second(scenes.names, PROMPTS[CORRUPT])
    second(engines.forget)
    memory = Memory(1 << 20)
    with client_of(node, keys[2].partition("/")[0]) as client:
        client.register(memory.address, memory.size)
        native = client._native
        assert native.exists(keys) == [1] * 5
        assert native.remove(keys[2]) == 0
        assert native.put([keys[2]], [[memory.address]], [[memory.size - TRAILER_BYTES]]) == [0]

    found = second(engines.answers, [PROMPTS[CORRUPT]])[0]

    assert found.tokens == truth[CORRUPT].tokens
    assert found.cached == 2 * CHUNK


def test_loads_that_fail_are_not_tried_again_and_the_tokens_are_the_same(second: Run, truth: list[Answer]) -> None:
    """Stock's store connector gets 143,295 times in a minute and does not answer."""
    second(engines.forget)
    second(scenes.break_loads)

    found = second(engines.answers, [PROMPTS[FAILING]])[0]

    assert (found.tokens, found.cached) == (truth[FAILING].tokens, 0)
    assert 1 <= second(scenes.mend_loads) <= 5


def test_a_reset_after_a_weight_update_finds_nothing_of_before(
    second: Run, truth: list[Answer], listener: Listener
) -> None:
    before = second(scenes.names, PROMPTS[HIT])
    listener.hear()
    resident = set(listener.resident())

    assert second(scenes.reset)
    after = second(scenes.names, PROMPTS[HIT])
    again = second(engines.answers, [PROMPTS[HIT]] * 2)

    assert {name.partition("/")[0] for name in before}.isdisjoint(name.partition("/")[0] for name in after)
    assert [one.tokens for one in again] == [truth[HIT].tokens] * 2
    assert again[0].cached == 0
    removed = {block for event in listener.hear() if event["type"] == "BlockRemoved" for block in event["block_hashes"]}
    assert resident
    assert resident <= removed


def test_blocks_that_a_peer_brings_are_not_asked_for(second: Run) -> None:
    """Beside NIXL in a MultiConnector, on a decode worker."""
    asked = second(scenes.lookups_of, PROMPTS[HIT], {"do_remote_prefill": True})
    here = second(scenes.lookups_of, PROMPTS[HIT], None)

    assert (asked, here) == ((0, 0), (0, 5))


def test_a_request_that_ends_while_it_waits_gives_its_loads_up(second: Run) -> None:
    before = second(engines.figures).get(("mooncake_tier_cancelled_requests", ""), 0)

    left = second(scenes.abort_while_waiting, prompt(3 * 256, 102), PROMPTS[HIT])

    assert left == (0, 0, 0, 0)
    assert second(engines.figures)["mooncake_tier_cancelled_requests", ""] == before + 1


def test_decoding_goes_on_while_the_master_is_gone(second: Run, node: Node, truth: list[Answer]) -> None:
    second(engines.forget)
    second(engines.add, "decoding", prompt(40, 7), 200)
    before = second(scenes.decoded, 10)
    kill(node, "master")
    second(engines.add, "during", PROMPTS[HIT], 8)

    found = second(scenes.decoded_until, "during")

    assert before < found["decoding"]
    assert found["during"] == truth[HIT].tokens
    eventually(lambda: second(engines.figures)["mooncake_tier_breaker_state", ""] > 0)
    second(engines.settle)
    revive(node)
    eventually(lambda: second(engines.figures)["mooncake_tier_breaker_state", ""] == 0)
    again = second(engines.answers, [PROMPTS[HIT]])[0]
    assert again.tokens == truth[HIT].tokens


def test_an_engine_that_ends_leaves_no_memory_file(run: Run, second: Run) -> None:
    file = Path(second(scenes.memory_file))
    assert file.exists()

    run(engines.stop)

    assert not file.exists()
