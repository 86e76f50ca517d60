"""The value of predictions for an optimiser: matchings chosen by them, valued by measurements.

Predictions may be good on average and bad where it matters: a matching takes the pairs that look
best, and so the luckiest errors. So held-out predictions choose matchings here, measured slowdowns
value them, and the coverage of the bounds is also computed on the chosen pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np

from dovetail.instances._record import Record
from dovetail.instances.datasets.dataset import DataSet
from dovetail.papers.studies.evaluation import (
    SETTINGS,
    Coverage,
    Evaluation,
    NotApplicable,
    Setting,
    Trial,
    coverage,
    evaluate,
    evaluation,
)
from dovetail.papers.studies.power_accuracy import PowerAccuracy, power_accuracy
from dovetail.predictors.fitted.rows import DirectedRows, measured_pairs
from dovetail.predictors.predictor import BoolArray, FloatArray, IntArray
from dovetail.solver import match_pairs

ROUNDS: Final = 20
"""Random rounds of chosen pairs; a single round chooses too few."""

PART: Final = 0.75
"""The fraction of the block's workloads that are jobs of such a round."""

_LEAST = 4


class Matched(Record):
    """The matchings that a model's held-out predictions choose.

    Attributes
    ----------
    model, setting : str
        As in its ``Evaluation``.
    throughput : float
        The measured value of the chosen matching of the whole block, relative to the best one.
    chosen : Coverage or None
        Coverage of the bounds on chosen pairs, the mean over the random rounds.
    """

    model: str
    setting: Setting
    throughput: float
    chosen: Coverage | None


class MatchingTest(Record):
    """Matchings of one job of each workload of a complete block, on half as many GPUs.

    Attributes
    ----------
    gpu_model : str
        The GPU model of the block's measurements, uncapped.
    workloads : int
        Number of workloads in the block.
    rounds : int
        Random rounds behind the coverage on chosen pairs.
    greedy : float
        Throughput of taking the best disjoint pairs by their measured values, relative to the best
        matching.
    random : float
        The mean over all ways to pair the workloads.
    models : tuple of Matched
        Matchings chosen by predictions.
    """

    gpu_model: str
    workloads: int
    rounds: int
    greedy: float
    random: float
    models: tuple[Matched, ...]


class ModelComparison(Record):
    """All models in all settings on one data set: what ``dovetail predictors evaluate`` reports."""

    data: str
    gpu_models: tuple[str, ...]
    workloads: int
    families: int
    pairs: int
    confidence: float
    seed: int
    evaluations: tuple[Evaluation, ...]
    not_applicable: tuple[NotApplicable, ...]
    matching: MatchingTest | None
    power: tuple[PowerAccuracy, ...]

    @property
    def decisive(self) -> Setting | None:
        """The setting by which models are compared; None if none could be tested.

        It is new families, if tested, the usual case of a new job. Two new families together are
        rarer and not always tested.
        """
        order: tuple[Setting, ...] = ("family", "random", "gpu_model")
        return next((setting for setting in order if setting in self.settings), None)

    @property
    def best(self) -> str | None:
        """The model with the smallest error in the decisive setting."""
        found = [each for each in self.evaluations if each.setting == self.decisive]
        return min(found, key=lambda each: each.accuracy.mae).model if found else None

    def of(self, model: str, setting: Setting) -> Evaluation | None:
        """Return the evaluation of a model in a setting."""
        found = (e for e in self.evaluations if (e.model, e.setting) == (model, setting))
        return next(found, None)

    def matched(self, model: str, setting: Setting) -> Matched | None:
        """Return the matchings that a model chose in a setting."""
        models = self.matching.models if self.matching else ()
        return next((m for m in models if (m.model, m.setting) == (model, setting)), None)

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The settings in which any model was tested."""
        seen = {each.setting for each in self.evaluations}
        return tuple(setting for setting in SETTINGS if setting in seen)


@dataclass(frozen=True)
class Studied:
    """A comparison, its held-out predictions, and the block of the matchings."""

    comparison: ModelComparison
    tested: tuple[Trial, ...]
    block: MeasuredBlock | None

    def of(self, model: str, setting: Setting) -> Trial | None:
        """Return the held-out predictions of a model in a setting."""
        found = (t for t in self.tested if (t.model, t.setting) == (model, setting))
        return next(found, None)


@dataclass(frozen=True)
class MeasuredBlock:
    """Workloads with every two measured together, uncapped on one GPU model.

    Attributes
    ----------
    gpu_model : str
        The GPU model with the most uncapped pairs.
    names : tuple of str
        The workloads.
    position : ndarray of int, shape (all workloads,)
        The position in the block of each workload of ``DirectedRows.names``, or -1.
    rows : ndarray of bool, shape (rows,)
        The measured rows of the block.
    slowdown : ndarray of float, shape (n, n)
        Measured slowdown of the first with the second, the mean if measured several times.
    """

    gpu_model: str
    names: tuple[str, ...]
    position: IntArray
    rows: BoolArray
    slowdown: FloatArray

    @property
    def value(self) -> FloatArray:
        """The measured sum of both rates of every two workloads, shape (n, n)."""
        return _rates(self.slowdown)


def study(
    data: DataSet,
    models: Sequence[str],
    settings: Sequence[Setting] = ("random", "family", "gpu_model"),
    gpu_models: Sequence[str] | None = None,
    confidence: float = 0.9,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
    rounds: int = 8,
) -> Studied:
    """Test every model in every setting, and the matchings that its predictions choose.

    Parameters are those of ``evaluate``.

    Raises
    ------
    InputError
        When no pair was measured.
    UnsupportedError
        When a model has an unknown name or the library that fits it is not installed.
    """
    found = list(evaluate(data, models, settings, gpu_models, confidence, seed, progress, rounds))
    tested = tuple(each for each in found if isinstance(each, Trial))
    pairs = measured_pairs(data, gpu_models)
    block = complete_block(data, tested[0].rows, gpu_models) if tested else None
    names = {name for pair in pairs for name in pair.workloads}
    comparison = ModelComparison(
        data=data.name,
        gpu_models=tuple(dict.fromkeys(pair.gpu_model for pair in pairs)),
        workloads=len(names),
        families=len({data.families[name] for name in names}),
        pairs=len(pairs),
        confidence=confidence,
        seed=seed,
        evaluations=tuple(evaluation(each, confidence) for each in tested),
        not_applicable=tuple(each for each in found if isinstance(each, NotApplicable)),
        matching=matching_test(block, tested, confidence, seed) if block else None,
        power=power_accuracy(data, gpu_models, seed),
    )
    return Studied(comparison, tested, block)


def complete_block(
    data: DataSet, rows: DirectedRows, gpu_models: Sequence[str] | None = None
) -> MeasuredBlock | None:
    """Return a block of workloads with every two measured, or None if there are fewer than four.

    Workloads with the fewest measured partners are dropped, the alphabetically last first. Pairs
    with a cap are ignored.
    """
    pairs = measured_pairs(data, gpu_models)
    uncapped = np.array([set(pair.shares) == {None} for pair in pairs])
    of_pair = np.array([pair.gpu_model for pair in pairs])
    if not uncapped.any():
        return None
    gpu_model = max(dict.fromkeys(of_pair), key=lambda name: (uncapped & (of_pair == name)).sum())
    counts = np.asarray((uncapped & (of_pair == gpu_model))[rows.pair])
    total, seen = _summed(rows, counts, rows.slowdown, np.arange(len(rows.names)))
    chosen = _complete(seen > 0, rows.names)
    if len(chosen) < _LEAST:
        return None
    position = np.full(len(rows.names), -1)
    position[chosen] = np.arange(len(chosen))
    inside = (position[rows.own_workload] >= 0) & (position[rows.other_workload] >= 0)
    corner = np.ix_(chosen, chosen)
    with np.errstate(invalid="ignore"):
        slowdown = total[corner] / seen[corner]
    names = tuple(rows.names[k] for k in chosen)
    return MeasuredBlock(str(gpu_model), names, position, np.asarray(counts & inside), slowdown)


def _complete(measured: BoolArray, names: Sequence[str]) -> list[int]:
    """Return positions of workloads with every two measured together, in alphabetical order."""
    left = sorted(range(len(names)), key=names.__getitem__)
    while left:
        with_self = measured | np.eye(len(measured), dtype=np.bool_)
        partners = with_self[np.ix_(left, left)].sum(axis=1)
        if partners.min() == len(left):
            break
        # argmin of the reversed order is the last one in the alphabet.
        del left[len(left) - 1 - int(np.argmin(partners[::-1]))]
    return left


def _summed(
    rows: DirectedRows, counts: BoolArray, slowdown: FloatArray, position: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return sum and number of the slowdowns of each workload with each other one."""
    size = position.max() + 1
    total, seen = np.zeros((size, size)), np.zeros((size, size))
    at = position[rows.own_workload[counts]], position[rows.other_workload[counts]]
    np.add.at(total, at, slowdown[counts])
    np.add.at(seen, at, 1.0)
    return total, seen


def predicted_slowdown(block: MeasuredBlock, tested: Trial) -> FloatArray:
    """Return the held-out predictions of a block, shape (n, n).

    A pair of two families that was tested twice gets the mean of both predictions: each fold left
    out one of the two families and may have seen the other in other pairs. In ``two_families`` the
    only fold that tests it has seen neither.
    """
    of_tests = tested.rows.take(tested.held.row)
    in_block = block.rows[tested.held.row] & ~np.isnan(tested.predicted)
    total, seen = _summed(of_tests, in_block, tested.predicted, block.position)
    with np.errstate(invalid="ignore"):
        return np.asarray(total / seen)


def _rates(slowdown: FloatArray) -> FloatArray:
    """Return the sum of both rates of every two workloads."""
    rate = 1.0 / slowdown
    return np.asarray(rate + rate.T)


def matching_test(
    block: MeasuredBlock, tested: Sequence[Trial], confidence: float, seed: int = 0
) -> MatchingTest:
    """Return the measured value of matchings chosen by predictions."""
    best = worth(block.value, matching(block.value, seed))
    size = len(block.names)
    off_diagonal = ~np.eye(size, dtype=np.bool_)
    return MatchingTest(
        gpu_model=block.gpu_model,
        workloads=size,
        rounds=ROUNDS,
        greedy=worth(block.value, greedy(block.value)) / best,
        random=size // 2 * float(block.value[off_diagonal].mean()) / best,
        models=tuple(
            Matched(
                model=each.model,
                setting=each.setting,
                throughput=_throughput(block, each, seed) / best,
                chosen=chosen_coverage(each, chosen_tests(block, each, seed), confidence),
            )
            for each in tested
        ),
    )


def _throughput(block: MeasuredBlock, tested: Trial, seed: int) -> float:
    mate = matching(_rates(predicted_slowdown(block, tested)), seed)
    return worth(block.value, mate)


def matching(value: FloatArray, seed: int = 0) -> IntArray:
    """Return each job's partner in the best matching on half as many GPUs as jobs.

    A job alone has value 1, its rate; its partner is then its own index, or -1 if it waits.
    """
    return match_pairs(value, np.ones(len(value)), len(value) // 2, seed=seed).mate


def greedy(value: FloatArray) -> IntArray:
    """Return each job's partner if the most valuable disjoint pairs are taken in turn."""
    mate = np.full(len(value), -1)
    first, second = np.triu_indices(len(value), 1)
    for k in np.argsort(-value[first, second], kind="stable"):
        a, b = first[k], second[k]
        if mate[a] < 0 and mate[b] < 0:
            mate[a], mate[b] = b, a
    return mate


def worth(value: FloatArray, mate: IntArray) -> float:
    """Return the throughput of a matching."""
    jobs = np.arange(len(mate))
    pairs, alone = mate > jobs, mate == jobs
    return float(value[jobs[pairs], mate[pairs]].sum()) + float(alone.sum())


def chosen_coverage(
    tested: Trial, rounds: Iterable[BoolArray], confidence: float
) -> Coverage | None:
    """Return the coverage of the bounds on the pairs that rounds chose, the mean over rounds."""
    each_round = (coverage(tested, confidence, among) for among in rounds)
    found = [each for each in each_round if each is not None]
    if not found:
        return None
    return Coverage(
        confidence=confidence,
        job=fmean(each.job for each in found),
        pair=_mean_known([each.pair for each in found]),
        width=fmean(each.width for each in found),
        bounded=fmean(each.bounded for each in found),
    )


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def chosen_tests(block: MeasuredBlock, tested: Trial, seed: int = 0) -> Iterator[BoolArray]:
    """Yield the tests of chosen pairs, a mask of shape (tests,) for each random round.

    Each round has ``PART`` of the block's workloads as jobs. Pairs are chosen by prediction, like
    an optimiser without gSLAs.
    """
    value = _rates(predicted_slowdown(block, tested))
    own = block.position[tested.rows.own_workload[tested.held.row]]
    other = block.position[tested.rows.other_workload[tested.held.row]]
    in_block = block.rows[tested.held.row]
    generator = np.random.default_rng(seed)
    for _ in range(ROUNDS):
        jobs = np.sort(generator.permutation(len(value))[: round(PART * len(value))])
        mate = np.full(len(value), -1)
        local = matching(value[np.ix_(jobs, jobs)], seed)
        paired = (local >= 0) & (local != np.arange(len(jobs)))
        mate[jobs[paired]] = jobs[local[paired]]
        yield np.asarray(in_block & (mate[own] == other))
