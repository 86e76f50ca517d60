"""What ``dovetail simulate`` and ``compare`` print: metrics as text for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.text import Text

from dovetail.executor.simulation.metrics import METRICS
from dovetail.simulating.groups import Group, Groups, gain
from dovetail.simulating.verdict import headline
from dovetail.simulating.wording import (
    TIMES_BETTER,
    measured,
    multiple,
    scale,
    three_digits,
)
from dovetail.toolkit.tables import Fitting, Name, fact_lines, plain_table, row_lines
from dovetail.toolkit.wording import NO_FIGURE

BEST = "*"
SIMULATED = "simulated: none of this was measured on a GPU"
HIDDEN = frozenset({"events"})

_LEAST_SPREAD = 1e-9


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
                METRICS[name].label, measured(name, value), "" if meaning == above else meaning
            )
            above = meaning
    head = fact_lines(("policy", f"{policy}, seed {seed}"), *facts.items(), ("", SIMULATED))
    return Lines(head, Text(), table)


def comparison_view(groups: Groups, facts: Mapping[str, str]) -> RenderableType:
    """Return policies beside each other: means and spreads, then against a baseline."""
    names = ", ".join(group.policy for group in groups.every)
    spread = "; ±: standard deviation over seeds" if len(groups.seeds) > 1 else ""
    parts: list[RenderableType] = [
        fact_lines(("compared", names), *facts.items(), ("", SIMULATED)),
        Text(f"\nmeans ({BEST} best{spread})\n", "bold"),
        _means(groups),
    ]
    if len(groups.every) > 1:
        lead = f"\n{TIMES_BETTER.format(groups.baseline.policy)}\n"
        parts += [Text(lead, "bold"), _gains(groups), Text(f"\n{headline(groups)}.")]
    return Lines(*parts)


def _means(groups: Groups) -> RenderableType:
    heads, columns = [], []
    for column in COLUMNS:
        metric = column.metric
        size, unit = scale(metric, _alike(groups, metric))
        winners = groups.best(metric)
        heads.append(f"{column.head}\n{unit}")
        columns.append([_cell(group, metric, size, group in winners) for group in groups.every])
    return _table(groups.every, heads, columns)


def _alike(groups: Groups, metric: str) -> list[float]:
    """Return the means of all columns of a kind, as all of JCT, which have one unit."""
    kind = metric.partition("_")[0]
    kin = [column.metric for column in COLUMNS if column.metric.partition("_")[0] == kind]
    return [group.mean(name) for name in kin for group in groups.every]


def _gains(groups: Groups) -> RenderableType:
    columns = [
        [multiple(gain(group, groups.baseline, column.metric)) for group in groups.every]
        for column in COLUMNS
    ]
    return _table(groups.every, [column.head for column in COLUMNS], columns)


def _table(
    rows: Sequence[Group], heads: Sequence[str], columns: Sequence[Sequence[str]]
) -> RenderableType:
    table = plain_table("policy")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    cells = [(row.policy, *values) for row, *values in zip(rows, *columns, strict=True)]
    for each in cells:
        table.add_row(Name(each[0]), *map(Text, each[1:]))
    lines = [tuple(" ".join(cell.split()) for cell in row) for row in cells]
    return Fitting(table, row_lines(lines, 1, [" ".join(head.split()) for head in heads]))


def _cell(row: Group, metric: str, size: float, wins: bool) -> str:
    """Return the mean, and below it the spread where there is any."""
    mean, spread = row.mean(metric) / size, row.spread(metric) / size
    if math.isnan(mean):
        return NO_FIGURE
    text = f"{BEST if wins else ''}{three_digits(mean)}"
    return f"{text}\n±{three_digits(spread)}" if spread > _LEAST_SPREAD * abs(mean) else text
