"""Stock's NIXL statistics with ours beside them, from the worker through vLLM's queues to its ``/metrics``."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats, NixlPromMetrics

from vllm_blhnc.figures import FIGURES
from vllm_blhnc.transfers import Transfer

__all__ = ["BlockRowMetrics", "BlockRowStats"]

#: Source of a `Figure` -> key in the statistics. Each holds a list, which is what stock's `aggregate` joins (over
#: tensor-parallel ranks, and over the steps of a log interval), of plain values, which is what its queues carry.
_KEYS = {"transfers": "blhnc_transfers", "rows": "blhnc_rows", "refused": "blhnc_refused"}


class BlockRowStats(NixlKVConnectorStats):
    """What one worker has seen since it was last asked. In MultiConnector, stock's class can hold the same data."""

    def reset(self) -> None:
        """Forget everything, stock's figures too."""
        # Assigned at once: a handshake's thread may be recording a refusal.
        self.data = NixlKVConnectorStats().data | {key: [] for key in _KEYS.values()}

    def is_empty(self) -> bool:
        """Whether there is nothing to send; rows and refusals alone are something."""
        return super().is_empty() and not any(self.data[key] for key in _KEYS.values())

    def record_rows(self, layout: str, regions: int, nbytes: int, padding: int) -> None:
        """What was registered: NIXL regions, bytes moved for each block, and bytes of these without KV."""
        row = {"layout": layout, "regions": regions, "nbytes": nbytes, "padding": padding}
        self.data[_KEYS["rows"]].append(row)

    def record_blocks(self, transfer: Transfer, row_padding: int) -> None:
        """A finished transfer; row_padding: bytes without KV in each of its blocks."""
        record = asdict(transfer) | {"padding": transfer.blocks * row_padding}
        del record["request"]
        self.data[_KEYS["transfers"]].append(record)

    def record_refused_peer(self) -> None:
        """A handshake that ended because prefill and decode differ."""
        self.data[_KEYS["refused"]].append(1)

    def reduce(self) -> dict[str, int | float]:
        """Stock's summary for vLLM's periodic log line, and ours."""
        transfers = self.data[_KEYS["transfers"]]
        blocks, runs, posting, whole = (
            math.fsum(transfer[name] for transfer in transfers) for name in ("blocks", "runs", "post_us", "transfer_us")
        )
        summary: dict[str, int | float] = super().reduce()
        for row in self.data[_KEYS["rows"]]:
            summary |= {"NIXL regions": row["regions"], "Row bytes": row["nbytes"]}
        if runs:
            summary |= {
                "Avg runs": round(runs / len(transfers), 1),
                "Avg blocks per run": round(blocks / runs, 1),
                "Posting share": round(posting / whole, 3) if whole else 1.0,
            }
        return summary


class BlockRowMetrics(NixlPromMetrics):
    """Stock's Prometheus metrics and those of `FIGURES`, in the process that answers ``/metrics``."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._figures = []
        for figure in FIGURES:
            arguments: dict[str, Any] = {"name": figure.name, "documentation": figure.about, "labelnames": labelnames}
            if figure.kind == "histogram":
                metric = metric_types[Histogram](**arguments, buckets=figure.buckets)
            elif figure.kind == "counter":
                metric = metric_types[Counter](**arguments)
            else:
                arguments |= {"labelnames": [*labelnames, "layout"], "multiprocess_mode": "mostrecent"}
                metric = metric_types[Gauge](**arguments)
            if figure.kind != "gauge":  # So that they show 0 before the first transfer.
                for values in per_engine_labelvalues.values():
                    metric.labels(*values)
            self._figures.append((figure, metric))

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what one engine sent: the `data` of a `BlockRowStats`."""
        super().observe(transfer_stats_data, engine_idx)
        labels = self.per_engine_labelvalues[engine_idx]
        for figure, metric in self._figures:
            for record in transfer_stats_data[_KEYS[figure.source]]:
                value = figure.value(record)
                if figure.kind == "histogram":
                    metric.labels(*labels).observe(value)
                elif figure.kind == "counter":
                    metric.labels(*labels).inc(value)
                else:
                    metric.labels(*labels, record["layout"]).set(value)
