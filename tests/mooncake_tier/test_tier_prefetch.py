"""What is loaded for requests that wait, in which order, and within which bounds."""

from __future__ import annotations

from collections.abc import Iterator

from mooncake_tier.offloading.prefetch import Chunk, Prefetcher, State


class FakeHost:
    """vLLM's scheduler and tiers as dictionaries; the real ones are in test_tier_offload_stock."""

    def __init__(self, **requests: str) -> None:
        self.requests = requests
        self.host: dict[str, State] = {}
        self.store = set("".join(requests.values()))
        self.unknown: set[str] = set()
        self.loads: list[str] = []

    def chunks(self, request: str) -> Iterator[Chunk]:
        return (Chunk(at, key) for at, key in enumerate(self.requests.get(request, "")))

    def peek(self, request: str, chunk: Chunk) -> State:
        return self.host.get(chunk.key, State.ABSENT)

    def want(self, request: str, chunk: Chunk) -> State:
        if chunk.key not in self.store:
            return State.ABSENT
        if chunk.key in self.unknown:
            return State.ASKED
        self.host[chunk.key] = State.LOADING
        self.loads.append(chunk.key)
        return State.LOADING

    def arrive(self, *keys: str) -> None:
        self.host |= dict.fromkeys(keys or list(self.host), State.READY)


def _prefetcher(host: FakeHost, most: int = 100, at_a_time: int = 100) -> tuple[Prefetcher, dict[str, int]]:
    counts = {"useful": 0, "wasted": 0}

    def count(use: str, chunks: int) -> None:
        counts[use] += chunks

    return Prefetcher(host, 10, 10 * most, 10 * at_a_time, count), counts


def test_chunks_are_loaded_in_the_order_of_the_queue() -> None:
    host = FakeHost(first="abc", second="de")
    prefetcher, _ = _prefetcher(host)
    prefetcher.add("first")
    prefetcher.add("second")

    prefetcher.pump()
    prefetcher.pump()

    assert host.loads == list("abcde")


def test_a_lower_rank_comes_first() -> None:
    host = FakeHost(late="a", urgent="b")
    prefetcher, _ = _prefetcher(host)
    prefetcher.add("late", (1, 0.0))
    prefetcher.add("urgent", (0, 5.0))

    prefetcher.pump()

    assert host.loads == ["b", "a"]


def test_the_head_of_the_queue_is_not_behind_more_than_may_be_under_way() -> None:
    host = FakeHost(first="abcd", second="ef")
    prefetcher, _ = _prefetcher(host, at_a_time=2)
    prefetcher.add("first")
    prefetcher.add("second")

    for expected in ("ab", "abcd", "abcdef"):
        prefetcher.pump()
        prefetcher.pump()
        assert "".join(host.loads) == expected
        host.arrive()


def test_the_store_is_asked_for_more_than_may_be_under_way() -> None:
    host = FakeHost(first="abcd")
    host.unknown = set("abcd")
    prefetcher, _ = _prefetcher(host, at_a_time=2)
    prefetcher.add("first")
    asked: list[str] = []
    want = host.want
    host.want = lambda request, chunk: asked.append(chunk.key) or want(request, chunk)  # type: ignore[method-assign,func-returns-value]

    prefetcher.pump()

    assert asked == list("abcd")


def test_no_more_host_memory_is_filled_than_allowed() -> None:
    host = FakeHost(first="ab", second="cde")
    prefetcher, _ = _prefetcher(host, most=3)
    prefetcher.add("first")
    prefetcher.add("second")

    prefetcher.pump()
    host.arrive()
    prefetcher.pump()
    assert host.loads == list("abc")

    prefetcher.begun(["first"])
    prefetcher.pump()
    assert host.loads == list("abcde")


def test_a_chunk_that_is_missing_ends_what_is_loaded_for_its_request_alone() -> None:
    host = FakeHost(first="abc", second="de")
    host.store.discard("b")
    prefetcher, _ = _prefetcher(host)
    prefetcher.add("first")
    prefetcher.add("second")

    prefetcher.pump()

    assert host.loads == list("ade")


def test_a_chunk_that_is_in_host_memory_is_not_loaded() -> None:
    host = FakeHost(first="abc")
    host.arrive("a")
    prefetcher, counts = _prefetcher(host)
    prefetcher.add("first")

    prefetcher.pump()
    prefetcher.begun(["first", "somebody else"])

    assert host.loads == list("bc")
    assert counts == {"useful": 2, "wasted": 0}


def test_what_was_loaded_for_a_request_that_ended_is_wasted() -> None:
    host = FakeHost(first="abc", second="d")
    prefetcher, counts = _prefetcher(host)
    prefetcher.add("first")
    prefetcher.pump()

    assert prefetcher.dropped("first")
    assert not prefetcher.dropped("first")
    prefetcher.add("second")
    assert not prefetcher.dropped("second")

    assert counts == {"useful": 0, "wasted": 3}
    assert len(prefetcher) == 0
