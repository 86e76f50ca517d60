"""A relaxation of rounds with partial sharing: every gang split into its workers.

A gang runs at the pace of its slowest worker, so its worth is the least of its worths at each
worker's slowdown, and never more than their mean:

    worth_j(max of s_k) = min of worth_j(s_k) <= 1/W sum of worth_j(s_k)        (W workers)

Let every worker be a separate job that is worth 1/W of the gang at its own slowdown and may be
placed without the others. Then a plan is a matching of workers on the available GPUs, and the
matching is worth at least as much; so the best matching, which ``match_pairs`` proves, bounds every
plan. If it places every gang completely or not at all, each at one worth, it *is* a plan of that
value.

A *box* restricts the gangs: placed or not, worth between a floor and a cap, at one sub-batch. A
worker below the floor is not allowed; a worker above the cap is treated as at the cap, because some
worker of the gang is no better. So a box is bounded in the same way, and boxes that split a gang's
possibilities in two make a search exact (``solver.gang_search``), and ``dominations`` keep it from
trying equal gangs in every order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csc_array

from dovetail.formulations.arrays import Bools, Floats, Ints, joined_ints, packed, ranges
from dovetail.formulations.budget import UNLIMITED, Budget
from dovetail.formulations.candidates.dominations import ALONE, Dominations, SeatTable
from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.programs.pair_graph import fixed_counts, require_interchangeable
from dovetail.instances.errors import UnsupportedError

ANY = -1
"""A sub-batch variant that is still open."""


@dataclass(frozen=True)
class Box:
    """Restrictions on the gangs; all arrays are by job.

    Attributes
    ----------
    floor, cap : (n,) float
        Bounds on the worth of the job, -inf and inf for none.
    variant : (n,) int
        Index of the variant that all workers must have, ``ANY`` if it is open.
    required, excluded : (n,) bool
        Whether the job must, or may not, be placed.
    """

    floor: Floats
    cap: Floats
    variant: Ints
    required: Bools
    excluded: Bools

    def settled(self, job: int | Ints, **changes: float) -> Box:
        """Return the box with other entries for one job, or several."""
        arrays = {}
        for name, value in changes.items():
            arrays[name] = getattr(self, name).copy()
            arrays[name][job] = value
        return replace(self, **arrays)

    def differs(self, other: Box) -> Bools:
        """Return which jobs have different entries in another box, (n,)."""
        names = ("floor", "cap", "variant", "required", "excluded")
        pairs = [getattr(self, name) != getattr(other, name) for name in names]
        return np.asarray(np.logical_or.reduce(pairs))


@dataclass(frozen=True)
class WorkerPairs:
    """The arguments of ``match_pairs`` for workers of a box.

    Attributes
    ----------
    workers : (k,) int
        The indices of the workers, out of m.
    pair_value : (k, m) float
        Their worth on one GPU with each worker, NaN if they may not share.
    single_value : (k,) float
        Their worth alone, NaN if that is not allowed.
    required : (k,) bool
        Whether they must be placed.
    """

    workers: Ints
    pair_value: Floats
    single_value: Floats
    required: Bools


@dataclass(frozen=True)
class Seats:
    """A matching of workers read as groups on GPUs.

    Attributes
    ----------
    rows : (k,) int
        The rows that the matching takes, see ``WorkerGraph.counts``.
    placed : (n,) int
        How many workers of each job are placed.
    least, mean : (n,) float
        The least worth over a job's placed workers, inf for none; and the job's worth in the
        relaxation.
    variant : (n,) int
        The variant that the matched workers of the job have in common; ``ANY`` if there is none.
    mixed : (n,) bool
        Whether the matched workers have several variants.
    """

    rows: Ints
    placed: Ints
    least: Floats
    mean: Floats
    variant: Ints
    mixed: Bools


@dataclass(frozen=True)
class GangSeats:
    """Where the workers of gangs may sit, by gang, variant and decreasing worth.

    Attributes
    ----------
    gang : (g,) int
        The jobs: pending gangs whose workers are all alike.
    start : (n + 1,) int
        The seats of job j are ``start[j]:start[j + 1]``.
    worth, variant : (s,) float, int
        The worth of the gang there, and its variant.
    partner : (s,) int
        The kind of the worker that it shares the GPU with, -1 for none.
    partner_worth, partner_variant : (s,) float, int
        The same of the partner.
    cost : (s,) float
        The cost of the GPU.
    """

    gang: Ints
    start: Ints
    worth: Floats
    variant: Ints
    partner: Ints
    partner_worth: Floats
    partner_variant: Ints
    cost: Floats


class WorkerGraph:
    """The workers of a round, and their worth in pairs and alone.

    Parameters
    ----------
    groups : Groups
        The candidate groups of the round.
    worth : (m,) float
        For every member of a group, the worth of its job at the member's slowdown; it must decrease
        with the slowdown.
    cost : (groups,) float, optional
        The cost of a GPU with the group, subtracted from the worth of its jobs.
    budget : Budget
        When to stop looking for dominations.

    Attributes
    ----------
    gpus : int
        The number of GPUs that workers may take together.
    workers : (n,) int
        Workers of each job.
    root : Box
        The box of all plans.
    job_of_kind, number : (kinds,) int
        The job of the workers of each kind, and how many they are.
    own_kind : (n,) int
        The kind of all workers of a job if it is pending, -1 if it is not.

    Raises
    ------
    UnsupportedError
        If GPUs differ or hold more than two jobs, with the reason.
    """

    def __init__(
        self,
        groups: Groups,
        worth: Floats,
        cost: Floats | None = None,
        budget: Budget = UNLIMITED,
    ) -> None:
        require_interchangeable(groups)
        if (groups.sizes > 2).any():
            raise UnsupportedError("groups of three or more jobs are not pairs")
        self.groups = groups
        self.workers = groups.round.jobs.workers
        self._available = groups.round.classes.size
        self._fixed = fixed_counts(groups, groups.sizes > 0)
        self._cost = np.zeros(len(groups)) if cost is None else cost
        self.gpus = int(self._available.sum() - self._fixed.sum())
        self._cost_of_fixed = float(self._cost @ self._fixed)
        self._list_seats(worth)
        self._used: Ints = np.arange(len(self._key))
        self.root = self._root(worth)
        self._dominations = self._compared(budget)
        self._worths: dict[int, Floats] = {}

    def pairs(self, box: Box, fill: Callable[..., None], jobs: Bools | None = None) -> WorkerPairs:
        """Return the worth in a box of the workers of some jobs, by default of all.

        Parameters
        ----------
        box : Box
        fill : callable
            ``solver.pairing.gang_options.pair_values``, or its compiled form.
        jobs : (n,) bool, optional
        """
        if jobs is None:
            kinds, rows = np.arange(len(self.job_of_kind)), np.arange(len(self._key))
        else:
            kinds = np.flatnonzero(jobs[self.job_of_kind])
            by_job, start = self._used_rows
            affected = np.flatnonzero(jobs).tolist()
            rows = joined_ints([by_job[start[job] : start[job + 1]] for job in affected])
        place = np.full(len(self.job_of_kind), -1)
        place[kinds] = np.arange(len(kinds))
        value = np.full((len(kinds), len(self.job_of_kind)), np.nan)
        fill(
            rows, self._kind, self._worth, self._variant, self._cost_of_row, self.job_of_kind,
            self.workers, box.floor, box.cap, box.variant, box.excluded, place, value,
        )  # fmt: skip
        kind = self._kind_of_worker
        workers = np.flatnonzero(place[kind] >= 0)
        own = kind[workers]
        pairs = value[place[own]].take(kind, axis=1)
        single = value[place[own], own]
        pairs[own[:, None] == kind] = np.nan  # workers of one gang take a GPU each
        required = self._held[own] | box.required[self.job_of_kind[own]]
        return WorkerPairs(workers, pairs, single, required)

    def constant(self, box: Box) -> float:
        """Return the worth of the workers that no matching contains."""
        held = self._fixed_workers > 0
        worth = box.cap[held] * self._fixed_workers[held] / self.workers[held]
        return float(worth.sum()) - self._cost_of_fixed

    def value(self, seats: Seats) -> float:
        """Return the value of a plan: every gang is placed completely or not at all."""
        worth = math.fsum(seats.least[seats.placed > 0].tolist())
        return worth - float(self._cost_of_row[seats.rows].sum()) - self._cost_of_fixed

    def counts(self, seats: Seats) -> Ints:
        """Return how often each group is taken."""
        taken = np.bincount(self._group[seats.rows], minlength=len(self.groups))
        return np.asarray(self._fixed + taken)

    def worths(self, job: int) -> Floats:
        """Return the possible worths of a job, distinct and ascending."""
        if job in self._worths:
            return self._worths[job]
        by_job, start = self._rows
        rows = by_job[start[job] : start[job + 1]]
        fixed = self.root.cap[job : job + 1][self._fixed_workers[job : job + 1] > 0]
        found = np.unique(np.append(self._worth[rows][self._job[rows] == job], fixed))
        return self._worths.setdefault(job, found)

    @property
    def job_of_worker(self) -> Ints:
        """The job of each worker in the matching, (m,)."""
        return np.asarray(self.job_of_kind[self._kind_of_worker])

    def dominated(self, job: int) -> Ints:
        """Return the jobs that need not be placed if this one is not; itself first."""
        return self._dominations.dominated(job)

    def dominating(self, job: int) -> Ints:
        """Return the jobs that may be placed wherever this one is; itself first."""
        return self._dominations.dominating(job)

    def by_kind(self, prices: Floats) -> Floats:
        """Return the mean price of the workers of each kind: it proves as much for all of them."""
        total = np.bincount(self._kind_of_worker, prices, len(self.number))
        return np.asarray(total / np.maximum(self.number, 1))

    def gang_seats(self) -> GangSeats:
        """Return where the workers of pending gangs may sit, by the groups that are kept."""
        pending = (self.workers > 1) & (self.own_kind >= 0)
        used, side = np.nonzero(pending[self._job[self._used]])
        row = self._used[used]
        once = (self._kind[row, 0] != self._kind[row, 1]) | (side == 0)
        row, side = row[once], side[once]
        gang = self._job[row, side]
        worth, variant = self._worth[row, side], self._variant[row, side]
        order = np.lexsort((-worth, variant, gang))
        row, side = row[order], side[order]
        own, other = self._kind[row, side], self._kind[row, 1 - side]
        return GangSeats(
            gang=np.flatnonzero(pending),
            start=np.searchsorted(gang[order], np.arange(len(self.workers) + 1)),
            worth=worth[order],
            variant=variant[order],
            partner=np.where(own == other, -1, other),
            partner_worth=self._worth[row, 1 - side],
            partner_variant=self._variant[row, 1 - side],
            cost=self._cost_of_row[row],
        )

    def keep(self, box: Box, prices: Floats, price: float, most: float) -> None:
        """Forget the groups outside a box, and those whose plans are worth so much less.

        Parameters
        ----------
        box : Box
            A box that all other boxes are parts of from now on.
        prices : (kinds,) float
        price : float
            Prices of workers and GPUs that prove a bound on all plans of the box.
        most : float
            Only groups with which a plan may be this near to the bound are kept. Matchings may
            still take the others where the values of their workers are not asked for again.
        """
        kind, rows = self._kind[self._used], self._used
        paid = prices[kind[:, 0]] + np.where(kind[:, 0] == kind[:, 1], 0.0, prices[kind[:, 1]])
        self._used = rows[paid + price - self._values(rows, box) <= most]
        self._used_rows = self._by_job(self._used)

    def variants(self, job: int) -> Ints:
        """Return the variants that a job may have."""
        return np.flatnonzero(self.groups.variants.job == job)

    def seats(self, mate: Ints, box: Box) -> Seats:
        """Return the groups that a matching of workers takes, the best of a box for each pair."""
        lead = np.flatnonzero(mate >= np.arange(len(mate)))
        ends = np.sort(self._kind_of_worker[np.stack([lead, mate[lead]])], axis=0)
        row = self._best_rows(ends[0] * len(self.job_of_kind) + ends[1], box)
        worth = self._worth[row]
        kind, member = self._kind[row], np.ones(worth.shape, dtype=bool)
        member[:, 1] = kind[:, 0] != kind[:, 1]
        job, worth, variant = (
            self.job_of_kind[kind[member]],
            worth[member],
            self._variant[row][member],
        )
        n = len(self.workers)
        least = np.where(self._fixed_workers > 0, self.root.cap, np.inf)
        np.minimum.at(least, job, worth)
        mean = np.where(self._fixed_workers > 0, box.cap, 0.0) * self._fixed_workers
        np.add.at(mean, job, np.minimum(worth, box.cap[job]))
        lowest, highest = np.full(n, len(self.groups.variants)), np.full(n, ANY)
        np.minimum.at(lowest, job, variant)
        np.maximum.at(highest, job, variant)
        return Seats(
            rows=row,
            placed=self._fixed_workers + np.bincount(job, minlength=n),
            least=least,
            mean=mean / self.workers,
            variant=np.where(lowest == highest, lowest, ANY),
            mixed=lowest < highest,
        )

    def _list_seats(self, worth: Floats) -> None:
        """Order the groups that may or may not be taken by the *kinds* of their workers.

        Workers of a job that may take each other's place are of one kind: all workers of a pending
        gang, and the workers of a running gang that are on GPUs of one class.
        """
        groups = self.groups
        usable = np.flatnonzero(self._fixed == 0)
        ends = np.stack([groups.start[usable], groups.start[usable + 1] - 1], axis=1)
        running = groups.round.jobs.running
        job = groups.job[ends]
        own_class = np.where(running[job], groups.gpu_class[usable][:, None] + 1, 0)
        code = job * (len(self._available) + 1) + own_class
        named = np.zeros(len(self.workers) * (len(self._available) + 1), dtype=bool)
        named[code] = True
        names = np.flatnonzero(named)
        kind = (np.cumsum(named) - 1)[code]
        order = _by_value(kind[:, 1], len(names))[0]
        order = order[_by_value(kind[order, 0], len(names))[0]]
        self._group, self._kind = usable[order], kind[order]
        self._cost_of_row = self._cost[self._group]
        self._key = self._kind[:, 0] * len(names) + self._kind[:, 1]
        self._worth, self._variant = worth[ends][order], groups.variant[ends][order]
        self.job_of_kind, held_class = np.divmod(names, len(self._available) + 1)
        self._job = self.job_of_kind[self._kind]
        self._held = held_class > 0
        number = np.where(
            self._held, self._available[held_class - 1], self.workers[self.job_of_kind]
        )
        self.number = number
        self._kind_of_worker = np.repeat(np.arange(len(names)), number)
        self.own_kind = np.full(len(self.workers), -1)
        self.own_kind[self.job_of_kind[~self._held]] = np.flatnonzero(~self._held)
        self._rows = self._used_rows = self._by_job(np.arange(len(self._key)))

    def _by_job(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return rows by the jobs that they hold, and where those of each job start."""
        order, start = _by_value(self._job[rows].T.ravel(), len(self.workers))
        return np.tile(rows, 2)[order], start

    def _root(self, worth: Floats) -> Box:
        """Return the box of all plans, with worths capped by those of the fixed workers."""
        n = len(self.workers)
        groups = self.groups
        member = np.flatnonzero(self._fixed[groups.group_of_member] > 0)
        cap = np.full(n, np.inf)
        np.minimum.at(cap, groups.job[member], worth[member])
        number = self._fixed[groups.group_of_member[member]]
        fixed = np.bincount(groups.job[member], weights=number, minlength=n)
        self._fixed_workers = fixed.astype(np.int64)
        return Box(
            floor=np.full(n, -np.inf),
            cap=cap,
            variant=np.full(n, ANY),
            required=groups.round.jobs.running,
            excluded=self.workers - self._fixed_workers > self.gpus,
        )

    def _compared(self, budget: Budget) -> Dominations:
        """Compare gangs of one workload: only they take the same seats at the same worths."""
        jobs, n = self.groups.round.jobs, len(self.workers)
        variants = np.bincount(self.groups.variants.job, minlength=n)
        open_ = (jobs.workers > 1) & ~jobs.running & (variants == 1)
        alike = np.where(open_, packed(np.stack([jobs.workload, jobs.workers], axis=1)), -1)
        row, side = np.nonzero(alike[self._job] >= 0)
        partner = self._job[row, 1 - side]
        other = self._kind[row, 1 - side]
        partner = np.where(self._held[other], len(alike) + other, partner)
        alone = self._kind[row, side] == other
        partner[alone] = ALONE
        row, side, partner = (column[~alone | (side == 0)] for column in (row, side, partner))
        worths = np.stack([self._worth[row, side], self._worth[row, 1 - side]])
        worth = np.unique(worths, return_inverse=True)[1].reshape(worths.shape)
        cost = np.unique(self._cost_of_row[row], return_inverse=True)[1]
        seats = SeatTable(self._job[row, side], partner, worth[0], worth[1], cost)
        return Dominations(alike, seats, budget)

    def _values(self, rows: Ints, box: Box) -> Floats:
        """Return the value of the groups of these rows in a box, NaN if they are outside."""
        job, worth = self._job[rows], self._worth[rows]
        inside = worth >= np.where(box.excluded, np.inf, box.floor)[job]
        if (box.variant != ANY).any():
            inside &= (box.variant[job] == ANY) | (box.variant[job] == self._variant[rows])
        part = np.minimum(worth, box.cap[job]) / self.workers[job]
        part[~inside] = np.nan
        alone = self._kind[rows, 0] == self._kind[rows, 1]
        worth = part[:, 0] + np.where(alone, 0.0, part[:, 1])
        return np.asarray(worth - self._cost_of_row[rows])

    def _best_rows(self, key: Ints, box: Box) -> Ints:
        """Return the row of the best group for each pair of kinds."""
        start = np.searchsorted(self._key, key)
        length = np.searchsorted(self._key, key, side="right") - start
        pair = np.repeat(np.arange(len(key)), length)
        rows = ranges(start, length)
        value = np.nan_to_num(self._values(rows, box), nan=-np.inf)
        order = np.lexsort((-value, pair))
        return np.asarray(rows[order[np.cumsum(length) - length]])


def _by_value(values: Ints, number: int) -> tuple[Ints, Ints]:
    """Return the positions of 0, of 1, ..., each in order, and where those of each value start.

    Whole numbers below ``number`` are counted, which is faster than to sort them.
    """
    place = np.arange(len(values))
    cells = csc_array((place, values, np.arange(len(values) + 1)), shape=(number, len(values)))
    rows = cells.tocsr()
    return rows.data.astype(np.int64), rows.indptr.astype(np.int64)
