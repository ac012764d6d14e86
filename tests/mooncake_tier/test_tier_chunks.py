"""An engine's chunks in the store: loads, stores, failures, and thousands of random operations that give no wrong byte.

The store is a fake that fails when told to; with a real one the same is in test_tier_offload_stock.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tier_fake import FakeStore
from tier_fields import fields
from tier_memory import Memory, pattern
from tier_nodes import own_threads

from mooncake_tier.client import xxh3
from mooncake_tier.errors import KeyRefused, SettingRefused, TierUnavailable
from mooncake_tier.offloading.chunks import ChunkPool
from mooncake_tier.offloading.jobs import Finished
from mooncake_tier.offloading.settings import OffloadSettings

if xxh3.library_path() is None:
    pytest.skip("needs an xxHash library: make env, or the system's libxxhash0", allow_module_level=True)

SIZE, SLOTS = 512, 16
GIVEN = {"master": "127.0.0.1:1", "lookup_s": 20.0, "load_s": 20.0, "store_s": 20.0, "failures": 1, "cooldown_s": 0.01}


def eventually(condition: Callable[[], Any]) -> None:
    """Wait until something is true; fails the test if it never is."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "never became true"
        time.sleep(0.0005)


class Engine:
    """A pool on a store, its host memory, and the loop of a scheduler."""

    def __init__(self, store: FakeStore, *, told: dict[str, Any] | None = None, **given: Any) -> None:
        self.store, self.memory = store, Memory(SIZE * SLOTS)
        settings = OffloadSettings.of({"mooncake_tier": {**GIVEN, "longest_cooldown_s": 0.1, **given}})
        self.pool = ChunkPool(settings, self.memory.address, self.memory.size, SIZE, False, connect=lambda: self.store)
        self.pool.open(told or fields())
        eventually(lambda: self.pool.client)
        assert self.pool.client is not None
        self.client = self.pool.client
        self.jobs = 0

    def name(self, number: int) -> str:
        return self.pool.name(0, number.to_bytes(32, "big"))

    def found(self, number: int, request: str = "r") -> bool:
        """What a lookup says, once it says something."""
        answer = self.pool.lookup(self.name(number), request)
        while answer is None:
            self.pool.submit()
            self.pool.settle()
            answer = self.pool.lookup(self.name(number), request)
        return answer

    def job(self, load: bool, chunks: dict[int, int], request: str = "r") -> Finished:
        """Load or store chunks, number -> slot, and wait for the end."""
        self.jobs += 1
        begin = self.pool.load if load else self.pool.store
        begin(self.jobs, request, {self.name(number): slot for number, slot in chunks.items()})
        return self.finished(1)[0]

    def finished(self, number: int) -> list[Finished]:
        """The next jobs that finish."""
        found: list[Finished] = []

        def there() -> bool:
            found.extend(self.pool.settle())
            return len(found) >= number

        eventually(there)
        return found

    def mended(self) -> None:
        """Wait until the breaker is closed."""
        eventually(lambda: self.client.breaker.allows)

    def fill(self, slot: int, number: int, version: int = 0) -> None:
        self.memory.write(slot * SIZE, pattern(1000 * version + number, SIZE))

    def read(self, slot: int) -> bytes:
        return self.memory.read(slot * SIZE, SIZE)


@pytest.fixture
def engine() -> Iterator[Engine]:
    one = Engine(FakeStore())
    yield one
    assert one.pool.close()


def test_what_was_stored_is_found_and_loaded(engine: Engine) -> None:
    engine.fill(3, 7)

    assert not engine.found(7)
    assert engine.job(False, {7: 3}).ok == (engine.name(7),)
    assert engine.found(7)
    done = engine.job(True, {7: 5, 8: 6})

    assert (done.load, done.ok, done.failed) == (True, (engine.name(7),), (engine.name(8),))
    assert engine.read(5) == pattern(7, SIZE)


def test_a_chunk_is_asked_for_again_while_its_request_waits(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not engine.found(7)
    lookups = engine.pool._lookups
    assert lookups is not None
    other = Engine(engine.store)
    other.fill(0, 7)
    other.job(False, {7: 0})
    assert not engine.found(7)

    monkeypatch.setattr(lookups, "_recheck", 0.0)

    def found() -> bool:
        answer = engine.found(7)
        engine.pool.submit()
        engine.pool.settle()
        return answer

    eventually(found)
    assert other.pool.close()


def test_a_chunk_that_the_engine_stored_is_found_at_once(engine: Engine) -> None:
    assert not engine.found(7)
    engine.fill(0, 7)
    engine.job(False, {7: 0})

    assert engine.found(7)


def test_a_found_chunk_is_held_until_its_request_is_over(engine: Engine) -> None:
    engine.fill(0, 7)
    engine.job(False, {7: 0})
    assert engine.found(7, "one")
    assert engine.found(7, "two")
    client = engine.client

    assert client.care.held == [engine.name(7)]
    engine.pool.forget("one")
    assert client.care.held == [engine.name(7)]
    engine.pool.forget("two")
    assert client.care.held == []
    assert len(engine.pool.holds) == 0


def test_a_failed_load_counts_as_absent_and_is_not_promised_again(engine: Engine) -> None:
    engine.fill(0, 7)
    engine.job(False, {7: 0})
    assert engine.found(7)
    engine.store.objects[engine.name(7)] = bytes(10)

    assert engine.job(True, {7: 1}).failed == (engine.name(7),)
    assert not engine.found(7)
    assert not engine.found(7, "another")


def test_a_store_that_hangs_costs_a_load_its_deadline_and_no_memory(engine: Engine) -> None:
    engine.fill(0, 7)
    engine.job(False, {7: 0})
    engine.memory.write(2 * SIZE, b"somebody else's")
    client = engine.client
    engine.store.go.clear()
    object.__setattr__(client.options, "load_s", 0.05)

    assert engine.job(True, {7: 2}).failed == (engine.name(7),)
    assert not client.breaker.allows
    engine.store.go.set()
    eventually(lambda: client.breaker.allows)
    assert engine.read(2).startswith(b"somebody else's")


def test_loads_that_wait_are_given_up_with_their_request(engine: Engine) -> None:
    for number in range(6):
        engine.fill(number, number)
    engine.job(False, {number: number for number in range(6)})
    engine.store.go.clear()
    for number in range(6):
        engine.pool.load(100 + number, f"r{number}", {engine.name(number): 8 + number})
    eventually(lambda: sum(name == "get" for name, _ in engine.store.calls) == 2)  # both threads

    for number in range(6):
        engine.pool.jobs.cancel(f"r{number}")
    given_up = engine.pool.settle()
    engine.store.go.set()
    done = engine.finished(2)

    assert [one.job for one in given_up] == [102, 103, 104, 105]
    assert sorted(one.job for one in done) == [100, 101]
    assert all(one.ok for one in done)


def test_a_chunk_whose_load_was_given_up_is_still_found_by_others(engine: Engine) -> None:
    engine.fill(0, 7)
    engine.job(False, {7: 0})
    assert engine.found(7, "gone")
    assert engine.found(7, "stays")
    engine.store.go.clear()
    for job, number in ((50, 98), (51, 99), (52, 7)):
        engine.pool.load(job, "gone", {engine.name(number): 1})

    engine.pool.jobs.cancel("gone")
    engine.pool.forget("gone")
    engine.store.go.set()
    eventually(lambda: engine.pool.settle() is not None and not len(engine.pool.jobs))

    assert engine.found(7, "stays")


def test_what_was_stored_is_announced_once_where_somebody_listens() -> None:
    memory = Memory(SIZE)
    for events, expected in ((True, ["a", "b"]), (False, [])):
        settings = OffloadSettings.of({"mooncake_tier": {**GIVEN, "metrics": "127.0.0.1:1", "poll_s": 1000.0}})
        pool = ChunkPool(settings, memory.address, SIZE, SIZE, events, connect=FakeStore)

        assert pool.announce(["a", "b"]) == expected
        assert pool.announce(["b"]) == []
        assert pool.close()


def test_only_what_is_read_again_is_written() -> None:
    one = Engine(FakeStore(), write="reused")
    for number in range(3):
        one.fill(number, number)
    chunks = {0: 0, 1: 1}
    names = [one.name(number) for number in chunks]

    one.pool.begin("first", names, None)
    one.job(False, chunks, "first")
    assert one.store.objects == {}
    one.pool.finish("first", names, False)
    one.pool.begin("again", [names[0]], None)
    one.job(False, {0: 0, 2: 2}, "again")
    assert list(one.store.objects) == [one.name(0)]
    one.pool.begin("agent", names, "a session")
    one.job(False, {2: 2}, "agent")
    assert set(one.store.objects) == {one.name(0), one.name(2)}
    assert one.pool.snapshot()["mooncake_tier_unwritten_chunks", ""] == 3
    assert one.pool.close()


def test_sessions_keep_their_chunks_from_eviction() -> None:
    one = Engine(FakeStore(), session_bytes=10 * SIZE)
    names = [one.name(number) for number in range(3)]
    client = one.client

    one.pool.begin("turn", names, "agent")
    one.pool.finish("turn", names, False)
    assert set(client.care.held) == set(names)
    one.pool.touch([*names, "another"])
    one.pool.begin("last", names, "agent")
    one.pool.finish("last", names, True)
    assert client.care.held == ["another"]
    assert one.pool.close()


def test_after_a_reset_nothing_of_before_is_found_or_written(tmp_path: Any) -> None:
    file = tmp_path / "step"
    file.write_text("1\n")
    store = FakeStore()
    one, two = (Engine(store, revision_file=str(file)) for _ in range(2))
    one.fill(0, 7)
    one.pool.begin("running", [], None)
    one.job(False, {7: 0})
    assert two.found(7)

    file.write_text("2\n")
    one.pool.rotate()
    two.pool.rotate()
    assert one.name(7) == two.name(7)
    assert not one.found(7)
    one.fill(1, 7, version=2)
    assert one.job(False, {7: 1}, "running").ok == ()
    assert one.job(False, {7: 1}, "new").ok == (one.name(7),)
    assert two.found(7, "later")
    assert two.job(True, {7: 4}).ok
    assert two.read(4) == pattern(2007, SIZE)
    assert one.pool.close()
    assert two.pool.close()


def test_without_a_file_every_reset_is_one_of_its_own() -> None:
    one, two = Engine(FakeStore()), Engine(FakeStore())
    assert one.name(1) == two.name(1)

    one.pool.rotate()
    two.pool.rotate()

    assert one.name(1) != two.name(1)
    assert one.pool.close()
    assert two.pool.close()


def test_a_store_that_comes_later_is_used_then_and_waited_for_by_nobody() -> None:
    memory = Memory(SIZE)
    there: list[FakeStore] = []

    def connect() -> FakeStore:
        if not there:
            raise TierUnavailable("no connection")
        return there[0]

    settings = OffloadSettings.of({"mooncake_tier": {**GIVEN, "longest_cooldown_s": 0.05}})
    pool = ChunkPool(settings, memory.address, memory.size, SIZE, False, connect=connect)
    assert not pool.told
    pool.open(fields())
    eventually(lambda: pool.lookup(pool.name(0, bytes(32)), "r") is False)
    pool.store(1, "r", {pool.name(0, bytes(32)): 0})
    assert [one.failed for one in pool.settle()] == [(pool.name(0, bytes(32)),)]

    there.append(FakeStore())
    eventually(lambda: pool.client)

    assert pool.lookup(pool.name(0, bytes(32)), "r") is None
    assert pool.close()


def test_fields_that_name_no_block_are_refused_before_anything_is_asked() -> None:
    memory = Memory(SIZE)
    pool = ChunkPool(OffloadSettings.of({"mooncake_tier": GIVEN}), memory.address, SIZE, SIZE, False, connect=FakeStore)

    with pytest.raises(KeyRefused, match="hash_algorithm='xxhash'"):
        pool.open(fields(hash_algorithm="xxhash"))
    assert pool.close()


@pytest.mark.parametrize("seed", range(int(os.environ.get("TIER_SEEDS", "1"))))
def test_random_operations_of_two_deployments_never_give_a_wrong_byte(seed: int) -> None:
    """One store, two engines of a deployment and one that differs in a field; objects vanish, rot, and calls fail.

    TIER_SEEDS=n runs more of it.
    """
    choose, store = random.Random(seed), FakeStore()
    threads = own_threads()
    engines = [Engine(store), Engine(store), Engine(store, told=fields(revision="another"))]
    loaded = 0
    for _ in range(2000):
        at = choose.randrange(3)
        one, number, slot = engines[at], choose.randrange(12), choose.randrange(SLOTS)
        version = at // 2
        match choose.choices(["store", "load", "evict", "rot", "fail", "mend", "forget"], [6, 10, 2, 2, 1, 4, 2])[0]:
            case "store":
                one.fill(slot, number, version)
                one.job(False, {number: slot})
            case "load":
                one.memory.write(slot * SIZE, bytes(SIZE))
                if one.found(number, "load") and one.job(True, {number: slot}, "load").ok:
                    assert one.read(slot) == pattern(1000 * version + number, SIZE)
                    loaded += 1
                one.pool.forget("load")
            case "evict" if store.objects:
                store.objects.pop(choose.choice(sorted(store.objects)), None)
            case "rot" if store.objects:
                name = choose.choice(sorted(store.objects))
                value = store.objects[name]
                cut = choose.randrange(len(value))
                store.objects[name] = choose.choice([value[:cut], value[:cut] + b"?" + value[cut + 1 :]])
            case "fail":
                store.code = choose.choice([-800, -900])
            case "mend":
                store.code = None
                one.mended()
            case "forget":
                one.client.failed_loads.forget([one.name(number)])
    for one in engines:
        assert (len(one.pool.jobs), len(one.pool.holds)) == (0, 0)
        assert one.pool.close()
    assert loaded > 100
    assert own_threads() == threads


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "mooncake_tier=None"),
        ({"metrics": "127.0.0.1:1"}, "the tier needs to know where the store is"),
        ({"master": "127.0.0.1:1", "namespce": "x"}, "has \\['namespce'\\]"),
        ({"master": "127.0.0.1:1", "poll_s": 0}, "poll_s=0"),
        ({"master": "127.0.0.1:1", "prefetch": 1}, "prefetch=1"),
        ({"master": "127.0.0.1:1", "write": "some"}, "write='some'"),
        ({"master": "127.0.0.1:1", "medium": "DISK"}, "medium='DISK'"),
        ({"master": "127.0.0.1:1", "metrics": "9003"}, "metrics='9003'"),
        ({"master": "127.0.0.1:1", "least_rate": 0}, "least_rate=0"),
        ({"master": "127.0.0.1:1", "revision": 3}, "revision=3"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: dict[str, Any] | None, said: str) -> None:
    with pytest.raises((SettingRefused, KeyRefused), match=said):
        OffloadSettings.of({"mooncake_tier": given} if given is not None else {})
