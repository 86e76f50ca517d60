"""Jobs as an optimiser would pair them, in rounds drawn from measured pairs.

An optimiser looks for pairs with small slowdowns, and so it picks pairs whose slowdowns were
predicted too low more often than others. The error of a prediction *where it is used* is therefore
the error on the pairs that are picked. This module draws rounds of jobs from measured workloads,
pairs them by the predictions, and returns the outcomes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from dovetail.predictors.fitted.rows import DirectedRows, HeldOut
from dovetail.predictors.fitted.standing import (
    KNOWN,
    NEW_FAMILY,
    OF_NEW_FAMILIES,
    novelty,
    standings,
)
from dovetail.predictors.predictor import BoolArray, FloatArray, IntArray

GANGS: Final = (1, 2, 4, 8)
"""The numbers of workers of jobs in a drawn round."""

_JOBS_OF = (16, 4, 2, 2)
_FORBIDDEN = -1e6


class HeldOutSlowdowns(NamedTuple):
    """Held-out predictions and measurements of every two workloads.

    Attributes
    ----------
    prediction, truth : ndarray of float, shape (workloads, workloads)
        Slowdown of the row's workload with the column's; NaN if not measured.
    error : ndarray of float, shape (workloads, workloads)
        Standard error of the prediction's logarithm; NaN if the model has none.
    standing : ndarray of int, shape (workloads, workloads)
        The standing of the pair at the prediction, a position in ``STANDINGS``.
    new : ndarray of bool, shape (workloads,)
        The workloads that are new to the model.
    family : ndarray of int, shape (workloads,)
        The family of each workload, as a number.
    """

    prediction: FloatArray
    truth: FloatArray
    error: FloatArray
    standing: IntArray
    new: BoolArray
    family: IntArray


class Setting(NamedTuple):
    """How pairs are picked.

    Attributes
    ----------
    gsla : float
        The largest slowdown that a job's bound may reach.
    price : float or None
        The price of a GPU in units of a job's full rate: near 1 if GPUs are scarce, lower if many
        jobs could run alone. None pairs jobs at random.
    """

    gsla: float
    price: float | None


BLIND: Final = Setting(np.inf, None)
"""Random pairs: no choice, so no luck."""


class WorkerRound(NamedTuple):
    """Workers to pair; those of one gang share a job and a workload.

    Attributes
    ----------
    job, workload : ndarray of int, shape (workers,)
        The job of each worker, 0, 1, ..., and its workload.
    """

    job: IntArray
    workload: IntArray


class SharedOutcome(NamedTuple):
    """Outcomes of the jobs that share, one entry per job.

    Attributes
    ----------
    workload, workers : ndarray of int
        The job's workload, and its number of workers.
    co_runner : ndarray of int
        The co-runner's workload in its least known pair.
    standing : ndarray of int
        The standing of its least known pair, a position in ``STANDINGS``.
    needed : ndarray of float
        How many spreads its bound must lie above the prediction to cover the job's slowdown; that
        is the slowdown of its slowest worker, and the bound is the largest of its workers' bounds.
    """

    workload: IntArray
    workers: IntArray
    co_runner: IntArray
    standing: IntArray
    needed: FloatArray


def tables(
    rows: DirectedRows, known: HeldOut, new: HeldOut, draw: np.random.Generator | None = None
) -> list[HeldOutSlowdowns]:
    """Return a table without new workloads, then one for each fold that hides some.

    A plan runs two workloads at one split, so measurements at several splits are not averaged.

    Parameters
    ----------
    rows : DirectedRows
        The measurements.
    known : HeldOut
        Predictions of pairs whose workloads were seen in other pairs (``random_folds``).
    new : HeldOut
        Predictions of pairs with a workload that was hidden (``family_folds``, ``variant_folds``).
    draw : Generator, optional
        Draws one of the measurements of each two workloads; the first by default.
    """
    names = {family: k for k, family in enumerate(dict.fromkeys(rows.families))}
    family = np.array([names[name] for name in rows.families], dtype=np.int64)
    nothing = np.zeros(len(rows.names), dtype=np.bool_)
    every = np.arange(len(rows.slowdown))
    taken = _one_of_each(rows, draw)
    prediction, error = _of_pairs(rows, known, taken)
    truth, _ = _of_pairs(rows, HeldOut(every, every, rows.slowdown, rows.slowdown), taken)
    standing = np.full(truth.shape, KNOWN, dtype=np.int64)
    base = HeldOutSlowdowns(prediction, truth, error, standing, nothing, family)
    return [base, *_hidden(base, rows, new, taken)]


def measured_once(rows: DirectedRows) -> bool:
    """Return whether every two measured workloads have exactly one measurement."""
    return len(np.unique(rows.workload_pair)) == len(np.unique(rows.pair))


def _one_of_each(rows: DirectedRows, draw: np.random.Generator | None) -> BoolArray:
    """Return the rows of one measurement of every two workloads, as a mask."""
    pairs, place = np.unique(rows.pair, return_inverse=True)
    order = np.arange(len(pairs)) if draw is None else draw.permutation(len(pairs))
    sequence = np.argsort(order[place], kind="stable")
    _, first = np.unique(rows.workload_pair[sequence], return_index=True)
    return np.isin(rows.pair, rows.pair[sequence[first]])


def _of_pairs(
    rows: DirectedRows, found: HeldOut, taken: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Return slowdown and error of each ordered pair of workloads, NaN if there is none.

    A workload with itself has two rows, of which this is the mean.
    """
    shape = (len(rows.names), len(rows.names))
    inside = found.take(taken[found.row])
    cell = rows.own_workload[inside.row], rows.other_workload[inside.row]
    total, count = np.zeros((2, *shape)), np.zeros(shape)
    np.add.at(total[0], cell, inside.slowdown)
    np.add.at(total[1], cell, inside.error)
    np.add.at(count, cell, 1.0)
    slowdown, error = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return slowdown, error


def _hidden(
    base: HeldOutSlowdowns, rows: DirectedRows, found: HeldOut, taken: BoolArray
) -> Iterator[HeldOutSlowdowns]:
    for fold in np.unique(found.fold):
        part = found.take(found.fold == fold)
        seen = np.delete(rows.own_workload, part.row)
        new = np.isin(np.arange(len(rows.names)), np.setdiff1d(rows.own_workload, seen))
        what = novelty(~new, base.family)
        standing = standings(what[:, None], what[None, :])
        slowdown, error = _of_pairs(rows, part, taken)
        yield base._replace(
            prediction=np.where(standing == KNOWN, base.prediction, slowdown),
            error=np.where(standing == KNOWN, base.error, error),
            standing=standing,
            new=new,
        )


def all_new(found: Sequence[HeldOutSlowdowns]) -> HeldOutSlowdowns:
    """Return an estimate of the predictions if every family were new.

    It is the mean of the predictions for a pair with one of its families hidden.

    Parameters
    ----------
    found : sequence of HeldOutSlowdowns
        As ``tables`` returns them.
    """
    each = [np.where(one.standing < OF_NEW_FAMILIES, np.nan, one.prediction) for one in found]
    count = np.isfinite(each).sum(axis=0)
    total = np.nansum(each, axis=0)
    mean = np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)
    nothing = np.zeros(len(count), dtype=np.bool_)
    return found[0]._replace(prediction=mean, standing=np.full_like(count, NEW_FAMILY), new=nothing)


def draw_rounds(table: HeldOutSlowdowns, draw: np.random.Generator) -> Iterator[WorkerRound]:
    """Draw a round with gangs, then one of single workers with half to all of the workloads.

    An optimiser is more selective the more co-runners there are, so the second round is large, but
    not always of all workloads, as it would then pick the same few pairs again and again. There
    are no rounds if nothing was predicted.
    """
    predicted = np.flatnonzero(~np.isnan(table.prediction).all(axis=1))
    if len(predicted):
        yield draw_round(table, draw)
        size = round(draw.uniform(0.5, 1) * len(predicted))
        yield WorkerRound(np.arange(size), draw.permutation(predicted)[:size])


def draw_round(table: HeldOutSlowdowns, draw: np.random.Generator) -> WorkerRound:
    """Draw jobs of every number of workers in ``GANGS``.

    Half of the jobs are of new workloads if the table has any. Families are drawn first, then
    their workloads, so that a family with many variants does not dominate the round.
    """
    size = np.repeat(GANGS, _JOBS_OF)
    measured = ~np.isnan(table.prediction).all(axis=1)
    kinds = [among for among in (measured & ~table.new, measured & table.new) if among.any()]
    drawn = [_draw_workloads(table, draw, among, len(size)) for among in kinds]
    workload = np.where(draw.random(len(size)) < 0.5, drawn[0], drawn[-1])
    job = np.repeat(np.arange(len(size)), size)
    return WorkerRound(job, workload[job])


def _draw_workloads(
    table: HeldOutSlowdowns, draw: np.random.Generator, among: BoolArray, count: int
) -> IntArray:
    member = np.flatnonzero(among)
    _, family, size = np.unique(table.family[member], return_inverse=True, return_counts=True)
    odds = 1 / size[family]
    return draw.choice(member, count, p=odds / odds.sum())


_DIGITS: Final = 6
"""Decimal places of a gain that count."""


def partners(
    jobs: WorkerRound,
    table: HeldOutSlowdowns,
    upper: FloatArray,
    setting: Setting,
    draw: np.random.Generator,
) -> IntArray:
    """Return the worker that each worker is paired with, or itself if it does not share.

    With ``rate = 1 / prediction``, this maximises the sum of ``rate_ij + rate_ji - price`` over
    pairs and of ``max(0, 1 - price)`` over workers that do not share, over the pairs whose two
    bounds keep the gSLA. It is solved as an assignment, a relaxation of the matching. Its pairs
    are those of the best matching except for odd cycles, in which a worker has one neighbour as
    its partner and is the partner of the other.

    Parameters
    ----------
    jobs : WorkerRound
        The workers.
    table : HeldOutSlowdowns
        Predictions for their workloads.
    upper : ndarray of float, shape (workloads, workloads)
        The bounds that are compared with the gSLA; NaN if two may not share.
    setting : Setting
        How pairs are picked.
    draw : Generator
        For pairing at random.

    Returns
    -------
    ndarray of int, shape (workers,)
        Positions in the round.
    """
    cell = np.ix_(jobs.workload, jobs.workload)
    with np.errstate(invalid="ignore"):
        allowed = (upper[cell] <= setting.gsla) & (jobs.job[:, None] != jobs.job[None, :])
    gain, alone = _gains(table.prediction[cell], setting.price, draw)
    # Rounded, so that pairs of equal gain are equal on every processor: linear algebra differs in
    # the last digits, and the pairs that are picked with them.
    gain = np.where(allowed & allowed.T, np.round(gain + gain.T, _DIGITS), _FORBIDDEN)
    np.fill_diagonal(gain, alone)
    # Here, since it takes a service a quarter of a second to load.
    from scipy.optimize import linear_sum_assignment

    found: IntArray = linear_sum_assignment(gain, maximize=True)[1]
    return found


def _gains(
    prediction: FloatArray, price: float | None, draw: np.random.Generator
) -> tuple[FloatArray, float]:
    """Return half of the gain of each worker with each other one, and its gain alone."""
    if price is None:
        return draw.random(prediction.shape), 0.0
    return (1 / prediction - price / 2) / 2, max(0.0, 1 - price)


def outcome(
    jobs: WorkerRound,
    partner: IntArray,
    table: HeldOutSlowdowns,
    spread: FloatArray,
    logarithms: bool = False,
) -> SharedOutcome:
    """Return the outcomes of the jobs with at least one worker that shares.

    With ``logarithms``, spreads refer to the logarithms of slowdowns.
    """
    if logarithms:
        table = table._replace(prediction=np.log(table.prediction), truth=np.log(table.truth))
    share = np.flatnonzero(partner != np.arange(len(partner)))
    own, other, job = jobs.workload[share], jobs.workload[partner[share]], jobs.job[share]
    cell = own, other
    workers = np.bincount(jobs.job)
    slowest = np.full(len(workers), -np.inf)
    np.maximum.at(slowest, job, table.truth[cell])
    needed = np.full(len(workers), np.inf)
    np.minimum.at(needed, job, (slowest[job] - table.prediction[cell]) / spread[cell])
    # The least known pair of each job comes first.
    order = np.lexsort((-table.standing[cell], job))
    present, first = np.unique(job[order], return_index=True)
    least = order[first]
    ends = own[least], workers[present], other[least]
    return SharedOutcome(*ends, table.standing[cell][least], needed[present])
