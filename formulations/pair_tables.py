"""Large rounds of pairs as tables of the slowdown of each workload with each other, at each split.

``groups`` lists every pair of jobs at every split, which is quadratic in the jobs. If plans are
matchings (see ``pair_graph``) the pairs need not be listed: jobs of one workload differ only in
their bounds and needs, and the slowdowns of two workloads fit a table. The best split of every pair
is then found in one pass over such tables, and groups are listed for the pairs that were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.completion import Completion
from dovetail.formulations.prices import Ends
from dovetail.formulations.rounds import Round
from dovetail.formulations.rules import most_bound, room_mib
from dovetail.formulations.values import JctValues, JobValues
from dovetail.instances.slowdowns.shares import CODES, NO_CAP, share_code

MOST_SPLITS = 255
"""Maximum number of splits of a table; their indices fit a byte."""


@dataclass(frozen=True)
class PairTables:
    """A round of ``n`` jobs that share at ``s`` splits, on tables of ``k`` rows.

    A *row* is a workload and, if tail latencies are known, whether the job is of priority
    ``latency``; so is a column. A *split* is the shares of both jobs, as seen from the first.

    Attributes
    ----------
    shares : (s, 2) int
        The shares of each split, ``NO_CAP`` for no cap.
    mirror : (s,) int
        The index of each split as seen from the second job.
    slowdown, bound : (k, k, s) float
        Slowdown of a row beside a column, and the bound that its gSLA is checked against;
        NaN if the two may not share.
    row : (n,) int
        The row of each job.
    gsla : (n,) float
        The largest bound that each job accepts, tolerance included; inf for any.
    memory_mib : (n,) float
        Memory that one worker of each job needs.
    memory_limit_mib : float
        Memory that two jobs may need on one GPU, including the tolerance.
    scale : (n,) float
        The gain of each job at slowdown 1, or the factor on its slowdown.
    minimised : bool
        Whether the gain is ``-scale * slowdown`` instead of ``scale / slowdown``.
    size : (n,) int
        GPUs that each job takes.
    running : (n,) bool
        Jobs that hold GPUs already; no two of them can pair.
    required : (n,) bool
        Running jobs that another job could join; for others there is no decision.
    allowed : (n, s) bool
        The splits that each job may have.
    capacity : int
        The number of GPUs that pairs and single jobs may take together.
    cost : (k, k, s) float, optional
        What a GPU with both costs, if it counts.
    left : (n,) float, optional
        Seconds that each job needs alone, if pairs must end earlier on average by sharing.
    ends : Ends, optional
        What decides the values of pairs if they are completion time saved.
    """

    shares: Ints
    mirror: Ints
    slowdown: Floats
    bound: Floats
    row: Ints
    gsla: Floats
    memory_mib: Floats
    memory_limit_mib: float
    scale: Floats
    minimised: bool
    size: Ints
    running: Bools
    required: Bools
    allowed: Bools
    capacity: int
    cost: Floats | None = None
    left: Floats | None = None
    ends: Ends | None = None


def pair_tables(compiled: Round, values: JobValues) -> PairTables | None:
    """Return the tables of a round, or None if its groups have to be listed.

    That is the case if plans are not or might not be matchings, if no jobs may share, and if tables
    do not determine the worth of a pair: under users' objectives whose gains are not proportional,
    that have rules, or that count ends in two stages or as costs, and with sub-batches.
    """
    shortens = _shortens(values)
    timed = isinstance(values, Completion)
    if (shortens or timed) and (values.two_stage or values.minimised):
        return None
    if not (timed or _is_tabular(values, shortens)) or not _in_plain_pairs(
        compiled, values.pairs_only
    ):
        return None
    if (shortens or values.ratio) and not np.isnan(compiled.jobs.slowdown).all():
        return None
    known = compiled.slowdowns.pairs(compiled.only_kind).splits(compiled.machines.rules.share_sum)
    if not 1 <= len(known.shares) <= MOST_SPLITS:
        return None
    jobs, late = compiled.jobs, known.late
    rows, row = np.unique(2 * jobs.workload + (late & jobs.latency), return_inverse=True)
    of, is_late = np.divmod(rows, 2)
    every = np.ix_(of, of)
    bound = np.where(is_late[:, None, None] > 0, known.tail[every], known.upper[every])
    ends = values.ends(of, known.shares[:, 0]) if isinstance(values, Completion) else None
    if timed and ends is None:
        return None
    one = values.gain(np.arange(len(compiled)), np.ones(len(compiled)), compiled.only_kind.model)
    allowed, required = _allowed(compiled, known.shares)
    held = int(compiled.classes.size[compiled.classes.residents > 1].sum())
    return PairTables(
        shares=known.shares,
        mirror=_mirror(known.shares),
        slowdown=known.slowdown[every],
        bound=bound,
        row=row.reshape(-1).astype(np.int64),
        gsla=most_bound(jobs.gsla),
        memory_mib=_needs_mib(compiled),
        memory_limit_mib=room_mib(float(compiled.classes.memory_mib[0])),
        scale=values.weight if timed else np.abs(one),
        minimised=values.minimised,
        size=jobs.workers,
        running=jobs.running,
        required=required,
        allowed=allowed,
        capacity=len(compiled.machines) - held,
        cost=_cost(compiled, values, known.power_w[every]),
        left=jobs.remaining_s if shortens else None,
        ends=ends,
    )


def _cost(compiled: Round, values: JobValues, power_w: Floats) -> Floats | None:
    """Return what a GPU with each two rows costs at each split, if it counts."""
    if values.ratio:
        return np.nan_to_num(power_w)
    if values.cheapest:
        return np.full(power_w.shape, compiled.machines.model_cost[0])
    return None


def _needs_mib(compiled: Round) -> Floats:
    """Return the memory of each job on a GPU, all of which are equal; jobs have one variant."""
    variant = np.arange(len(compiled.variants))
    offered = np.full(len(variant), compiled.classes.memory_mib[0])
    return compiled.variants.need_mib(variant[:, None], offered)[:, 0]


def _is_tabular(values: JobValues, shortens: bool) -> bool:
    """Return whether each gain is the job's own at slowdown 1, in proportion to its slowdown."""
    return values.proportional and not values.grouped and (shortens or not values.has_rule)


def _shortens(values: JobValues) -> bool:
    """Return whether the rule of an objective is that pairs end earlier on average."""
    return type(values).may_share is JctValues.may_share


def _in_plain_pairs(compiled: Round, pairs_only: bool) -> bool:
    """Return whether jobs have no sub-batches and can share only in pairs of equal size."""
    rules = compiled.machines.rules
    gangs = bool((compiled.jobs.workers > 1).any())
    return (
        len(compiled.gpu_types) == 1
        and compiled.interchangeable
        and compiled.slowdowns.most_on(compiled.only_kind) >= 2
        and (rules.gang_sharing == "whole" or not gangs)
        and len(compiled.variants) == len(compiled)
        and bool((compiled.variants.slowdown_factor == 1).all())
        and _alike(compiled)
        and (
            pairs_only
            or compiled.slowdowns.most_on(compiled.only_kind) == 2
            or not compiled.slowdowns.sets
        )
    )


def _alike(compiled: Round) -> bool:
    """Return whether each class holds no job, one job on all the job's GPUs, or a full pair."""
    classes = compiled.classes
    one = classes.residents == 1
    workers = compiled.jobs.workers[compiled.variants.job[classes.variant[one, :1]]]
    whole = bool((workers == classes.size[one, None]).all())
    return whole and bool((classes.residents <= 2).all())


def _code(own: Ints, other: Ints) -> Ints:
    return own * CODES + other


def _mirror(shares: Ints) -> Ints:
    own, other = shares.T
    return np.searchsorted(_code(own, other), _code(other, own)).astype(np.int64)


def _allowed(compiled: Round, shares: Ints) -> tuple[Bools, Bools]:
    """Return the splits that each job may have, and which running jobs may be joined.

    A starting job may have the cluster's shares; a running job that can be joined has its own
    share. A job that may not share these GPUs has no split.
    """
    own = shares[:, 0]
    starting = np.isin(own, [NO_CAP, *map(share_code, compiled.machines.rules.shares)])
    allowed = ~compiled.jobs.running[:, None] & starting[None, :]
    required = np.zeros(len(compiled), dtype=bool)
    classes = compiled.classes
    for k in np.flatnonzero(classes.residents == 1).tolist():
        (resident,) = classes.on[k]
        required[resident.job] = True
        if classes.open[k]:
            allowed[resident.job] = own == resident.share
    allowed &= compiled.may_share[compiled.classes.kind[0]][:, None]
    return allowed, required
