"""A small line plot as SVG text, for the panel and for the picture that stays in the notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from .curves import Curve

_WIDTH, _HEIGHT = 380, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 10, 8, 22
# Dark enough on white and light enough on black; told apart by people who see few colours.
_COLOURS = ("#2f7ed8", "#d9822b", "#2a9d5c", "#c0508f", "#8a63d2", "#b08900", "#1fa2b8", "#808080")
_TEXT = (
    'fill="var(--jp-ui-font-color2, #777)" font-size="10" font-family="var(--jp-ui-font-family, sans-serif)"'
)
_GRID = 'stroke="var(--jp-border-color2, #ccc)" stroke-width="1"'


def svg(curves: Mapping[str, Curve]) -> str:
    """Draw the curves over their steps; empty when nothing was logged yet.

    A curve of another magnitude (a learning rate beside a loss) gets a scale of its own, and its
    legend says so.
    """
    drawn = {name: curve for name, curve in curves.items() if curve.points}
    if not drawn:
        return ""
    x_range = _range([x for curve in drawn.values() for x, _ in curve.points])
    shared = _same_magnitude(drawn)
    y_range = _range([y for name in shared for _, y in drawn[name].points])
    parts = [_axes(x_range, y_range)]
    for index, (name, curve) in enumerate(drawn.items()):
        own = y_range if name in shared else _range([y for _, y in curve.points])
        parts.append(_line(curve.points, x_range, own, _COLOURS[index % len(_COLOURS)]))
    label = escape("Plot of " + ", ".join(drawn), quote=True)
    return (
        f'<div class="mc-plot"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" '
        f'aria-label="{label}" style="max-width:100%;height:auto">{"".join(parts)}</svg>'
        f"{_legend(drawn, shared)}</div>"
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        gap = abs(low) * 0.1 or 1.0
        return low - gap, high + gap
    return low, high


def _same_magnitude(curves: Mapping[str, Curve]) -> set[str]:
    heights = {name: max(abs(y) for _, y in curve.points) for name, curve in curves.items()}
    first = next(iter(heights.values())) or 1.0
    near = {name for name, height in heights.items() if first / 20 <= height <= first * 20}
    return near or set(heights)


def _axes(x_range: tuple[float, float], y_range: tuple[float, float]) -> str:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" {_GRID}/>')
        parts.append(_label(_LEFT - 5, y + 3, "end", number(_between(y_range, share))))
    for share, anchor in ((0.0, "start"), (1.0, "end")):
        x = _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
        parts.append(_label(x, _HEIGHT - 6, anchor, number(_between(x_range, share))))
    parts.append(_label((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, "middle", "step"))
    return "".join(parts)


def _label(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {_TEXT}>{text}</text>'


def _between(ends: tuple[float, float], share: float) -> float:
    return ends[0] + share * (ends[1] - ends[0])


def _line(
    points: Sequence[tuple[float, float]],
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    colour: str,
) -> str:
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    (x_low, x_high), (y_low, y_high) = x_range, y_range
    places = [
        (_LEFT + (x - x_low) / (x_high - x_low) * wide, _TOP + (1 - (y - y_low) / (y_high - y_low)) * high)
        for x, y in points
    ]
    if len(places) == 1:
        return f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="2.5" fill="{colour}"/>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    style = 'fill="none" stroke-width="1.6" stroke-linejoin="round"'
    return f'<polyline points="{path}" stroke="{colour}" {style}/>'


def _legend(curves: Mapping[str, Curve], shared: set[str]) -> str:
    items = []
    for index, (name, curve) in enumerate(curves.items()):
        dot = f'<span style="color:{_COLOURS[index % len(_COLOURS)]}">●</span>'
        scale = "" if name in shared else " (own scale)"
        text = f"{dot} {escape(name)} <b>{number(curve.last)}</b>{scale}"
        items.append(f'<span style="margin-right:12px;white-space:nowrap">{text}</span>')
    style = f"display:flex;flex-wrap:wrap;font-size:11px;margin-left:{_LEFT}px"
    return f'<div class="mc-legend" style="{style}">{"".join(items)}</div>'


def number(value: float) -> str:
    """Write a number in at most some 8 characters."""
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.4g}"
