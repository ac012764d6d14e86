"""What is exported of transfers and rows, as data: names, meanings, buckets. Standard library only.

Bucket edges are where a decision changes: 1 and 2 tell "contiguous" from "not"; 10 blocks a run is the published
fragmentation of a GLM-5.3 decode pool and 64 the goal of contiguous allocation; 320 runs are 200,000 tokens at 10
blocks a run, 3,125 blocks are these tokens; 101 descriptors are one run in layer-outermost regions, 1,940 and 19,559
the published counts with and without rows; 78 and 146 ms the published transfer times; 15 % and 57 % the published
shares of posting over InfiniBand and over CUDA IPC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["FIGURES", "Figure"]


@dataclass(frozen=True)
class Figure:
    """One exported metric.

    name: as in Prometheus, without the suffixes that its client adds (`_total` of counters, `_bucket`, `_sum` and
        `_count` of histograms). source: which records it is read from: "transfers" (one a finished transfer),
        "rows" (one a start, and labelled with the layout) or "refused" (one a refused peer). value: reads a record.
    """

    name: str
    kind: Literal["histogram", "counter", "gauge"]
    about: str
    source: Literal["transfers", "rows", "refused"]
    value: Callable[[Mapping[str, Any]], float]
    buckets: tuple[float, ...] = ()


def _post_share(transfer: Mapping[str, Any]) -> float:
    # NIXL counts whole microseconds: a transfer done within the first one was all posting.
    return transfer["post_us"] / transfer["transfer_us"] if transfer["transfer_us"] else 1.0


def _unmerged(transfer: Mapping[str, Any]) -> float:
    return float(transfer["descriptors"] > transfer["regions"] * transfer["runs"])


_BLOCKS = (1, 2, 5, 10, 20, 50, 100, 200, 320, 500, 1000, 2000, 3125, 16_384)

FIGURES = (
    Figure(
        "vllm:blhnc_blocks",
        "histogram",
        "Cache blocks of a KV transfer.",
        "transfers",
        lambda t: t["blocks"],
        _BLOCKS,
    ),
    Figure(
        "vllm:blhnc_runs",
        "histogram",
        "Runs of blocks whose ids are consecutive on both sides, in a KV transfer.",
        "transfers",
        lambda t: t["runs"],
        _BLOCKS,
    ),
    Figure(
        "vllm:blhnc_blocks_per_run",
        "histogram",
        "Mean length of a KV transfer's runs in blocks.",
        "transfers",
        lambda t: t["blocks"] / max(t["runs"], 1),
        (1, 2, 4, 8, 10, 16, 32, 64, 128, 256, 512, 1024, 4096),
    ),
    Figure(
        "vllm:blhnc_descriptors",
        "histogram",
        "Descriptors that NIXL posted for a KV transfer: regions times runs where it merges neighbours.",
        "transfers",
        lambda t: t["descriptors"],
        (1, 2, 5, 10, 20, 50, 101, 200, 320, 500, 1000, 1940, 5000, 19_559, 50_000, 120_000),
    ),
    Figure(
        "vllm:blhnc_bytes",
        "histogram",
        "Bytes of a KV transfer, padding of rows included.",
        "transfers",
        lambda t: t["nbytes"],
        tuple(2.0**power for power in range(21, 37)),  # less than a GLM-5.3 row; more than a million tokens
    ),
    Figure(
        "vllm:blhnc_post_seconds",
        "histogram",
        "Time in which NIXL posted a KV transfer's descriptors.",
        "transfers",
        lambda t: t["post_us"] / 1e6,
        tuple(step * 10.0**power for power in range(-5, 0) for step in (1, 2, 5)),
    ),
    Figure(
        "vllm:blhnc_wire_seconds",
        "histogram",
        "Time from a KV transfer's posting until vLLM saw it done.",
        "transfers",
        lambda t: (t["transfer_us"] - t["post_us"]) / 1e6,
        (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.078, 0.1, 0.146, 0.2, 0.5, 1, 2, 5, 10),
    ),
    Figure(
        "vllm:blhnc_post_share",
        "histogram",
        "Share of posting in a KV transfer's whole time, 0 to 1.",
        "transfers",
        _post_share,
        (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.57, 0.7, 0.8, 0.9, 1),
    ),
    Figure(
        "vllm:blhnc_unmerged_transfers",
        "counter",
        "KV transfers that took more descriptors than regions times runs: NIXL did not merge neighbours.",
        "transfers",
        _unmerged,
    ),
    Figure(
        "vllm:blhnc_padding_bytes",
        "counter",
        "Bytes moved that carry no KV, the padding of rows.",
        "transfers",
        lambda t: t["padding"],
    ),
    Figure(
        "vllm:blhnc_refused_peers",
        "counter",
        "Handshakes refused because prefill and decode differ.",
        "refused",
        lambda peer: 1,
    ),
    Figure(
        "vllm:blhnc_regions",
        "gauge",
        "NIXL regions that a worker registered: 1 with whole rows.",
        "rows",
        lambda row: row["regions"],
    ),
    Figure(
        "vllm:blhnc_row_bytes",
        "gauge",
        "Bytes that NIXL moves for each cache block of a worker.",
        "rows",
        lambda row: row["nbytes"],
    ),
    Figure(
        "vllm:blhnc_row_padding_bytes",
        "gauge",
        "Bytes of these that carry no KV.",
        "rows",
        lambda row: row["padding"],
    ),
)
