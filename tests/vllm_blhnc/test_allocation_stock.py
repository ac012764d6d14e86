"""Runs against vLLM's own block pool: the same requests at vLLM's cache manager, once with each."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from refusal_table import says

if TYPE_CHECKING:
    from conftest import Call

pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None,
    reason="needs vLLM: run make test, which installs it, or use .venv/bin/python -m pytest",
)

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "block_runs.py"
BLOCK = 4  # tokens


@pytest.fixture(scope="module", autouse=True)
def _stock_afterwards() -> Iterator[None]:
    yield
    from vllm_blhnc.patches import REGISTER

    REGISTER.revert()


def _manager(blocks: int, window: int | None, *, caching: bool = True) -> Any:
    """vLLM's cache manager; with a window its pool hands out runs."""
    import torch
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    from vllm_blhnc import patches
    from vllm_blhnc.allocation import hand_out_runs

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    manager = KVCacheManager(
        KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["kv"], spec)]),
        max_model_len=1 << 16,
        max_in_flight_tokens=1 << 16,
        scheduler_block_size=BLOCK,
        hash_block_size=BLOCK,
        enable_caching=caching,
        enable_kv_cache_events=True,
    )
    if window is not None:
        patches.follow_the_requests_blocks()
        hand_out_runs(manager.block_pool, window)
    return manager


def _request(name: str, tokens: list[int]) -> Any:
    """A request whose block hashes are its tokens, so that equal prefixes have equal hashes."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    def hashes(request: Any) -> list[bytes]:
        ids = request.all_token_ids
        have = len(request.block_hashes)
        return [repr(ids[: (i + 1) * BLOCK]).encode() for i in range(have, len(ids) // BLOCK)]

    return Request(
        request_id=name,
        prompt_token_ids=tokens,
        sampling_params=SamplingParams(max_tokens=1 << 16),
        pooling_params=None,
        block_hasher=hashes,
    )


@dataclass
class Side:
    """One manager and its live requests by name."""

    manager: Any
    live: dict[str, Any] = field(default_factory=dict)

    @property
    def pool(self) -> Any:
        return self.manager.block_pool

    def admit(self, name: str, tokens: list[int], first: int) -> tuple[int, bool]:
        """Tokens found in cache, and whether there was room for the first chunk of the rest."""
        request = _request(name, tokens)
        found, hit, *_ = self.manager.get_computed_blocks(request)
        new = min(first, len(tokens) - hit)
        if self.manager.allocate_slots(request, new, hit, found) is None:
            return hit, False
        request.num_computed_tokens = hit + new
        self.live[name] = request
        return hit, True

    def compute(self, name: str, tokens: int) -> bool:
        """The next tokens of the prompt, or one new token behind it."""
        request = self.live[name]
        new = min(tokens, request.num_tokens - request.num_computed_tokens)
        if not new:
            request.append_output_token_ids(7)
            new = 1
        if self.manager.allocate_slots(request, new) is None:
            return False
        request.num_computed_tokens += new
        return True

    def finish(self, name: str) -> bool:
        self.manager.free(self.live.pop(name))
        return True

    def fail_load(self, name: str, position: int) -> bool:
        """What happens to a block whose transfer failed: it loses its place in the prefix cache."""
        ids = self.ids(name)
        self.manager.evict_blocks({ids[position % len(ids)]})
        return True

    def ids(self, name: str) -> list[int]:
        return self.manager.get_block_ids(name)[0]

    def eviction_order(self) -> list[Any]:
        return [b.block_hash for b in self.pool.free_block_queue.get_all_free_blocks() if b.block_hash is not None]

    def events(self) -> list[Any]:
        """Hashes cached and evicted since the last call, without the order within one allocation."""
        return sorted((type(e).__name__, getattr(e, "block_hashes", [])) for e in self.manager.take_events())

    def check_references(self) -> None:
        """Every block is free once, or used by exactly the requests that have it."""
        users = Counter(block for name in self.live for block in self.ids(name))
        free = [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]
        assert len(free) == len(set(free)) == self.pool.get_num_free_blocks()
        assert not set(free) & set(users)
        assert len(free) + len(users) == self.pool.num_gpu_blocks - 1
        for block in self.pool.blocks[1:]:
            assert block.ref_cnt == users[block.block_id]


def _play(sides: list[Side], seed: int, steps: int, compare: Any) -> None:
    """The same random requests at all sides: sessions that grow, share prefixes, end, are aborted, or fail."""
    draw = random.Random(seed)
    results: list[Any]
    sessions: list[list[int]] = [[draw.randrange(50) for _ in range(draw.randrange(1, 60))] for _ in range(6)]
    for number in range(steps):
        live = list(sides[0].live)
        action = draw.random()
        if action < 0.25 or not live:
            i = draw.randrange(len(sessions))
            if draw.random() < 0.15:
                sessions[i] = sessions[draw.randrange(len(sessions))][: draw.randrange(1, 40)]
            sessions[i] = sessions[i][:200] + [draw.randrange(50) for _ in range(draw.randrange(1, 50))]
            first = draw.choice([8, 32, 1000])
            results = [side.admit(f"r{number}", list(sessions[i]), first) for side in sides]
        elif action < 0.7:
            name, tokens = draw.choice(live), draw.choice([1, 8, 32])
            results = [side.compute(name, tokens) for side in sides]
        elif action < 0.95:
            name = draw.choice(live)
            results = [side.finish(name) for side in sides]
        elif action < 0.99:
            name, position = draw.choice(live), draw.randrange(100)
            results = [side.fail_load(name, position) for side in sides]
        else:
            results = [side.finish(name) for name in live for side in sides]
            if draw.random() < 0.5:
                results += [side.manager.reset_prefix_cache() for side in sides]
        compare(results)
    for name in list(sides[0].live):
        for side in sides:
            side.finish(name)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_without_a_window_all_but_the_block_ids_is_as_in_stock(seed: int, caching: bool) -> None:
    """Hits, refusals, cached and evicted content, its order, and what is free: after every single call."""
    sides = [Side(_manager(80, None, caching=caching)), Side(_manager(80, 0, caching=caching))]
    stock, runs = sides

    def compare(results: list[Any]) -> None:
        assert all(result == results[0] for result in results)
        assert runs.events() == stock.events()
        assert runs.eviction_order() == stock.eviction_order()
        assert runs.pool.get_num_free_blocks() == stock.pool.get_num_free_blocks()
        assert runs.pool.get_usage() == stock.pool.get_usage()
        runs.check_references()

    _play(sides, seed, 400, compare)

    for side in sides:
        assert side.pool.get_num_free_blocks() == 79


@pytest.mark.parametrize("window", [1, 5, 20])
@pytest.mark.parametrize("seed", range(10))
def test_with_a_window_only_the_oldest_blocks_are_evicted(seed: int, window: int) -> None:
    """Of n blocks handed out, each cached one was among the n + window least recently used."""
    side = Side(_manager(80, window))
    queue, pool = side.pool.free_block_queue, side.pool
    order: list[int] = []  # cached free blocks, the least recently used first

    def refresh() -> None:
        free = {b.block_id for b in queue.get_all_free_blocks() if b.block_hash is not None}
        order[:] = [block_id for block_id in order if block_id in free]

    take, put_back = pool.get_new_blocks, queue.append_n

    def get_new_blocks(count: int) -> Any:
        refresh()
        cached = {block_id: rank for rank, block_id in enumerate(order)}
        blocks = take(count)
        assert all(cached.get(block.block_id, 0) < count + window for block in blocks)
        return blocks

    def append_n(blocks: list[Any]) -> None:
        refresh()
        order.extend(block.block_id for block in blocks)
        put_back(blocks)

    pool.get_new_blocks, queue.append_n = get_new_blocks, append_n
    _play([side], seed, 400, lambda _: side.check_references())

    assert pool.get_num_free_blocks() == 79


def test_a_block_of_the_window_can_still_be_hit() -> None:
    side = Side(_manager(64, 20))
    for name, tokens in (("old", list(range(40))), ("next", list(range(100, 312)))):  # 10 and 53 blocks: all
        side.admit(name, tokens, 1000)
    for name in ("old", "next"):
        side.finish(name)
    # The 32 oldest are all of "old" and the end of "next"; only that has twelve side by side.
    side.admit("new", [99] * 12 * BLOCK, 1000)

    hit, _ = side.admit("old again", list(range(40)), 1000)

    assert hit == 36  # vLLM always computes the last token, so the tenth block is not asked for
    side.check_references()


def test_nothing_is_evicted_before_stock_would_evict() -> None:
    """However large the window: blocks that never held anything go first."""
    side = Side(_manager(64, 40))
    side.admit("a", list(range(80)), 1000)
    side.finish("a")

    side.admit("b", [99] * 43 * BLOCK, 1000)

    hit, _ = side.admit("a again", list(range(80)), 1)
    assert hit == 76
    side.check_references()


def test_the_next_chunk_of_a_prompt_follows_the_last_one() -> None:
    """Although blocks elsewhere would fit its size exactly."""
    side = Side(_manager(200, 0, caching=False))
    for name, blocks in (("a", 5), ("b", 10), ("c", 5), ("d", 5), ("e", 5)):
        side.admit(name, [0] * 100, blocks * BLOCK)
    side.finish("b")
    side.finish("d")

    side.compute("a", 5 * BLOCK)
    side.compute("e", 5 * BLOCK)

    assert side.ids("a") == list(range(1, 11))
    assert side.ids("e") == list(range(26, 36))


def test_a_reset_prefix_cache_leaves_one_run() -> None:
    side = Side(_manager(80, 0))
    for number in range(12):
        side.admit(f"r{number}", [number] * 23, 1000)
    for number in (3, 0, 7, 1, 11, 2, 10, 5, 4, 9, 8, 6):
        side.finish(f"r{number}")
    assert side.manager.reset_prefix_cache()

    side.admit("all", [1] * 79 * BLOCK, 10_000)

    assert side.ids("all") == list(range(1, 80))


def test_free_blocks_are_walked_in_the_order_in_which_they_go() -> None:
    """Offloading walks them from the block where it stopped last."""
    side = Side(_manager(16, 0))
    side.admit("a", list(range(8)), 1000)
    side.admit("b", list(range(100, 112)), 1000)
    a, b = side.ids("a"), side.ids("b")
    side.finish("a")
    side.finish("b")
    queue = side.pool.free_block_queue
    cached = [*reversed(a), *reversed(b)]
    fresh = [block_id for block_id in range(1, 16) if block_id not in cached]

    def walk(cursor: int | None) -> list[int]:
        return [b.block_id for b in queue.iter_blocks_after(None if cursor is None else side.pool.blocks[cursor])]

    assert walk(None) == [*fresh, *cached]
    assert walk(cached[1]) == cached[2:]
    assert walk(cached[-1]) == []
    assert walk(fresh[0]) == cached
    assert queue.popleft().block_id in fresh


def test_a_block_that_is_not_free_cannot_be_taken_out() -> None:
    side = Side(_manager(16, 0))
    side.admit("a", list(range(8)), 1000)

    with pytest.raises(RuntimeError, match="is not free, so it cannot leave the free blocks"):
        side.pool.free_block_queue.remove(side.pool.blocks[side.ids("a")[0]])


def test_an_empty_queue_has_no_block() -> None:
    side = Side(_manager(3, 0))
    side.admit("a", list(range(8)), 1000)

    with pytest.raises(ValueError, match="no free block is left"):
        side.pool.free_block_queue.popleft()


@pytest.mark.parametrize("window", [79, 1000])
def test_a_window_that_keeps_nothing_is_refused(window: int) -> None:
    from vllm_blhnc.allocation import AllocationError

    with pytest.raises(AllocationError, match=rf"eviction_window={window} blocks, but this engine has 79") as refused:
        _manager(80, window)

    says("start-window", str(refused.value))


def test_hisparse_is_refused() -> None:
    from vllm_blhnc.allocation import AllocationError, refuse_hisparse

    refuse_hisparse(SimpleNamespace(attention_config=SimpleNamespace(hisparse_config=None)))
    with pytest.raises(AllocationError, match="hisparse_config is set") as refused:
        refuse_hisparse(SimpleNamespace(attention_config=SimpleNamespace(hisparse_config=object())))
    says("start-hisparse-runs", str(refused.value))


def test_blocks_that_are_still_read_go_last() -> None:
    side = Side(_manager(12, 0))
    side.admit("a", list(range(12)), 1000)
    blocks = [side.pool.blocks[block_id] for block_id in side.ids("a")]
    reused: list[int] = []
    side.pool.evict_blocks({block.block_id for block in blocks})
    side.pool.unpin_blocks(blocks, lambda block: reused.append(block.block_id))

    side.admit("b", [1] * 8 * BLOCK, 1000)  # all blocks that nobody reads

    assert reused == []
    side.admit("c", [2] * BLOCK, 1000)
    assert len(reused) == 1


def test_a_pool_in_use_is_refused() -> None:
    from vllm_blhnc.allocation import AllocationError, hand_out_runs

    side = Side(_manager(80, None))
    side.admit("a", list(range(8)), 1000)

    with pytest.raises(AllocationError, match="2 blocks of the pool are in use before the first request") as refused:
        hand_out_runs(side.pool, 0)

    says("start-pool-used", str(refused.value))


def test_a_pool_with_another_queue_is_refused() -> None:
    from vllm_blhnc.allocation import AllocationError, hand_out_runs

    with pytest.raises(AllocationError, match=r"has a vllm_blhnc\.allocation\.RunQueue for its free blocks") as refused:
        hand_out_runs(_manager(80, 0).block_pool, 0)

    says("start-pool-queue", str(refused.value))


def _agent_trace() -> list[Any]:
    """The benchmark's busiest scenario, shortened: 80 % of the decode blocks are in use."""
    spec = importlib.util.spec_from_file_location("block_runs", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["block_runs"] = module
    spec.loader.exec_module(module)
    policies = [module.Policy("stock"), module.Policy("runs", 0), module.Policy("window", 1024)]
    results = [module.simulate(module.SCENARIOS[0], policy, steps=1000) for policy in policies]
    return [vars(result) for result in results]


def test_agents_get_runs_of_64_blocks_at_80_percent_occupancy(call: Call) -> None:
    stock, runs, window = call(_agent_trace)

    assert stock["decode_usage"] > 0.75
    assert stock["median_run"] < 10
    for same in ("transfers", "blocks", "prefill_hits", "decode_hits", "decode_usage"):
        assert runs[same] == stock[same]
    assert runs["descriptors_200k"] < stock["descriptors_200k"] / 2
    assert window["median_run"] >= 64
    assert window["descriptors_200k"] <= 50
    assert window["prefill_hits"] >= stock["prefill_hits"]
