"""The connector's worker side: what moves, what is reported, when memory is free. The store is a fake that hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from store_fakes import block_hash
from tier_fake import FakeStore
from tier_fields import NAMESPACE
from tier_memory import Memory, pattern

from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.errors import KeyRefused, SettingRefused
from mooncake_tier.keys import block_key
from mooncake_tier.options import Options
from mooncake_tier.store.blocks import BlockMemory, Pages
from mooncake_tier.store.messages import LoadOrder, StoreOrder, StoreOrders, StoreReport
from mooncake_tier.store.worker import StoreWorker

SIZE = 1000  # bytes of a block, in two pages
BLOCKS = 32


class Rank:
    """A worker with its own cache on a store that it may share."""

    def __init__(self, store: FakeStore, replica: int = 0, replicas: int = 1, **changed: Any) -> None:
        fence = changed.pop("fence", lambda: None)
        given: dict[str, Any] = {"load_s": 20.0, "store_s": 20.0, "batch_bytes": 2 * SIZE, "failures": 1000}
        self.store, self.cache = store, Memory(BLOCKS * SIZE)
        self.client = TierClient(store, NAMESPACE, Options(**given | changed))
        self.worker = StoreWorker(self.client, replica, replicas, fence)
        second = self.cache.address + BLOCKS * 600
        memory = BlockMemory([Pages(self.cache.address, 600, 600), Pages(second, 400, 400)])
        self.worker.register(memory, {self.cache.address: BLOCKS * SIZE})

    def write(self, block: int, content: int) -> None:
        value = pattern(content, SIZE)
        self.cache.write(block * 600, value[:600])
        self.cache.write(BLOCKS * 600 + block * 400, value[600:])

    def holds(self, block: int, content: int) -> bool:
        found = self.cache.read(block * 600, 600) + self.cache.read(BLOCKS * 600 + block * 400, 400)
        return found == pattern(content, SIZE)

    def order(self, *, loads: dict[str, dict[int, int]] | None = None, store: dict[int, int] | None = None) -> None:
        """loads, store: content -> block; the content's number also makes the hash."""
        orders = StoreOrders(
            loads=[
                LoadOrder(name, [(block_hash(c), b) for c, b in wanted.items()])
                for name, wanted in (loads or {}).items()
            ],
            stores=[StoreOrder(7, [(block_hash(c), b) for c, b in store.items()])] if store else [],
            named=True,
        )
        self.worker.begin_loads(orders)
        self.worker.begin_stores(orders)

    def settled(self) -> tuple[set[str], set[int], StoreReport]:
        """Steps until something is over: requests loaded, invalid blocks, and the report."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            over = self.worker.loaded(StoreOrders(idle=True))
            invalid, report = self.worker.take_invalid(), self.worker.take_report()
            if over or report:
                return over, invalid, report or StoreReport(NAMESPACE)
        raise AssertionError("nothing was over")


@pytest.fixture
def rank() -> Iterator[Callable[..., Rank]]:
    store, made = FakeStore(), []

    def build(*arguments: int, **changed: Any) -> Rank:
        made.append(Rank(store, *arguments, **changed))
        return made[-1]

    yield build
    store.go.set()
    for one in made:
        one.client.close()


def _store_all(one: Rank, contents: range) -> None:
    for content in contents:
        one.write(content, content)
    one.order(store={content: content for content in contents})
    assert one.settled()[2].done == {7: 1}


def test_what_one_worker_stores_another_loads_into_other_blocks(rank: Callable[..., Rank]) -> None:
    writer, reader = rank(), rank()
    _store_all(writer, range(5))

    reader.order(loads={"a": {content: 20 + content for content in range(5)}})

    over, invalid, report = reader.settled()
    assert (over, invalid, report.unloaded) == ({"a"}, set(), set())
    assert all(reader.holds(20 + content, content) for content in range(5))


def test_ranks_with_the_same_rows_share_the_storing_and_each_loads_everything(rank: Callable[..., Rank]) -> None:
    ranks = [rank(number, 3) for number in range(3)]
    contents = range(12)
    for one in ranks:
        for content in contents:
            one.write(content, content)
        one.order(store={content: content for content in contents})
    report = ranks[0].settled()[2]
    for one in ranks[1:]:
        report = report.aggregate(one.settled()[2])

    assert (report.done, report.unstored) == ({7: 3}, set())
    put = [key for name, keys in ranks[0].store.calls if name == "put" for key in keys]
    assert sorted(put) == sorted(block_key(NAMESPACE, block_hash(content)) for content in contents)
    ranks[1].order(loads={"a": {content: 12 + content for content in contents}})
    assert ranks[1].settled()[1] == set()
    assert all(ranks[1].holds(12 + content, content) for content in contents)


@pytest.mark.parametrize("missing", [[0], [9], [0, 9], [3, 4, 5], list(range(10))])
def test_every_block_that_was_not_loaded_is_reported_on_every_rank(
    rank: Callable[..., Rank], missing: list[int]
) -> None:
    """Stock's receive loop ends at the first batch that fails and reports that one only."""
    _store_all(rank(), range(10))
    readers = [rank(number, 2) for number in range(2)]
    for content in missing:
        del readers[0].store.objects[block_key(NAMESPACE, block_hash(content))]

    for reader in readers:
        reader.order(loads={"a": {content: 10 + content for content in range(10)}})

        over, invalid, report = reader.settled()
        assert (over, invalid) == ({"a"}, {10 + content for content in missing})
        assert report.unloaded == {block_hash(content) for content in missing}
        assert all(reader.holds(10 + content, content) for content in range(10) if content not in missing)


def test_a_store_begins_only_when_the_device_has_computed_the_blocks(rank: Callable[..., Rank]) -> None:
    class Event:
        happened = False

        def query(self) -> bool:
            return self.happened

    event = Event()
    one = rank(fence=lambda: event)
    one.write(0, 1)
    one.order(store={0: 0})
    for _ in range(3):
        assert one.worker.loaded(StoreOrders(idle=True)) == set()
    assert one.store.calls == []

    one.write(0, 0)
    event.happened = True

    assert one.settled()[2].done == {7: 1}
    assert one.store.objects[block_key(NAMESPACE, block_hash(0))].startswith(pattern(0, SIZE))


def test_a_late_load_ends_only_when_its_memory_is_free(rank: Callable[..., Rank]) -> None:
    """Recomputing into blocks that Mooncake still writes to would give wrong tokens."""
    writer, reader = rank(), rank(load_s=0.05)
    _store_all(writer, range(1))
    reader.store.go.clear()
    reader.order(loads={"a": {0: 5}})
    until = time.monotonic() + 20
    while not reader.client.snapshot().get(("mooncake_tier_loads", "deadline")) and time.monotonic() < until:
        assert reader.worker.loaded(StoreOrders(idle=True)) == set()

    reader.store.go.set()

    assert reader.settled()[:2] == ({"a"}, {5})


def test_a_staged_load_that_is_late_ends_at_its_deadline(rank: Callable[..., Rank]) -> None:
    writer, reader = rank(), rank(load_s=0.05, staging_bytes=2 * SIZE)
    _store_all(writer, range(1))
    reader.write(5, 99)
    reader.store.go.clear()
    reader.order(loads={"a": {0: 5}})

    assert reader.settled()[:2] == ({"a"}, {5})
    reader.store.go.set()
    assert reader.client.close()
    assert reader.holds(5, 99)


def test_blocks_that_are_not_stored_are_told(rank: Callable[..., Rank]) -> None:
    one = rank(store_s=0.2)
    one.store.code = -200  # the pool is full, for ever
    one.order(store={0: 0, 1: 1, 2: 2})

    report = one.settled()[2]

    assert (report.done, report.unstored) == ({7: 1}, {block_hash(number) for number in range(3)})


def test_a_report_tells_the_namespace_until_the_scheduler_knows_it(rank: Callable[..., Rank]) -> None:
    one = rank()

    assert one.worker.take_report() == StoreReport(NAMESPACE)
    one.order()
    assert one.worker.take_report() is None


def test_workers_of_two_namespaces_are_refused(rank: Callable[..., Rank]) -> None:
    other = NAMESPACE[:-1] + "0"

    with pytest.raises(KeyRefused, match=f"the namespaces {NAMESPACE} and {other}"):
        StoreReport(NAMESPACE).aggregate(StoreReport(other))


def test_memory_that_the_transport_does_not_take_ends_the_start(rank: Callable[..., Rank]) -> None:
    """Stock logs it and goes on."""
    one = rank()
    one.store.register = lambda address, nbytes: -600

    with pytest.raises(SettingRefused, match="register_buffer of 4096 bytes returned -600"):
        one.worker.register(BlockMemory([Pages(1 << 20, 64, 64)]), {1 << 20: 4096})


def test_a_block_in_more_pieces_than_one_call_may_have_is_refused(rank: Callable[..., Rank]) -> None:
    one = rank(batch_pieces=5)
    scattered = BlockMemory([Pages(at * 10_000, 64, 64) for at in range(1, 6)])

    with pytest.raises(SettingRefused, match="a block of 5 pieces with batch_pieces=5"):
        one.worker.register(scattered, {})
