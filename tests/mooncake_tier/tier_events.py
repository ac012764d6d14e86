"""KV events as a router gets them: over ZeroMQ, as plain lists."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest


class Listener:
    """Subscribes to an engine that may not have begun yet."""

    def __init__(self, port: int) -> None:
        zmq = pytest.importorskip("zmq", reason="comes with vLLM: make env")
        self._unpack = pytest.importorskip("msgspec", reason="comes with vLLM: make env").msgpack.decode
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.bind(self.endpoint)  # an engine binds endpoints with a wildcard alone
        self.events: list[list[Any]] = []

    @property
    def config(self) -> dict[str, Any]:
        """vLLM's ``--kv-events-config``."""
        return {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": self.endpoint}

    def hear(self, seconds: float = 0.5) -> list[list[Any]]:
        """What was published since the last call: lists that begin with the event's name."""
        heard = []
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._socket.poll(left * 1000):
                _, events, *_ = self._unpack(self._socket.recv_multipart()[-1])
                heard += events
        self.events += heard
        return heard

    def resident(self, medium: str = "CPU") -> Counter[Any]:
        """Blocks of a medium that were stored and not removed, with how often that was said."""
        count: Counter[Any] = Counter()
        for name, *fields in self.events:
            if name == "BlockStored" and fields[5] == medium:
                count.update(fields[0])
            elif name == "BlockRemoved" and fields[1] == medium:
                count.subtract(fields[0])
        return +count

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()
