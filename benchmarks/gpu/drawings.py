"""Two kinds of drawings as SVG files: a table in colours, and marks on a row each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from dovetail.toolkit.charts import SIDE, Axis

COLOURS = ("#4e79a7", "#e15759", "#59a14f", "#b07aa1", "#f28e2b", "#76b7b2", "#9c755f")
SHAPES = ("circle", "square", "diamond")
_PIXELS_A_LETTER = 7.2
_ROW = 26
_CELL = 62


def heat_map(title: str, names: Sequence[str], values: Mapping[tuple[str, str], float]) -> str:
    """Return a table of slowdowns: the row's workload beside the column's."""
    left = _width(names) + 20
    top = 60 + _width(names) * 0.75
    wide, high = left + _CELL * len(names) + _width(names) * 0.7, top + 34 * len(names) + 40
    most = max((value for value in values.values()), default=2.0)
    parts = [_text(10, 24, title, weight="bold", size=15)]
    for at, name in enumerate(names):
        x, y = left + _CELL * (at + 0.5), top + 34 * at
        parts.append(_text(x, top - 8, name, turned=-40))
        parts.append(_text(left - 8, y + 22, name, anchor="end"))
        for across, other in enumerate(names):
            value = values.get((name, other))
            parts.append(_cell(left + _CELL * across, y, value, most))
    told = "Iteration time of the row's workload beside the column's / alone; a dash: not measured."
    parts.append(_text(10, high - 12, told, fill="#444"))
    return _svg(max(wide, 640), high, title, parts)


def _cell(x: float, y: float, value: float | None, most: float) -> str:
    if value is None:
        return _box(x, y, "#f2f2f2") + _text(x + _CELL / 2, y + 22, "-", anchor="middle")
    part = max(0.0, math.log(value) / math.log(max(most, 1.05)))
    white, red = (255, 252, 245), (164, 36, 20)
    fill = "#" + "".join(
        f"{round(a + part * (b - a)):02x}" for a, b in zip(white, red, strict=True)
    )
    told = _text(
        x + _CELL / 2,
        y + 22,
        f"{value:.2f}",
        anchor="middle",
        fill="#fff" if part > 0.55 else "#222",
    )
    return _box(x, y, fill) + told


def _box(x: float, y: float, fill: str) -> str:
    size = f'width="{_CELL - 2}" height="32"'
    return f'<rect x="{x:.0f}" y="{y:.0f}" {size} fill="{fill}"/>'


def marks(title: str, rows: Mapping[str, Mapping[str, float]], axis: Axis, unit: str) -> str:
    """Return a row for each name, with a mark for each series at its value on the axis."""
    series = list(dict.fromkeys(name for row in rows.values() for name in row))
    left, plot = _width(list(rows)) + 24, 560
    legend = _legend(series, left + plot)
    top = 48 + legend.height
    high = top + _ROW * len(rows)
    parts = [_text(10, 24, title, weight="bold", size=15), *legend.parts]
    for at, label in axis.ticks:
        x = left + plot * at / 100
        parts.append(f'<path d="M{x:.0f} {top}V{high}" stroke="#ddd"/>')
        parts.append(_text(x, high + 18, label, anchor="middle", fill="#444"))
    for k, (name, row) in enumerate(rows.items()):
        y = top + _ROW * (k + 0.5)
        parts.append(_text(left - 10, y + 5, name, anchor="end"))
        parts.append(f'<path d="M{left:.0f} {y}h{plot}" stroke="#eee"/>')
        for one, value in row.items():
            x = left + plot * float(axis.at(value)) / SIDE
            parts.append(_mark(x, y, series.index(one)))
    parts.append(_text(left + plot / 2, high + 40, unit, anchor="middle", fill="#444"))
    return _svg(left + plot + 40, high + 54, title, parts)


class _Legend:
    def __init__(self, height: float, parts: list[str]) -> None:
        self.height, self.parts = height, parts


def _legend(series: Sequence[str], wide: float) -> _Legend:
    parts, x, y = [], 18.0, 48.0
    for at, name in enumerate(series):
        needed = _width([name]) + 34
        if x + needed > wide and x > 18:
            x, y = 18.0, y + 22
        parts += [_mark(x, y, at), _text(x + 12, y + 5, name)]
        x += needed
    return _Legend(y - 24, parts)


def _mark(x: float, y: float, at: int) -> str:
    fill, shape = COLOURS[at % len(COLOURS)], SHAPES[at % len(SHAPES)]
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{fill}" fill-opacity="0.85"/>'
    turned = f' transform="rotate(45 {x:.1f} {y:.1f})"' if shape == "diamond" else ""
    box = f'x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"'
    return f'<rect {box} fill="{fill}" fill-opacity="0.85"{turned}/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    fill: str = "#222",
    weight: str = "normal",
    size: int = 13,
    turned: int = 0,
) -> str:
    turn = f' transform="rotate({turned} {x:.0f} {y:.0f})"' if turned else ""
    style = f'text-anchor="{anchor}" fill="{fill}" font-weight="{weight}" font-size="{size}"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {style}{turn}>{escape(text)}</text>'


def _width(names: Sequence[str]) -> float:
    return _PIXELS_A_LETTER * max((len(name) for name in names), default=0)


def _svg(wide: float, high: float, title: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}"'
    style = f'width="{wide:.0f}" font-family="sans-serif" role="img"'
    ground = f'<rect width="{wide:.0f}" height="{high:.0f}" fill="#fff"/>'
    body = "\n".join([f"<title>{escape(title)}</title>", ground, *parts])
    return f"{head} {style}>\n{body}\n</svg>\n"
