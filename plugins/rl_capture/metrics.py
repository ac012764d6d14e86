"""Counters for Prometheus: what became of requests, and of files.

prometheus_client, which vLLM and Dynamo bring along, is imported with the first count, because it decides at its import
whether values go to the files of ``PROMETHEUS_MULTIPROC_DIR``.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

__all__ = ["FIGURES", "RESULTS", "count", "show"]

_log = logging.getLogger(__name__)

#: What became of an answer, or of a request that was not recorded.
RESULTS: dict[str, str] = {
    "written": "a record in the folder",
    "sampled_out": "of a session that is not in the sample",
    "skipped": "one token for another worker, or a prompt that ids do not tell (embeddings, media, streamed)",
    "queue": "not recorded: too much waited to be written",
    "full": "not recorded: the folder has its size",
    "large": "not recorded: larger than the folder may be",
    "failed": "not recorded: an error, which the log has",
}

#: Metric -> its help and its label's values, none without a label.
FIGURES: dict[str, tuple[str, tuple[str, ...]]] = {
    "rl_capture_records": ("Answers by what became of their record.", tuple(RESULTS)),
    "rl_capture_bytes": ("Bytes of records written.", ()),
    "rl_capture_files_dropped": ("Closed files deleted to make room.", ()),
    "rl_capture_files_recovered": ("Files closed for writers that are gone.", ()),
    "rl_capture_masked_tokens": ("Tokens that redaction removed.", ()),
}

_made: dict[str, Any] = {}


def count(name: str, amount: float = 1, result: str | None = None) -> None:
    """Add to a figure. name: without ``rl_capture_``. result: the label's value."""
    metric = _metrics().get(f"rl_capture_{name}")
    if metric is not None and amount:
        (metric if result is None else metric.labels(result)).inc(amount)


def show() -> None:
    """Let all figures appear, as zeros at first; Dynamo's worker shows one registry of its own."""
    publisher = sys.modules.get("dynamo.vllm.publisher")
    registry = getattr(publisher, "DYNAMO_COMPONENT_REGISTRY", None)
    for metric in _metrics().values():
        if registry is not None:
            try:
                registry.register(metric)
            except ValueError:
                return  # it shows them already


def _metrics() -> dict[str, Any]:
    if not _made:
        try:
            from prometheus_client import Counter
        except ImportError as error:
            _log.warning("prometheus_client=%s: records are not counted; pip install prometheus-client", error)
            return {}
        for name, (about, values) in FIGURES.items():
            _made[name] = Counter(name, about, ("result",) if values else ())
            for value in values:  # so that they show 0 before the first one
                _made[name].labels(value)
    return _made
