"""This plugin's counters over the frontend's HTTP, as JSON: Dynamo's ``/metrics`` takes none from Python."""

from __future__ import annotations

from typing import Any

from dynamo_structural_tags import metrics

__all__ = ["PATH", "counters", "routes"]

PATH = "/structural_tags"


def counters() -> dict[str, Any]:
    """Samples by name: a number, or numbers by label. Without prometheus_client there are none."""
    from prometheus_client import REGISTRY

    metrics.show()
    known = {figure.name: figure.label for figure in metrics.FIGURES}
    found: dict[str, Any] = {}
    for family in REGISTRY.collect():
        if family.name not in known:
            continue
        for sample in family.samples:
            if sample.name.endswith(("_created", "_bucket")):
                continue
            if known[family.name]:
                found.setdefault(sample.name, {})[sample.labels[known[family.name]]] = sample.value
            else:
                found[sample.name] = sample.value
    return found


def routes() -> list[Any]:
    """For ``--frontend-route-extension``: Dynamo allows static GET routes that answer with JSON."""
    from dynamo.llm import FrontendRoute

    return [FrontendRoute("GET", PATH, lambda context: counters())]
