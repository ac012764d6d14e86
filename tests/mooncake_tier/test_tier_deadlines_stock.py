"""No caller waits for a store that hangs or fails. On a fake that hangs at will; kill -9 on the real one is in
test_tier_faults_stock. It needs an xxHash library, hence the lane."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from tier_fake import FakeStore
from tier_fields import NAMESPACE
from tier_memory import Memory, pattern
from tier_nodes import eventually, own_threads

from mooncake_tier.client import xxh3
from mooncake_tier.client.breaker import State
from mooncake_tier.client.operation import Block, Outcome
from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.keys import block_key
from mooncake_tier.options import Options
from mooncake_tier.stock import NO_SPACE

if xxh3.library_path() is None:
    pytest.skip("needs an xxHash library: make env, or the system's libxxhash0", allow_module_level=True)

KEYS = [block_key(NAMESPACE, number.to_bytes(32, "big")) for number in range(50)]
SIZE = 1000


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def memory() -> Memory:
    return Memory(200 * SIZE)


def _client(store: FakeStore, **options: float | int) -> TierClient:
    given = {"lookup_s": 0.05, "load_s": 0.05, "store_s": 5.0, "failures": 2, "cooldown_s": 0.05, "load_threads": 1}
    return TierClient(store, NAMESPACE, Options(**given | {"longest_cooldown_s": 0.1} | options))  # type: ignore[arg-type]


@pytest.fixture
def client(store: FakeStore) -> Iterator[TierClient]:
    one = _client(store, staging_bytes=10 * SIZE)
    yield one
    store.go.set()
    assert one.close(30)


def _blocks(memory: Memory, count: int, offset: int = 0) -> list[Block]:
    return [Block.at(KEYS[n], *memory.part(offset + n * SIZE, SIZE)) for n in range(count)]


def test_a_lookup_that_hangs_is_a_miss_while_the_call_still_hangs(store: FakeStore, client: TierClient) -> None:
    store.objects[KEYS[0]] = b"x"
    store.go.clear()

    operation = client.submit_lookup(KEYS[:2])

    assert operation.poll() is None
    assert operation.wait() == [Outcome.DEADLINE] * 2
    assert not operation.released  # the thread is still inside
    store.go.set()
    assert operation.wait_released(30)
    assert operation.poll() == [Outcome.DEADLINE] * 2  # a late answer changes nothing


def test_the_breaker_opens_drops_what_waits_and_closes_after_a_probe(store: FakeStore, client: TierClient) -> None:
    store.go.clear()
    first = client.submit_lookup(KEYS[:1])
    waiting = client.submit_lookup(KEYS[:1], deadline_s=1000)
    assert first.wait() == [Outcome.DEADLINE]
    assert client.load(_blocks(Memory(SIZE), 1)).wait() == [Outcome.DEADLINE]

    assert client.breaker.state is not State.CLOSED
    assert waiting.wait() == [Outcome.BREAKER]
    assert client.submit_lookup(KEYS).poll() == [Outcome.BREAKER] * len(KEYS)  # no thread is asked
    assert client.snapshot()["mooncake_tier_breaker_opened", ""] == 1
    store.go.set()
    eventually(lambda: client.breaker.allows)
    assert client.lookup(KEYS[:1], 10) == [False]
    assert client.snapshot()["mooncake_tier_probes", "answered"] == 1
    assert not any("probe" in key for key in store.objects)


def _niceness(name: str) -> list[int]:
    threads = [thread for thread in threading.enumerate() if thread.name == f"mooncake-tier-{name}"]
    return sorted(os.getpriority(os.PRIO_PROCESS, thread.native_id or 0) for thread in threads)


def test_a_thread_in_a_late_call_leaves_the_cores_to_others_and_a_fresh_one_follows(
    store: FakeStore, client: TierClient, memory: Memory
) -> None:
    """Mooncake spins while it waits for a pool that hangs. Nice 10 is a tenth of what nice 0 gets (sched(7))."""
    [usual] = _niceness("load-0")
    store.go.clear()
    late = client.load(_blocks(memory, 1))
    assert late.wait() == [Outcome.DEADLINE]
    assert _niceness("load-0") == [usual, usual + 10]
    assert client.submit_lookup(KEYS[:1]).wait() == [Outcome.DEADLINE]
    assert _niceness("lookup-0") == [usual, usual + 10]
    assert _niceness("store-0") == [usual]
    assert _niceness("care") == [usual + 10]  # which probes

    store.go.set()
    assert late.wait_released(30)
    eventually(lambda: client.breaker.allows)
    eventually(lambda: _niceness("load-0") == _niceness("lookup-0") == [usual])
    assert client.store(_blocks(memory, 2)).wait() == [Outcome.OK] * 2
    assert client.load(_blocks(memory, 2)[1:], 10).wait() == [Outcome.OK]


def test_a_slow_call_leaves_the_cores_to_others_before_its_deadline_and_its_answer_counts(
    store: FakeStore, memory: Memory
) -> None:
    one = _client(store)
    assert one.store(_blocks(memory, 1)).wait() == [Outcome.OK]
    [usual] = _niceness("load-0")
    store.go.clear()
    slow = one.load(_blocks(memory, 1), 600)
    eventually(lambda: slow.poll() is None and _niceness("load-0") == [usual, usual + 10])
    for _ in range(3):
        assert slow.poll() is None
    assert _niceness("load-0") == [usual, usual + 10]  # once

    store.go.set()
    assert slow.wait() == [Outcome.OK]
    eventually(lambda: _niceness("load-0") == [usual])
    assert one.close(30)


def test_without_a_thread_to_be_had_the_late_one_goes_on(
    store: FakeStore, client: TierClient, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.go.clear()
    late = client.load(_blocks(memory, 1))
    eventually(lambda: late.begun)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_thread)
        assert late.wait() == [Outcome.DEADLINE]
    assert len(_niceness("load-0")) == 1
    store.go.set()
    assert late.wait_released(30)
    assert client.store(_blocks(memory, 2)).wait() == [Outcome.OK] * 2
    assert client.load(_blocks(memory, 2)[1:], 10).wait() == [Outcome.OK]


def _no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_failing_calls_open_it_too_and_failing_probes_keep_it_open(store: FakeStore, client: TierClient) -> None:
    store.code = -900
    for _ in range(2):
        assert client.submit_lookup(KEYS[:3], 10).wait() == [Outcome.FAILED] * 3

    eventually(lambda: client.snapshot().get(("mooncake_tier_probes", "failed"), 0) >= 2)
    assert client.submit_lookup(KEYS[:3]).poll() == [Outcome.BREAKER] * 3
    store.code = None
    eventually(lambda: client.breaker.allows)


def test_a_full_pool_and_absent_keys_are_no_failures(store: FakeStore, client: TierClient, memory: Memory) -> None:
    store.code = NO_SPACE
    for _ in range(4):
        [outcome] = client.store(_blocks(memory, 1), 0.2).wait()
        assert outcome in (Outcome.NO_SPACE, Outcome.DEADLINE, Outcome.FAILED)
    store.code = None
    for _ in range(4):
        assert client.load(_blocks(memory, 1), 10).wait() == [Outcome.ABSENT]
    assert client.breaker.allows


def test_waiting_in_the_queue_says_nothing_about_the_store(store: FakeStore, memory: Memory) -> None:
    one = _client(store, failures=1, load_s=1000.0)
    store.go.clear()
    running = one.load(_blocks(memory, 1))
    eventually(lambda: running.begun)
    queued = [one.load(_blocks(memory, 1), deadline_s=0.01) for _ in range(5)]

    assert [operation.wait() for operation in queued] == [[Outcome.DEADLINE]] * 5
    assert all(operation.released for operation in queued)
    assert one.breaker.allows
    assert not one.failed_loads
    store.go.set()
    assert running.wait() == [Outcome.ABSENT]
    assert one.close(30)


def test_a_load_that_missed_its_deadline_is_not_promised_again(
    store: FakeStore, client: TierClient, memory: Memory
) -> None:
    assert client.store(_blocks(memory, 1)).wait() == [Outcome.OK]
    store.go.clear()
    assert client.load(_blocks(memory, 1)).wait() == [Outcome.DEADLINE]
    store.go.set()

    assert client.submit_lookup(KEYS[:1], 10).wait() == [Outcome.REMEMBERED]


@pytest.mark.parametrize("staged", [False, True])
def test_a_late_load_never_touches_memory_that_is_free(
    store: FakeStore, client: TierClient, memory: Memory, staged: bool
) -> None:
    """Staged, the memory is free at once; else only when `released` says so."""
    memory.write(0, pattern(1, SIZE))
    assert client.store(_blocks(memory, 1)).wait() == [Outcome.OK]
    store.go.clear()
    operation = client.load([Block.at(KEYS[0], *memory.part(SIZE, SIZE))], staged=staged)
    assert operation.wait() == [Outcome.DEADLINE]

    assert operation.released == staged
    store.go.set()
    eventually(lambda: client.submit_lookup(KEYS[1:2], 10).wait() == [Outcome.ABSENT])
    assert operation.wait_released(30)
    eventually(lambda: client.load(_blocks(memory, 2)[1:], 10).wait() == [Outcome.ABSENT])  # the thread is done
    assert (memory.read(SIZE, SIZE) == bytes(SIZE)) == staged


def test_an_error_inside_mooncake_is_a_miss_and_a_failure(
    store: FakeStore, client: TierClient, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> list[int]:
        raise RuntimeError("pybind")

    for name in ("get", "put", "exists"):
        monkeypatch.setattr(store, name, broken)
    assert client.load(_blocks(memory, 2), 20).wait() == [Outcome.FAILED] * 2
    assert client.store(_blocks(memory, 2), 20).wait() == [Outcome.FAILED] * 2
    assert not client.breaker.allows
    monkeypatch.undo()
    eventually(lambda: client.breaker.allows)
    assert client.lookup(KEYS[:1], 20) == [False]


def test_a_batch_that_outlasts_its_lease_is_read_in_smaller_ones(
    store: FakeStore, client: TierClient, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mooncake fails the whole batch with -707 if it took longer than the lease that the get began."""
    assert client.store(_blocks(memory, 5)).wait() == [Outcome.OK] * 5
    memory.write(0, bytes(5 * SIZE))
    quick, sizes = store.get, []

    def slow(keys: list[str], addresses: list[list[int]], sizes_: list[list[int]]) -> list[int]:
        sizes.append(len(keys))
        return [-707] * len(keys) if len(keys) > 1 or keys == [KEYS[4]] else quick(keys, addresses, sizes_)

    monkeypatch.setattr(store, "get", slow)

    assert client.load(_blocks(memory, 5), 20).wait() == [Outcome.OK] * 4 + [Outcome.FAILED]
    assert sizes == [5, 2, 1, 1, 3, 1, 2, 1, 1]
    assert client.breaker.allows  # slow, not gone
    assert client.submit_lookup(KEYS[:5], 20).wait() == [Outcome.OK] * 4 + [Outcome.REMEMBERED]


def test_a_late_load_removes_nothing(store: FakeStore, client: TierClient, memory: Memory) -> None:
    """Its memory may be in use for something else by then, and so hold what looks like damage."""
    assert client.store(_blocks(memory, 1)).wait() == [Outcome.OK]
    store.go.clear()
    late = client.load([Block.at(KEYS[0], *memory.part(SIZE, SIZE))])
    assert late.wait() == [Outcome.DEADLINE]
    store.objects[KEYS[0]] = store.objects[KEYS[0]][:-1] + b"x"
    store.go.set()

    assert late.wait_released(30)
    assert KEYS[0] in store.objects
    assert not any(name == "mooncake_tier_corrupt" for name, _ in client.snapshot())


def test_stores_beyond_what_may_wait_are_dropped(store: FakeStore, memory: Memory) -> None:
    one = _client(store, queue_bytes=2 * SIZE)
    store.go.clear()
    running = one.store(_blocks(memory, 1))
    eventually(lambda: running.begun)
    waiting = one.store(_blocks(memory, 2))

    assert one.store(_blocks(memory, 1)).poll() == [Outcome.BUSY]
    assert one.snapshot()["mooncake_tier_waiting", "store"] == 1
    store.go.set()
    assert (running.wait(), waiting.wait()) == ([Outcome.OK], [Outcome.OK] * 2)
    assert one.close(30)


def test_a_call_is_cut_into_batches_that_the_transport_takes(store: FakeStore, memory: Memory) -> None:
    one = _client(store, batch_pieces=7, batch_bytes=2 * SIZE, load_s=20.0)
    blocks = _blocks(memory, 5)
    pieces = tuple(memory.part(100 * SIZE + n, 1) for n in range(9))
    assert one.store([*blocks, Block(KEYS[40], pieces)]).wait() == [Outcome.OK] * 6
    assert one.load([*blocks, Block(KEYS[40], pieces)]).wait() == [Outcome.OK] * 6

    for kind in ("put", "get"):
        assert [keys for name, keys in store.calls if name == kind] == [KEYS[0:2], KEYS[2:4], KEYS[4:5], [KEYS[40]]]
    assert one.close(30)


def test_leases_of_waiting_loads_are_kept_alive(store: FakeStore, memory: Memory) -> None:
    one = _client(store, lease_s=0.06, load_s=1000.0)
    hang = store.go
    store.go.clear()
    one.load(_blocks(memory, 1))
    eventually(lambda: ("get", KEYS[:1]) in store.calls)
    # From now on only gets hang.
    store.go = type(hang)()
    store.go.set()
    waiting = one.load([Block.at(KEYS[9], *memory.part(0, SIZE))])

    eventually(lambda: store.calls.count(("exists", [KEYS[9]])) >= 3)
    hang.set()
    assert waiting.wait() == [Outcome.ABSENT]
    assert one.close(30)


def test_closing_does_not_wait_for_ever_and_never_closes_a_store_in_use(store: FakeStore, memory: Memory) -> None:
    one = _client(store)
    store.go.clear()
    running = one.load(_blocks(memory, 1), 1000)
    eventually(lambda: running.begun)
    queued = one.load(_blocks(memory, 1), 1000)

    assert not one.close(0.05)
    assert queued.wait() == [Outcome.CLOSED]
    assert one.load(_blocks(memory, 1)).wait() in ([Outcome.CLOSED], [Outcome.BUSY])
    assert store.closed == 0
    store.go.set()
    eventually(lambda: one.close(30))
    assert (store.closed, one.close()) == (1, True)
    assert not own_threads()


def test_nothing_to_do_is_done(client: TierClient, store: FakeStore) -> None:
    assert (client.lookup([]), client.load([]).poll(), client.store([]).poll()) == ([], [], [])
    assert store.calls == []


def test_a_block_without_bytes_is_refused(client: TierClient) -> None:
    for wrong in ((), ((1, 0),)):
        with pytest.raises(ValueError, match="parts="):
            client.load([Block(KEYS[0], wrong)])
        with pytest.raises(ValueError, match="parts="):
            client.store([Block(KEYS[0], wrong)])
