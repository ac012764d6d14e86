"""Counters for Prometheus, by whichever hook runs in a process: what became of calls, tags and tools, and how long.

prometheus_client, which vLLM and Dynamo bring along, is imported with the first count (or by `show`), because it
decides at its import whether values go to the files of ``PROMETHEUS_MULTIPROC_DIR``. Without it nothing is counted.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "CALL_OUTCOMES",
    "FIGURES",
    "LEVELS",
    "TAG_RESULTS",
    "Figure",
    "call",
    "compiled",
    "level",
    "show",
    "streamed",
    "tag",
]

_log = logging.getLogger(__name__)

#: Outcomes of calls: the parser's, and "relaxed" for valid calls of tools whose schema no grammar enforces in full.
CALL_OUTCOMES = ("valid", "relaxed", "recovered", "undeclared", "truncated", "invalid")

#: What became of a structural tag.
TAG_RESULTS: dict[str, str] = {
    "built": "made from the request's tools",
    "rewritten": "replaced by one whose language the parser reads back",
    "would_rewrite": "mode report: would have been replaced",
    "own": "made by this plugin in another process; unchanged",
    "unrecognised": "no tag of tool calls that this plugin knows; unchanged",
    "failed": "neither a grammar for it nor a looser one compiles; unchanged",
}

LEVELS = ("full", "types", "names")


@dataclass(frozen=True)
class Figure:
    """One metric: its name and help as ``/metrics`` has them, its label and that label's values."""

    name: str
    kind: Literal["counter", "histogram"]
    about: str
    label: str = ""
    values: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_PREFIX = "dynamo_structural_tags_"
_CALLS, _TAGS, _TOOLS, _COMPILE, _BYTES = (
    f"{_PREFIX}{name}" for name in ("calls", "tags", "tools", "compile_seconds", "streamed_bytes")
)

FIGURES = (
    Figure(_CALLS, "counter", "Tool calls by outcome.", "outcome", CALL_OUTCOMES),
    Figure(_TAGS, "counter", "Structural tags by what became of them.", "result", tuple(TAG_RESULTS)),
    Figure(_TOOLS, "counter", "Tools of tags by how much of their schema the grammar enforces.", "level", LEVELS),
    Figure(
        _COMPILE,
        "histogram",
        "Time from a request's tools to a tag that xgrammar accepts, seconds; cached tags are not in it.",
        buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
    ),
    Figure(_BYTES, "counter", "Bytes of arguments sent to clients while the model wrote them, UTF-8."),
)

_lock = threading.Lock()
_made: dict[str, Any] | None = None


def call(outcome: str, *, relaxed: bool = False) -> None:
    """Count a call. outcome: a key of `events.OUTCOMES`; relaxed: its tool's schema is not enforced in full."""
    _count(_CALLS, "relaxed" if relaxed and outcome == "valid" else outcome)


def tag(result: str) -> None:
    """Count a structural tag; result: a key of `TAG_RESULTS`."""
    _count(_TAGS, result)


def level(name: str) -> None:
    """Count a tool of a tag; name: one of `LEVELS`."""
    _count(_TOOLS, name)


def compiled(seconds: float) -> None:
    """Note how long it took to get from tools to a tag that xgrammar accepts."""
    if (metric := _metrics().get(_COMPILE)) is not None:
        metric.observe(seconds)


def streamed(fragment: str) -> None:
    """Count a fragment of arguments that goes to a client."""
    if (metric := _metrics().get(_BYTES)) is not None:
        metric.inc(len(fragment) if fragment.isascii() else len(fragment.encode("utf-8", "replace")))


def show(registry: Any = None) -> None:
    """Let all metrics appear, as zeros at first; with a registry, in that one too (harmless when repeated)."""
    for metric in _metrics().values():
        if registry is not None:
            try:
                registry.register(metric)
            except ValueError:
                return  # it shows them already


def _count(name: str, value: str) -> None:
    if (metric := _metrics().get(name)) is not None:
        metric.labels(value).inc()


def _metrics() -> dict[str, Any]:
    global _made
    if _made is None:
        with _lock:
            if _made is None:
                _made = _make()
    return _made


def _make() -> dict[str, Any]:
    try:
        from prometheus_client import Counter, Histogram
    except ImportError as error:
        _log.warning("prometheus_client=%s: calls and tags are not counted; pip install prometheus-client", error)
        return {}
    made: dict[str, Any] = {}
    for figure in FIGURES:
        labels = (figure.label,) if figure.label else ()
        if figure.kind == "histogram":
            made[figure.name] = Histogram(figure.name, figure.about, labels, buckets=figure.buckets)
        else:
            made[figure.name] = Counter(figure.name, figure.about, labels)
        for value in figure.values:  # so that they show 0 before the first one
            made[figure.name].labels(value)
    return made
