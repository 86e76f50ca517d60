"""How good predictions are, as one self-contained HTML page.

Drawings are SVG made here; the page needs no script, no network and no other file. Every text
from a data set is escaped by the template engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dovetail.instances._version import VERSION
from dovetail.instances.datasets import DataSet
from dovetail.predicting import wording
from dovetail.predicting.evaluation import (
    Comparison,
    Studied,
    chosen_coverage,
    chosen_tests,
)
from dovetail.predicting.facts import model_facts
from dovetail.predictors.evaluation import (
    GSLAS,
    Decisions,
    Setting,
    Trial,
    coverage,
    importance,
)
from dovetail.predictors.feature_study import feature_study
from dovetail.predictors.predictor import FloatArray
from dovetail.predictors.trained import TrainedPredictor
from dovetail.toolkit.pages import UNFOLDED, environment

WORST: Final = 20
"""How many of the worst predictions are listed."""

MOST_POINTS: Final = 4000
"""Of more tests, so many are drawn, taken at random."""

_SIDE = 100.0


@dataclass(frozen=True)
class Scatter:
    """Predicted against measured slowdowns in the unit square of a drawing, y upwards.

    ``kept`` and ``broken`` are SVG paths: points whose bound held and points above their bound.
    """

    title: str
    caption: str
    kept: str
    broken: str
    ticks: tuple[tuple[float, str], ...]
    limits: tuple[tuple[float, str], ...]
    diagonal: tuple[float, float]


@dataclass(frozen=True)
class ErrorLine:
    """Errors of one workload's rows; positions are in per cent of the longest."""

    workload: str
    family: str
    rows: int
    new: float
    known: float | None
    new_at: float
    known_at: float | None


@dataclass(frozen=True)
class ImportanceLine:
    """Growth of the error when a feature is shuffled, of the job and of its co-runner."""

    feature: str
    own: float
    other: float
    own_length: float
    other_length: float


@dataclass(frozen=True)
class Curve:
    """Promised against measured coverage: points (promised, overall, chosen) and SVG paths."""

    points: tuple[tuple[float, float, float | None], ...]
    overall: str
    chosen: str


@dataclass(frozen=True)
class DecisionLine:
    """Wrong decisions at one gSLA, by prediction or by bound, with bars in per cent."""

    gsla: float
    by: str
    decisions: Decisions
    accepted_length: float
    refused_length: float


@dataclass(frozen=True)
class MatchingLine:
    """A way of choosing a matching and its throughput."""

    name: str
    setting: str
    throughput: float
    length: float
    best: bool


@dataclass(frozen=True)
class Worst:
    """One of the predictions that were furthest off."""

    own: str
    other: str
    measured: float
    predicted: float
    upper: float | None

    @property
    def error(self) -> float:
        """Predicted - measured."""
        return self.predicted - self.measured


def report_html(data: DataSet, studied: Studied, predictor: TrainedPredictor | None = None) -> str:
    """Return a page that tells how good the predictions on a data set are.

    Parameters
    ----------
    data : DataSet
        What was measured.
    studied : Studied
        Models tested on it.
    predictor : TrainedPredictor, optional
        A fitted predictor whose facts the page tells, too.

    Raises
    ------
    UnsupportedError
        When what the best model is fitted with is not installed.
    """
    comparison = studied.comparison
    found = wording.decisive(comparison)
    tested = studied.of(found.model, found.setting) if found else None
    features = feature_study(data, gpu_models=comparison.gpu_models) if found else None
    return (
        environment()
        .get_template("predictors.html.j2")
        .render(
            phrases=wording,
            comparison=comparison,
            found=found,
            headline=_headline(comparison),
            verdict=wording.verdict(comparison),
            tiles=list(_tiles(comparison)),
            scatters=list(_scatters(studied)),
            errors=_error_lines(studied, tested),
            importances=_importance_lines(tested, comparison.seed),
            curve=_curve(studied, tested),
            decisions=_decision_lines(comparison, tested),
            matchings=_matching_lines(comparison),
            worst=_worst(tested, comparison.confidence),
            study=features,
            facts=list(model_facts(predictor)) if predictor else [],
            unfolded=UNFOLDED,
            profiles=len(data.profiles),
            gslas=GSLAS,
            version=VERSION,
        )
    )


def _headline(comparison: Comparison) -> str:
    if not comparison.best:
        return f"No model could be tested on {comparison.data}"
    found = wording.largest_error(comparison)
    what = wording.SETTING_LONG[found.setting]
    return f"{found.model} predicts {what} to within {found.accuracy.mae:.3f} on average"


def _tiles(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """Yield label, figure and small print of each of the boxes under the headline.

    Of the best model; each figure is that of its weakest setting.
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


def _scatters(studied: Studied) -> Iterator[Scatter]:
    best = studied.comparison.best
    shown: tuple[Setting, ...] = ("family", "random", "gpu_model")
    found = [each for s in shown if best and (each := studied.of(best, s))]
    if not found:
        return
    values = np.concatenate([v for each in found for v in (each.measured, each.predicted)])
    low, high = _range(values[~np.isnan(values)])
    for each in found[:2]:
        yield _scatter(each, studied.comparison, low, high)


def _range(values: FloatArray) -> tuple[float, float]:
    low, high = min(1.0, float(values.min())), float(values.max())
    margin = 0.03 * max(high - low, 0.1)
    return low - margin, high + margin


def _scatter(tested: Trial, comparison: Comparison, low: float, high: float) -> Scatter:
    scale = _SIDE / (high - low)
    known = np.flatnonzero(~np.isnan(tested.predicted))
    if len(known) > MOST_POINTS:
        known = np.sort(np.random.default_rng(comparison.seed).permutation(known)[:MOST_POINTS])
    x = (tested.predicted[known] - low) * scale
    y = _SIDE - (tested.measured[known] - low) * scale
    broken = tested.measured[known] > tested.upper(comparison.confidence)[known]
    ends = tuple(round((v - low) * scale, 2) for v in (low, high))
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 100, 1e9) if (high - low) / s < 8)
    ticks = np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step
    left_out = len(tested.predicted) - len(known)
    return Scatter(
        title=f"new {wording.SETTING_SHORT[tested.setting]}",
        caption=f"{len(known):,} tests" + (f", {left_out:,} not drawn" if left_out else ""),
        kept="".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(x[~broken], y[~broken], strict=True)),
        broken="".join(
            f"M{a - 0.9:.1f} {b + 0.7:.1f}h1.8l-.9 -1.6z"
            for a, b in zip(x[broken], y[broken], strict=True)
        ),
        ticks=tuple((round(float(t - low) * scale, 2), f"{t:g}") for t in np.round(ticks, 9)),
        limits=tuple((round((g - low) * scale, 2), f"{g:g}") for g in GSLAS if low < g < high),
        diagonal=(ends[0], ends[1]),
    )


def _error_lines(studied: Studied, tested: Trial | None) -> Sequence[ErrorLine]:
    """Return a line for each workload, the largest error first."""
    if tested is None:
        return ()
    easy = studied.of(tested.model, "random") if tested.setting != "random" else None
    new, rows = _error_by_workload(tested)
    known = _error_by_workload(easy)[0] if easy else np.full(len(new), np.nan)
    longest = np.nanmax(np.concatenate([new, known])) or 1.0
    names, families = tested.rows.names, tested.rows.families
    order = [k for k in np.argsort(-new, kind="stable") if not np.isnan(new[k])]
    return [
        ErrorLine(
            workload=names[k],
            family=families[k],
            rows=round(rows[k]),
            new=float(new[k]),
            known=None if np.isnan(known[k]) else float(known[k]),
            new_at=round(100 * new[k] / longest, 2),
            known_at=None if np.isnan(known[k]) else round(100 * known[k] / longest, 2),
        )
        for k in order
    ]


def _error_by_workload(tested: Trial) -> tuple[FloatArray, FloatArray]:
    """Return mean absolute error and number of the rows of each workload."""
    known = ~np.isnan(tested.predicted)
    own = tested.rows.own_workload[tested.held.row[known]]
    weight, size = tested.weight[known], len(tested.rows.names)
    off = np.abs(tested.predicted - tested.measured)[known]
    rows = np.bincount(own, weight, size).astype(np.float64)
    total = np.bincount(own, weight * off, size)
    return np.divide(total, rows, out=np.full(size, np.nan), where=rows > 0), rows


def _importance_lines(tested: Trial | None, seed: int) -> Sequence[ImportanceLine]:
    """Return a line for each feature, the most important first."""
    if tested is None or not tested.features.names:
        return ()
    found = importance(tested, seed)
    longest = max(max(found.values()), 1e-12)
    both = {name: (found["own", name], found["other", name]) for name in tested.features.names}
    return [
        ImportanceLine(
            feature=name,
            own=own,
            other=other,
            own_length=round(100 * max(own, 0.0) / longest, 2),
            other_length=round(100 * max(other, 0.0) / longest, 2),
        )
        for name, (own, other) in sorted(both.items(), key=lambda item: -sum(item[1]))
    ]


def _curve(studied: Studied, tested: Trial | None) -> Curve | None:
    if tested is None:
        return None
    block = studied.block
    rounds = list(chosen_tests(block, tested, studied.comparison.seed)) if block else []
    points = []
    for confidence in tested.confidences:
        overall = coverage(tested, confidence)
        chosen = chosen_coverage(tested, rounds, confidence)
        if overall is not None:
            points.append((confidence, overall.job, chosen.job if chosen else None))
    if not points:
        return None
    return Curve(
        points=tuple(points),
        overall=_line([(promised, job) for promised, job, _ in points]),
        chosen=_line([(promised, job) for promised, _, job in points if job is not None]),
    )


def _line(points: Sequence[tuple[float, float]]) -> str:
    at = (f"{curve_at(x):.2f} {_SIDE - curve_at(y):.2f}" for x, y in points)
    return f"M{'L'.join(at)}" if points else ""


def curve_at(part: float) -> float:
    """Return where a part is on an axis from 0.4 to 1."""
    return _SIDE * (max(part, 0.4) - 0.4) / 0.6


def _decision_lines(comparison: Comparison, tested: Trial | None) -> Sequence[DecisionLine]:
    found = comparison.of(tested.model, tested.setting) if tested else None
    if found is None:
        return ()
    both = [
        (name, each)
        for plain, bound in zip(found.by_prediction, found.by_bound, strict=True)
        for name, each in (("prediction", plain), ("bound", bound))
    ]
    rates = [rate for _, each in both for rate in (each.accepted_rate, each.refused_rate)]
    longest = max(*rates, 1e-12)
    return [
        DecisionLine(
            gsla=each.gsla,
            by=name,
            decisions=each,
            accepted_length=round(100 * each.accepted_rate / longest, 2),
            refused_length=round(100 * each.refused_rate / longest, 2),
        )
        for name, each in both
    ]


def _matching_lines(comparison: Comparison) -> Sequence[MatchingLine]:
    test = comparison.matching
    if test is None:
        return ()
    short = wording.SETTING_SHORT
    found = [("the truth", "", 1.0), ("greedy, by the truth", "", test.greedy)]
    found += [(each.model, f"new {short[each.setting]}", each.throughput) for each in test.models]
    found.append(("random pairs, mean", "", test.random))
    return [
        MatchingLine(name, setting, value, round(100 * value, 2), name == comparison.best)
        for name, setting, value in sorted(found, key=lambda line: -line[2])
    ]


def _worst(tested: Trial | None, confidence: float) -> Sequence[Worst]:
    """Return the worst prediction of each of the worst pairs."""
    if tested is None:
        return ()
    off = np.abs(tested.predicted - tested.measured)
    order = np.argsort(-np.nan_to_num(off), kind="stable")
    _, first = np.unique(tested.pair[order], return_index=True)
    upper = tested.upper(confidence)
    names, rows = tested.rows.names, tested.rows
    return [
        Worst(
            own=names[rows.own_workload[tested.held.row[k]]],
            other=names[rows.other_workload[tested.held.row[k]]],
            measured=float(tested.measured[k]),
            predicted=float(tested.predicted[k]),
            upper=None if np.isnan(upper[k]) else float(upper[k]),
        )
        for k in order[np.sort(first)][:WORST]
        if not np.isnan(tested.predicted[k])
    ]
