"""The connector's scheduler side: what it promises, what it orders, what it keeps. The store is a fake that hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from store_fakes import BLOCK, Clock, Pool, block_hash, request, step
from tier_fake import FakeStore
from tier_fields import NAMESPACE

from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.keys import block_key
from mooncake_tier.options import Options
from mooncake_tier.store.messages import StoreReport
from mooncake_tier.store.scheduler import StoreScheduler


class Side:
    """A scheduler with its store, client, clock and pool."""

    def __init__(self, **changed: Any) -> None:
        self.store, self.clock, self.pool = FakeStore(), Clock(), Pool()
        self.client = TierClient(self.store, NAMESPACE, Options(lookup_s=0.5, failures=1), self.clock)
        given: dict[str, Any] = {"client": lambda: self.client, "block_size": BLOCK, "workers": 1, "most_pinned": 32}
        self.scheduler = StoreScheduler(**given | {"pool": self.pool, "clock": self.clock} | changed)

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.store.objects[block_key(NAMESPACE, block_hash(number))] = b""

    def matched(self, asked: Any, computed: int = 0) -> int | None:
        """As vLLM asks, until there is an answer or none can come."""
        for _ in range(2000):
            found = self.scheduler.matched(asked, computed)
            if found is not None or not self.store.go.is_set():
                return found
            time.sleep(0.001)
        raise AssertionError("no answer")

    def wait_for_call(self) -> None:
        until = time.monotonic() + 20
        while not self.store.calls and time.monotonic() < until:
            time.sleep(0.001)

    def report(self, **told: Any) -> StoreReport:
        return StoreReport(NAMESPACE, **told)


@pytest.fixture
def make() -> Iterator[Callable[..., Side]]:
    made: list[Side] = []

    def build(**changed: Any) -> Side:
        made.append(Side(**changed))
        return made[-1]

    yield build
    for side in made:
        side.store.go.set()
        side.client.close()


def test_a_lookup_is_under_way_before_the_request_is_scheduled(make: Callable[..., Side]) -> None:
    side = make()
    side.put(0, 1)
    side.store.go.clear()

    side.scheduler.add(request("a", 3))

    side.wait_for_call()
    assert side.store.calls == [("exists", [block_key(NAMESPACE, block_hash(at)) for at in range(3)])]


@pytest.mark.parametrize(
    ("stored", "blocks", "tokens", "computed", "expected"),
    [
        pytest.param([0, 1, 2], 4, None, 0, 3, id="the-leading-blocks"),
        pytest.param([0, 2], 3, None, 0, 1, id="nothing-behind-a-gap"),
        pytest.param([1, 2], 3, None, 0, 0, id="nothing-without-the-first"),
        pytest.param([1, 2], 4, None, BLOCK, 2, id="behind-what-the-gpu-has"),
        pytest.param([0, 1, 2], 3, None, 3 * BLOCK, 0, id="nothing-that-the-gpu-has"),
        pytest.param([0, 1], 2, 2 * BLOCK, 0, 1, id="never-the-last-token"),
        pytest.param([0], 1, BLOCK, 0, 0, id="not-even-of-one-block"),
        pytest.param([], 0, 3, 0, 0, id="less-than-a-block"),
    ],
)
def test_what_can_be_loaded_is_the_run_of_blocks_behind_the_gpus_own(
    make: Callable[..., Side], stored: list[int], blocks: int, tokens: int | None, computed: int, expected: int
) -> None:
    side, asked = make(), request("a", blocks, tokens=tokens)
    side.put(*stored)
    side.scheduler.add(asked)

    assert side.matched(asked, computed) == expected * BLOCK


def test_the_last_block_of_a_hit_is_left_out_for_a_drafter(make: Callable[..., Side]) -> None:
    side, asked = make(drop_last=True), request("a", 4)
    side.put(0, 1, 2)
    side.scheduler.add(asked)

    assert side.matched(asked) == 2 * BLOCK
    assert side.matched(asked, 2 * BLOCK) == 0


def test_a_store_that_hangs_delays_a_request_by_the_deadline_and_no_step_at_all(make: Callable[..., Side]) -> None:
    side, first, later = make(), request("a", 2), request("b", 2)
    side.put(0, 1)
    side.store.go.clear()
    side.scheduler.add(first)
    side.wait_for_call()

    for _ in range(1000):  # steps of the engine, each of which asks and gets no answer
        assert side.matched(first) is None
    assert [side.scheduler.orders(step({})).asking for _ in range(2)] == [True, False]
    side.clock.now += 0.5

    assert side.matched(first) == 0
    assert not side.client.breaker.allows
    side.scheduler.add(later)
    assert side.matched(later) == 0  # the breaker is open: this one does not wait


def test_until_the_workers_tell_the_namespace_there_is_no_answer(make: Callable[..., Side]) -> None:
    side, asked = make(client=lambda: None), request("a", 2)
    side.scheduler.add(asked)

    assert side.scheduler.matched(asked, 0) is None
    assert not side.scheduler.orders(step({})).named


@pytest.mark.parametrize("loads", [True, False])
def test_a_prompt_that_comes_from_prefill_or_is_never_loaded_is_not_looked_up(
    make: Callable[..., Side], loads: bool
) -> None:
    side = make(loads=loads)
    asked = request("a", 2, kv_transfer_params={"do_remote_prefill": True} if loads else None)
    side.put(0, 1)
    side.scheduler.add(asked)

    assert side.matched(asked) == 0
    assert side.store.calls == []


def test_a_load_is_ordered_for_every_block_that_counts_as_computed(make: Callable[..., Side]) -> None:
    side, asked = make(), request("a", 5)
    side.put(1, 2, 3)
    side.scheduler.add(asked)
    assert side.matched(asked, BLOCK) == 3 * BLOCK

    side.scheduler.allocated(asked, [10, 11, 12, 13, 14, 15], BLOCK + 1)

    (load,) = side.scheduler.orders(step({})).loads
    assert (load.request_id, load.blocks) == ("a", [(block_hash(1), 11), (block_hash(2), 12)])
    assert side.scheduler.orders(step({})).loads == []


def test_another_connectors_choice_orders_nothing(make: Callable[..., Side]) -> None:
    side, asked = make(), request("a", 3)
    side.put(0, 1)
    side.scheduler.add(asked)
    assert side.matched(asked) == 2 * BLOCK

    side.scheduler.allocated(asked, [10, 11, 12], 0)

    assert side.scheduler.orders(step({})).loads == []


def test_a_block_whose_load_failed_is_not_promised_again_until_it_is_stored(make: Callable[..., Side]) -> None:
    side, asked = make(), request("a", 3)
    side.put(0, 1, 2)
    side.scheduler.add(asked)
    assert side.matched(asked) == 3 * BLOCK
    side.scheduler.allocated(asked, [10, 11, 12, 13], 3 * BLOCK)
    side.scheduler.orders(step({}))

    side.scheduler.reported(side.report(unloaded={block_hash(1), block_hash(2)}), {"a"})

    assert side.matched(asked) == BLOCK
    asked.num_computed_tokens = BLOCK
    (order,) = side.scheduler.orders(step({"a": 9}, {"a": [10, 11, 12, 13]})).stores
    assert [one for one, _ in order.blocks] == [block_hash(1), block_hash(2)]
    side.scheduler.reported(side.report(done={order.number: 1}), set())
    other = request("b", 3)
    side.scheduler.add(other)
    assert side.matched(other) == 3 * BLOCK


def test_a_request_may_have_the_name_of_one_that_ended(make: Callable[..., Side]) -> None:
    side, first, second = make(), request("a", 2), request("a", 2, first=10)
    side.put(0, 1, 10)
    side.scheduler.add(first)
    side.scheduler.finished(first)
    side.scheduler.add(second)

    assert side.matched(second) == BLOCK


def test_full_blocks_are_stored_once_and_those_in_the_store_not_at_all(make: Callable[..., Side]) -> None:
    side, asked = make(), request("a", 4)
    side.put(1)
    side.scheduler.add(asked)
    side.matched(asked)
    table = {"a": [20, 21, 22, 23, 24]}

    stored = []
    for tokens in (6, 3, 8):
        orders = side.scheduler.orders(step({"a": tokens}, table))
        stored.append([block for order in orders.stores for _, block in order.blocks])
        asked.num_computed_tokens += tokens

    assert stored == [[20], [], [22, 23]]  # after 6, 9 and 17 tokens; block 1 is there already


def test_tokens_that_a_draft_only_guessed_are_not_stored(make: Callable[..., Side]) -> None:
    """Known tokens end in the middle of the second block; the step computes guesses behind them."""
    side, asked = make(), request("a", 1, tokens=2 * BLOCK - 1, num_computed_tokens=2 * BLOCK - 2)
    side.scheduler.add(asked)

    (order,) = side.scheduler.orders(step({"a": 5}, {"a": [20, 21, 22]})).stores

    assert order.blocks == [(block_hash(0), 20)]


def test_answers_are_stored_only_if_asked_for(make: Callable[..., Side]) -> None:
    for save_decode, expected in ((True, [20, 21, 22]), (False, [20])):
        side = make(save_decode=save_decode)
        asked = request("a", 3, tokens=3 * BLOCK, num_prompt_tokens=BLOCK + 1, num_computed_tokens=3 * BLOCK - 1)
        side.scheduler.add(asked)

        (order,) = side.scheduler.orders(step({"a": 1}, {"a": [20, 21, 22]})).stores

        assert [block for _, block in order.blocks] == expected


def test_blocks_are_kept_until_every_worker_has_stored_them(make: Callable[..., Side]) -> None:
    side, asked = make(workers=2), request("a", 2)
    side.scheduler.add(asked)
    (order,) = side.scheduler.orders(step({"a": 9}, {"a": [20, 21, 22]})).stores
    side.scheduler.finished(asked)

    assert side.pool.references[20:23] == [2, 2, 1]
    assert side.scheduler.pending
    side.scheduler.reported(side.report(done={order.number: 1}), set())
    assert side.pool.references[20:23] == [2, 2, 1]
    side.scheduler.reported(side.report(done={order.number: 1}), set())

    assert side.pool.references[20:23] == [1, 1, 1]
    assert side.pool.freed == [21, 20]  # the prompt's beginning is evicted last
    assert not side.scheduler.pending


def test_storing_waits_while_too_many_blocks_are_kept(make: Callable[..., Side]) -> None:
    side, asked = make(most_pinned=2), request("a", 5)
    side.scheduler.add(asked)
    table = {"a": [20, 21, 22, 23, 24, 25]}

    (first,) = side.scheduler.orders(step({"a": 21}, table)).stores
    asked.num_computed_tokens = 21
    assert side.scheduler.orders(step({"a": 0}, table)).stores == []
    side.scheduler.reported(side.report(done={first.number: 1}), set())
    (second,) = side.scheduler.orders(step({"a": 0}, table)).stores

    assert [[block for _, block in order.blocks] for order in (first, second)] == [[20, 21], [22, 23]]


def test_a_store_left_alone_is_not_written_to_and_gets_the_blocks_later(make: Callable[..., Side]) -> None:
    side, asked = make(), request("a", 2)
    side.scheduler.add(asked)
    side.client.breaker.failure()

    assert side.scheduler.orders(step({"a": 9}, {"a": [20, 21, 22]})).stores == []
    assert not side.scheduler.pending
    asked.num_computed_tokens = 9
    assert side.client.breaker.probe_at is not None
    side.clock.now = side.client.breaker.probe_at
    assert side.client.breaker.begin_probe()
    side.client.breaker.probed(True)
    (order,) = side.scheduler.orders(step({"a": 1}, {"a": [20, 21, 22]})).stores

    assert [block for _, block in order.blocks] == [20, 21]


def test_a_consumer_stores_nothing(make: Callable[..., Side]) -> None:
    side, asked = make(saves=False), request("a", 2)
    side.scheduler.add(asked)

    assert side.scheduler.orders(step({"a": 9}, {"a": [20, 21, 22]})).stores == []


def test_a_lookup_is_repeated_before_its_leases_are_over(make: Callable[..., Side]) -> None:
    """A request may wait for minutes; a block that was there may be gone, and a block may have come."""
    side, asked = make(), request("a", 3)
    side.put(0, 1)
    side.scheduler.add(asked)
    assert side.matched(asked) == 2 * BLOCK
    side.put(2)

    side.clock.now += side.client.options.lease_s / 2 - 0.1
    assert side.matched(asked) == 2 * BLOCK
    side.clock.now += 0.2
    assert side.matched(asked) == 3 * BLOCK
