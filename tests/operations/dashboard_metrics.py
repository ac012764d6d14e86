"""Names of metrics: those that dashboards ask for, and those that a ``/metrics`` page shows."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from glm53.dashboards.panels import Row

__all__ = ["metrics", "shown"]


def metrics(rows: Sequence[Row]) -> set[str]:
    """Every metric in the queries of a dashboard: what stands before a selector."""
    text = "\n".join(query.expression for row in rows for panel in row.panels for query in panel.queries)
    return set(re.findall(r"([A-Za-z_:][A-Za-z0-9_:]*)\{", text))


def shown(page: str) -> dict[str, set[str]]:
    """Name of each series of a page -> the labels it has."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in page.splitlines():
        if match := re.match(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? ", line):
            found[match[1]] |= set(re.findall(r'([A-Za-z_][A-Za-z0-9_]*)="', match[2] or ""))
    return found
