"""kill -9 of real processes, and thousands of random operations: never a wrong byte, never a caller that waits."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tier_fields import NAMESPACE
from tier_memory import Memory, pattern
from tier_nodes import client_of, eventually, kill, own_threads, revive, running_node

from mooncake_tier.client.operation import Block, Outcome
from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.keys import block_key
from mooncake_tier.node.processes import Node

pytest.importorskip("mooncake.store", reason="needs Mooncake and what it links to: make test", exc_type=ImportError)

OTHER = NAMESPACE[:-1] + "0"
SIZE = 20_000
#: Random operations of the differential test; a longer run: MOONCAKE_TIER_OPERATIONS=50000.
OPERATIONS = int(os.environ.get("MOONCAKE_TIER_OPERATIONS", "2000"))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running_node(tmp_path, lease_s=10.0) as one:
        yield one


@pytest.fixture
def memory() -> Memory:
    return Memory(8 << 20)


def _key(number: int, namespace: str = NAMESPACE) -> str:
    return block_key(namespace, number.to_bytes(32, "big"))


def _block(memory: Memory, number: int, place: int, namespace: str = NAMESPACE) -> Block:
    return Block.at(_key(number, namespace), *memory.part(place * SIZE, SIZE))


def _store(client: TierClient, memory: Memory, numbers: range) -> None:
    for number in numbers:
        memory.write(number * SIZE, pattern(number, SIZE))
    assert client.store([_block(memory, n, n) for n in numbers]).wait() == [Outcome.OK] * len(numbers)


def _loads_right(client: TierClient, memory: Memory, numbers: range) -> list[Outcome]:
    blocks = [_block(memory, number, 200 + number) for number in numbers]
    operation = client.load(blocks)
    outcomes = operation.wait()
    for number, outcome in zip(numbers, outcomes, strict=True):
        assert not outcome.ok or memory.read((200 + number) * SIZE, SIZE) == pattern(number, SIZE)
    assert operation.wait_released(60)
    return outcomes


def test_a_killed_master_costs_callers_their_deadlines_and_then_nothing(node: Node, memory: Memory) -> None:
    """Mooncake itself waits 4.3 s in every call, for ever (0.3.13)."""
    with client_of(node, NAMESPACE, lookup_s=1.0, load_s=1.5, failures=3, cooldown_s=0.2) as client:
        client.register(memory.address, memory.size)
        eventually(lambda: client.lookup([_key(0)], 10) == [False])
        _store(client, memory, range(4))
        kill(node, "master")

        # The first call finds the connection closed; the next one waits for another.
        assert client.submit_lookup([_key(0)]).wait()[0] in (Outcome.FAILED, Outcome.DEADLINE)
        loading = client.load([_block(memory, 0, 300)])
        assert loading.wait() == [Outcome.DEADLINE]
        assert not loading.released  # Mooncake has not answered yet; the caller has gone on
        client.submit_lookup([_key(0)]).wait()
        eventually(lambda: not client.breaker.allows)
        for _ in range(100):
            assert client.submit_lookup([_key(0)]).poll() == [Outcome.BREAKER]
            assert client.load([_block(memory, 0, 301)]).poll() == [Outcome.BREAKER]
            assert client.store([_block(memory, 0, 0)]).poll() == [Outcome.BREAKER]

        revive(node)
        eventually(lambda: client.breaker.allows)
        # A new master knows no block of the old one.
        assert not any(client.submit_lookup([_key(n) for n in range(4)], 20).wait()[n].ok for n in range(1, 4))
        _store(client, memory, range(4))
        eventually(lambda: _loads_right(client, memory, range(4)) == [Outcome.OK] * 4)


def test_blocks_of_a_killed_pool_are_misses_and_not_promised_again(node: Node, memory: Memory) -> None:
    """For 10 s by default the master goes on promising them."""
    with client_of(node, NAMESPACE, failures=100) as client:
        client.register(memory.address, memory.size)
        _store(client, memory, range(8))
        assert _loads_right(client, memory, range(8)) == [Outcome.OK] * 8
        kill(node, "pool")

        assert client.lookup([_key(0)]) == [True]
        assert Outcome.OK not in _loads_right(client, memory, range(8))
        assert set(client.submit_lookup([_key(n) for n in range(8)]).wait()) <= {Outcome.REMEMBERED, Outcome.ABSENT}

        revive(node)
        eventually(lambda: client.store([_block(memory, 0, 0)], 20).wait() == [Outcome.OK])
        eventually(lambda: _loads_right(client, memory, range(1)) == [Outcome.OK])
        assert client.lookup([_key(0)]) == [True]


def test_a_pool_that_stalls_costs_deadlines_and_comes_back(node: Node, memory: Memory) -> None:
    """As a network does that drops packets: connections stay, nothing moves."""
    with client_of(node, NAMESPACE, load_s=1.5, failures=2, cooldown_s=0.2) as client:
        client.register(memory.address, memory.size)
        _store(client, memory, range(2))
        pool = node.processes["pool"]
        os.kill(pool.pid, signal.SIGSTOP)
        try:
            loads = [client.load([_block(memory, number, 300 + number)]) for number in range(2)]
            assert [loading.wait() for loading in loads] == [[Outcome.DEADLINE]] * 2
            assert not any(loading.released for loading in loads)  # Mooncake still waits; the callers do not
            assert client.load([_block(memory, 0, 302)]).poll() == [Outcome.BREAKER]
            assert client.lookup([_key(0)]) == [False]
            assert all(loading.wait_released(20) for loading in loads)  # by itself it would wait for 30 s
        finally:
            os.kill(pool.pid, signal.SIGCONT)
        eventually(lambda: client.breaker.allows)
        eventually(lambda: client.store([_block(memory, 0, 0)], 20).wait() == [Outcome.OK])
        eventually(lambda: _loads_right(client, memory, range(1)) == [Outcome.OK])


def test_a_call_to_a_master_that_hangs_ends_by_itself(node: Node) -> None:
    """After Mooncake's own 30 s: so long would one lost answer keep every other lookup waiting."""
    with client_of(node, NAMESPACE, lookup_s=25.0) as client:
        master = node.processes["master"]
        os.kill(master.pid, signal.SIGSTOP)
        try:
            assert client.submit_lookup([_key(0)]).wait() == [Outcome.FAILED]  # DEADLINE would be ours
        finally:
            os.kill(master.pid, signal.SIGCONT)
        assert client.lookup([_key(0)]) == [False]


def test_random_operations_of_two_namespaces_agree_with_a_dictionary(node: Node, memory: Memory) -> None:
    """Two engines that differ in one field, on one store: puts, gets, lookups, evictions, damage, a killed pool.

    What is loaded is what was stored under that namespace and key; what was never stored is never found; and while
    nothing was evicted or damaged, everything stored is found.
    """
    random_ = random.Random(5)
    stored: dict[str, set[int]] = {NAMESPACE: set(), OTHER: set()}
    whole = True  # nothing has been lost so far
    hits = misses = 0
    with client_of(node, NAMESPACE) as one, client_of(node, OTHER, staging_bytes=1 << 20) as two:
        for client in (one, two):
            client.register(memory.address, memory.size)
        for step in range(OPERATIONS):
            client, staged = random_.choice([(one, False), (two, True)])
            space, numbers = client.namespace, random_.sample(range(60), random_.randrange(1, 8))
            kind = random_.choice(["store", "load", "load", "lookup"])
            if kind == "store":
                for place, number in enumerate(numbers):
                    memory.write(place * SIZE, _content(space, number))
                blocks = [_block(memory, number, place, space) for place, number in enumerate(numbers)]
                done = client.store(blocks)
                ok = {number for number, outcome in zip(numbers, done.wait(), strict=True) if outcome.ok}
                assert not whole or ok == set(numbers)
                stored[space] |= set(numbers)
                assert done.wait_released(60)
            elif kind == "load":
                blocks = [_block(memory, number, 100 + place, space) for place, number in enumerate(numbers)]
                done = client.load(blocks, staged=staged)
                for place, (number, outcome) in enumerate(zip(numbers, done.wait(), strict=True)):
                    hits, misses = hits + outcome.ok, misses + (not outcome.ok)
                    if outcome.ok:
                        assert memory.read((100 + place) * SIZE, SIZE) == _content(space, number)
                    assert number in stored[space] or not outcome.ok
                    assert not whole or outcome.ok == (number in stored[space])
                assert done.wait_released(60)
            else:
                found = client.lookup([_key(number, space) for number in numbers])
                assert all(number in stored[space] for number, there in zip(numbers, found, strict=True) if there)
                assert not whole or found == [number in stored[space] for number in numbers]
            if step > OPERATIONS // 4 and step % 50 == 0:  # damage that only the trailer can show
                whole = False
                _damage(random_, client, memory, random_.choice(numbers))
            if step == OPERATIONS // 2:
                kill(node, "pool")
                revive(node)
            if step == 3 * OPERATIONS // 4:
                one._native.remove_matching(".*")
        corrupt = sum(
            value
            for client in (one, two)
            for (name, _), value in client.snapshot().items()
            if name == "mooncake_tier_corrupt"
        )
    assert own_threads() == set()
    assert hits > OPERATIONS // 4
    assert misses > 0
    assert corrupt > 0


def _content(namespace: str, number: int) -> bytes:
    return pattern(number + (1000 if namespace == OTHER else 0), SIZE)


def _damage(random_: random.Random, client: TierClient, memory: Memory, number: int) -> None:
    """Replace an object as a fault of the store would: a flipped byte, another key's or namespace's object, zeros."""
    from mooncake_tier.client.integrity import trailer

    key, space = _key(number, client.namespace), client.namespace
    payload, offset = bytearray(_content(space, number)), 350 * SIZE
    memory.write(offset, bytes(payload))
    parts = [memory.part(offset, SIZE)]
    kind = random_.choice(["flip", "key", "namespace", "zeros"])
    proof = {
        "flip": trailer(space, key, parts),
        "key": trailer(space, _key(number + 1, space), parts),
        "namespace": trailer(OTHER if space == NAMESPACE else NAMESPACE, key, parts),
        "zeros": bytes(64),
    }[kind]
    if kind == "flip":
        payload[random_.randrange(SIZE)] ^= 1 << random_.randrange(8)
    memory.write(offset, bytes(payload) + proof)
    client._native.remove(key)
    client._native.put([key], [[memory.address + offset]], [[SIZE + 64]])
