"""Tables of ``dovetail simulate`` and ``compare``: metrics as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.text import Text

from dovetail.executor.simulation.metrics import METRICS
from dovetail.simulating.groups import PolicyRuns, RunsByPolicy, gain
from dovetail.simulating.tables import Mean, metric_columns
from dovetail.simulating.verdict import headline
from dovetail.simulating.wording import TIMES_BETTER, measured, three_digits
from dovetail.toolkit.tables import Fitting, Name, fact_lines, plain_table, row_lines

BEST = "*"
SIMULATED = "simulated: none of this was measured on a GPU"
HIDDEN = frozenset({"events"})


COLUMNS: Final = {
    "jct_mean_s": "JCT\nmean",
    "jct_p90_s": "JCT\np90",
    "makespan_s": "make-\nspan",
    "queueing_mean_s": "queue\nmean",
    "slowdown_mean": "slow-\ndown",
    "violation_rate": "gSLA\nbroken",
    "gpu_time_h": "GPU\ntime",
    "effective_utilisation": "eff.\nuse",
}
"""Heads of the metrics in a table of policies, without units."""


def run_view(
    policy: str, seed: int, metrics: Mapping[str, float], facts: Mapping[str, str]
) -> RenderableType:
    """Return the metrics of one run, with facts about it."""
    table = plain_table("metric")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("meaning", overflow="fold")
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


def comparison_view(groups: RunsByPolicy, facts: Mapping[str, str]) -> RenderableType:
    """Return a table of means and spreads by policy, and a comparison with the baseline."""
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


def _means(groups: RunsByPolicy) -> RenderableType:
    columns = metric_columns(groups, [*COLUMNS])
    heads = [f"{head}\n{c.unit}" for head, c in zip(COLUMNS.values(), columns, strict=True)]
    return _table(groups.every, heads, [[*map(_text, column.means)] for column in columns])


def _text(mean: Mean) -> str:
    """Return the mean, and below it the spread if there is any."""
    text = f"{BEST if mean.best else ''}{mean.mean}"
    spread = mean.spread.replace(" ", "")
    return f"{text}\n{spread}" if spread.strip("±0.") else text


def _gains(groups: RunsByPolicy) -> RenderableType:
    """Return the factors to the baseline, without metrics for which no other policy has one."""
    base = groups.baseline
    others = [group for group in groups.every if group is not base]
    gains = {metric: [gain(group, base, metric) for group in groups.every] for metric in COLUMNS}
    known = [m for m in COLUMNS if any(math.isfinite(gain(group, base, m)) for group in others)]
    columns = [[*map(three_digits, gains[metric])] for metric in known]
    return _table(groups.every, [COLUMNS[metric] for metric in known], columns)


def _table(
    rows: Sequence[PolicyRuns], heads: Sequence[str], columns: Sequence[Sequence[str]]
) -> RenderableType:
    table = plain_table("policy")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    cells = [(row.policy, *values) for row, *values in zip(rows, *columns, strict=True)]
    for each in cells:
        table.add_row(Name(each[0]), *map(Text, each[1:]))
    lines = [tuple(" ".join(cell.split()) for cell in row) for row in cells]
    return Fitting(table, row_lines(lines, 1, [" ".join(head.split()) for head in heads]))
