"""The wording of errors and bounds of models, both in the terminal and in the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from dovetail.papers.studies.comparison import Matched, ModelComparison
from dovetail.papers.studies.evaluation import Accuracy, Coverage, Evaluation, Setting
from dovetail.toolkit.wording import NO_FIGURE, enumerated

SETTING_SHORT: Final[Mapping[Setting, str]] = {
    "random": "pair",
    "workload": "workload",
    "family": "family",
    "two_families": "both families",
    "gpu_model": "GPU model",
}
"""The part that is new to a model in each setting, in a cell of a table."""

SETTING_LONG: Final[Mapping[Setting, str]] = {
    "random": "new pairs of workloads that were measured in other pairs",
    "workload": "workloads that were never measured, of families that may have been",
    "family": "workloads of a family that was never measured",
    "two_families": "pairs of two families that were never measured",
    "gpu_model": "a GPU model on which nothing was measured",
}


_TWO_POINTS = 0.02


class BoundCoverage(NamedTuple):
    """A setting, and how often its bounds held: for all pairs, and for chosen ones if known."""

    found: Evaluation
    all: Coverage
    chosen: Coverage | None

    @property
    def least(self) -> float:
        """The smaller of the two fractions of jobs."""
        return min(self.all.job, self.chosen.job if self.chosen else 1.0)


def part(value: float | None) -> str:
    """Return a fraction in per cent."""
    return NO_FIGURE if value is None else f"{100 * value:.1f} %"


def signed(value: float | None) -> str:
    """Return a correlation."""
    return NO_FIGURE if value is None else f"{value:+.2f}"


def error_cells(found: Accuracy) -> tuple[str, ...]:
    """Return SMAPE, MAE, RMSE, R2, bias, under-predicted fraction and rows without an answer."""
    return (
        f"{found.smape:.1f} %",
        f"{found.mae:.4f}",
        f"{found.rmse:.4f}",
        NO_FIGURE if found.r2 is None else f"{found.r2:.2f}",
        f"{found.bias:+.4f}",
        part(found.under),
        f"{found.unanswered:,}",
    )


def decision_cells(found: Evaluation) -> tuple[str, ...]:
    """Return wrongly accepted / refused for each gSLA, by prediction and by bound."""
    return tuple(
        f"{100 * each.accepted_rate:.1f} / {100 * each.refused_rate:.1f}"
        for both in zip(found.by_prediction, found.by_bound, strict=True)
        for each in both
    )


def bound_cells(found: Evaluation, matched: Matched | None) -> tuple[str, ...]:
    """Return coverage of jobs and pairs, width, and coverage on chosen pairs."""
    overall, chosen = found.coverage, matched.chosen if matched else None
    return (
        part(overall.job if overall else None),
        part(overall.pair if overall else None),
        NO_FIGURE if overall is None else f"{overall.width:.3f}",
        part(chosen.job if chosen else None),
        part(chosen.pair if chosen else None),
    )


def verdict(comparison: ModelComparison) -> Sequence[str]:
    """Return the conclusions of a comparison, in a few sentences."""
    return tuple(_verdict(comparison))


def _kept(above: float) -> str:
    """Say whether a promise was kept, given the measured minus the promised fraction."""
    if above >= 0:
        return "kept"
    return "kept to within two points" if above >= -_TWO_POINTS else "not kept"


def _verdict(comparison: ModelComparison) -> Iterator[str]:
    found = decisive(comparison)
    if found is None:
        yield "No model could be tested on these data."
        return
    yield _errors_text(comparison, found)
    if worse := list(_worse_than_constant(comparison)):
        yield f"Worse than a constant, so not to be used there: {enumerated(worse)}."
    yield _decisions_text(comparison)
    yield _bound_text(comparison)
    yield _matching_text(comparison)


def of_best(comparison: ModelComparison) -> Sequence[Evaluation]:
    """Return the best model's evaluations, one for each setting in which it was tested."""
    return [each for each in comparison.evaluations if each.model == comparison.best]


def largest_error(comparison: ModelComparison) -> Evaluation:
    """Return the best model's evaluation in the setting with its largest error."""
    return max(of_best(comparison), key=lambda each: each.accuracy.mae)


def held_least(comparison: ModelComparison) -> BoundCoverage | None:
    """Return the setting in which the best model's bounds held for the fewest jobs.

    This considers all pairs and the chosen pairs; None without bounds.
    """
    found = [
        BoundCoverage(each, each.coverage, matched.chosen if matched else None)
        for each in of_best(comparison)
        if each.coverage is not None
        for matched in [comparison.matched(each.model, each.setting)]
    ]
    return min(found, key=lambda held: held.least, default=None)


def worst_matching(comparison: ModelComparison) -> Matched | None:
    """Return the best model's matching with the lowest throughput over the settings."""
    models = comparison.matching.models if comparison.matching else ()
    found = (matched for matched in models if matched.model == comparison.best)
    return min(found, key=lambda matched: matched.throughput, default=None)


def decisive(comparison: ModelComparison) -> Evaluation | None:
    """Return the best model's evaluation in the decisive setting."""
    best, setting = comparison.best, comparison.decisive
    return comparison.of(best, setting) if best and setting else None


def _errors_text(comparison: ModelComparison, found: Evaluation) -> str:
    each = [e for s in comparison.settings if (e := comparison.of(found.model, s)) and e != found]
    others = [f"{e.accuracy.mae:.3f} for {SETTING_LONG[e.setting]}" for e in each]
    constant = comparison.of("constant", found.setting)
    compared = f" (a constant: {constant.accuracy.mae:.3f})" if constant else ""
    return (
        f"{found.model} errs least for {SETTING_LONG[found.setting]}: its mean absolute error is "
        f"{found.accuracy.mae:.3f}{compared}.{f' It is {enumerated(others)}.' if others else ''}"
    )


def _worse_than_constant(comparison: ModelComparison) -> Iterator[str]:
    """Yield the models with a larger error than a constant in a setting, with both errors."""
    for each in comparison.evaluations:
        constant = comparison.of("constant", each.setting)
        if constant and each.accuracy.mae > constant.accuracy.mae:
            errors = f"{each.accuracy.mae:.3f} instead of {constant.accuracy.mae:.3f}"
            yield f"{each.model} (new {SETTING_SHORT[each.setting]}: {errors})"


def _decisions_text(comparison: ModelComparison) -> str:
    def weakness(each: Evaluation) -> tuple[float, float, float]:
        bound, plain = each.by_bound[0], each.by_prediction[0]
        return bound.accepted_rate, plain.accepted_rate, bound.refused_rate

    found = max(of_best(comparison), key=weakness)
    plain, bound = found.by_prediction[0], found.by_bound[0]
    return (
        f"At gSLA {plain.gsla:g}, its predictions wrongly accept {part(plain.accepted_rate)} and "
        f"wrongly refuse {part(plain.refused_rate)} of all pairs; its bounds wrongly accept "
        f"{part(bound.accepted_rate)} and wrongly refuse {part(bound.refused_rate)} "
        f"({_weakest(comparison, found.setting)})."
    )


def _bound_text(comparison: ModelComparison) -> str:
    promise = f"{100 * comparison.confidence:g} %"
    held = held_least(comparison)
    if held is None:
        return f"The data are too few for bounds of {promise} confidence."
    among = f" and for {part(held.chosen.job)} of the jobs in chosen pairs" if held.chosen else ""
    return (
        f"Its upper bounds, promised to hold for {promise} of jobs, held for "
        f"{part(held.all.job)}{among} ({_weakest(comparison, held.found.setting)}): "
        f"{_kept(held.least - comparison.confidence)}.{_unbounded_text(comparison)}"
    )


def _unbounded_text(comparison: ModelComparison) -> str:
    bounded = {
        each.setting: each.coverage.bounded if each.coverage else 0.0
        for each in of_best(comparison)
    }
    setting = min(bounded, key=bounded.__getitem__)
    if bounded[setting] == 1:
        return ""
    few = f"The data are too few to bound {part(1 - bounded[setting])} of the jobs"
    return f" {few} ({_weakest(comparison, setting)})."


def _matching_text(comparison: ModelComparison) -> str:
    test, matched = comparison.matching, worst_matching(comparison)
    if test is None or matched is None:
        return "No four workloads were all measured with each other, so no matching was tested."
    return (
        f"The matching chosen by its predictions has {part(matched.throughput)} of the best "
        f"throughput ({_weakest(comparison, matched.setting)}); random pairs have "
        f"{part(test.random)}, greedy pairs that know the truth {part(test.greedy)}."
    )


def _weakest(comparison: ModelComparison, setting: Setting) -> str:
    text = f"new {SETTING_SHORT[setting]}"
    several = len(of_best(comparison)) > 1
    return f"{text}, the weakest of the tested settings" if several else text
