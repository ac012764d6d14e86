"""What one NIXL read of GLM-5.3 blocks costs in each layout: descriptors, posting and whole time against LBNHC.

Two processes on this machine, each with a real NIXL agent over UCX, one reading the other's memory as decode reads
prefill's. Block geometry is that of GLM-5.3 in fp8, 79 MLA pages of 36,864 bytes and 22 indexer pages of 8,448; only
the number of blocks is small. The same number of blocks moves in every layout:

- `LBNHC`: stock's default, a dense region for each of the 101 caches;
- `BLHNC strided`: what stock's pull connector makes of BLHNC on vLLM 0.31 and 0.32, 101 regions with gaps;
- `BLHNC rows`: whole rows as one region, as the plugin registers them and vLLM 0.33 by itself;
- `BLHNC rows+`: the same rows in runs of at least 64 blocks, the goal of contiguous allocation.

Layouts take turns within a repetition, and every ratio is to LBNHC in the same repetition with the same runs. Posting
is `make_prepped_xfer` and `transfer`, in which vLLM's engine does nothing else; the whole is until NIXL says done.
Before the timing each case is read once into cleared memory, and every byte of every block is compared.

Usage: ``python benchmarks/blhnc_transfer.py [--blocks 128] [--repeat 9] [--json]``. UCX_TLS (tcp unless set) chooses
the transport. Loopback moves bytes with the processor that also posts them: the counts are those of any network, the
times are not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from importlib import metadata
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from vllm_blhnc.plan import block_row, descriptor_count, run_lengths

PAGES = {f"indexer.{i}": 64 * 132 for i in range(22)} | {f"mla.{i}": 64 * 576 for i in range(79)}  # bytes
ROW = block_row(PAGES, [32 * 576])  # aligned to 32 rows of the MLA cache, as vLLM does since 0.32
GOAL = 64  # blocks in a run
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # makes 8-byte words of the source that never repeat

Region = tuple[int, int, int]  # offset of the first page, bytes of a page, bytes to the next block's page


def regions(layout: str, pool: int) -> list[Region]:
    """Where the pages of a pool of blocks lie."""
    if layout.startswith("BLHNC rows"):
        return [(0, ROW.nbytes, ROW.nbytes)]
    offsets = np.cumsum([0, *PAGES.values()])[:-1].tolist()
    if layout == "BLHNC strided":
        return [(offset, page, ROW.nbytes) for offset, page in zip(offsets, PAGES.values(), strict=True)]
    return [(offset * pool, page, page) for offset, page in zip(offsets, PAGES.values(), strict=True)]


def block_ids(blocks: int, run: int) -> tuple[list[int], list[int]]:
    """Source and destination blocks in runs of this length; runs are apart, and in opposite order on both sides."""
    starts = range(0, blocks, run)
    runs = [range(start + i, min(start + run, blocks) + i) for i, start in enumerate(starts)]
    lengths = [len(ids) for ids in runs][::-1]
    theirs = [range(sum(lengths[:i]) + i, sum(lengths[: i + 1]) + i) for i in range(len(lengths))][::-1]
    return [block for ids in runs for block in ids], [block for ids in theirs for block in ids]


def words(first: int, count: int) -> Any:
    """What the source holds from 8-byte word `first` on."""
    return (np.arange(first + 1, first + 1 + count, dtype=np.uint64)) * FACTOR


def agent(name: str, memory: Any, progress_thread: bool) -> Any:
    """A NIXL agent that has registered `memory`."""
    from nixl._api import nixl_agent, nixl_agent_config

    made = nixl_agent(name, nixl_agent_config(enable_prog_thread=progress_thread, capture_telemetry=True))
    made.register_memory(made.get_reg_descs([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM"))
    return made


def prefill(reader: Connection, nbytes: int) -> None:
    """Hold the source until told to end; only NIXL's progress thread works."""
    memory = np.empty(nbytes // 8, dtype=np.uint64)
    for first in range(0, memory.size, 1 << 20):
        memory[first : first + (1 << 20)] = words(first, min(1 << 20, memory.size - first))
    owner = agent("prefill", memory, True)
    reader.send((owner.get_agent_metadata(), memory.ctypes.data))
    reader.recv()
    os._exit(0)  # UCX crashes in an interpreter's exit.


class Decode:
    """The reading side: one agent, one destination, and descriptor lists for every layout."""

    def __init__(self, pool: int, theirs: tuple[bytes, int]):
        self.pool = pool
        self.memory = np.zeros(pool * ROW.nbytes // 8, dtype=np.uint64)
        self.agent = agent("decode", self.memory, False)  # It makes progress where it asks whether a read is done.
        self.peer = self.agent.add_remote_agent(theirs[0])
        self.bases = (self.memory.ctypes.data, theirs[1])
        self.lists: dict[str, tuple[Any, Any]] = {}

    def prepare(self, layout: str) -> None:
        """Descriptor lists of both sides, which vLLM makes once a peer."""
        sides = []
        for name, base in zip(("NIXL_INIT_AGENT", self.peer), self.bases, strict=True):
            table = [
                (base + first + i * stride, page, 0)
                for first, page, stride in regions(layout, self.pool)
                for i in range(self.pool)
            ]
            sides.append(self.agent.prep_xfer_dlist(name, np.array(table, dtype=np.uint64), mem_type="DRAM"))
        self.lists[layout] = (sides[0], sides[1])

    def read(self, layout: str, source: list[int], destination: list[int]) -> dict[str, float]:
        """One read; milliseconds of posting and of everything, and what NIXL says of it."""
        count = len(regions(layout, self.pool))
        ids = [
            np.concatenate([np.array(blocks) + i * self.pool for i in range(count)]).astype(np.int32)
            for blocks in (destination, source)
        ]
        ours, theirs = self.lists[layout]
        began = time.perf_counter()
        handle = self.agent.make_prepped_xfer("READ", ours, ids[0], theirs, ids[1], b"")
        state = self.agent.transfer(handle)
        posted = time.perf_counter()
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        done = time.perf_counter()
        if state != "DONE":
            raise SystemExit(f"the read in layout {layout} ended as {state}: NIXL's messages above say why")
        seen = self.agent.get_xfer_telemetry(handle)
        self.agent.release_xfer_handle(handle)
        return {
            "post_ms": (posted - began) * 1e3,
            "total_ms": (done - began) * 1e3,
            "descriptors": seen.descCount,
            "bytes": seen.totalBytes,
        }

    def verify(self, layout: str, source: list[int], destination: list[int]) -> None:
        """Read into cleared memory; end the program unless exactly these blocks arrived."""
        self.memory[:] = 0
        self.read(layout, source, destination)
        came_from = dict(zip(destination, source, strict=True))
        for first, page, stride in regions(layout, self.pool):
            for block in range(self.pool):
                at = (first + block * stride) // 8
                expected: Any = np.uint64(0)
                if block in came_from:
                    expected = words((first + came_from[block] * stride) // 8, page // 8)
                if not (self.memory[at : at + page // 8] == expected).all():
                    raise SystemExit(f"layout {layout}: block {block} holds other bytes than its source")


def measure(decode: Decode, blocks: int, run: int, repeat: int) -> list[dict[str, Any]]:
    """One entry a layout, for reads of `blocks` in runs of `run`."""
    cases = {name: block_ids(blocks, run) for name in ("LBNHC", "BLHNC strided", "BLHNC rows")}
    cases["BLHNC rows+"] = block_ids(blocks, max(run, min(GOAL, blocks)))
    reads: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for name, ids in cases.items():
        decode.verify(name, *ids)
    names = list(cases)
    for turn in range(repeat):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            reads[name].append(decode.read(name, *cases[name]))
    found = []
    for name, ids in cases.items():
        runs, count = len(run_lengths(*ids)), len(regions(name, decode.pool))
        planned = descriptor_count(blocks, runs, count, dense=name != "BLHNC strided")
        (descriptors,), (nbytes,) = ({read[key] for read in reads[name]} for key in ("descriptors", "bytes"))
        if descriptors != planned:
            raise SystemExit(f"{name}: NIXL posted {descriptors} descriptors, planned were {planned}")
        entry: dict[str, Any] = {"run": run, "layout": name, "regions": count, "runs": runs}
        entry |= {"descriptors": descriptors, "bytes": nbytes, "verified": True}
        for key in ("post_ms", "total_ms"):
            values = [read[key] for read in reads[name]]
            ratios = [value / base[key] for value, base in zip(values, reads["LBNHC"], strict=True)]
            entry[key] = _spread(values)
            entry[key.replace("_ms", "_ratio")] = _spread(ratios)
        found.append(entry)
    return found


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 4), "min": round(min(values), 4), "max": round(max(values), 4)}


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--blocks", type=_positive, default=128, help="blocks of a read, 64 tokens each (default 128)")
    parser.add_argument(
        "--runs", type=_positive, nargs="+", default=[1, 10, 64], help="run lengths beside 'all' (default 1 10 64)"
    )
    parser.add_argument("--repeat", type=_positive, default=9, help="timed reads of each case (default 9)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    needed = 2 * 2 * arguments.blocks * ROW.nbytes
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > free:
        parser.error(
            f"--blocks {arguments.blocks} takes {needed / 1e9:.1f} GB in two processes, and {free / 1e9:.1f} GB are "
            f"free; at most {int(free // (4 * ROW.nbytes))} fit"
        )
    return arguments


def main() -> None:
    """Print one line for each run length and layout."""
    arguments = _arguments()
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")  # It logs to standard output.
    os.environ.setdefault("UCX_LOG_FILE", "stderr")
    os.environ.setdefault("UCX_TLS", "tcp")
    if os.environ["UCX_TLS"] == "tcp":
        os.environ.setdefault("UCX_NET_DEVICES", "lo")
    pool = 2 * arguments.blocks  # runs of one block are apart by one
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    owner = context.Process(target=prefill, args=(theirs, pool * ROW.nbytes), daemon=True)
    owner.start()
    decode = Decode(pool, connection.recv())
    for layout in ("LBNHC", "BLHNC strided", "BLHNC rows", "BLHNC rows+"):
        decode.prepare(layout)
    runs = sorted({min(run, arguments.blocks) for run in [*arguments.runs, arguments.blocks]})
    cases = [case for run in runs for case in measure(decode, arguments.blocks, run, arguments.repeat)]
    connection.send("end")
    owner.join()
    facts = {
        "nixl": metadata.version("nixl"),
        "transport": os.environ["UCX_TLS"],
        "blocks": arguments.blocks,
        "row_bytes": ROW.nbytes,
        "repeat": arguments.repeat,
    }
    if arguments.json:
        print(json.dumps({**facts, "cases": cases}))
    else:
        print("  ".join(f"{key} {value}" for key, value in facts.items()))
        print(f"{'run':>5}  {'layout':14} {'descriptors':>11}  {'posting':>24}  {'whole':>24}   (median, min to max)")
        for case in cases:
            columns = [f"{case['run']:5}  {case['layout']:14} {case['descriptors']:11}"]
            for name in ("post", "total"):
                ms, ratio = case[f"{name}_ms"]["median"], case[f"{name}_ratio"]
                columns.append(f"{ms:7.1f} ms {ratio['median']:5.2f} ({ratio['min']:.2f}-{ratio['max']:.2f})".rjust(24))
            print("  ".join(columns))
    sys.stdout.flush()
    os._exit(0)  # UCX crashes in an interpreter's exit.


if __name__ == "__main__":
    main()
