"""The accuracy of predictions as one self-contained HTML page and as figures.

The page needs no network and no other file; its script only sorts tables. Every text from a data
set is escaped by the template engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from dovetail.instances._frames import frame
from dovetail.instances._version import VERSION
from dovetail.instances.datasets.dataset import DataSet
from dovetail.papers.studies import wording
from dovetail.papers.studies.comparison import (
    ModelComparison,
    Studied,
    chosen_coverage,
    chosen_tests,
)
from dovetail.papers.studies.evaluation import (
    GSLAS,
    Setting,
    Trial,
    coverage,
    importance,
)
from dovetail.papers.studies.feature_study import FeatureStudy, feature_study
from dovetail.predicting.models import model_facts
from dovetail.predictors.fitted.trained import TrainedPredictor
from dovetail.predictors.predictor import FloatArray
from dovetail.toolkit.charts import LIMIT, OTHER, Chart, bars, curves, dots, points
from dovetail.toolkit.pages import Cell, Head, PageTable, environment
from dovetail.toolkit.wording import NO_FIGURE, two_digits

WORST: Final = 20
"""How many of the worst predictions are listed."""

MOST_POINTS: Final = 2000
"""The most tests that are drawn; of more, a random subset."""

_MOST_ROWS = 30
"""The most rows of a chart."""


def report_html(data: DataSet, studied: Studied, predictor: TrainedPredictor | None = None) -> str:
    """Return a page that shows how good the predictions on a data set are.

    Parameters
    ----------
    data : DataSet
        The measurements.
    studied : Studied
        Models tested on it.
    predictor : TrainedPredictor, optional
        A fitted predictor that the page also describes.

    Raises
    ------
    UnsupportedError
        When the library that fits the best model is not installed.
    """
    comparison = studied.comparison
    found = wording.decisive(comparison)
    tested = _tested(studied)
    charts = {chart.name: chart for chart in report_charts(studied)}
    features = feature_study(data, gpu_models=comparison.gpu_models) if found else None
    return (
        environment("dovetail.papers.studies")
        .get_template("predictors.html.j2")
        .render(
            phrases=wording,
            comparison=comparison,
            found=found,
            headline=_headline(comparison),
            verdict=wording.verdict(comparison),
            tiles=list(_tiles(comparison)),
            charts=charts,
            scatters=[chart for name, chart in charts.items() if name.startswith("scatter-")],
            models=_model_table(comparison),
            errors=_error_table(studied, tested),
            importances=_importance_table(charts.get("importance")),
            coverage=_coverage_table(charts.get("coverage"), tested),
            decisions=_decision_table(comparison),
            matchings=_matching_table(comparison),
            worst=_worst_table(tested, comparison.confidence),
            correlations=_correlation_table(features),
            study=features,
            facts=list(_facts(data, comparison)),
            model_facts=list(model_facts(predictor)) if predictor else [],
            version=VERSION,
        )
    )


def report_charts(studied: Studied) -> list[Chart]:
    """Return the charts of the page."""
    tested, comparison = _tested(studied), studied.comparison
    made = (
        *_scatters(studied),
        _error_chart(studied, tested),
        _importance_chart(tested, comparison.seed),
        _coverage_chart(studied, tested),
        _decision_chart(comparison),
        _matching_chart(comparison),
    )
    return [chart for chart in made if chart]


def _tested(studied: Studied) -> Trial | None:
    """Return the trial of the best model in the decisive setting."""
    found = wording.decisive(studied.comparison)
    return studied.of(found.model, found.setting) if found else None


def _headline(comparison: ModelComparison) -> str:
    if not comparison.best:
        return f"No model could be tested on {comparison.data}"
    found = wording.largest_error(comparison)
    what = wording.SETTING_LONG[found.setting]
    return f"{found.model} predicts {what} to within {found.accuracy.mae:.3f} on average"


def _tiles(comparison: ModelComparison) -> Iterator[tuple[str, str, str]]:
    """Yield label, figure and small print of each of the boxes under the headline.

    They are for the best model, each figure in its weakest setting.
    """
    pairs = f"of {comparison.workloads} workloads in {comparison.families} families"
    yield "pairs measured", f"{comparison.pairs:,}", pairs
    if not comparison.best:
        return
    part, short = wording.part, wording.SETTING_SHORT
    worst = wording.largest_error(comparison)
    yield "mean absolute error", f"{worst.accuracy.mae:.3f}", f"new {short[worst.setting]}"
    held = wording.held_least(comparison)
    if held is not None:
        promise = f"promised {100 * comparison.confidence:g} %; new {short[held.found.setting]}"
        yield "bounds held for", part(held.least), f"of the jobs; {promise}"
    matched = wording.worst_matching(comparison)
    if matched is not None and comparison.matching is not None:
        random = f"random: {part(comparison.matching.random)}; new {short[matched.setting]}"
        yield "throughput", part(matched.throughput), f"of the best matching's; {random}"


def _facts(data: DataSet, comparison: ModelComparison) -> Iterator[tuple[str, str]]:
    """Yield the settings of the tests."""
    amounts = f"{len(data.profiles):,} profiles, {comparison.pairs:,} measured pairs"
    yield "data", f"{comparison.data}: {amounts}"
    yield "GPU models", ", ".join(comparison.gpu_models)
    yield "confidence", f"{comparison.confidence:g}"
    yield "seed", str(comparison.seed)
    found = wording.decisive(comparison)
    if found:
        yield "features", f"{found.model}: {', '.join(found.features) or 'none'}"
    yield "dovetail", VERSION


def _model_table(comparison: ModelComparison) -> PageTable:
    heads = (
        *(Head("model", number=False), Head("new", number=False), Head("SMAPE", "%")),
        *(Head(name) for name in ("MAE", "RMSE", "R²", "bias")),
        *(Head("under-predicted", "%"), Head("no answer")),
        *(Head("bounds held", "% of jobs"), Head("bounds held", "% of pairs"), Head("width")),
        *(Head("chosen pairs", "% of jobs"), Head("chosen pairs", "% of pairs")),
    )
    rows = [
        (
            each.model,
            wording.SETTING_SHORT[each.setting],
            *(
                cell.removesuffix(" %")
                for cell in (
                    *wording.error_cells(each.accuracy),
                    *wording.bound_cells(each, comparison.matched(each.model, each.setting)),
                )
            ),
        )
        for each in comparison.evaluations
    ]
    best = frozenset(k for k, row in enumerate(rows) if row[0] == comparison.best)
    caption = "Errors and coverage by model and by what was new to it; the best model is bold"
    return PageTable(caption, heads, rows, best)


def _scatters(studied: Studied) -> Iterator[Chart]:
    """Yield measured over predicted slowdowns of the best model, in at most two settings."""
    best = studied.comparison.best
    shown: tuple[Setting, ...] = ("family", "random", "gpu_model")
    found = [each for s in shown if best and (each := studied.of(best, s))][:2]
    if not found:
        return
    values = np.concatenate([v for each in found for v in (each.measured, each.predicted)])
    low, high = min(1.0, float(np.nanmin(values))), float(np.nanmax(values))
    margin = 0.03 * max(high - low, 0.1)
    ends = (low - margin, high + margin)
    for each in found:
        yield _scatter(each, studied.comparison, ends)


def _scatter(tested: Trial, comparison: ModelComparison, ends: tuple[float, float]) -> Chart:
    known = np.flatnonzero(~np.isnan(tested.predicted))
    left = max(0, len(known) - MOST_POINTS)
    drawn = known
    if left:
        drawn = np.sort(np.random.default_rng(comparison.seed).permutation(known)[:MOST_POINTS])
    upper = tested.upper(comparison.confidence)
    rows = (
        {
            "predicted_slowdown": tested.predicted[k],
            "measured_slowdown": tested.measured[k],
            "above_bound": bool(tested.measured[k] > upper[k]),
        }
        for k in drawn
    )
    data = frame(rows, ("predicted_slowdown", "measured_slowdown", "above_bound"))
    return points(
        f"scatter-{tested.setting}",
        f"new {wording.SETTING_SHORT[tested.setting]}",
        data,
        "predicted slowdown",
        "measured slowdown",
        ("bound held, or none", "above its bound"),
        note=f"{len(drawn):,} tests" + (f", {left:,} not drawn" if left else ""),
        limits=(ends, ends),
        lines=[gsla for gsla in GSLAS if ends[0] < gsla < ends[1]],
    )


def _errors(studied: Studied, tested: Trial) -> list[tuple[str, str, int, float, float]]:
    """Return name, family, rows, and errors as new and as known, the largest first."""
    easy = studied.of(tested.model, "random") if tested.setting != "random" else None
    new, rows = _error_by_workload(tested)
    known = _error_by_workload(easy)[0] if easy else np.full(len(new), np.nan)
    names, families = tested.rows.names, tested.rows.families
    order = [k for k in np.argsort(-new, kind="stable") if not np.isnan(new[k])]
    return [(names[k], families[k], round(rows[k]), float(new[k]), float(known[k])) for k in order]


def _error_chart(studied: Studied, tested: Trial | None) -> Chart | None:
    if tested is None:
        return None
    columns = ("workload", f"new {wording.SETTING_SHORT[tested.setting]}", "new pair only")
    found = _errors(studied, tested)
    rows = (dict(zip(columns, (e[0], e[3], e[4]), strict=True)) for e in found[:_MOST_ROWS])
    left = max(0, len(found) - _MOST_ROWS)
    note = f"the {_MOST_ROWS} workloads with the largest errors" if left else ""
    data = frame(rows, columns).dropna(axis="columns", how="all")
    return dots("errors", "Error by workload", data, "mean absolute error", note=note)


def _error_table(studied: Studied, tested: Trial | None) -> PageTable | None:
    if tested is None:
        return None
    heads = (
        *(Head("workload", number=False), Head("rows")),
        *(Head(f"new {wording.SETTING_SHORT[tested.setting]}"), Head("new pair only")),
    )
    rows = [
        (
            Cell(name, (family,) if family != name else ()),
            f"{amount:,}",
            f"{new:.3f}",
            NO_FIGURE if np.isnan(known) else f"{known:.3f}",
        )
        for name, family, amount, new, known in _errors(studied, tested)
    ]
    return PageTable("Mean absolute error by workload, the largest first", heads, rows)


def _error_by_workload(tested: Trial) -> tuple[FloatArray, FloatArray]:
    """Return the mean absolute error and the number of rows of each workload."""
    known = ~np.isnan(tested.predicted)
    own = tested.rows.own_workload[tested.held.row[known]]
    weight, size = tested.weight[known], len(tested.rows.names)
    off = np.abs(tested.predicted - tested.measured)[known]
    rows = np.bincount(own, weight, size).astype(np.float64)
    total = np.bincount(own, weight * off, size)
    return np.divide(total, rows, out=np.full(size, np.nan), where=rows > 0), rows


def _importance_chart(tested: Trial | None, seed: int) -> Chart | None:
    """Return each feature with the growth of the error, of the job and of its co-runner."""
    if tested is None or not tested.features.names:
        return None
    found = importance(tested, seed)
    columns = ("feature", "own", "co-runner's")
    both = [(name, found["own", name], found["other", name]) for name in tested.features.names]
    both.sort(key=lambda each: -(each[1] + each[2]))
    data = frame((dict(zip(columns, each, strict=True)) for each in both), columns)
    label = "growth of the mean absolute error"
    return bars("importance", "What the model looks at", data, label)


def _importance_table(chart: Chart | None) -> PageTable | None:
    if chart is None:
        return None
    heads = (Head("feature", number=False), Head("own"), Head("co-runner's"))
    rows = [(name, f"{own:+z.3f}", f"{other:+z.3f}") for name, own, other in chart.data.to_numpy()]
    return PageTable("Growth of the mean absolute error by feature", heads, rows)


def _coverage_chart(studied: Studied, tested: Trial | None) -> Chart | None:
    """Return the fraction of jobs within their bound by confidence, in all and in chosen pairs."""
    if tested is None:
        return None
    block = studied.block
    rounds = list(chosen_tests(block, tested, studied.comparison.seed)) if block else []
    rows = []
    for confidence in tested.confidences:
        overall = coverage(tested, confidence)
        chosen = chosen_coverage(tested, rounds, confidence)
        if overall is not None:
            rows.append({"pairs": "all pairs", "promised": confidence, "measured": overall.job})
        if overall is not None and chosen is not None:
            rows.append({"pairs": "chosen pairs", "promised": confidence, "measured": chosen.job})
    if not rows:
        return None
    data = frame(rows, rows[0])
    shown = list(data["pairs"].unique())
    title = "Coverage of bounds: promised and measured"
    return curves("coverage", title, data, "promised", "measured", shown=shown, diagonal=True)


def _coverage_table(chart: Chart | None, tested: Trial | None) -> PageTable | None:
    if chart is None or tested is None:
        return None
    found = chart.data.pivot(index="promised", columns="pairs", values="measured")
    heads = [Head("promised", "%"), *(Head(name, "%") for name in found.columns)]
    rows = [
        [_percent(promised), *map(_percent, parts)]
        for promised, parts in zip(found.index, found.to_numpy(), strict=True)
    ]
    where = f"{tested.model}, new {wording.SETTING_SHORT[tested.setting]}"
    return PageTable(f"{where}: part of jobs within their bound", heads, rows)


def _percent(value: float | None) -> str:
    return wording.part(value).removesuffix(" %")


def _decisions(comparison: ModelComparison) -> list[tuple[str, float, float]]:
    """Return gSLAs with the checked figure, and the fractions wrongly accepted and refused."""
    found = wording.decisive(comparison)
    if found is None:
        return []
    return [
        (f"{each.gsla:g}, {name}", each.accepted_rate, each.refused_rate)
        for plain, bound in zip(found.by_prediction, found.by_bound, strict=True)
        for name, each in (("prediction", plain), ("bound", bound))
    ]


def _decision_chart(comparison: ModelComparison) -> Chart | None:
    columns = ("gSLA, checked figure", "wrongly accepted", "wrongly refused")
    found = _decisions(comparison)
    if not found:
        return None
    rows = (
        dict(zip(columns, (name, 100 * accepted, 100 * refused), strict=True))
        for name, accepted, refused in found
    )
    data = frame(rows, columns)
    title = "Pairs wrongly accepted and refused"
    colours = (LIMIT, OTHER)
    return bars("decisions", title, data, "per cent of all pairs", colours=colours)


def _decision_table(comparison: ModelComparison) -> PageTable:
    heads = (
        Head("gSLA, checked figure", number=False),
        Head("wrongly accepted", "%"),
        Head("wrongly refused", "%"),
    )
    rows = [(name, _percent(a), _percent(r)) for name, a, r in _decisions(comparison)]
    return PageTable("Wrong decisions by gSLA, in per cent of all pairs", heads, rows)


def _matchings(comparison: ModelComparison) -> list[tuple[str, float]]:
    """Return matchings, by the basis of their choice, with their throughput, the best first."""
    test = comparison.matching
    if test is None:
        return []
    short = wording.SETTING_SHORT
    found = [("the truth", 1.0), ("greedy, by the truth", test.greedy)]
    found += [(f"{each.model}, new {short[each.setting]}", each.throughput) for each in test.models]
    found.append(("random pairs, mean", test.random))
    return sorted(found, key=lambda line: -line[1])


def _matching_chart(comparison: ModelComparison) -> Chart | None:
    found = _matchings(comparison)[:_MOST_ROWS]
    columns = ("chosen by", "throughput")
    rows = (dict(zip(columns, (name, 100 * value), strict=True)) for name, value in found)
    title = "Throughput of matchings"
    label = "per cent of the best matching's"
    data = frame(rows, columns)
    return bars("matching", title, data, label, best="the truth") if found else None


def _matching_table(comparison: ModelComparison) -> PageTable:
    heads = (Head("matching chosen by", number=False), Head("throughput", "%"))
    found = _matchings(comparison)
    own = f"{comparison.best}, new "
    best = frozenset(k for k, (name, _) in enumerate(found) if name.startswith(own))
    rows = [(name, _percent(value)) for name, value in found]
    return PageTable("Throughput in per cent of the best matching's", heads, rows, best)


def _worst_table(tested: Trial | None, confidence: float) -> PageTable | None:
    """Return the worst prediction of each of the worst pairs."""
    if tested is None:
        return None
    off = np.abs(tested.predicted - tested.measured)
    order = np.argsort(-np.nan_to_num(off), kind="stable")
    _, first = np.unique(tested.pair[order], return_index=True)
    upper = tested.upper(confidence)
    names, rows = tested.rows.names, tested.rows
    heads = (
        *(Head("job", number=False), Head("co-runner", number=False), Head("measured")),
        *(Head("predicted"), Head("bound"), Head("error")),
    )
    lines = [
        (
            names[rows.own_workload[tested.held.row[k]]],
            names[rows.other_workload[tested.held.row[k]]],
            two_digits(float(tested.measured[k])),
            two_digits(float(tested.predicted[k])),
            two_digits(None if np.isnan(upper[k]) else float(upper[k])),
            f"{tested.predicted[k] - tested.measured[k]:+.2f}",
        )
        for k in order[np.sort(first)][:WORST]
        if not np.isnan(tested.predicted[k])
    ]
    return PageTable("The worst predictions, one for each pair", heads, lines)


def _correlation_table(study: FeatureStudy | None) -> PageTable | None:
    if study is None or not study.features:
        return None
    heads = (
        *(Head("feature", number=False), Head("own", "Pearson"), Head("own", "Spearman")),
        *(Head("co-runner's", "Pearson"), Head("co-runner's", "Spearman")),
        Head("by the rule", number=False),
    )
    rows = [
        (
            each.name,
            *(
                wording.signed(value)
                for value in (
                    *(each.pearson_own, each.spearman_own),
                    *(each.pearson_other, each.spearman_other),
                )
            ),
            each.dropped or "kept",
        )
        for each in study.features
    ]
    return PageTable("Correlations with the slowdown", heads, rows)
