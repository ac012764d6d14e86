"""The client on a real master and pool: what was stored comes back, what is wrong is a miss."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tier_fields import NAMESPACE
from tier_memory import Memory, pattern
from tier_nodes import LEASE_S, POOL, client_of, eventually, kill, own_threads, revive, running_node

from mooncake_tier.client.integrity import TRAILER_BYTES, trailer
from mooncake_tier.client.operation import Block, Operation, Outcome
from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.errors import SettingRefused
from mooncake_tier.events.evictions import Evictions
from mooncake_tier.keys import block_key
from mooncake_tier.node.processes import Node

pytest.importorskip("mooncake.store", reason="needs Mooncake and what it links to: make test", exc_type=ImportError)

SIZE = 100_000
MEMORY = 48 << 20


def _key(number: int) -> str:
    return block_key(NAMESPACE, number.to_bytes(32, "big"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_node(tmp_path_factory.mktemp("node")) as one:
        yield one


@pytest.fixture(scope="module")
def memory() -> Memory:
    return Memory(MEMORY)


@pytest.fixture(scope="module")
def client(node: Node, memory: Memory) -> Iterator[TierClient]:
    with client_of(node, NAMESPACE, staging_bytes=4 << 20) as one:
        one.register(memory.address, memory.size)
        yield one


@pytest.fixture(autouse=True)
def _clean(client: TierClient) -> Iterator[None]:
    yield
    client._native.remove_matching(".*")
    client.failed_loads.forget([_key(number) for number in range(1000)])


def _stored(client: TierClient, memory: Memory, numbers: range) -> list[Block]:
    """Blocks of one piece, their content by number, stored from the lower half of the memory."""
    blocks = []
    for at, number in enumerate(numbers):
        memory.write(at * SIZE, pattern(number, SIZE))
        blocks.append(Block.at(_key(number), *memory.part(at * SIZE, SIZE)))
    assert client.store(blocks).wait() == [Outcome.OK] * len(blocks)
    return blocks


def _targets(memory: Memory, numbers: range) -> list[Block]:
    half = MEMORY // 2
    return [Block.at(_key(number), *memory.part(half + at * SIZE, SIZE)) for at, number in enumerate(numbers)]


def _read(memory: Memory, block: Block) -> bytes:
    return memory.read(block.parts[0][0] - memory.address, block.nbytes)


def _raw(client: TierClient, memory: Memory, key: str, value: bytes) -> None:
    """What Mooncake itself would hold, whoever wrote it."""
    offset = MEMORY - len(value)
    memory.write(offset, value)
    client._native.remove(key)
    assert client._native.put([key], [[memory.address + offset]], [[len(value)]]) == [0]


@pytest.mark.parametrize("staged", [False, True])
def test_what_was_stored_comes_back_in_more_batches_than_one(client: TierClient, memory: Memory, staged: bool) -> None:
    numbers = range(120)  # at 50 a batch, and 4 MiB of staging memory
    _stored(client, memory, numbers)
    targets = _targets(memory, numbers)

    operation = client.load(targets, staged=staged)

    assert client.lookup([_key(n) for n in range(121)]) == [True] * 120 + [False]
    assert operation.wait() == [Outcome.OK] * 120
    assert [_read(memory, block) for block in targets] == [pattern(number, SIZE) for number in numbers]
    assert operation.wait_released(10)


def test_a_block_of_many_pieces_is_one_object(client: TierClient, memory: Memory) -> None:
    """Its layout in memory may differ between writer and reader, its bytes may not."""
    memory.write(0, pattern(1, 9000))
    parts = (memory.part(0, 1000), memory.part(1000, 7000), memory.part(8000, 1000))
    back = tuple(memory.part(20_000 + 2 * at, n) for at, n in ((0, 4500), (4500, 4500)))

    assert client.store([Block(_key(1), parts)]).wait() == [Outcome.OK]
    assert client.load([Block(_key(1), back)]).wait() == [Outcome.OK]
    assert memory.read(20_000, 4500) + memory.read(29_000, 4500) == pattern(1, 9000)


def test_staged_pieces_land_where_they_belong(client: TierClient, memory: Memory) -> None:
    memory.write(0, pattern(2, 9000))
    client.store([Block.at(_key(2), *memory.part(0, 9000))]).wait()
    pieces = (memory.part(30_000, 100), memory.part(40_000, 8900))

    assert client.load([Block(_key(2), pieces)], staged=True).wait() == [Outcome.OK]
    assert memory.read(30_000, 100) + memory.read(40_000, 8900) == pattern(2, 9000)


def test_storing_twice_writes_once(client: TierClient, memory: Memory) -> None:
    before = client.snapshot().get(("mooncake_tier_stored_bytes", ""), 0)
    blocks = _stored(client, memory, range(3))

    assert client.store(blocks).wait() == [Outcome.OK] * 3
    assert client.snapshot()["mooncake_tier_stored_bytes", ""] - before == 3 * SIZE


def test_an_absent_block_is_a_miss_beside_hits(client: TierClient, memory: Memory) -> None:
    _stored(client, memory, range(2))
    targets = _targets(memory, range(3))

    assert client.load(targets).wait() == [Outcome.OK, Outcome.OK, Outcome.ABSENT]


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("fault", ["checksum", "torn", "form", "namespace", "key"])
def test_an_object_that_does_not_prove_itself_is_a_miss_and_removed(
    client: TierClient, memory: Memory, caplog: pytest.LogCaptureFixture, fault: str, staged: bool
) -> None:
    [block] = _stored(client, memory, range(1))
    proof = trailer(NAMESPACE, block.key, block.parts)
    damaged = {
        "checksum": pattern(0, SIZE - 1) + b"x" + proof,
        "torn": pattern(0, SIZE) + proof[:40] + bytes(8) + proof[48:],
        "form": bytes(SIZE + TRAILER_BYTES),
        "namespace": pattern(0, SIZE) + trailer("mt1-" + "0" * 32, block.key, block.parts),
        "key": pattern(0, SIZE) + trailer(NAMESPACE, _key(9), block.parts),
    }[fault]
    _raw(client, memory, block.key, damaged)
    [target] = _targets(memory, range(1))
    memory.write(target.parts[0][0] - memory.address, b"untouched")
    before = client.snapshot().get(("mooncake_tier_corrupt", fault), 0)

    with caplog.at_level(logging.ERROR, "mooncake_tier"):
        assert client.load([target], staged=staged).wait() == [Outcome.CORRUPT]

    assert client.snapshot()["mooncake_tier_corrupt", fault] == before + 1
    assert block.key in caplog.text
    assert "removed" in caplog.text
    assert client._native.exists([block.key]) == [0]
    assert client.lookup([block.key]) == [False]
    if staged:
        assert _read(memory, target).startswith(b"untouched")
    # Stored again it is there again, though its load failed a short while ago.
    assert client.store([block]).wait() == [Outcome.OK]
    assert client.lookup([block.key]) == [True]
    assert client.load([target]).wait() == [Outcome.OK]


@pytest.mark.parametrize("nbytes", [SIZE - 1, SIZE + TRAILER_BYTES - 1, SIZE + TRAILER_BYTES + 1])
def test_an_object_of_another_length_is_a_miss_and_not_promised_again(
    client: TierClient, memory: Memory, nbytes: int
) -> None:
    """Stock's connector loads it for ever: the lookup promises it, the load fails, the lookup promises it again."""
    [target] = _targets(memory, range(1))
    _raw(client, memory, target.key, bytes(nbytes))

    assert client.lookup([target.key]) == [True]
    assert client.load([target]).wait() == [Outcome.FAILED]
    assert client.submit_lookup([target.key]).wait() == [Outcome.REMEMBERED]
    # The next one to compute it replaces it, though its key is taken.
    block = Block.at(target.key, *memory.part(0, SIZE))
    memory.write(0, pattern(7, SIZE))
    assert client.store([block]).wait() == [Outcome.OK]
    assert client.load([target]).wait() == [Outcome.OK]
    assert _read(memory, target) == pattern(7, SIZE)


def test_memory_that_changes_during_a_store_gives_a_miss(client: TierClient, memory: Memory) -> None:
    """A store that missed its deadline goes on reading: what it wrote then does not prove itself."""
    memory.write(0, pattern(1, SIZE))
    block = Block.at(_key(1), *memory.part(0, SIZE))
    stock_put = client._native.put

    def put(*call: list[list[int]]) -> list[int]:
        memory.write(500, b"another request's block")
        return stock_put(*call)  # type: ignore[arg-type]

    client._native.put = put  # type: ignore[method-assign,assignment]
    try:
        assert client.store([block]).wait() == [Outcome.OK]
    finally:
        client._native.put = stock_put  # type: ignore[method-assign]

    assert client.load(_targets(memory, range(1, 2))).wait() == [Outcome.CORRUPT]


def test_a_burst_into_a_full_pool_is_paced_and_whatever_is_found_is_right(client: TierClient, memory: Memory) -> None:
    """Mooncake evicts in the background and meanwhile rejects; three pools of blocks in one go."""
    size = 2 << 20
    count = 3 * POOL // size
    before = client.snapshot().get(("mooncake_tier_rejected_puts", ""), 0)
    operations: list[Operation] = []
    for number in range(count):
        offset = number % 8 * size
        if number >= 8:
            operations[number - 8].wait()
        memory.write(offset, pattern(number, size))
        operations.append(client.store([Block.at(_key(number), *memory.part(offset, size))]))
    outcomes = [operation.wait()[0] for operation in operations]

    target = Block.at("", *memory.part(MEMORY // 2, size))
    found = 0
    for number in range(count):
        if client.load([Block(_key(number), target.parts)]).wait() == [Outcome.OK]:
            assert _read(memory, target) == pattern(number, size)
            found += 1
    assert outcomes == [Outcome.OK] * count
    assert client.snapshot()["mooncake_tier_rejected_puts", ""] > before
    assert 0 < found < count
    assert client.breaker.allows


def test_held_keys_outlive_their_lease_and_others_do_not(client: TierClient, memory: Memory) -> None:
    _stored(client, memory, range(8))
    held, others = [_key(n) for n in range(4)], [_key(n) for n in range(4, 8)]
    client.hold(held, 60)
    assert client.lookup(held + others) == [True] * 8
    time.sleep(2 * LEASE_S)

    size = 4 << 20
    memory.write(MEMORY // 2, pattern(0, size))
    fill = [Block.at(_key(100 + n), *memory.part(MEMORY // 2, size)) for n in range(2 * POOL // size)]
    client.store(fill).wait()

    assert client.lookup(held) == [True] * 4
    assert client.lookup(others) != [True] * 4
    targets = _targets(memory, range(8))
    assert client.load(targets[:4]).wait() == [Outcome.OK] * 4
    assert Outcome.ABSENT in client.load(targets[4:]).wait()
    client.let_go(held)
    assert client.care.held == []


def test_memory_that_mooncake_refuses_is_refused(client: TierClient, memory: Memory) -> None:
    with pytest.raises(SettingRefused, match="register_buffer of 50331648 bytes returned -600"):
        client.register(memory.address, memory.size)


def test_listing_keys_renews_no_lease(node: Node, client: TierClient, memory: Memory) -> None:
    """Mooncake removes a leased key only by force. What asks which blocks are left must not keep them."""
    _stored(client, memory, range(2))
    store = client._native._store  # type: ignore[attr-defined]
    eventually(lambda: store.remove(_key(0), False) == 0)

    assert node.master.keys() == [_key(1)]
    assert store.remove(_key(1), False) == 0


def test_the_masters_counters_tell_of_every_loss_and_of_nothing_else(
    node: Node, client: TierClient, memory: Memory
) -> None:
    _stored(client, memory, range(3))
    before = node.master.losses()
    assert client.lookup([_key(n) for n in range(4)]) == [True, True, True, False]
    assert client.load(_targets(memory, range(3))).wait() == [Outcome.OK] * 3
    _stored(client, memory, range(3, 6))
    assert node.master.losses().none_since(before)

    assert client._native.remove(_key(1)) == 0
    removed = node.master.losses()
    assert not removed.none_since(before)

    announced = {_key(n) for n in (0, 2, 3, 4, 5)}
    evictions = Evictions(node.master, poll_s=0.05)
    evictions.announce(announced)
    size = 4 << 20
    fill = [Block.at(_key(100 + n), *memory.part(MEMORY // 2, size)) for n in range(2 * POOL // size)]
    client.store(fill).wait()
    assert not node.master.losses().none_since(removed)
    gone: set[str] = set()

    def found() -> bool:
        gone.update(evictions.take())
        return gone == announced - set(node.master.keys())

    eventually(found)
    evictions.close()
    assert gone


def test_a_master_that_began_again_and_a_pool_that_left_are_losses(tmp_path: Path) -> None:
    with running_node(tmp_path) as one:
        eventually(lambda: one.master.losses().pings > 2)
        before = one.master.losses()
        kill(one, "pool")
        eventually(lambda: not one.master.losses().none_since(before))
        revive(one)
        eventually(lambda: one.master.losses().pings > 4)
        before = one.master.losses()
        kill(one, "master")
        revive(one)
        assert not one.master.losses().none_since(before)


def test_a_staged_block_larger_than_the_staging_memory_is_refused(client: TierClient, memory: Memory) -> None:
    with pytest.raises(SettingRefused, match="staging_bytes=4194304"):
        client.load([Block.at(_key(1), *memory.part(0, 5 << 20))], staged=True)


def test_closing_leaves_no_thread_no_descriptor_and_no_memory(node: Node) -> None:
    def open_and_close() -> None:
        with client_of(node, NAMESPACE) as one:
            held = Memory(1 << 20)
            one.register(held.address, held.size)
            block = Block.at(_key(1), *held.part(0, 1000))
            one.store([block]).wait()
            assert one.load([block]).wait() == [Outcome.OK]
        assert one.close()
        assert one.submit_lookup([_key(1)]).wait() == [Outcome.CLOSED]

    def descriptors() -> tuple[int, int]:
        """Open files, and the process's threads with Mooncake's own."""
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    mine = own_threads()
    open_and_close()  # Mooncake makes a pool of threads for itself, once
    open_and_close()
    held = descriptors()
    open_and_close()
    open_and_close()

    assert own_threads() == mine
    eventually(lambda: all(now <= then for now, then in zip(descriptors(), held, strict=True)))
