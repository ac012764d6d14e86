"""Real masters, pools and clients on loopback, for tests."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glm53.local.processes import free_ports
from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.node.processes import Node
from mooncake_tier.node.settings import NodeSettings
from mooncake_tier.options import Options
from mooncake_tier.stock import MooncakeStore

POOL = 64 << 20
LEASE_S = 1.0


def node_settings(**changed: Any) -> NodeSettings:
    rpc, metrics, pool = free_ports(3, "127.0.0.1")
    given: dict[str, Any] = {"rpc_port": rpc, "metrics_port": metrics, "pool_port": pool, "pool_bytes": POOL}
    return NodeSettings(**given | {"lease_s": LEASE_S, "owner_ttl_s": 2, "threads": 2} | changed)


@contextmanager
def running_node(logs: Path, **changed: Any) -> Iterator[Node]:
    node = Node(node_settings(**changed), logs)
    node.start()
    try:
        yield node
    finally:
        node.stop()


@contextmanager
def client_of(node: Node, namespace: str, **options: Any) -> Iterator[TierClient]:
    """A client whose deadlines are long and whose memories short, unless given."""
    store = node.settings.store
    given: dict[str, Any] = {"lookup_s": 20.0, "load_s": 20.0, "store_s": 20.0, "lease_s": LEASE_S, "cooldown_s": 0.2}
    client = TierClient(
        MooncakeStore(store.host, store.master, store.protocol, store.device, 1 << 20),
        namespace,
        Options(**given | {"longest_cooldown_s": 1.0, "batch_pieces": 100} | options),
    )
    try:
        yield client
    finally:
        assert client.close(30.0)


def kill(node: Node, name: str) -> None:
    """End a process of the node as a crash would."""
    process = node.processes.pop(name)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def revive(node: Node) -> None:
    """Start the processes that were killed."""
    for name in ("master", "pool"):
        if name not in node.processes:
            node.restart(name)


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until something is true; fails the test if it never is."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "never became true"
        time.sleep(0.05)


def own_threads() -> set[str]:
    return {one.name for one in threading.enumerate() if one.name.startswith("mooncake-tier")}
