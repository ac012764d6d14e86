"""The plugin's counters, as Prometheus sees them: in one process, and in files where several processes share them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="needs the demo extra: make test")
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dynamo_structural_tags import metrics
from dynamo_structural_tags.events import OUTCOMES

_COUNT = """
from dynamo_structural_tags import metrics
metrics.call("valid"); metrics.call("valid", relaxed=True); metrics.call("truncated", relaxed=True)
metrics.tag("rewritten"); metrics.level("types"); metrics.compiled(0.02); metrics.streamed("é"); metrics.streamed("ab")
"""


def _values(text: str) -> dict[str, float]:
    """Samples of the plugin by name and label value."""
    return {
        sample.name + "".join(f"/{value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("dynamo_structural_tags_")
    }


def _run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_counts_appear_under_their_labels() -> None:
    values = _values(
        _run(f"{_COUNT}\nfrom prometheus_client import generate_latest\nprint(generate_latest().decode())")
    )

    assert values["dynamo_structural_tags_calls_total/valid"] == 1
    assert values["dynamo_structural_tags_calls_total/relaxed"] == 1
    assert values["dynamo_structural_tags_calls_total/truncated"] == 1
    assert values["dynamo_structural_tags_calls_total/invalid"] == 0
    assert values["dynamo_structural_tags_tags_total/rewritten"] == 1
    assert values["dynamo_structural_tags_tools_total/types"] == 1
    assert values["dynamo_structural_tags_compile_seconds_count"] == 1
    assert values["dynamo_structural_tags_compile_seconds_bucket/0.01"] == 0
    assert values["dynamo_structural_tags_compile_seconds_bucket/0.025"] == 1
    assert values["dynamo_structural_tags_streamed_bytes_total"] == 4


def test_several_processes_add_up(tmp_path: Path) -> None:
    for _ in range(2):
        _run(_COUNT, PROMETHEUS_MULTIPROC_DIR=str(tmp_path))

    values = _values(
        _run(
            "from prometheus_client import CollectorRegistry, generate_latest, multiprocess\n"
            "registry = CollectorRegistry(); multiprocess.MultiProcessCollector(registry)\n"
            "print(generate_latest(registry).decode())",
            PROMETHEUS_MULTIPROC_DIR=str(tmp_path),
        )
    )
    assert values["dynamo_structural_tags_calls_total/valid"] == 2
    assert values["dynamo_structural_tags_streamed_bytes_total"] == 8


def test_they_show_zeros_in_a_second_registry_before_the_first_call() -> None:
    registry = CollectorRegistry()

    metrics.show(registry)
    metrics.show(registry)

    values = _values(generate_latest(registry).decode())
    assert {f"dynamo_structural_tags_calls_total/{outcome}" for outcome in metrics.CALL_OUTCOMES} <= set(values)
    assert {f"dynamo_structural_tags_tags_total/{result}" for result in metrics.TAG_RESULTS} <= set(values)


def test_importing_the_counters_does_not_load_prometheus() -> None:
    """Who loads it first decides whether it counts in files, and that is for vLLM or Dynamo to choose."""
    out = _run("import sys; from dynamo_structural_tags import metrics; print('prometheus_client' in sys.modules)")

    assert out.strip() == "False"


def test_the_parsers_outcomes_are_among_the_counted_ones() -> None:
    assert set(metrics.CALL_OUTCOMES) == {*OUTCOMES, "relaxed"}


def test_the_page_has_each_metric_with_its_labels() -> None:
    page = (Path(__file__).parents[2] / "docs" / "structural_tags.md").read_text("utf-8")

    for figure in metrics.FIGURES:
        name = figure.name + ("_total" if figure.kind == "counter" else "")
        labels = f"{figure.label}: {', '.join(figure.values)}" if figure.label else ""
        assert f"| `{name}` | {labels} | {figure.about} |" in page
    for result, meaning in metrics.TAG_RESULTS.items():
        assert f"| `{result}` | {meaning} |" in page
