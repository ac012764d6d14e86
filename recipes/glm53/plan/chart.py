"""A traffic plan as one SVG file: groups by agents, and the first token's time by prefill's chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

__all__ = ["Line", "chart"]

#: (label, colour, points); x ascending.
Line = tuple[str, str, Sequence[tuple[float, float]]]

_WIDTH, _HEIGHT, _LEFT, _BASE = 430, 270, 62, 218


def chart(panels: Sequence[tuple[str, str, Sequence[Line]]]) -> str:
    """SVG text. panels: title, name of the x axis, lines; side by side, each with its legend."""
    drawn = [
        f'<g transform="translate({i * _WIDTH} 0)">{"".join(_panel(*panel))}</g>' for i, panel in enumerate(panels)
    ]
    size = f'width="{_WIDTH * len(panels)}" height="{_HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(drawn)}</svg>\n'
    )


def _panel(title: str, axis: str, lines: Sequence[Line]) -> list[str]:
    points = [point for _, _, line in lines for point in line]
    right, top = max(x for x, _ in points), max(y for _, y in points)
    across, up = _scale(right, _LEFT, _WIDTH - 14), _scale(top, _BASE, 36)
    drawn = [
        _text(_WIDTH / 2, 20, title, "middle"),
        _text(_WIDTH / 2, _BASE + 32, axis, "middle"),
        f'<path d="M{_LEFT} 36V{_BASE}H{_WIDTH - 14}" fill="none" stroke="black"/>',
    ]
    for part in range(5):
        x, y = right * part / 4, top * part / 4
        drawn.append(_text(_LEFT - 6, up(y) + 4, f"{y:,.4g}", "end"))
        drawn.append(_text(across(x), _BASE + 16, f"{x:,.0f}", "middle"))
        drawn.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 14}" y1="{up(y):.1f}" y2="{up(y):.1f}" stroke="#e5e5e5"/>')
    for i, (label, colour, line) in enumerate(lines):
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        drawn.append(f'<rect x="{_LEFT + 12 + 120 * i}" y="{_HEIGHT - 14}" width="10" height="10" fill="{colour}"/>')
        drawn.append(_text(_LEFT + 26 + 120 * i, _HEIGHT - 5, label, "start"))
    return drawn


def _scale(most: float, low: float, high: float) -> Callable[[float], float]:
    return lambda value: low + value / (most or 1.0) * (high - low)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
