"""Upper bounds of predicted slowdowns that hold for the pairs an optimiser picks.

The bound of a job is ``prediction + level * spread``; the spread grows with the prediction and
depends on how much of the pair the model had seen (``standing.STANDINGS``). For a model that gives
standard errors of the logarithms of its predictions it is ``prediction * exp(level * error)``. One
number is left to choose, the level; for a new workload it is never below the quantile of the
normal distribution that a standard error implies. It is chosen by conformal risk control
(Angelopoulos, Bates, Fisch, Lei and Schuster: *Conformal risk control*, ICLR 2024, theorem 1) with
a family of workloads as the unit, since errors within a family are alike, even if both workloads
of a pair were seen: with the misses ``l_g`` of K families (the fraction of a family's jobs whose
slowdown was above its bound), the level is the smallest with

    (l_1 + ... + l_K + worst) / (K + 1) <= 1 - confidence

For a further group that is exchangeable with these and breaks at most the fraction ``worst`` of
its bounds, the expected fraction of misses is then at most 1 - confidence. The group is the family
of the new workload, or of the job's own if none is new. Nothing is assumed of a family that was
never measured (``worst = 1``): 10 families support no more than 90.9 %. A new pair or a new
workload of a measured family is assumed to break at most a quarter of its bounds, so that 10
families support 97.7 %. That is the price of few families; a higher confidence is refused.

The jobs are those that share in rounds as an optimiser plans them (``planned``), so that the
misses include the luck of the best-looking pairs; the level must hold for each way of picking in
``SETTINGS``. A gang is one job: its slowest worker is compared with the largest of its bounds.

The inequality is guaranteed for groups exchangeable with those of the data, in rounds drawn like
these, for a level that does not change which pairs are picked, and for predictions made by one
model; predictions of several folds, and gSLAs that are compared with the bound itself, make it an
approximation, checked on held-out families by ``benchmarks/bounds.py``.

MAPIE (1.6) is not used: its conformal intervals and its risk control take rows as the unit, not
groups of them, nor jobs that a plan picks, and its objects keep the estimator, whereas a model
file here has numbers only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from dovetail.instances.errors import InputError
from dovetail.predictors.fitted.planned import (
    BLIND,
    GANGS,
    HeldOutSlowdowns,
    Setting,
    SharedOutcome,
    all_new,
    draw_rounds,
    measured_once,
    outcome,
    partners,
    tables,
)
from dovetail.predictors.fitted.rows import DirectedRows, HeldOut
from dovetail.predictors.fitted.standing import KNOWN, OF_CO_RUNNERS, OF_NEW_FAMILIES, STANDINGS
from dovetail.predictors.forms.form import Arrays
from dovetail.predictors.predictor import BoolArray, FloatArray, IntArray

SETTINGS: Final = (BLIND, Setting(np.inf, 1.0), Setting(1.5, 0.8), Setting(1.2, 0.8))
"""The ways of picking pairs; the promise must hold for each."""

_LEVELS = np.concatenate([np.arange(0, 3, 1 / 16), np.geomspace(3, 24, 16)])
_STEP = 4  # Neighbouring levels that share the pairs picked under a gSLA,
_TURNS = 4  # and the rounds in which each of these steps is used once.
_WORTH = 10.0
_HEAVIEST = 3.0
_LEAST_SPLITS = 3


class BrokenBounds(NamedTuple):
    """How often the bounds of each group were broken, for one standing.

    Attributes
    ----------
    groups : tuple of str
        Names of families.
    misses : ndarray of float, shape (gang sizes, groups, levels)
        Jobs whose slowdown was above the bound of that level.
    jobs : ndarray of float, shape (gang sizes, groups, levels)
        All jobs. Simulated jobs count as at most 10 per group on average, so that later
        measurements carry weight.
    """

    groups: tuple[str, ...]
    misses: FloatArray
    jobs: FloatArray

    def risk(self, worst: float) -> FloatArray:
        """Return the controlled risk, shape (gang sizes, levels).

        Groups are weighted by their jobs: a group that shares more often weighs more, up to
        threefold, one of fewer than 10 jobs less; the unseen group has weight 1 and misses
        ``worst``. If no job shares at some size, no bound is broken there. The risk never rises
        with the level: a level that keeps the promise by luck, below one that does not, is not
        chosen.
        """
        weight = np.minimum(_HEAVIEST, self.jobs / _WORTH)
        part = np.divide(self.misses, self.jobs, out=np.zeros_like(weight), where=self.jobs > 0)
        total = weight.sum(axis=1).max(axis=1, initial=0.0, keepdims=True)
        groups = min(total.max(initial=0.0), float(len(self.groups)))
        if groups == 0:
            return np.ones(weight.shape[::2])
        mean = (weight * part).sum(axis=1) / np.maximum(total, 1e-12)
        found = (groups * mean + worst) / (groups + 1)
        falling: FloatArray = np.maximum.accumulate(found[:, ::-1], axis=1)[:, ::-1]
        return falling


@dataclass(frozen=True)
class Calibration:
    """The data to bound a prediction at any confidence that they support.

    Attributes
    ----------
    spread : ndarray of float, shape (5, 2)
        For each standing, a and b of ``spread = a + b * max(0, prediction - 1)``; both are 0 if
        the spread is the standard error of the prediction's logarithm.
    levels : ndarray of float, shape (levels,)
        The levels that were tried, in spreads above the prediction.
    evidence : tuple of BrokenBounds
        One for each standing; the gang sizes are ``planned.GANGS``.
    worst : float
        The largest fraction of broken bounds that is assumed in an unseen group if no family is
        new; it is 1 if one is.
    splits : ndarray of float, shape (splits, 100)
        For each split, hidden in turn, the 1, 2, ..., 100 % quantiles of measured over predicted
        slowdown.
    """

    spread: FloatArray
    levels: FloatArray
    evidence: tuple[BrokenBounds, ...]
    worst: float = 0.25
    splits: FloatArray = field(default_factory=lambda: np.empty((0, 100)))

    @cached_property
    def risk(self) -> FloatArray:
        """The risk at each level, shape (5, gang sizes, levels); larger gangs have no less."""
        risk = np.stack([e.risk(_worst(k, self.worst)) for k, e in enumerate(self.evidence)])
        rising: FloatArray = np.maximum.accumulate(risk, axis=1)
        return rising

    def at_new_split(self, confidence: float) -> float:
        """Return the bound at a split that was not measured, as a multiple of the prediction.

        Each measured split was hidden in turn, and has a multiple that this fraction of its jobs
        kept; the result is the largest of them. NaN with fewer than three splits.
        """
        if len(self.splits) < _LEAST_SPLITS:
            return np.nan
        return float(self.splits[:, math.ceil(100 * confidence) - 1].max())

    def largest_confidence(self, standing: int, workers: int = 1) -> float:
        """Return the highest confidence that can be promised (0 if there are no data)."""
        size, parts = _size(workers)
        return max(0.0, 1 - parts * float(self.risk[standing, size].min()))

    def level(self, standing: int, confidence: float, workers: int = 1) -> float:
        """Return how many spreads the bound lies above the prediction.

        A gang larger than the largest in the table is treated as several of that size, whose risks
        at most add up (union bound).

        Raises
        ------
        InputError
            When the data cannot support the confidence.
        """
        most = self.largest_confidence(standing, workers)
        if not 0 < confidence <= most:
            what = f"{STANDINGS[standing]}, {workers} worker{'s' * (workers > 1)}"
            groups = len(self.evidence[standing].groups)
            rule = f"must be above 0 and at most {math.floor(most * 1e4) / 1e4:g}"
            because = f"what {_families(groups)} of workloads can support: {what}"
            needed = f"; {self._needed(standing, confidence)}" if confidence > most else ""
            raise InputError(f"{rule} ({because}), got {confidence:g}{needed}", "confidence")
        size, parts = _size(workers)
        enough = self.risk[standing, size] <= (1 - confidence) / parts + 1e-12
        level = float(self.levels[np.argmax(enough)])
        claimed = self.by_error and standing != KNOWN
        return max(level, NormalDist().inv_cdf(confidence)) if claimed else level

    @property
    def by_error(self) -> bool:
        """Whether spreads are the standard errors of the logarithms of predictions."""
        return not self.spread.any()

    def _needed(self, standing: int, confidence: float) -> str:
        """Say how many families would support the confidence for jobs of one worker.

        They are assumed to break the same fraction m of their bounds at the highest level: the
        number is the K of ``(K m + worst) / (K + 1) <= 1 - confidence``.
        """
        known = len(self.evidence[standing].groups)
        least = float(self.risk[standing, 0].min())
        worst = _worst(standing, self.worst)
        broken = max(0.0, (least * (known + 1) - worst) / known) if known else 0.0
        spare = 1 - confidence - broken
        if spare <= 0:
            return "no number of families is enough while this many bounds are broken"
        families = math.ceil((worst - (1 - confidence)) / spare - 1e-9)
        return f"pairs of {_families(max(families, known + 1))} would be needed"

    def spreads(
        self, slowdown: FloatArray, standing: IntArray, error: FloatArray | None = None
    ) -> FloatArray:
        """Return the spread of each prediction; the arrays are broadcast.

        ``error`` is the standard error of each logarithm, required if ``by_error``.
        """
        if self.by_error:
            return np.broadcast_arrays(np.nan if error is None else error, slowdown)[0]
        above: FloatArray = np.maximum(0.0, slowdown - 1)
        found: FloatArray = self.spread[standing, 0] + self.spread[standing, 1] * above
        return found

    def upper(
        self,
        slowdown: ArrayLike,
        standing: ArrayLike,
        confidence: float,
        workers: int = 1,
        error: FloatArray | None = None,
    ) -> FloatArray:
        """Return upper bounds, elementwise >= ``slowdown``; NaN stays NaN.

        They are NaN if the data cannot support the confidence, see ``largest_confidence``. They
        never fall when the confidence or the number of workers rises.

        Parameters
        ----------
        slowdown : array of float
            The prediction for a job in a pair.
        standing : array of int
            The standing of the pair, a position in ``standing.STANDINGS``; broadcast.
        confidence : float
            The promised fraction of jobs that stay below their bound.
        workers : int
            Workers of the job: the promise is for the slowest of them.
        error : ndarray of float, optional
            See ``spreads``.
        """
        value, index = np.broadcast_arrays(
            np.asarray(slowdown, dtype=np.float64), np.asarray(standing, dtype=np.int64)
        )
        level = np.full(len(STANDINGS), np.nan)
        for found in np.unique(index).tolist():
            if confidence <= self.largest_confidence(found, workers):
                level[found] = self.level(found, confidence, workers)
        return self.above(value, level[index], self.spreads(value, index, error))

    def above(self, slowdown: FloatArray, level: ArrayLike, spread: FloatArray) -> FloatArray:
        """Return the value ``level`` spreads above each slowdown; the arrays are broadcast."""
        far: FloatArray = np.multiply(level, spread)
        return slowdown * np.exp(far) if self.by_error else slowdown + far

    def needed(self, slowdown: FloatArray, truth: FloatArray, spread: FloatArray) -> FloatArray:
        """Return how many spreads each truth lies above the predicted slowdown."""
        if self.by_error:
            slowdown, truth = np.log(slowdown), np.log(truth)
        return np.asarray((truth - slowdown) / spread)

    def updated(
        self,
        prediction: ArrayLike,
        truth: ArrayLike,
        standing: ArrayLike,
        groups: Sequence[str],
        workers: int = 1,
        error: FloatArray | None = None,
    ) -> Self:
        """Return the calibration with measurements that were made since.

        Parameters
        ----------
        prediction, truth : array of float, shape (jobs,)
            Predicted and measured slowdowns of the jobs; for gangs, the highest prediction of a
            worker and the slowdown of the slowest. Rows with a NaN are skipped.
        standing : array of int, shape (jobs,)
            The standing of their pairs at the time of the prediction.
        groups : sequence of str
            The co-runner's family if only the co-runner was new, else the job's own. A family that
            was never seen before starts with these measurements.
        workers : int
            Workers of the jobs.
        error : ndarray of float, optional
            See ``spreads``.
        """
        value, found = np.asarray(prediction, np.float64), np.asarray(truth, np.float64)
        kind = np.asarray(standing, dtype=np.int64)
        needed = self.needed(value, found, self.spreads(value, kind, error))
        size = _size(workers)[0]
        evidence = []
        for code, old in enumerate(self.evidence):
            rows = np.flatnonzero((kind == code) & ~np.isnan(needed))
            names = [groups[int(k)] for k in rows]
            evidence.append(_joined(old, needed[rows], names, self.levels, size))
        return replace(self, evidence=tuple(evidence))

    def arrays(self) -> Arrays:
        """Return everything as arrays of numbers; names as UTF-8, one per line."""
        found: dict[str, np.ndarray] = {
            "spread": self.spread,
            "levels": self.levels,
            "worst": np.array([self.worst]),
            "splits": self.splits,
        }
        for k, evidence in enumerate(self.evidence):
            names = "\n".join(evidence.groups).encode()
            found[f"groups_{k}"] = np.frombuffer(names, dtype=np.uint8)
            found[f"misses_{k}"] = evidence.misses
            found[f"jobs_{k}"] = evidence.jobs
        return found

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Rebuild a calibration.

        Raises
        ------
        InputError
            When the arrays are no valid calibration; their content is not trusted.
        """
        worst = _numbers(arrays, "worst", (1,))
        levels = _numbers(arrays, "levels", (None,))
        spread = _numbers(arrays, "spread", (len(STANDINGS), 2))
        splits = _numbers(arrays, "splits", (None, 100))
        evidence = tuple(_evidence(arrays, k, len(levels)) for k in range(len(STANDINGS)))
        _check(len(levels) > 0 and bool((np.diff(levels) > 0).all()), "levels", "must rise")
        _check(worst[0] <= 1, "worst", "must be <= 1")
        return cls(spread, levels, evidence, float(worst[0]), splits)


def calibrate(
    rows: DirectedRows,
    known: HeldOut,
    new: HeldOut,
    *,
    settings: Sequence[Setting] = SETTINGS,
    rounds: int = 8,
    worst: float = 0.25,
    seed: int = 0,
) -> Calibration:
    """Return bounds calibrated on held-out predictions of a model.

    Parameters
    ----------
    rows : DirectedRows
        The measurements.
    known, new : HeldOut
        Predictions of pairs hidden at random (``random_folds``), and of workloads hidden with
        their family (``family_folds``) and without (``variant_folds``). NaN if the model has no
        answer.
    settings : sequence of Setting
        The ways of picking pairs; ``(BLIND,)`` gives bounds that ignore picking.
    rounds : int
        Rounds drawn for each hidden family, and four times as many without one.
    worst : float
        See ``Calibration``.
    seed : int
        Seed of the rounds.
    """
    found = tables(rows, known, new)
    spread = np.zeros((len(STANDINGS), 2))
    if np.isnan(known.error).all():
        spread = np.array([_fit_spread(found, code) for code in range(len(STANDINGS))])
    tally = _Tally(rows, Calibration(spread, _LEVELS, ()), settings)
    draws = [np.random.default_rng([seed, k]) for k in range(len(found) + 1)]
    for number in range(rounds):
        if number and not measured_once(rows):
            found = tables(rows, known, new, np.random.default_rng([seed, number, 0]))
        for k, table in enumerate(found):
            for turn in (number,) if k else range(4 * number, 4 * number + 4):
                tally.plan(table, turn, draws[k])
        for _ in range(4):
            tally.plan_all_new(found, draws[-1])
    return Calibration(spread, _LEVELS, tally.evidence(worst), worst)


class _Tally:
    """Misses and jobs, shape (ways, standings, gang sizes, families, levels).

    The ways are the settings with known workloads, then the same with all workloads new.
    """

    def __init__(self, rows: DirectedRows, begun: Calibration, settings: Sequence[Setting]) -> None:
        self._families = tuple(dict.fromkeys(rows.families))
        self._begun = begun
        self._settings = settings
        shape = (len(STANDINGS), len(GANGS), len(self._families), len(_LEVELS))
        self._misses, self._jobs = np.zeros((2, 2 * len(settings), *shape))

    def plan(self, table: HeldOutSlowdowns, number: int, draw: np.random.Generator) -> None:
        """Draw rounds, pair their jobs in every setting and count the outcomes."""
        spread = self._spreads(table)
        for jobs in draw_rounds(table, draw):
            for way, setting in enumerate(self._settings):
                for levels, upper in self._limits(table, spread, setting, number):
                    partner = partners(jobs, table, upper, setting, draw)
                    came = outcome(jobs, partner, table, spread, self._begun.by_error)
                    self._count(way, levels, table, came)

    def plan_all_new(self, found: Sequence[HeldOutSlowdowns], draw: np.random.Generator) -> None:
        """Do the same in rounds without known workloads and without a gSLA.

        Each of two families was hidden once; pairs are picked by the mean of the two predictions,
        and the bound of each prediction is checked.
        """
        table = all_new(found)
        hidden = [one for one in found if one.standing.max() >= OF_NEW_FAMILIES]
        for jobs in draw_rounds(table, draw):
            for way, setting in enumerate(self._settings, len(self._settings)):
                if not np.isinf(setting.gsla):
                    continue
                partner = partners(jobs, table, table.prediction, setting, draw)
                for one in hidden:
                    spread = self._spreads(one)
                    came = outcome(jobs, partner, one, spread, self._begun.by_error)
                    self._count(way, slice(None), one, came)

    def _spreads(self, table: HeldOutSlowdowns) -> FloatArray:
        return self._begun.spreads(table.prediction, table.standing, table.error)

    def _limits(
        self, table: HeldOutSlowdowns, spread: FloatArray, setting: Setting, number: int
    ) -> Iterator[tuple[slice, FloatArray]]:
        """Yield bounds to compare with a gSLA, and the levels they are used for.

        Without a gSLA all levels pick the same pairs. With one, a few neighbouring levels use the
        pairs of the lowest of them.
        """
        if np.isinf(setting.gsla):
            yield slice(None), table.prediction
            return
        for level in range(number % _TURNS * _STEP, len(_LEVELS), _TURNS * _STEP):
            upper = self._begun.above(table.prediction, _LEVELS[level], spread)
            yield slice(level, level + _STEP), upper

    def _count(
        self, way: int, levels: slice, table: HeldOutSlowdowns, found: SharedOutcome
    ) -> None:
        """Count the jobs whose pairs have a hidden workload, or all if none is hidden."""
        which = (found.standing != KNOWN) == table.new.any()
        own_new = ~np.isin(found.standing, OF_CO_RUNNERS)
        group = table.family[np.where(own_new, found.workload, found.co_runner)[which]]
        cell = found.standing[which], np.searchsorted(GANGS, found.workers[which]), group
        missed = found.needed[which, None] > _LEVELS[None, levels]
        np.add.at(self._misses[way, ..., levels], cell, missed)
        np.add.at(self._jobs[way, ..., levels], cell, 1.0)

    def evidence(self, worst: float) -> tuple[BrokenBounds, ...]:
        """Return the counts of the way with the largest risk at each level."""
        return tuple(self._of_worst_way(code, worst) for code in range(len(STANDINGS)))

    def _of_worst_way(self, code: int, worst: float) -> BrokenBounds:
        # If no job ever shares in a way, nothing is known of it; that does not discredit the
        # others.
        ways = np.flatnonzero(self._jobs[:, code].any(axis=(1, 2, 3)))
        misses, jobs = self._misses[ways, code], self._jobs[ways, code]
        if not len(ways):
            return BrokenBounds((), *np.zeros((2, len(GANGS), 0, len(_LEVELS))))
        each = zip(misses, jobs, strict=True)
        most = _worst(code, worst)
        risk = [BrokenBounds(self._families, *_scaled(*counts)).risk(most) for counts in each]
        hardest = np.argmax(risk, axis=0)[None, :, None]
        misses, jobs = (np.take_along_axis(c, hardest, axis=0)[0] for c in (misses, jobs))
        return BrokenBounds(self._families, *_scaled(misses, jobs))


def _scaled(misses: FloatArray, jobs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (gang sizes, groups, levels) counts scaled to ``_WORTH`` jobs a group on average.

    The groups keep their proportions: one that is picked more often has more of the jobs.
    """
    present = np.maximum(1, (jobs > 0).sum(axis=1, keepdims=True))
    scale = _WORTH / np.maximum(jobs.sum(axis=1, keepdims=True) / present, _WORTH)
    return misses * scale, jobs * scale


def _fit_spread(found: Sequence[HeldOutSlowdowns], code: int) -> FloatArray:
    """Return a and b >= 0 of the spread, fitted to absolute errors by least squares.

    They are scaled so that nine of ten errors of these pairs are below one spread.
    """
    among = found[:1] if code == KNOWN else found[1:]
    masks = [(table.standing == code) & ~np.isnan(table.prediction) for table in among]
    chosen = list(zip(among, masks, strict=True))
    value = np.concatenate([t.prediction[mask] for t, mask in chosen] or [np.empty(0)])
    error = np.concatenate([t.truth[mask] for t, mask in chosen] or [np.empty(0)]) - value
    if not len(value):
        return np.zeros(2)
    parts = np.column_stack([np.ones(len(value)), np.maximum(0.0, value - 1)])
    # Here, since it takes a service a quarter of a second to load.
    from scipy.optimize import nnls

    fitted = np.maximum(nnls(parts, np.abs(error))[0], [1e-6, 0.0])
    scaled: FloatArray = fitted * max(np.quantile(error / (parts @ fitted), 0.9), 1e-3)
    return scaled


def _worst(code: int, of_known_families: float) -> float:
    """Return the largest fraction of broken bounds that is assumed in an unseen group."""
    return 1.0 if code >= OF_NEW_FAMILIES else of_known_families


def _families(count: int) -> str:
    return f"{count} {'family' if count == 1 else 'families'}"


def _size(workers: int) -> tuple[int, int]:
    """Return the column for this number of workers, and how many gangs of its size cover them."""
    if workers < 1:
        raise InputError(f"must be >= 1, got {workers}", "workers")
    column = min(int(np.searchsorted(GANGS, workers)), len(GANGS) - 1)
    return column, math.ceil(workers / GANGS[column])


def _joined(
    old: BrokenBounds, needed: FloatArray, names: Sequence[str], levels: FloatArray, size: int
) -> BrokenBounds:
    groups = tuple(dict.fromkeys((*old.groups, *names)))
    grown = [(0, 0), (0, len(groups) - len(old.groups)), (0, 0)]
    misses, jobs = np.pad(old.misses, grown), np.pad(old.jobs, grown)
    position = {name: k for k, name in enumerate(groups)}
    index = np.array([position[name] for name in names], dtype=np.int64)
    np.add.at(misses[size], index, needed[:, None] > levels)
    np.add.at(jobs[size], index, 1.0)
    return BrokenBounds(groups, misses, jobs)


def _evidence(arrays: Arrays, k: int, levels: int) -> BrokenBounds:
    try:
        text = bytes(np.asarray(arrays[f"groups_{k}"], dtype=np.uint8)).decode()
    except (KeyError, ValueError):
        raise InputError("must be names in UTF-8", f"groups_{k}") from None
    groups = tuple(text.split("\n")) if text else ()
    shape = (len(GANGS), len(groups), levels)
    misses, jobs = (_numbers(arrays, f"{name}_{k}", shape) for name in ("misses", "jobs"))
    _check(bool((misses <= jobs).all()), f"misses_{k}", f"must be <= jobs_{k}")
    return BrokenBounds(groups, misses, jobs)


def _numbers(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> FloatArray:
    """Return an array of finite numbers >= 0 of this shape (None: any size)."""
    found = arrays.get(name)
    _check(found is not None and found.dtype.kind in "fiu", name, "must be an array of numbers")
    values = np.asarray(found, dtype=np.float64)
    fits = values.ndim == len(shape) and all(
        want in (None, have) for want, have in zip(shape, values.shape, strict=False)
    )
    _check(fits, name, f"must have shape {shape}, got {values.shape}")
    _check(bool((np.isfinite(values) & (values >= 0)).all()), name, "must be finite and >= 0")
    return values


def _check(holds: bool, path: str, rule: str) -> None:
    if not holds:
        raise InputError(rule, path)


class PromiseCoverage(NamedTuple):
    """How well a promise was kept.

    Attributes
    ----------
    jobs : float
        Fraction of the jobs whose slowdown was at most its bound.
    pairs : float
        Fraction of the pairs in which both were.
    width : float
        Median of bound / prediction.
    tested : int
        Number of pairs; if 0, the other numbers are NaN.
    """

    jobs: float
    pairs: float
    width: float
    tested: int


def coverage(
    slowdown: FloatArray,
    upper: FloatArray,
    truth: FloatArray,
    chosen: BoolArray | IntArray | None = None,
) -> PromiseCoverage:
    """Return how many of the bounds were kept.

    Parameters
    ----------
    slowdown, upper, truth : ndarray of float, shape (pairs, 2)
        Predictions, bounds and measurements of both jobs of each pair.
    chosen : ndarray of bool or int, optional
        The pairs of a plan, as a mask or as positions (a pair may appear twice); all by default.
    """
    rows = slice(None) if chosen is None else chosen
    kept = truth[rows] <= upper[rows]
    if not len(kept):
        return PromiseCoverage(np.nan, np.nan, np.nan, 0)
    width = np.median(upper[rows] / slowdown[rows])
    return PromiseCoverage(
        float(kept.mean()), float(kept.all(axis=1).mean()), float(width), len(kept)
    )
