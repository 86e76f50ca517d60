"""What ``dovetail simulate`` and ``compare`` print: metrics as text for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from dovetail.executor.simulation.metrics import METRICS
from dovetail.simulation_comparison import PolicyRow, best, gain
from dovetail.tables import Fitting, fact_lines, plain_table, row_lines
from dovetail.wording import NO_FIGURE

BEST = "*"
SIMULATED = "simulated: none of this was measured on a GPU"
HIDDEN = frozenset({"events"})

_PER_CENT = 100.0
_LEAST_SPREAD = 1e-9
_TIME_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3))


@dataclass(frozen=True)
class Column:
    """A metric in a table of policies: its head, without the unit."""

    metric: str
    head: str


COLUMNS = (
    Column("jct_mean_s", "JCT\nmean"),
    Column("jct_p90_s", "JCT\np90"),
    Column("makespan_s", "make-\nspan"),
    Column("queueing_mean_s", "queue\nmean"),
    Column("slowdown_mean", "slow-\ndown"),
    Column("violation_rate", "gSLA\nbroken"),
    Column("gpu_time_h", "GPU\ntime"),
    Column("effective_utilisation", "eff.\nuse"),
)


def run_view(
    policy: str, seed: int, metrics: Mapping[str, float], facts: Mapping[str, str]
) -> RenderableType:
    """Return what one run came to."""
    table = plain_table("metric")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    above = ""
    for name, value in metrics.items():
        if name not in HIDDEN and not math.isnan(value):
            meaning = METRICS[name].meaning
            table.add_row(
                METRICS[name].label, told(name, value), "" if meaning == above else meaning
            )
            above = meaning
    head = fact_lines(("policy", f"{policy}, seed {seed}"), *facts.items(), ("", SIMULATED))
    return Group(head, Text(), table)


def comparison_view(
    rows: Sequence[PolicyRow],
    baseline: str,
    facts: Mapping[str, str],
) -> RenderableType:
    """Return policies beside each other: means and spreads, then as a multiple of a baseline."""
    seeds = max((len(row.runs) for row in rows), default=0)
    title = ("compared", f"{', '.join(row.policy for row in rows)}")
    parts: list[RenderableType] = [fact_lines(title, *facts.items(), ("", SIMULATED))]
    if rows:
        spread = "; ±: standard deviation over seeds" if seeds > 1 else ""
        parts += [Text(f"\nmeans ({BEST} best{spread})\n", "bold"), _means(rows)]
    base = next((row for row in rows if row.policy == baseline), None)
    if base is not None and len(rows) > 1:
        lead = f"\nhow many times better than {baseline} (below 1: worse)\n"
        parts += [Text(lead, "bold"), _gains(rows, base)]
    return Group(*parts)


def _means(rows: Sequence[PolicyRow]) -> RenderableType:
    heads, columns = [], []
    for column in COLUMNS:
        unit, scale = _unit(column.metric, [row.mean(column.metric) for row in rows])
        winners = best(rows, column.metric)
        heads.append(f"{column.head}\n{unit}")
        columns.append([_cell(row, column.metric, scale, row.policy in winners) for row in rows])
    return _table(rows, heads, columns)


def _gains(rows: Sequence[PolicyRow], base: PolicyRow) -> RenderableType:
    shown = [column for column in COLUMNS if METRICS[column.metric].better]
    columns = [[_ratio(gain(row, base, column.metric)) for row in rows] for column in shown]
    return _table(rows, [column.head for column in shown], columns)


def _table(
    rows: Sequence[PolicyRow], heads: Sequence[str], columns: Sequence[Sequence[str]]
) -> RenderableType:
    table = plain_table("policy")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    cells = [(row.policy, *values) for row, *values in zip(rows, *columns, strict=True)]
    for each in cells:
        table.add_row(*map(Text, each))
    lines = [tuple(" ".join(cell.split()) for cell in row) for row in cells]
    return Fitting(table, row_lines(lines, 1, [" ".join(head.split()) for head in heads]))


def _cell(row: PolicyRow, metric: str, scale: float, wins: bool) -> str:
    """Return the mean, and below it the spread where there is any."""
    mean, spread = row.mean(metric) / scale, row.deviation(metric) / scale
    if math.isnan(mean):
        return NO_FIGURE
    text = f"{BEST if wins else ''}{_figure(mean)}"
    return f"{text}\n±{spread:.2g}" if spread > _LEAST_SPREAD * abs(mean) else text


def _ratio(value: float) -> str:
    if math.isnan(value):
        return NO_FIGURE
    return "∞" if math.isinf(value) else f"{value:.2f}"


def told(metric: str, value: float) -> str:
    """Return the value of a metric with its unit."""
    if math.isnan(value):
        return NO_FIGURE
    unit, scale = _unit(metric, [value])
    return f"{_figure(value / scale)} {unit}".rstrip()


def _unit(metric: str, values: Sequence[float]) -> tuple[str, float]:
    """Return the unit to show a metric in, and its size in the metric's own."""
    unit = METRICS[metric].unit
    if unit == "part":
        return "%", 1 / _PER_CENT
    if unit != "s":
        return unit, 1.0
    most = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return next((found for found in _TIME_UNITS if most >= 2 * found[1]), _TIME_UNITS[-1])


def _figure(value: float) -> str:
    """Return three significant digits; of what has more before the point, all of these."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
