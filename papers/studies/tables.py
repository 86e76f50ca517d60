"""Tables of ``dovetail predictors``: models and their errors as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.console import Group, RenderableType
from rich.text import Text

from dovetail.instances._record import listed
from dovetail.papers.studies.comparison import ModelComparison
from dovetail.papers.studies.evaluation import GSLAS, Evaluation
from dovetail.papers.studies.wording import (
    SETTING_SHORT,
    bound_cells,
    decision_cells,
    error_cells,
    part,
    verdict,
)
from dovetail.toolkit.tables import Fitting, fact_lines, plain_table, row_lines

ERROR_COLUMNS = ("SMAPE", "MAE", "RMSE", "R2", "bias", "under by\n> 0.1", "no\nanswer")
BOUND_COLUMNS = ("held:\njobs", "held:\npairs", "width", "chosen:\njobs", "chosen:\npairs")


def comparison_view(comparison: ModelComparison) -> RenderableType:
    """Return the results of all models: a verdict, and a table for each question."""
    return Group(
        _headline(comparison),
        *(Text(f"\n{sentence}") for sentence in verdict(comparison)),
        *_errors(comparison),
        *_decisions(comparison),
        *_bounds(comparison),
        *_matchings(comparison),
        *_power(comparison),
        *_not_applicable(comparison),
    )


def _headline(comparison: ModelComparison) -> RenderableType:
    pairs = f"{comparison.pairs:,} measured, of {comparison.workloads} workloads"
    return fact_lines(
        ("predictors on", comparison.data),
        ("GPU models", listed(comparison.gpu_models)),
        ("pairs", f"{pairs} in {comparison.families} families"),
        ("best", comparison.best or "no model could be tested"),
    )


def _errors(comparison: ModelComparison) -> Iterator[RenderableType]:
    rows = ((each, error_cells(each.accuracy)) for each in comparison.evaluations)
    yield from _table("errors of predictions", ERROR_COLUMNS, comparison, rows)


def _decisions(comparison: ModelComparison) -> Iterator[RenderableType]:
    columns = [f"gSLA {gsla:g}" for gsla in GSLAS]
    for k, by in enumerate(("predictions", "bounds")):
        rows = ((each, decision_cells(each)[k::2]) for each in comparison.evaluations)
        title = f"pairs wrongly accepted / wrongly refused by {by}, in % of all pairs"
        yield from _table(title, columns, comparison, rows)


def _bounds(comparison: ModelComparison) -> Iterator[RenderableType]:
    rows = (
        (each, bound_cells(each, comparison.matched(each.model, each.setting)))
        for each in comparison.evaluations
    )
    title = f"how often the bounds held; promised for {100 * comparison.confidence:g} % of jobs"
    yield from _table(title, BOUND_COLUMNS, comparison, rows)


def _matchings(comparison: ModelComparison) -> Iterator[RenderableType]:
    test = comparison.matching
    if test is None:
        return
    table = plain_table("matching chosen by")
    for setting in comparison.settings:
        table.add_column(SETTING_SHORT[setting].replace(" ", "\n", 1), justify="right")
    models = dict.fromkeys(each.model for each in test.models)
    for model in models:
        found = (comparison.matched(model, setting) for setting in comparison.settings)
        table.add_row(Text(model), *(part(each.throughput) if each else "-" for each in found))
    for name, value in (("greedy, by the truth", test.greedy), ("random, mean", test.random)):
        table.add_row(Text(name), *[part(value)] * len(comparison.settings))
    where = f"{test.workloads} workloads on {test.workloads // 2} GPUs ({test.gpu_model})"
    yield Text(f"\nthroughput of matchings, in % of the best one's: {where}\n", "bold")
    yield table


def _power(comparison: ModelComparison) -> Iterator[RenderableType]:
    if not comparison.power:
        return
    table, lines = plain_table(), []
    for column in ("new to it", "pairs", "MAPE", "R2"):
        justify: Literal["left", "right"] = "left" if column == "new to it" else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for each in comparison.power:
        r2 = "-" if each.r2 is None else f"{each.r2:.2f}"
        cells = (SETTING_SHORT[each.setting], f"{each.pairs:,}", f"{each.mape:.1f} %", r2)
        table.add_row(*map(Text, cells))
        lines.append((f"new {cells[0]}", *cells[1:]))
    yield Text("\npower of the GPUs that pairs share\n", "bold")
    yield Fitting(table, row_lines(lines, 1, ["pairs", "MAPE", "R2"]), folds=False)


def _table(
    title: str,
    columns: Sequence[str],
    comparison: ModelComparison,
    rows: Iterator[tuple[Evaluation, Sequence[str]]],
) -> Iterator[RenderableType]:
    if not comparison.evaluations:
        return
    table, lines = plain_table(), []
    for column in ("model", "new\nto it"):
        table.add_column(column, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for k, (each, cells) in enumerate(rows):
        last = k + 1 == len(comparison.evaluations)
        ends = not last and comparison.evaluations[k + 1].model != each.model
        first = k == 0 or comparison.evaluations[k - 1].model != each.model
        names = (each.model if first else "", SETTING_SHORT[each.setting])
        table.add_row(*map(Text, (*names, *cells)), end_section=ends)
        lines.append((f"{each.model}, new {SETTING_SHORT[each.setting]}", *cells))
    yield Text(f"\n{title}\n", "bold")
    heads = [" ".join(name.split()) for name in columns]
    yield Fitting(table, row_lines(lines, 1, heads), folds=False)


def _not_applicable(comparison: ModelComparison) -> Iterator[RenderableType]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in comparison.not_applicable:
        reasons.setdefault((each.model, each.reason), []).append(SETTING_SHORT[each.setting])
    every = len(comparison.settings) or 1
    for (model, reason), settings in reasons.items():
        where = "" if len(settings) > every else f" ({listed(settings)})"
        yield Text(f"\nnot applicable: {model}{where}: {reason}")
