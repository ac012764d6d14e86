"""The figures as one SVG file: errors by layer, and divergences as bars."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from cache_accuracy.synthetic import KINDS

__all__ = ["chart"]

WIDTH, HEIGHT, MARGIN = 380, 260, 52
COLOURS = {
    "fp8": "#999999",
    "fp8_ds_mla": "#555555",
    "rtn": "#d62728",
    "four_over_six": "#ff9f0e",
    "search": "#bcbd22",
    "fold + rtn": "#1f77b4",
    "fold + search": "#2ca02c",
}
_TITLES = {"rows": "error of rows, %", "attention": "error of attention, %"}


def chart(report: Mapping[str, Any]) -> str:
    """SVG text of what there is in the command's JSON report."""
    panels: list[list[str]] = []
    names: set[str] = set()
    if synthetic := report.get("synthetic"):
        names |= {*next(iter(synthetic["rows"][KINDS[0]].values()))}
        panels += [_lines(title, synthetic[part][kind], kind) for part, title in _TITLES.items() for kind in KINDS]
    if model := report.get("model"):
        names |= {*model["divergences"]}
        panels.append(_bars(model["divergences"]))
    columns = min(2, len(panels))
    rows = -(-len(panels) // max(columns, 1))
    placed = [
        f'<g transform="translate({i % columns * WIDTH} {i // columns * HEIGHT})">{"".join(panel)}</g>'
        for i, panel in enumerate(panels)
    ]
    size = f'width="{2 * WIDTH}" height="{rows * HEIGHT + 28}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(placed)}{_legend(rows * HEIGHT + 14, names)}</svg>\n'
    )


def _lines(title: str, layers: Mapping[str, Mapping[str, float]], kind: str) -> list[str]:
    """Percent, on a logarithmic axis, by layer."""
    percents = {name: [100 * errors[name] ** 0.5 for errors in layers.values()] for name in next(iter(layers.values()))}
    values = [value for line in percents.values() for value in line]
    low, high = (rounded(math.log10(edge)) for rounded, edge in ((math.floor, min(values)), (math.ceil, max(values))))
    places = [int(layer) for layer in layers]
    span = max(places[-1] - places[0], 1)

    def x(place: int) -> float:
        return MARGIN + (place - places[0]) / span * (WIDTH - MARGIN - 12)

    def y(value: float) -> float:
        return HEIGHT - MARGIN - (math.log10(value) - low) / max(high - low, 1) * (HEIGHT - MARGIN - 34)

    drawn = _frame(f"{title}, {kind}", "layer")
    for power in range(low, high + 1):
        at = y(10.0**power)
        drawn.append(f'<line x1="{MARGIN}" x2="{WIDTH - 12}" y1="{at:.1f}" y2="{at:.1f}" stroke="#dddddd"/>')
        drawn.append(_text(MARGIN - 6, at + 4, f"{10.0**power:g}", "end"))
    for place in (places[0], places[-1]):
        drawn.append(_text(x(place), HEIGHT - MARGIN + 16, str(place), "middle"))
    for name, line in percents.items():
        points = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in zip(places, line, strict=True))
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.6"/>')
    return drawn


def _bars(divergences: Mapping[str, Mapping[str, Any]]) -> list[str]:
    drawn = _frame("KL of next tokens to a bf16 cache, nats", "")
    high = max((one["kl"] for one in divergences.values()), default=1.0) or 1.0
    step = (WIDTH - MARGIN - 12) / max(len(divergences), 1)
    for i, (name, one) in enumerate(divergences.items()):
        tall = max(one["kl"], 0.0) / high * (HEIGHT - MARGIN - 50)
        left, top = MARGIN + (i + 0.15) * step, HEIGHT - MARGIN - tall
        shape = f'x="{left:.1f}" y="{top:.1f}" width="{0.7 * step:.1f}" height="{tall:.1f}"'
        drawn.append(f'<rect {shape} fill="{COLOURS[name]}"/>')
        drawn.append(_text(left + 0.35 * step, top - 4, f"{one['kl']:.3g}", "middle"))
    return drawn


def _frame(title: str, below: str) -> list[str]:
    base = HEIGHT - MARGIN
    return [
        _text(WIDTH / 2, 20, title, "middle"),
        _text(WIDTH / 2, base + 30, below, "middle"),
        f'<path d="M{MARGIN} 34V{base}H{WIDTH - 12}" fill="none" stroke="black"/>',
    ]


def _legend(y: float, names: set[str]) -> str:
    entries, x = [], 12.0
    for name, colour in ((name, colour) for name, colour in COLOURS.items() if name in names):
        entries.append(f'<rect x="{x:.0f}" y="{y - 8:.0f}" width="10" height="10" fill="{colour}"/>')
        entries.append(_text(x + 14, y + 1, name, "start"))
        x += 30 + 6.2 * len(name)
    return "".join(entries)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
