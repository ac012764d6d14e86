"""What looking for evicted blocks costs an engine by the number of keys in the store, all announced, on a real master.

An engine that told a router of blocks compares what it told with what the master lists, once the master lost any.
Beside the thread that looks, another one runs Python code as the engine's does: the longest time for which it got no
turn is what a look adds to a step. Its clock stands while either waits for a core.

Usage: ``python benchmarks/tier_evictions.py [--keys N ...] [--json]``; a million keys take minutes, and 5 GiB
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import json
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from glm53.local.processes import free_ports
from mooncake_tier.events.evictions import Evictions
from mooncake_tier.keys import key_prefix
from mooncake_tier.node.processes import Node
from mooncake_tier.node.settings import NodeSettings
from mooncake_tier.stock import MooncakeStore

BATCH, NBYTES = 1000, 64
NAMESPACE = "mt1-" + "a" * 32


@dataclass(frozen=True)
class Cost:
    """Of one look. wall_s: until its end. thread_s: CPU time of the thread that looks. master_s: of the master.

    pause_s: the longest time for which another Python thread got no turn meanwhile.
    """

    wall_s: float
    thread_s: float
    master_s: float
    pause_s: float


@contextmanager
def filled(count: int) -> Iterator[tuple[Node, list[str], MooncakeStore]]:
    """A node with so many small objects, and their keys."""
    with tempfile.TemporaryDirectory() as logs:
        rpc, metrics, pool = free_ports(3, "127.0.0.1")
        nbytes = max(1 << 30, 8192 * count)
        node = Node(NodeSettings(rpc_port=rpc, metrics_port=metrics, pool_port=pool, pool_bytes=nbytes), Path(logs))
        node.start()
        try:
            store = node.settings.store
            native = MooncakeStore(store.host, store.master, store.protocol, store.device, 1 << 20)
            keys = [key_prefix(NAMESPACE) + hashlib.sha256(b"%d" % number).hexdigest() for number in range(count)]
            _put(native, keys)
            yield node, keys, native
            native.close()
        finally:
            node.stop()


def _put(native: MooncakeStore, keys: list[str]) -> None:
    memory = ctypes.create_string_buffer(NBYTES)
    native.register(ctypes.addressof(memory), NBYTES)
    for first in range(0, len(keys), BATCH):
        some = keys[first : first + BATCH]
        for _ in range(10):
            codes = native.put(some, [[ctypes.addressof(memory)]] * len(some), [[NBYTES]] * len(some))
            some = [key for key, code in zip(some, codes, strict=True) if code]
            if not some:
                break
            time.sleep(0.5)
        else:
            raise RuntimeError(f"{len(some)} of {BATCH} keys could not be stored: {set(codes)}")
    native.unregister(ctypes.addressof(memory))


def cost(looking: Callable[[], None], master_pid: int) -> Cost:
    """Of one call, which makes the looks of one thread."""
    longest, over, looks = [0.0], threading.Event(), threading.get_native_id()

    def step() -> None:
        waits = [os.open(f"/proc/self/task/{one}/schedstat", os.O_RDONLY) for one in (threading.get_native_id(), looks)]
        last = math.inf
        while not over.is_set():
            sum(range(500))
            now = time.monotonic() - sum(1e-9 * int(os.pread(one, 80, 0).split()[1]) for one in waits)
            longest[0] = max(longest[0], now - last)
            last = now
        for one in waits:
            os.close(one)

    thread = threading.Thread(target=step)
    thread.start()
    time.sleep(0.2)
    longest[0] = 0.0
    begun, used, master = time.monotonic(), time.thread_time(), _cpu_seconds(master_pid)
    looking()
    found = time.monotonic() - begun, time.thread_time() - used, _cpu_seconds(master_pid) - master
    over.set()
    thread.join()
    return Cost(*found, longest[0])


def _cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def measure(count: int) -> dict[str, Cost]:
    """A look when nothing is gone, and one when a hundred keys are."""
    with filled(count) as (node, keys, native):
        evictions = Evictions(node.master, 3600.0)
        try:
            evictions.announce(keys)
            gc.collect()
            gc.freeze()  # as vLLM does, because it would go through all keys again and again
            master = node.processes["master"].pid
            for _ in range(3):
                evictions.look(always=False)
            quiet = cost(lambda: evictions.look(always=False), master)
            for key in keys[:100]:
                native.remove(key)
            changed = cost(lambda: evictions.look(always=False), master)
            gone = evictions.take()
        finally:
            evictions.close()
    if set(gone) != set(keys[:100]):
        raise RuntimeError(f"{len(gone)} keys were found to be gone, and 100 are")
    return {"nothing is gone": quiet, "keys are gone": changed}


def main() -> None:
    """Measure and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", nargs="*", type=int, default=[100_000, 1_000_000], help="keys in the store")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    given = parser.parse_args()
    report = {count: measure(count) for count in given.keys}
    if given.json:
        print(
            json.dumps({n: {what: asdict(one) for what, one in found.items()} for n, found in report.items()}, indent=1)
        )
        return
    print("| keys | | a look, s | CPU of its thread, s | of the master, s | longest pause of another thread, ms |")
    print("|---" * 6 + "|")
    for count, found in report.items():
        for what, one in found.items():
            cells = [f"{one.wall_s:.3f}", f"{one.thread_s:.3f}", f"{one.master_s:.2f}", f"{1e3 * one.pause_s:.1f}"]
            print(f"| {count:,} | {what} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
