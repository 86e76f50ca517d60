"""Groups of a round with too many to list: column generation, and a bound for all groups.

Let λ_c be prices of the GPUs of each class, π_k of the jobs of each kind, and A_c the largest gain
of a group there less the prices of its jobs and its GPU. With N_c GPUs and n_k jobs, no plan gains
more than

    sum of (λ_c + max(0, A_c)) N_c + sum of π_k n_k,

for any prices. The duals of the linear program of the groups listed so far make this small; groups
that gain more than their prices join the list until there are none (column generation: P. C.
Gilmore and R. E. Gomory, *A linear programming approach to the cutting-stock problem*, Operations
Research 9, 1961). The integer program of the groups listed then finds a plan, and the bound holds
for all. In two stages a price μ for the placed weight W joins them: no plan that places W gains
more than the bound with the weights, each worth μ, less μ W. The costs of GPUs are bounded in the
same way, as gains below 0.

The best group at given prices needs no enumeration if the gain of a job depends on its own slowdown
only: interchangeable places go to the kinds that gain most there. Differences in memory between
sub-batches, and kinds with places of several sorts, are ignored, which makes the bound larger,
never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
from scipy.sparse import coo_array, csr_array, vstack

from dovetail.formulations.arrays import Floats, Ints, ranges
from dovetail.formulations.budget import Budget
from dovetail.formulations.candidates.groups import Ceiling, Groups, Kinds
from dovetail.formulations.candidates.rows import CandidateRows, RowRules, enough
from dovetail.formulations.values import Rows

_Aim: TypeAlias = Literal["gain", "weight", "cost"]

_PASSES = 60
"""Maximum number of linear programs of one stage."""

_STEPS_PER_PASS = 100_000_000
"""Approximate steps of work to solve a linear program and find new groups."""

_ASKED, _WAYS = 300, 40
"""Combinations that give groups after a linear program, those that gain most, and the maximum
number of groups of each."""

_CLOSE = 1e-7
"""Relative distance from the linear program at which a bound is as good as its optimum."""

_ROUNDING = 1e-9
"""Relative rounding error that a bound allows for its sums."""


class Columns:
    """The groups of a round with families of candidates whose groups are not all listed.

    Parameters
    ----------
    rules : RowRules
        The round; its jobs have one GPU each, and their gain depends on their own slowdown only.
    kinds : Kinds
        The kinds of jobs.
    pool : (p,) int
        The variants that the ranges of the candidates index.
    candidates : sequence of CandidateRows
        The families, by size.
    flattened : callable
        Makes groups of rows.
    budget : Budget
        When to stop.
    """

    def __init__(
        self,
        rules: RowRules,
        kinds: Kinds,
        pool: Ints,
        candidates: Sequence[CandidateRows],
        flattened: Callable[[Sequence[Rows]], Groups],
        budget: Budget,
    ) -> None:
        self._rules = rules
        self._kinds = kinds
        self._tables = [_PricedRows.of(rules, pool, each) for each in candidates]
        self._flattened = flattened
        self._budget = budget

    def added_to(self, parts: Sequence[Rows]) -> tuple[list[Rows], Ceiling]:
        """Return the groups with the generated ones, and an upper bound on any choice."""
        values = self._rules.values
        found = [*parts, *self._first()]
        if not values.two_stage:
            return found, Ceiling(self._generated(found, "gain", 0.0).bound, math.inf, 0.0)
        weight = self._whole(self._generated(found, "weight", 1.0).bound)
        last = self._generated(found, "cost" if values.cheapest else "gain", weight)
        gain = math.inf if values.ratio else last.bound
        return found, Ceiling(gain, weight, last.prices.weight)

    def _whole(self, weight: float) -> float:
        """Return a bound on the placed weight, rounded down if all weights are whole."""
        weights = self._rules.values.weight
        return math.floor(weight) if (weights == np.round(weights)).all() else weight

    def _first(self) -> list[Rows]:
        """Return groups to begin with: the best groups if nothing has a price."""
        rounds = self._rules.round
        free = ClassPrices(np.zeros(len(rounds.classes)), np.zeros(len(rounds)), 0.0)
        return [rows for table in self._tables for rows in self._asked(table, free, "gain")]

    def _generated(self, found: list[Rows], aim: _Aim, demand: float) -> _Proof:
        """Add the groups that the best choice needs, and return the best bound.

        Parameters
        ----------
        found : list of Rows
            The groups, to which others are added.
        aim : str
            What to maximise: the gain, the placed weight, or less the cost of the GPUs in use.
        demand : float
            The weight that must be placed when this is not the weight.
        """
        best: _Proof | None = None
        for _ in range(_PASSES):
            self._budget.spend(_STEPS_PER_PASS)
            program = _Master.of(self._flattened(found), aim, demand)
            value, prices = program.solved()
            most = program.most(prices)
            more = []
            for table in self._tables:
                np.maximum.at(most, table.candidates.gpu_class, self._beyond(table, prices, aim))
                more += self._asked(table, prices, aim)
            bound = program.bound(prices, most)
            if (
                best is None
                or bound - prices.weight * demand < best.bound - best.prices.weight * demand
            ):
                best = _Proof(bound, prices)
            close = bound - prices.weight * demand <= value + _CLOSE * abs(value)
            if close or not more or self._budget.passed:
                break
            found += more
        assert best is not None
        return best

    def _beyond(self, table: _PricedRows, prices: ClassPrices, aim: _Aim) -> Floats:
        """Return the largest gain of each combination beyond the prices of its jobs and GPU."""
        gpu = prices.gpu + self._class_cost if aim == "cost" else prices.gpu
        return table.best(prices, self._kinds, aim) - gpu[table.candidates.gpu_class]

    @property
    def _class_cost(self) -> Floats:
        """The cost of a GPU of each class."""
        machines, classes = self._rules.round.machines, self._rules.round.classes
        return np.asarray(machines.model_cost[classes.model])

    def _asked(self, table: _PricedRows, prices: ClassPrices, aim: _Aim) -> list[Rows]:
        """Return groups of the combinations that gain most beyond their prices."""
        rules = self._rules
        worth = self._beyond(table, prices, aim)
        order = np.argsort(-worth, kind="stable")[:_ASKED]
        asked = order[worth[order] > _ROUNDING * (1 + np.abs(worth[order]))]
        candidate, variant = table.ways(asked, prices, aim)
        job, gpu_class = rules.job[variant], table.candidates.gpu_class[candidate]
        keep = enough(job, self._kinds.copies)
        keep &= rules.fits(gpu_class, variant)
        if rules.round.hosts is not None:
            keep &= rules.round.hosts.bears(gpu_class, job)
        rows = rules.rows(table.candidates, candidate[keep], variant[keep])
        return [rows] if len(rows) else []


class ClassPrices(NamedTuple):
    """Prices of the GPUs of each class, of the jobs of each kind, and of weight."""

    gpu: Floats
    job: Floats
    weight: float


class _Proof(NamedTuple):
    """A bound on the gain and the weight at its price, and the prices that prove it."""

    bound: float
    prices: ClassPrices


@dataclass(frozen=True, eq=False)
class _Master:
    """The linear program of the groups listed so far.

    ``value``, (groups,), is the value of each group, ``weight`` the weight that it places, of which
    ``demand`` is required; ``uses``, (classes + jobs, groups), says how many GPUs and jobs each
    takes.
    """

    groups: Groups
    value: Floats
    weight: Floats
    demand: float
    uses: csr_array

    @classmethod
    def of(cls, groups: Groups, aim: _Aim, demand: float) -> _Master:
        compiled = groups.round
        pending = ~compiled.jobs.running[groups.job]
        group, classes = groups.group_of_member, len(compiled.classes)
        of_weight = np.where(pending, compiled.jobs.weight[groups.job], 0.0)
        weight = np.asarray(np.bincount(group, of_weight, len(groups)), dtype=np.float64)
        gain: Floats = np.bincount(group, groups.gain, len(groups)) + groups.value
        row = np.append(groups.gpu_class, classes + groups.job[pending])
        column = np.append(np.arange(len(groups)), group[pending])
        shape = (classes + len(compiled), len(groups))
        uses = csr_array(coo_array((np.ones(len(row)), (row, column)), shape=shape))
        value = {"gain": gain, "weight": weight, "cost": -groups.cost}[aim]
        return cls(groups, value, weight, demand, uses)

    def solved(self) -> tuple[float, ClassPrices]:
        """Return the optimum, and the prices that prove it."""
        # The import takes a quarter of a second, and most rounds need no columns.
        from scipy.optimize import linprog

        compiled = self.groups.round
        classes, held = len(compiled.classes), compiled.classes.residents > 0
        rows, right = self.uses, self._right()
        equal = np.flatnonzero(held)
        most = np.append(np.flatnonzero(~held), classes + np.flatnonzero(self._copies() > 0))
        upper, limit = rows[most], right[most]
        if self.demand:
            upper = vstack([upper, csr_array(-self.weight[None, :])])
            limit = np.append(limit, -self.demand * (1 - _ROUNDING))
        found = cast(Any, linprog)(  # its types do not know sparse arrays
            -self.value,
            A_ub=upper,
            b_ub=limit,
            A_eq=rows[equal] if len(equal) else None,
            b_eq=right[equal] if len(equal) else None,
            method="highs",
        )
        price = np.zeros(len(right))
        per_weight = 0.0
        if found.status == 0:
            price[most] = np.maximum(0.0, -found.ineqlin.marginals[: len(most)])
            price[equal] = -found.eqlin.marginals
            per_weight = float(-found.ineqlin.marginals[-1]) if self.demand else 0.0
        value = -float(found.fun) if found.status == 0 else -math.inf
        return value, ClassPrices(price[:classes], price[classes:], max(0.0, per_weight))

    def most(self, prices: ClassPrices) -> Floats:
        """Return the largest gain of a group of each class less its prices, at least 0."""
        price = np.append(prices.gpu, prices.job)
        gains = self.value + prices.weight * self.weight - self.uses.T @ price
        most = np.zeros(len(prices.gpu))
        np.maximum.at(most, self.groups.gpu_class, gains)
        return most

    def bound(self, prices: ClassPrices, most: Floats) -> float:
        """Return an upper bound on the gain of any choice, with its weight at its price."""
        price = np.append(prices.gpu + most, prices.job)
        terms = price * self._right()
        return float(terms.sum() + _ROUNDING * np.abs(terms).sum())

    def _copies(self) -> Ints:
        """The number of waiting jobs of each kind, by the representative of the kind."""
        return np.where(self.groups.round.jobs.running, 0, self.groups.kinds.copies)

    def _right(self) -> Floats:
        """Return how many GPUs of each class and jobs of each kind there are."""
        return np.append(self.groups.round.classes.size, self._copies()).astype(np.float64)


@dataclass(frozen=True, eq=False)
class _PricedRows:
    """The candidates for the places of the combinations of one size, and their gains.

    A *run* is a series of interchangeable places. Runs have ``length`` places of ``candidate``,
    (r,) each; the variants that may take them, (e,) each, are listed with their run.
    """

    candidates: CandidateRows
    candidate: Ints
    length: Ints
    run: Ints
    variant: Ints
    job: Ints
    gain: Floats
    weight: Floats

    @classmethod
    def of(cls, rules: RowRules, pool: Ints, candidates: CandidateRows) -> _PricedRows:
        columns = (candidates.slowdown, candidates.upper, candidates.tail)
        same = candidates.twin.copy()
        for column in columns:
            same &= np.diff(column, axis=1, prepend=np.nan) == 0
        candidate, place = np.nonzero(~same)
        length = np.diff(candidate * same.shape[1] + place, append=same.size)
        number = candidates.count[candidate, place]
        run = np.repeat(np.arange(len(candidate)), number)
        variant = pool[ranges(candidates.first[candidate, place], number)]
        bound, slowdown = np.empty((2, len(run)))
        for k in range(same.shape[1]):
            here = np.flatnonzero(place[run] == k)
            bound[here] = rules.bound(candidates, k, candidate[run[here]], variant[here])
            slowdown[here] = (
                candidates.slowdown[candidate[run[here]], k] * rules.slowdown_factor[variant[here]]
            )
        accepted = bound <= rules.accepted[variant]
        if rules.round.bound_to_mode:
            accepted &= rules.may_share(candidates.gpu_class[candidate[run]], variant)
        able = np.flatnonzero(accepted)
        run, variant, slowdown = run[able], variant[able], slowdown[able]
        job, gain = rules.job[variant], np.empty(len(able))
        model = rules.round.classes.model[candidates.gpu_class[candidate[run]]]
        for index, name in enumerate(rules.round.models):
            here = np.flatnonzero(model == index)
            gain[here] = rules.values.gain(job[here], slowdown[here], name)
        weight = np.where(rules.pending[variant], rules.values.weight[job], 0.0)
        return cls(candidates, candidate, length, run, variant, job, gain, weight)

    def _worth(self, prices: ClassPrices, aim: _Aim) -> Floats:
        """Return the gain of each candidate less the price of the job."""
        worth = {"gain": self.gain, "weight": self.weight, "cost": np.zeros(len(self.gain))}[aim]
        return np.asarray(worth + prices.weight * self.weight - prices.job[self.job])

    def _ranked(self, prices: ClassPrices, aim: _Aim) -> tuple[Ints, Floats]:
        worth = self._worth(prices, aim)
        order = np.lexsort((-worth, self.run))
        return order, worth[order]

    def best(self, prices: ClassPrices, kinds: Kinds, aim: _Aim) -> Floats:
        """Return the largest gain of a group of each combination less its jobs' prices, (s,)."""
        order, worth = self._ranked(prices, aim)
        run = self.run[order]
        copies = np.where(kinds.copies[self.job[order]] > 0, kinds.copies[self.job[order]], 1)
        taken = np.cumsum(copies)
        first = np.searchsorted(run, np.arange(len(self.length)))
        before = taken - copies
        before -= np.append(before, 0)[first][run]
        number = np.clip(self.length[run] - before, 0, copies)
        filled = np.bincount(run, number, len(self.length)) >= self.length
        of_run = np.bincount(run, number * worth, len(self.length))
        of_run = np.where(filled, of_run, -np.inf)
        most = np.bincount(self.candidate, of_run, len(self.candidates.gpu_class))
        return np.asarray(most, dtype=np.float64)

    def ways(self, asked: Ints, prices: ClassPrices, aim: _Aim) -> tuple[Ints, Ints]:
        """Return groups of these combinations: the combination of each, and its variants.

        In every run the candidates that gain most come first, either one of them in all places or
        as many different ones; then the next ones, and so on.
        """
        order, _ = self._ranked(prices, aim)
        first = np.searchsorted(self.run[order], np.arange(len(self.length) + 1))
        begin = np.searchsorted(self.candidate, np.arange(len(self.candidates.gpu_class) + 1))
        size = self.candidates.count.shape[1]
        candidate: list[int] = []
        variant: list[Ints] = []
        for s in asked.tolist():
            runs = range(begin[s], begin[s + 1])
            takers = [self.variant[order[first[r] : first[r + 1]]] for r in runs]
            found = _ways(
                [(each, int(self.length[r])) for r, each in zip(runs, takers, strict=True)]
            )
            candidate += [s] * len(found)
            variant += found
        return np.array(candidate, dtype=np.int64), np.array(variant, dtype=np.int64).reshape(
            -1, size
        )


def _ways(runs: Sequence[tuple[Ints, int]]) -> list[Ints]:
    """Return the variants in the places of runs: the next ones of each run, alone or together."""
    found = []
    most = max(len(takers) for takers, _ in runs)
    for k in range(min(most, _WAYS)):
        alone = [np.full(length, takers[min(k, len(takers) - 1)]) for takers, length in runs]
        found.append(np.concatenate(alone))
        if any(length > 1 for _, length in runs) and all(len(t) >= n for t, n in runs):
            several = [t[(b := min(k * n, len(t) - n)) : b + n] for t, n in runs]
            found.append(np.concatenate([np.sort(each) for each in several]))
    return found
