"""KV events as a router gets them: over ZeroMQ, as plain mappings."""

from __future__ import annotations

import tempfile
from collections import Counter
from typing import Any

import pytest


class Listener:
    """Subscribes to an engine that may not have begun yet."""

    def __init__(self) -> None:
        zmq = pytest.importorskip("zmq", reason="comes with vLLM: make env")
        self._unpack = pytest.importorskip("msgspec", reason="comes with vLLM: make env").msgpack.decode
        self._folder = tempfile.TemporaryDirectory()  # a short path, which a socket needs
        self.endpoint = f"ipc://{self._folder.name}/events"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(self.endpoint)
        self.events: list[dict[str, Any]] = []

    @property
    def config(self) -> dict[str, Any]:
        """vLLM's ``--kv-events-config``."""
        return {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": self.endpoint}

    def hear(self, first_s: float = 20.0, quiet_s: float = 0.5) -> list[dict[str, Any]]:
        """What was published since the last call, until nothing more comes; waits for the first."""
        heard: list[dict[str, Any]] = []
        while self._socket.poll(1000 * (quiet_s if heard else first_s)):
            _, events, *_ = self._unpack(self._socket.recv_multipart()[-1])
            heard += events
        self.events += heard
        return heard

    def resident(self, medium: str = "CPU") -> Counter[Any]:
        """Blocks of a medium that were stored and not removed, with how often that was said.

        A cleared cache takes every medium with it, as it does in Dynamo's router.
        """
        count: Counter[Any] = Counter()
        for event in self.events:
            if event["type"] == "AllBlocksCleared":
                count.clear()
            elif event.get("medium") == medium:
                (count.update if event["type"] == "BlockStored" else count.subtract)(event["block_hashes"])
        return +count

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()
        self._folder.cleanup()
