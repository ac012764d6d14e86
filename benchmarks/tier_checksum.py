"""What proving a block costs: puts and gets of true block sizes with no proof, Mooncake's own checksum, and ours.

A master and a pool run on loopback; blocks are whole GLM-5.3 rows. Every mode runs in a process of its own, because
Mooncake reads MOONCAKE_STORE_CHECKSUM once. The best of several repeats counts.

Usage: ``python benchmarks/tier_checksum.py [--json] [--megabytes N] [--repeat N]``
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from glm53.local.processes import free_ports
from mooncake_tier.client import xxh3
from mooncake_tier.client.operation import Block, Outcome
from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.keys import block_key
from mooncake_tier.node.processes import Node
from mooncake_tier.node.settings import NodeSettings
from mooncake_tier.options import Options
from mooncake_tier.stock import MooncakeStore

NAMESPACE = "mt1-" + "0" * 32
#: Bytes of one block row of GLM-5.3: 64 tokens, 101 caches.
ROWS = {"fp8": 3_115_008, "nvfp4_ds_mla": 1_965_568}
#: Mode -> what proves a block.
MODES = {
    "stock": "nothing",
    "stock crc64": "Mooncake's MOONCAKE_STORE_CHECKSUM",
    "trailer": "owner and length, checksum=none",
    "trailer xxh3": "owner, length and XXH3, as always on host memory",
}


def measure(mode: str, master: str, nbytes: int, count: int, repeat: int) -> dict[str, float]:
    """Best gigabytes per second of putting and of getting `count` blocks of `nbytes`."""
    store = MooncakeStore("127.0.0.1", master, "tcp", "")
    memory = mmap.mmap(-1, 2 * count * nbytes)
    memory[: count * nbytes] = (os.urandom(1 << 16) * (count * nbytes // (1 << 16) + 1))[: count * nbytes]
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    names = [block_key(NAMESPACE, number.to_bytes(32, "big")) for number in range(count)]
    out = [Block.at(name, address + number * nbytes, nbytes) for number, name in enumerate(names)]
    back = [Block.at(name, address + (count + number) * nbytes, nbytes) for number, name in enumerate(names)]
    best = {"put": 0.0, "get": 0.0}
    checksum = "xxh3" if mode == "trailer xxh3" else "none"
    client = TierClient(store, NAMESPACE, Options(store_s=300.0, load_s=300.0, checksum=checksum, load_threads=1))
    client.register(address, len(memory))
    for _ in range(repeat):
        store.remove_matching(".*")
        began = time.perf_counter()
        if mode.startswith("trailer"):
            assert client.store(out).wait() == [Outcome.OK] * count
        else:
            assert store.put(names, *_raw(out)) == [0] * count
        middle = time.perf_counter()
        if mode.startswith("trailer"):
            assert client.load(back).wait() == [Outcome.OK] * count
        else:
            assert store.get(names, *_raw(back)) == [nbytes] * count
        end = time.perf_counter()
        for name, seconds in (("put", middle - began), ("get", end - middle)):
            best[name] = max(best[name], count * nbytes / seconds / 1e9)
    assert memory[: count * nbytes] == memory[count * nbytes :]
    return best


def _raw(blocks: list[Block]) -> tuple[list[list[int]], list[list[int]]]:
    return [[block.parts[0][0]] for block in blocks], [[block.nbytes] for block in blocks]


def memory_speed(nbytes: int, repeat: int) -> dict[str, float]:
    """Best gigabytes per second of XXH3 and of a copy, one thread."""
    memory = mmap.mmap(-1, 2 * nbytes)
    memory[:nbytes] = os.urandom(nbytes)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    best = {"xxh3": 0.0, "copy": 0.0}
    for _ in range(repeat):
        began = time.perf_counter()
        xxh3.digest([(address, nbytes)])
        middle = time.perf_counter()
        ctypes.memmove(address + nbytes, address, nbytes)
        end = time.perf_counter()
        for name, seconds in (("xxh3", middle - began), ("copy", end - middle)):
            best[name] = max(best[name], nbytes / seconds / 1e9)
    return best


def run(megabytes: int, repeat: int) -> dict[str, Any]:
    """All modes for all rows."""
    report: dict[str, Any] = {"modes": {}, "memory": memory_speed(ROWS["fp8"], 5 * repeat)}
    for mode in MODES:
        variables = {"MOONCAKE_STORE_CHECKSUM": "1"} if mode == "stock crc64" else {}
        os.environ.pop("MOONCAKE_STORE_CHECKSUM", None)
        os.environ.update(variables)
        rpc, metrics, pool = free_ports(3, "127.0.0.1")
        settings = NodeSettings(
            rpc_port=rpc,
            metrics_port=metrics,
            pool_port=pool,
            pool_bytes=max(64, 3 * megabytes) << 20,
            lease_s=60.0,
        )
        with tempfile.TemporaryDirectory() as logs:
            node = Node(settings, Path(logs))
            node.start()
            try:
                report["modes"][mode] = {
                    row: _child(mode, node.settings.store.master, nbytes, max(1, (megabytes << 20) // nbytes), repeat)
                    for row, nbytes in ROWS.items()
                }
            finally:
                node.stop()
    return report


def _child(*arguments: object) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{arguments}: {done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--megabytes", type=int, default=128, help="blocks per batch, in MiB (128)")
    parser.add_argument("--repeat", type=int, default=5, help="of which the best counts (5)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(*json.loads(given.child))), flush=True)
        os._exit(0)
    report = run(given.megabytes, given.repeat)
    if given.json:
        print(json.dumps(report, indent=1))
        return 0
    columns = [(row, way) for row in ROWS for way in ("put", "get")]
    print(f"{f'GB/s, best of {given.repeat}':16} " + " ".join(f"{f'{row} {way}':>18}" for row, way in columns))
    for mode, rows in report["modes"].items():
        print(f"{mode:16} " + " ".join(f"{rows[row][way]:18.2f}" for row, way in columns))
    print(f"one thread: XXH3 {report['memory']['xxh3']:.1f}, copy {report['memory']['copy']:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
