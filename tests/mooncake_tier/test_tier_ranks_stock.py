"""Each data-parallel rank tells of its own blocks: vLLM's publishers, the plugin's events, and who hears them."""

from __future__ import annotations

import pytest
from tier_fake import FakeMaster

kv_events = pytest.importorskip("vllm.distributed.kv_events", reason="needs vLLM: make test")
zmq = pytest.importorskip("zmq", reason="comes with vLLM: make env")
msgpack = pytest.importorskip("msgspec", reason="comes with vLLM: make env").msgpack

from mooncake_tier.events.evictions import Evictions  # noqa: E402
from mooncake_tier.events.store_events import StoreEvents, Told  # noqa: E402

ENDPOINT = "inproc://tier-ranks"
BLOCK = 2


def _told(number: int) -> Told:
    return Told(None, [bytes([number]) * 32], [[number, number]], [None], None, None, None)


def test_what_is_stored_and_what_is_gone_carries_the_rank_that_tells_it() -> None:
    """Dynamo's router keeps a worker's ranks apart by this number alone."""
    config = kv_events.KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=ENDPOINT)
    for rank in (0, 1):
        publisher = kv_events.EventPublisherFactory.create(config, data_parallel_rank=rank)
        socket = zmq.Context.instance().socket(zmq.SUB)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(kv_events.ZmqEventPublisher.offset_endpoint_port(ENDPOINT, rank))
        evictions = Evictions(FakeMaster(), poll_s=1000.0)
        events = StoreEvents(evictions, lambda: "mt1-0/", BLOCK)
        heard = []
        try:
            events.stored(_told(rank), set(_told(rank).hashes))
            for _ in range(2):
                publisher.publish(kv_events.KVEventBatch(ts=0.0, events=events.take()))
                assert socket.poll(20_000), "nothing was heard"
                _, [event], number = msgpack.decode(socket.recv_multipart()[-1])
                heard.append((number, event["type"], event["medium"], event.get("token_ids")))
                evictions.look()  # the master lists nothing
        finally:
            evictions.close()
            socket.close(0)
            publisher.shutdown()

        assert heard == [(rank, "BlockStored", "CPU", [rank, rank]), (rank, "BlockRemoved", "CPU", None)]
