"""vLLM's own loop of an idle engine, which goes on when a thread has found evicted blocks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tier_fake import FakeMaster

from mooncake_tier.events import waking
from mooncake_tier.events.evictions import Evictions
from mooncake_tier.patches import REGISTER

core = pytest.importorskip("vllm.v1.engine.core", reason="needs vLLM: make test")


class IdleEngine:
    """What `EngineCoreProc._process_input_queue` asks of its engine. evictions: what the connector would have to tell.

    Fake: an engine with requests of its own is in tests/stack/test_tier_router_stock.py.
    """

    process_input_queue_block = True

    def __init__(self, evictions: Evictions) -> None:
        self.input_queue: queue.Queue[Any] = queue.Queue()
        self.aborts_queue: queue.Queue[Any] = queue.Queue()
        self.evictions = evictions

    def has_work(self) -> bool:
        return self.evictions.pending

    def is_running(self) -> bool:
        return True

    def _notify_idle_state_callbacks(self) -> None:
        pass

    def _handle_client_request(self, kind: Any, request: Any) -> None:
        core.EngineCoreProc._handle_client_request(self, kind, request)


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(waking, "_queue", None)
    REGISTER.apply()
    yield
    REGISTER.revert()


def test_an_idle_engine_goes_on_when_blocks_are_found_to_be_gone(applied: None) -> None:
    master = FakeMaster(["kept", "gone"])
    evictions = Evictions(master, poll_s=0.01, found=waking.wake)
    engine = IdleEngine(evictions)
    loop = threading.Thread(target=core.EngineCoreProc._process_input_queue, args=(engine,), daemon=True)
    try:
        evictions.announce(["kept", "gone"])
        loop.start()
        loop.join(0.2)
        assert loop.is_alive(), "an engine without work waits"

        master.listed, master.gone = ["kept"], 1
        loop.join(20)

        assert not loop.is_alive()
        assert evictions.take() == ["gone"]
    finally:
        evictions.close()
        engine.input_queue.put((core.EngineCoreRequestType.WAKEUP, None))


def test_without_an_engine_of_its_own_nothing_is_woken(applied: None) -> None:
    """vLLM's LLM class steps its engine itself."""
    waking.wake()

    assert waking._queue is None
