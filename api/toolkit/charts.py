"""Charts: functions from data to matplotlib figures, shown in pages and written as files.

A chart is as wide as a column of a paper (3.5 inches), which a phone can show as well. It carries
no title: a page or a paper has a caption for that. matplotlib is imported when a chart is drawn.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from dovetail.instances.errors import InputError, source_name
from dovetail.instances.plugins import require_package
from dovetail.instances.reading.contents import write_bytes, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from pandas import DataFrame

FloatArray = NDArray[np.float64]

WIDTH_IN: Final = 3.5

INK, MUTED, GRID = "#18212c", "#515d6b", "#d8dee6"
VALUE, OTHER, LIMIT = "#16857e", "#8794a3", "#b3261e"
BUSY, SHARED, QUEUE = "#8fcfc9", "#0b6b66", "#c9873f"
SERIES: Final = ("#0b6b65", "#b3541e", "#5b4bb3", "#a3195b", "#4d6b0b", "#27364a")
_DASHES: Final = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)), (0, (10, 3)), (0, (4, 1)))
_MARKS: Final = ("o", "s", "D", "^")
_HUES: Final = (
    *("#5b8fb9", "#d0875a", "#6fa56b", "#b678b5"),
    *("#b5a24a", "#5aa5a5", "#c9737f", "#8a86c9"),
)
_STYLE: Final[Mapping[str, Any]] = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.6,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.bottom": False,
    "ytick.left": False,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "text.parse_math": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "path.simplify": True,
}
_TOOLTIP: Final = "tooltip:"
"""Prefix of the id of a mark; a page shows the rest when the pointer is over the mark."""
_LINK: Final = "{http://www.w3.org/1999/xlink}href"
_LONGEST_NAME: Final = 24
_LONG_NAMES: Final = 0.35
"""The part of the width from which on names leave too little of it for a legend."""

_WHISKER: Final[Mapping[str, Any]] = {"elinewidth": 0.8, "capsize": 2.0}
_ENDINGS: Final = ("pdf", "svg", "png")
_INDEX: Final = "figures.csv"


@dataclass(frozen=True, eq=False)
class Chart:
    """A chart that is drawn when needed.

    Attributes
    ----------
    name : str
        Name of its files, without an ending.
    title : str
        Caption in the page.
    note : str
        Addition to the caption, in small print.
    data : DataFrame
        The data drawn, in the units that the column names say.
    draw : callable
        Draws into an empty figure.
    height_in : float
        Height in inches.
    """

    name: str
    title: str
    note: str
    data: DataFrame
    draw: Callable[[Figure], None]
    height_in: float = 2.3


def available() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def svg(chart: Chart) -> Markup:
    """Return a chart for a page, whose style sheet turns it from dark on light to the reverse."""
    root = ElementTree.fromstring(_rendered(chart, "svg", True))
    for node in [*root.iter()]:
        _ready_for_page(node)
    named = {each for node in root.iter() for each in re.findall(r"#(\w+)", _references(node))}
    for node in root.iter():
        if node.get("id") not in named:
            node.attrib.pop("id", None)
    root.attrib.pop("width", None)
    root.attrib.pop("height", None)
    label = f"{chart.title}. {chart.note}".strip()
    root.attrib |= {"class": "plot", "role": "img", "aria-label": label}
    return Markup(ElementTree.tostring(root, encoding="unicode", short_empty_elements=False))


def _ready_for_page(node: ElementTree.Element) -> None:
    """Make tooltips titles, and leave out what only makes the page larger."""
    node.tag, node.tail = node.tag.rpartition("}")[2], None
    for child in [*node]:
        if child.tag.rpartition("}")[2] in ("metadata", "style"):
            node.remove(child)
    for name in ("d", "x", "y", "transform"):
        if name in node.attrib:
            node.set(name, re.sub(r"\d+\.\d{2,}", _one_digit, node.get(name, "")))
    if _LINK in node.attrib:
        node.set("href", node.attrib.pop(_LINK))
    if (told := node.get("id", "")).startswith(_TOOLTIP):
        title = ElementTree.Element("title")
        title.text = told.removeprefix(_TOOLTIP)
        node.insert(0, title)
    styles = {child.get("style") for child in node}
    if len(node) > 1 and len(styles) == 1 and None not in styles and "style" not in node.attrib:
        node.set("style", node[0].attrib["style"])
        for child in node:
            del child.attrib["style"]


def _references(node: ElementTree.Element) -> str:
    return " ".join(node.get(name, "") for name in ("href", "clip-path"))


def _one_digit(found: re.Match[str]) -> str:
    return f"{float(found[0]):.1f}"


def write_figures(folder: str, charts: Sequence[Chart]) -> None:
    """Write every chart as PDF, SVG and PNG with its data as CSV, and a list of the charts.

    Each file appears whole or not at all.

    Raises
    ------
    InputError
        When a file cannot be written.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", "--figures", folder) from None
    named = _file_names(charts)
    lines = [f'{name},"{chart.title.replace(chr(34), chr(34) * 2)}"' for name, chart in named]
    write_text(place / _INDEX, "\n".join(["file,title", *lines, ""]))
    for name, chart in named:
        for ending in _ENDINGS:
            write_bytes(place / f"{name}.{ending}", _rendered(chart, ending))
        write_text(place / f"{name}.csv", chart.data.to_csv(index=False, lineterminator="\n"))


def check_figures(folder: str | None) -> None:
    """Refuse a folder that is not for figures, before anything is computed.

    Raises
    ------
    InputError
        When the folder is a file, or contains anything but figures.
    UnsupportedError
        When matplotlib is not installed.
    """
    if folder is None:
        return
    require_package("matplotlib", "figures", "--figures")
    place = Path(folder)
    if folder == "-" or (place.exists() and not place.is_dir()):
        raise InputError(f"must be a folder, got {folder!r}", "--figures")
    if place.is_dir() and any(place.iterdir()) and not (place / _INDEX).is_file():
        rule = "holds something other than figures: name a new folder"
        raise InputError(rule, "--figures", source_name(place))


def _file_names(charts: Sequence[Chart]) -> list[tuple[str, Chart]]:
    """Return charts with distinct names that are valid for files."""
    used: dict[str, int] = {}
    named = []
    for chart in charts:
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", chart.name).strip("-.")[:80] or "chart"
        used[name.lower()] = used.get(name.lower(), 0) + 1
        again = used[name.lower()]
        named.append((name if again == 1 else f"{name}_{again}", chart))
    return named


def _rendered(chart: Chart, ending: str, transparent: bool = False) -> bytes:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    no_date = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[ending]
    with mpl.rc_context({**_STYLE, "svg.hashsalt": chart.name}), warnings.catch_warnings():
        # About glyphs that its font lacks; the reader's fonts show them.
        warnings.simplefilter("ignore", UserWarning)
        figure = Figure(figsize=(WIDTH_IN, chart.height_in))
        chart.draw(figure)
        figure.savefig(buffer, format=ending, dpi=300, metadata=no_date, transparent=transparent)
    return buffer.getvalue()


def bars(
    name: str,
    title: str,
    data: DataFrame,
    x_label: str,
    *,
    note: str = "",
    best: str = "",
    colours: tuple[str, str] = (VALUE, OTHER),
    deviation: str = "",
) -> Chart:
    """Return bars on a row for each name.

    Parameters
    ----------
    name, title, note : str
        As in `Chart`.
    data : DataFrame
        Names in the first column, one or two series in the others.
    x_label : str
        Quantity and unit.
    best : str
        The row that is drawn in a stronger colour, if there is one series.
    colours : tuple of str
        Colours of the series.
    deviation : str
        The column with the deviations of the only series, drawn as lines.
    """
    names = data[data.columns[0]].astype(str)
    columns = [column for column in data.columns[1:] if column != deviation]

    def draw(figure: Figure) -> None:
        axes = _row_axes(figure, names, x_label, len(columns) > 1)
        thick = 0.7 / len(columns)
        for k, column in enumerate(columns):
            at = np.arange(len(names)) + (k - (len(columns) - 1) / 2) * thick
            plain = OTHER if best else colours[k]
            filled = [VALUE if each == best else plain for each in names]
            axes.barh(at, data[column].astype(float), thick, color=filled)
            axes.barh([0], [0], color=plain, label=_label(column))
        if deviation:
            at, off = data[columns[0]].astype(float), data[deviation].astype(float).fillna(0.0)
            axes.errorbar(at, np.arange(len(names)), xerr=off, fmt="none", ecolor=INK, **_WHISKER)
        axes.axvline(0, color=MUTED, linewidth=0.6)
        if len(columns) > 1:
            _legend(axes)

    return Chart(name, title, note, data, draw, _row_height(len(names)))


def dots(
    name: str,
    title: str,
    data: DataFrame,
    x_label: str,
    *,
    note: str = "",
    log: bool = False,
    joined: Sequence[str] = (),
    x_scale: float = 1.0,
) -> Chart:
    """Return marks on a row for each name; ``joined`` columns are the ends of a line.

    The data divided by ``x_scale`` are in the unit of the axis.
    """
    names, columns = data[data.columns[0]].astype(str), list(data.columns[1:])
    colours = (VALUE, OTHER, LIMIT)

    def draw(figure: Figure) -> None:
        axes = _row_axes(figure, names, x_label, True)
        at = np.arange(len(names))
        if joined:
            ends = data[list(joined)].astype(float) / x_scale
            axes.hlines(at, ends.min(axis=1), ends.max(axis=1), color=OTHER, linewidth=1.2)
        for k, column in enumerate(columns):
            values = data[column].to_numpy(float) / x_scale
            axes.plot(values, at, _MARKS[k], color=colours[k], markersize=3.5, label=_label(column))
        if log:
            _log(axes, "x")
            figure.subplots_adjust(right=0.92)  # the last power of ten is long
        _legend(axes)

    return Chart(name, title, note, data, draw, _row_height(len(names)))


def curves(
    name: str,
    title: str,
    data: DataFrame,
    x_label: str,
    y_label: str,
    *,
    note: str = "",
    shown: Sequence[str] = (),
    log: bool = False,
    diagonal: bool = False,
    x_scale: float = 1.0,
) -> Chart:
    """Return lines over a common axis.

    Parameters
    ----------
    name, title, note : str
        As in `Chart`.
    data : DataFrame
        Name of the line, x and y, a row for each point.
    x_label, y_label : str
        Quantities and units.
    shown : sequence of str
        Lines with a colour each, at most six; others are grey.
    log : bool
        Whether x is logarithmic.
    diagonal : bool
        Whether y = x is drawn.
    x_scale : float
        One unit of the axis in units of the data.
    """
    series, x, y = data.columns
    styles = {line: k for k, line in enumerate(shown[: len(SERIES)])}

    def draw(figure: Figure) -> None:
        axes = _axes(figure, x_label, y_label, left=0.19, top=0.97 - 0.055 * len(styles))
        found = {str(key): part for key, part in data.groupby(series, sort=False)}
        for line, part in found.items():
            if line not in styles:
                axes.plot(part[x] / x_scale, part[y], color=OTHER, linewidth=0.7, alpha=0.6)
        for line, k in styles.items():
            part, label = found[line], _short(line, 44)
            look: dict[str, Any] = {"color": SERIES[k], "linestyle": _DASHES[k], "linewidth": 1.5}
            axes.plot(part[x] / x_scale, part[y], label=label, **look)
        if diagonal:
            _diagonal(axes)
        if log:
            _log(axes, "x")
        _percent(axes.yaxis)
        if diagonal:
            _percent(axes.xaxis)
        _legend(axes, 1)

    return Chart(name, title, note, data, draw, 2.4 + 0.14 * len(styles))


def points(
    name: str,
    title: str,
    data: DataFrame,
    x_label: str,
    y_label: str,
    labels: tuple[str, str],
    *,
    note: str = "",
    limits: tuple[tuple[float, float], tuple[float, float]] | None = None,
    lines: Sequence[float] = (),
) -> Chart:
    """Return points, red triangles if they broke a limit, with the line y = x.

    Parameters
    ----------
    name, title, note : str
        As in `Chart`.
    data : DataFrame
        x, y and whether the limit was broken, a row for each point.
    x_label, y_label : str
        Quantities.
    labels : tuple of str
        Names for points that kept and points that broke the limit.
    limits : tuple of (float, float), optional
        Ends of the x and the y axis; logarithmic from a ratio of 8 on.
    lines : sequence of float
        Limits that are drawn across both axes.
    """
    x, y, broken = data.columns

    def draw(figure: Figure) -> None:
        axes = _axes(figure, x_label, y_label, top=0.9)
        wrong = data[broken].astype(bool)
        axes.plot(data[x][~wrong], data[y][~wrong], "o", color=VALUE, ms=3, mew=0, label=labels[0])
        axes.plot(data[x][wrong], data[y][wrong], "^", color=LIMIT, ms=4, mew=0, label=labels[1])
        for each in lines:
            axes.axvline(each, color=LIMIT, linewidth=0.5, linestyle=":")
            axes.axhline(each, color=LIMIT, linewidth=0.5, linestyle=":")
        _diagonal(axes)
        for axis, ends in zip("xy", limits or (), strict=False):
            axes.set(**{f"{axis}lim": ends})
            if ends[1] > 8 * ends[0]:
                _log(axes, axis)
        _legend(axes)

    return Chart(name, title, note, data, draw, 2.6)


def load(
    name: str,
    title: str,
    data: DataFrame,
    unit: tuple[float, str],
    most: tuple[float, float],
    *,
    note: str = "",
) -> Chart:
    """Return waiting jobs above busy and shared GPUs, over time.

    Parameters
    ----------
    name, title, note : str
        As in `Chart`.
    data : DataFrame
        Time in seconds, waiting jobs, busy and shared GPUs: means from this time to the next one.
    unit : (float, str)
        Seconds and name of the unit of the axis.
    most : (float, float)
        Upper ends of the axes of jobs and GPUs.
    """
    time, waiting, busy, shared = (data[column].to_numpy(float) for column in data.columns)
    at = time / unit[0]

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True)
        figure.subplots_adjust(left=0.15, right=0.97, top=0.89, bottom=0.17, hspace=0.18)
        above.fill_between(at, waiting, step="post", color=QUEUE, linewidth=0, label="waiting jobs")
        below.fill_between(at, busy, step="post", color=BUSY, linewidth=0, label="busy GPUs")
        below.fill_between(at, shared, step="post", color=SHARED, linewidth=0, label="shared GPUs")
        for axes, end, label in ((above, most[0], "jobs"), (below, most[1], "GPUs")):
            axes.set(xlim=(at[0], at[-1]), ylim=(0, max(end, 1)), ylabel=label)
            axes.locator_params(axis="y", nbins=4, integer=True)
        below.set_xlabel(f"time, {unit[1]}")
        handles = [h for axes in (above, below) for h in axes.get_legend_handles_labels()[0]]
        place = {"loc": "upper left", "bbox_to_anchor": (0.13, 1.02)}
        figure.legend(handles=handles, ncols=3, columnspacing=1.0, handlelength=1.2, **place)

    return Chart(name, title, note, data, draw, 2.3)


def lanes(
    name: str,
    title: str,
    data: DataFrame,
    unit: tuple[float, str],
    window_s: tuple[float, float],
    nodes: Sequence[tuple[str, int, int]],
    *,
    note: str = "",
) -> Chart:
    """Return a row for each GPU, and in it a bar for each job over time.

    Parameters
    ----------
    name, title, note : str
        As in `Chart`.
    data : DataFrame
        ``gpu``, ``start_s``, ``end_s``, ``job``, ``name`` (of the job), ``lane`` and ``lanes``:
        where jobs share a GPU, a bar has this part of the row's height.
    unit : (float, str)
        Seconds and name of the unit of the axis.
    window_s : (float, float)
        Beginning and end of the drawn time.
    nodes : sequence of (str, int, int)
        Name of each node, its first row, and the row after its last one.
    """
    rows = nodes[-1][2]

    def draw(figure: Figure) -> None:
        labels = [_short(node, 14) for node, _, _ in nodes]
        axes = _axes(figure, f"time, {unit[1]}", "", left=_left(labels), top=0.98)
        low = data["gpu"] + 0.07 + 0.86 * data["lane"] / data["lanes"]
        high = low + 0.86 / data["lanes"]
        start, end = (data[side].clip(*window_s) / unit[0] for side in ("start_s", "end_s"))
        for (job, label), part in data.groupby(["job", "name"], sort=False):
            ends = [side[part.index].to_numpy() for side in (start, end, low, high)]
            _boxes(axes, ends, _HUES[job % len(_HUES)], label)
        axes.set(xlim=[each / unit[0] for each in window_s], ylim=(rows, 0))
        axes.set_yticks([(first + last) / 2 for _, first, last in nodes], labels)
        axes.grid(visible=False)
        for _, first, _ in nodes[1:]:
            axes.axhline(first, color=MUTED, linewidth=0.4)

    return Chart(name, title, note, data, draw, min(6.0, 0.6 + max(0.9, 0.11 * rows)))


def _boxes(axes: Axes, ends: Sequence[FloatArray], colour: str, tooltip: str) -> None:
    """Draw boxes as one path, which takes a tenth of the text of separate patches."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    left, right, low, high = ends
    x = np.stack([left, right, right, left], axis=1).ravel()
    y = np.stack([low, low, high, high], axis=1).ravel()
    codes = np.tile([Outline.MOVETO, *[Outline.LINETO] * 3], len(left))
    outline = Outline(np.stack([x, y], axis=1), codes)
    axes.add_patch(PathPatch(outline, facecolor=colour, linewidth=0, gid=_TOOLTIP + tooltip))


def _axes(
    figure: Figure, x_label: str, y_label: str, *, left: float = 0.15, top: float = 0.96
) -> Axes:
    axes = figure.add_subplot()
    height = figure.get_figheight()
    figure.subplots_adjust(left=left, right=0.96, top=top, bottom=0.4 / height)
    axes.set(xlabel=x_label, ylabel=y_label)
    return axes


def _row_axes(figure: Figure, names: Sequence[str], x_label: str, legend: bool) -> Axes:
    """Return axes with a row for each name, the first on top."""
    labels = [_short(name, _LONGEST_NAME) for name in names]
    top = 1 - (0.25 if legend else 0.06) / figure.get_figheight()
    axes = _axes(figure, x_label, "", left=_left(labels), top=top)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", labelcolor=INK, length=0)
    axes.locator_params(axis="x", nbins=5)
    return axes


def _row_height(rows: int) -> float:
    return min(9.0, 0.75 + 0.17 * rows)


def _left(labels: Sequence[str]) -> float:
    """Return the fraction of the width that labels to the left of the axes take."""
    return 0.03 + 0.019 * max(map(len, labels), default=0)


def _label(column: str) -> str:
    """Return the name of a column for a legend, without its unit."""
    return column.removesuffix("_s").replace("_", " ")


def _short(name: str, most: int) -> str:
    """Return a name, without its middle if it is too long."""
    half = most // 2
    return name if len(name) <= most else f"{name[: most - half - 1]}…{name[-half:]}"


def _legend(axes: Axes, columns: int = 3) -> None:
    if axes.get_legend_handles_labels()[0]:
        # Beside long names, there is not enough room to the right of them.
        long = axes.get_position().x0 > _LONG_NAMES
        place = ("lower right", (1.02, 0.99)) if long else ("lower left", (-0.02, 0.99))
        around = {"loc": place[0], "bbox_to_anchor": place[1], "borderaxespad": 0.1}
        axes.legend(ncols=columns, columnspacing=1.0, handletextpad=0.5, **around)


def _log(axes: Axes, axis: str) -> None:
    """Make an axis logarithmic, its ticks written out."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set(**{f"{axis}scale": "log"})
    ticks = axes.xaxis if axis == "x" else axes.yaxis
    low, high = sorted(ticks.get_view_interval())
    few = high > 300 * low
    ticks.set_major_locator(LogLocator(subs=(1.0,) if few else (1.0, 2.0, 5.0)))
    ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    ticks.set_minor_formatter(NullFormatter())


def _diagonal(axes: Axes) -> None:
    """Draw y = x, on axes that may be logarithmic."""
    ends = axes.dataLim.frozen()  # the line has no ends, but its two points would count as data
    axes.axline((1, 1), (2, 2), color=MUTED, linewidth=0.6, linestyle="--")
    axes.dataLim.set(ends)


def _percent(axis: Axis) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
