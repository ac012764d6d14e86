"""Dashboards: Grafana's shape, and the plugins' metrics in them. Stock's metrics are held against real pages in
test_admission_stock.py (Dynamo), test_edge_stock.py (Envoy), and tests/stack (vLLM)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from dashboard_metrics import metrics, shown

from dynamo_structural_tags.metrics import CALL_OUTCOMES
from dynamo_structural_tags.metrics import FIGURES as TAGS
from glm53.dashboards.grafana import dashboard
from glm53.dashboards.panels import EDGE, SERVING
from glm53.deployment import load
from glm53.render import kubernetes
from mooncake_tier.client.figures import FIGURES as TIER
from vllm_blhnc.figures import FIGURES as ROWS

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def test_every_metric_of_a_plugin_is_in_its_table() -> None:
    names: list[tuple[str, str]] = [(figure.name, figure.kind) for figures in (TAGS, ROWS) for figure in figures]
    names += [(f"vllm:{figure.name}", figure.kind) for figure in TIER]  # through vLLM's own statistics
    known = {name + suffix for name, kind in names for suffix in SUFFIXES[kind]}
    ours = ("dynamo_structural_tags", "vllm:mooncake_tier", "vllm:blhnc")
    asked = {name for name in metrics(SERVING) if name.startswith(ours)}

    assert len(asked) >= 7
    assert asked - known == set()


def test_valid_calls_are_outcomes_that_the_plugin_counts() -> None:
    [share] = [panel for row in SERVING for panel in row.panels if panel.title == "Valid calls"]

    assert 'outcome=~"valid|relaxed"' in share.queries[0].expression
    assert {"valid", "relaxed"} < set(CALL_OUTCOMES)


@pytest.mark.parametrize("rows", [SERVING, EDGE], ids=["serving", "edge"])
def test_a_dashboard_is_what_grafana_reads(rows: tuple[object, ...]) -> None:
    """Panels have ids of their own, do not overlap, and ask the chosen data source; brackets in queries close."""
    content = dashboard("uid", "title", rows)  # type: ignore[arg-type]
    charts = [panel for panel in content["panels"] if panel["type"] != "row"]
    cells = [
        (x, y)
        for panel in content["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len(set(cells)) == len(cells)
    assert len({panel["id"] for panel in content["panels"]}) == len(content["panels"])
    assert {panel["datasource"]["uid"] for panel in charts} == {"$source"}
    for panel in charts:
        assert panel["title"]
        assert panel["description"].endswith(".")
        for target in panel["targets"]:
            assert all(target["expr"].count(a) == target["expr"].count(b) for a, b in ("()", "[]", "{}"))
            assert '{namespace="$namespace"' in target["expr"]


def test_what_was_asked_for_is_shown() -> None:
    """Queue wait, TTFT, ITL at three quantiles, cached tokens by tier, descriptors and bytes, validity of calls."""
    titles = {panel.title: panel for row in SERVING for panel in row.panels}
    for title in ("Wait in the engine's queue", "Time to first token", "Inter-token latency"):
        assert [query.legend for query in titles[title].queries] == ["p50", "p90", "p99"]
    for title in ("Prompt tokens by where they came from", "Hit rates", "Descriptors", "Bytes", "Valid calls"):
        assert titles[title].queries


@pytest.mark.parametrize(
    "path", [path for path in RECIPES if "kubernetes" in load(path).targets], ids=lambda path: path.stem
)
def test_every_kubernetes_recipe_renders_its_dashboard(path: Path) -> None:
    recipe = load(path)
    [config] = yaml.safe_load_all(kubernetes.render(recipe)["dashboard.yaml"])

    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    [text] = config["data"].values()
    assert json.loads(text) == dashboard(recipe.name, f"GLM-5.3 {recipe.name}", SERVING)


def test_series_and_labels_of_a_page_are_read() -> None:
    page = '# TYPE a counter\na_total{x="1",y="{}"} 3\na_total{z="2"} 1 17\nb 2.5\n'

    assert shown(page) == {"a_total": {"x", "y", "z"}, "b": set()}
