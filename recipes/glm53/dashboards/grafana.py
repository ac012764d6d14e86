"""Rows of panels as a Grafana dashboard, and as the ConfigMap from which Grafana's sidecar takes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from glm53.dashboards.panels import Panel, Row

__all__ = ["config_map", "dashboard"]

_WIDTH, _HEIGHT = 6, 8  # of Grafana's 24 columns: four panels side by side


def dashboard(uid: str, title: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The dashboard's JSON, which asks for a data source and a namespace. uid: stays, so that links to it do."""
    panels: list[dict[str, Any]] = []
    line = 0
    for row in rows:
        panels.append(
            {
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": line},
                "panels": [],
            }
        )
        for place, panel in enumerate(row.panels):
            where = {"h": _HEIGHT, "w": _WIDTH, "x": place % 4 * _WIDTH, "y": line + 1 + place // 4 * _HEIGHT}
            panels.append(_panel(panel) | {"gridPos": where})
        line += 1 + -(-len(row.panels) // 4) * _HEIGHT
    for number, one in enumerate(panels, 1):
        one["id"] = number
    return {
        "uid": uid,
        "title": title,
        "tags": ["glm53"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "templating": {"list": [_SOURCE, _NAMESPACE]},
        "panels": panels,
    }


_SOURCE = {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}
_NAMESPACE = {
    "name": "namespace",
    "label": "Namespace",
    "type": "query",
    "datasource": {"type": "prometheus", "uid": "$source"},
    "query": {"query": "label_values(up, namespace)", "refId": "namespace"},
    "refresh": 2,
}


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": {"type": "prometheus", "uid": "$source"},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query.expression, "legendFormat": query.legend}
            for number, query in enumerate(panel.queries)
        ],
    }


def config_map(name: str, labels: Mapping[str, str], content: Mapping[str, Any]) -> dict[str, Any]:
    """The dashboard in the cluster; the label is the one that the sidecar of Grafana's Helm chart looks for."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {**labels, "grafana_dashboard": "1"}},
        "data": {f"{name}.json": json.dumps(content, indent=1, sort_keys=True) + "\n"},
    }
