"""A real Mooncake master and pool that can be made to fail, for an engine in another process.

The engine reaches the master through a `SlowProxy`; the bytes of blocks go straight to the pool.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from glm53.local.processes import free_ports
from mooncake_tier.client.operation import Block, Outcome
from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.keys import block_key
from mooncake_tier.node.processes import Node
from mooncake_tier.node.settings import NodeSettings
from mooncake_tier.options import Options
from mooncake_tier.stock import MooncakeStore

__all__ = ["LEASE_S", "FaultyStore", "SlowProxy"]

LEASE_S = 1.0
_FILLER = "mt1-" + "f" * 32
_FILLER_BYTES = 256 << 10  # smaller than any block, so that nothing fits any more when one of these does not


class SlowProxy:
    """Passes TCP connections on to a port of loopback, each piece of data `delay_s` seconds late.

    In a process of its own, because Mooncake's client, which this process has too, at times stops all Python threads.
    """

    def __init__(self, port: int) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        self._delay_s = context.Value("d", 0.0)
        self._process = context.Process(target=_accept, args=(port, self._delay_s, theirs), daemon=True)
        self._process.start()
        theirs.close()  # so that its end is seen here
        self.port = int(ours.recv())

    def delay(self, seconds: float) -> None:
        """Let everything be so late from now on."""
        self._delay_s.value = seconds

    def close(self) -> None:
        """End it, and with it all connections."""
        self._process.kill()
        self._process.join()


def _accept(port: int, delay_s: Any, told: Connection) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    told.send(listener.getsockname()[1])
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", port))
        except OSError:
            near.close()
            continue
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=_pass_on, args=(source, sink, delay_s), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, delay_s: Any) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            time.sleep(delay_s.value)
            sink.sendall(data)
    for one in (source, sink):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


class FaultyStore:
    """The node, the proxy before its master, and a client of its own that damages and removes objects.

    logs: folder of the processes' output. Used from one thread, which must live as long as the processes.
    """

    def __init__(self, logs: Path, pool_bytes: int = 128 << 20) -> None:
        rpc, metrics, pool = free_ports(3, "127.0.0.1")
        self.node = Node(
            NodeSettings(
                rpc_port=rpc,
                metrics_port=metrics,
                pool_port=pool,
                pool_bytes=pool_bytes,
                lease_s=LEASE_S,
                owner_ttl_s=2,
                threads=2,
            ),
            logs,
        )
        self._stack = ExitStack()

    def __enter__(self) -> FaultyStore:
        with ExitStack() as stack:
            self.node.start()
            stack.callback(self.node.stop)
            self.proxy = SlowProxy(self.node.settings.rpc_port)
            stack.callback(self.proxy.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def master(self) -> str:
        """``host:port`` for the engine."""
        return f"127.0.0.1:{self.proxy.port}"

    def keys(self, namespace: str) -> set[str]:
        """The keys of a namespace that the master knows."""
        known = self.node.master.keys()
        return {key for key in known if key.startswith(f"{namespace}/")}

    def flush(self, namespace: str) -> int:
        """Remove all objects of a namespace; how many are left."""
        with self._client(namespace) as client:
            client.clear()
        return len(self.keys(namespace))

    def kill(self, name: str) -> None:
        """End the master or the pool as a crash would."""
        process = self.node.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def revive(self) -> None:
        """Start what was killed, and return when it serves."""
        for name in ("master", "pool"):
            if name not in self.node.processes:
                self.node.restart(name)

    @contextmanager
    def killed(self, name: str) -> Iterator[None]:
        """Without the master, or the pool."""
        self.kill(name)
        try:
            yield
        finally:
            self.revive()

    @contextmanager
    def hanging(self, name: str) -> Iterator[None]:
        """The process keeps its connections, and answers nothing."""
        process = self.node.processes[name]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    @contextmanager
    def slow(self, delay_s: float = 0.02, stopped_s: float = 0.25, running_s: float = 0.05) -> Iterator[None]:
        """Every message from and to the master is late, and the pool's bytes come in bursts."""
        over = threading.Event()
        pool = self.node.processes["pool"]

        def bursts() -> None:
            while not over.is_set():
                pool.send_signal(signal.SIGSTOP)
                over.wait(stopped_s)
                pool.send_signal(signal.SIGCONT)
                over.wait(running_s)

        thread = threading.Thread(target=bursts)
        self.proxy.delay(delay_s)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.proxy.delay(0.0)

    @contextmanager
    def full(self) -> Iterator[None]:
        """Somebody else has filled the pool, and keeps all of it leased."""
        burst = 16
        memory = ctypes.create_string_buffer(burst * _FILLER_BYTES)
        with self._client(_FILLER) as client:
            client.register(ctypes.addressof(memory), len(memory))
            for number in range(1_000_000):
                names = [block_key(_FILLER, (burst * number + one).to_bytes(32, "big")) for one in range(burst)]
                places = [ctypes.addressof(memory) + one * _FILLER_BYTES for one in range(burst)]
                blocks = [Block.at(name, place, _FILLER_BYTES) for name, place in zip(names, places, strict=True)]
                storing = client.store(blocks, 0.5)
                outcomes = storing.wait()
                client.hold([name for name, one in zip(names, outcomes, strict=True) if one.ok], 3600.0)
                if Outcome.NO_SPACE in outcomes and not any(one.ok for one in outcomes):
                    break
            try:
                yield
            finally:
                client.clear()

    @contextmanager
    def corrupt(self, keys: Sequence[str]) -> Iterator[None]:
        """One byte of each of these objects is another one; their trailers are as they were."""
        with self._client(_FILLER) as client:
            native: Any = client._native
            memory = ctypes.create_string_buffer(4 << 20)
            address = ctypes.addressof(memory)
            client.register(address, len(memory))
            for key in keys:
                size = native._store.get_size(key)
                if native.get([key], [[address]], [[size]]) != [size]:
                    raise RuntimeError(f"{key}, {size} bytes, could not be read, so it cannot be damaged")
                memory[size // 2] = bytes([memory[size // 2][0] ^ 1])
                if native.remove(key) or native.put([key], [[address]], [[size]]) != [0]:
                    raise RuntimeError(f"{key} could not be replaced")
        yield

    @contextmanager
    def _client(self, namespace: str) -> Iterator[TierClient]:
        store = self.node.settings.store
        native = MooncakeStore(store.host, store.master, store.protocol, store.device, 1 << 20)
        client = TierClient(native, namespace, Options(lease_s=LEASE_S, store_s=5.0, lookup_s=5.0, failures=1000))
        try:
            yield client
        finally:
            client.close()
