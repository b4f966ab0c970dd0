"""A small line plot as SVG, for the panel and for the picture saved in the notebook."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle

from minicluster.display.curves import Curve

_WIDTH, _HEIGHT = 380, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 10, 8, 22
# Readable on white and on black; distinguishable for colour-blind people.
_COLOURS = ("#2f7ed8", "#d9822b", "#2a9d5c", "#c0508f", "#8a63d2", "#b08900", "#1fa2b8", "#808080")
_TEXT = (
    'fill="var(--jp-ui-font-color2, #777)" font-size="10" font-family="var(--jp-ui-font-family, sans-serif)"'
)
_TEXT_STYLE = "font-size:11px;color:var(--jp-ui-font-color2,#777)"
_FACTOR = 20
_NAMED = 8
_GRID = 'stroke="var(--jp-border-color2, #ccc)" stroke-width="1"'


def plot_html(
    curves: Mapping[str, Curve],
    left_out: Sequence[str] = (),
    other_ranks: int = 0,
    as_image: bool = False,
) -> str:
    """Draw the curves over their steps; return "" if nothing was logged yet.

    Curves of similar magnitude share a plot, so a loss and a learning rate get separate plots.
    left_out: logged names without a curve. other_ranks: number of ranks that logged the same names.
    as_image: embed each SVG in an image, since JupyterLab removes SVG elements from untrusted outputs, such
    as those of a reopened notebook.
    """
    if not curves:
        return ""
    colours = dict(zip(curves, cycle(_COLOURS)))
    plots = [_plot({name: curves[name] for name in group}, colours, as_image) for group in _groups(curves)]
    return f'<div class="mc-plot">{"".join(plots)}{_counted(left_out, other_ranks)}</div>'


def _plot(curves: Mapping[str, Curve], colours: Mapping[str, str], as_image: bool) -> str:
    """Draw curves on one scale; a curve without finite values appears only in the legend."""
    drawn = {name: curve for name, curve in curves.items() if curve.points}
    if not drawn:
        return _legend(curves, colours)
    x_range = _range([x for curve in drawn.values() for x, _ in curve.points])
    y_range = _range([y for curve in drawn.values() for _, y in curve.points])
    lines = [_line(curve.points, x_range, y_range, colours[name]) for name, curve in drawn.items()]
    label = escape("Plot of " + ", ".join(drawn), quote=True)
    drawing = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" aria-label="{label}" style="max-width:100%;height:auto">'
        f"{_axes(x_range, y_range)}{''.join(lines)}</svg>"
    )
    return (_image(drawing, label) if as_image else drawing) + _legend(curves, colours)


def _image(drawing: str, label: str) -> str:
    source = f"data:image/svg+xml;base64,{b64encode(drawing.encode()).decode()}"
    return f'<img src="{source}" alt="{label}" width="{_WIDTH}" style="max-width:100%;height:auto">'


def _groups(curves: Mapping[str, Curve]) -> list[list[str]]:
    """Group curves whose maxima differ by at most a factor of 20."""
    heights = {name: max((abs(y) for _, y in curve.points), default=0.0) for name, curve in curves.items()}
    groups: list[list[str]] = []
    for name in sorted(heights, key=lambda name: not heights[name]):  # Zero fits any scale.
        height = heights[name]
        near = (one for one in groups if heights[one[0]] / _FACTOR <= height <= heights[one[0]] * _FACTOR)
        group = next(near if height else iter(groups), None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return groups


def _counted(names: Sequence[str], other_ranks: int) -> str:
    lines = []
    if names:
        lines.append(f"+{len(names)} more: {', '.join(names[:_NAMED])}{', ...' * (len(names) > _NAMED)}")
    if other_ranks:
        others = f"{other_ranks} other rank{'s' * (other_ranks > 1)}"
        lines.append(f"of one rank; {others} logged the same names")
    style = f"{_TEXT_STYLE};margin-left:{_LEFT}px"
    return "".join(f'<div class="mc-more" style="{style}">{escape(line)}</div>' for line in lines)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        gap = abs(low) * 0.1 or 1.0
        return low - gap, high + gap
    return low, high


def _axes(x_range: tuple[float, float], y_range: tuple[float, float]) -> str:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" {_GRID}/>')
        parts.append(_label(_LEFT - 5, y + 3, "end", number(y_range[0] + share * (y_range[1] - y_range[0]))))
    for share, anchor in ((0.0, "start"), (1.0, "end")):
        x = _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
        parts.append(_label(x, _HEIGHT - 6, anchor, number(x_range[share > 0])))
    parts.append(_label((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, "middle", "step"))
    return "".join(parts)


def _label(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {_TEXT}>{text}</text>'


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


def _legend(curves: Mapping[str, Curve], colours: Mapping[str, str]) -> str:
    items = []
    for name, curve in curves.items():
        dot = f'<span style="color:{colours[name]}">●</span>'
        text = f"{dot} {escape(name)} <b>{number(curve.last)}</b>"
        items.append(f'<span style="margin-right:12px;white-space:nowrap">{text}</span>')
    style = f"display:flex;flex-wrap:wrap;font-size:11px;margin-left:{_LEFT}px"
    return f'<div class="mc-legend" style="{style}">{"".join(items)}</div>'


def number(value: float) -> str:
    """Format a number in about 8 characters or fewer."""
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.4g}"
