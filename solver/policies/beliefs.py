"""A policy's estimates for workloads that share a GPU, as the slowdowns of a round.

Predictions say how much two workloads slow each other; measurements of running pairs override them,
and pairs that ran out of memory are excluded.

A workload of unknown power is assumed to take the mean of the others, and jobs of unknown power
together the sum of their powers alone. So sharing appears to save energy only if that is known; and
while no power is known at all, all GPUs with one job count the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations, permutations
from statistics import fmean
from typing import NamedTuple

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.assumed import ProductSets
from dovetail.formulations.slowdowns import (
    Colocations,
    KnownPairs,
    KnownSlowdowns,
    Member,
    Members,
    Sharing,
)
from dovetail.instances._record import IDLE, AnyShare
from dovetail.instances.instance import Workload
from dovetail.instances.slowdowns.entry import GpuKind
from dovetail.instances.slowdowns.sets import (
    LARGEST,
    capped_set_slowdown,
    set_slowdown,
    slowdown_with_idle,
)
from dovetail.instances.slowdowns.shares import (
    BEST_EFFORT,
    NO_CAP,
    caps_of,
    full_splits,
    percent,
    share_code,
)
from dovetail.solver.policies.state import State

_KEPT = 0.9
"""The fraction of slowdowns that must stay within their bounds."""

_UNSEEN = 1.5
"""The factor that a pair without a measurement is assumed to need."""

_LEAST_EXCESS = 0.02
"""Predicted bounds closer to 1 than this are not used for the factor."""

_MARGIN = 0.05
"""The part by which a split must be expected to be better than those that were measured."""

_MOST_TRIED = 4
"""The number of splits at which a pair starts that were not measured before."""

_MOST_SETS = 100_000
"""Sets of one size are left out if there are more of them on a GPU model."""


class Together(NamedTuple):
    """Pairs of workloads that may start together, by split, workload and workload.

    Attributes
    ----------
    share : (splits, 2) int
        The shares of both.
    slowdown, upper, tail : (2, splits, workloads, workloads) float
        Figures of both; their slowdowns are NaN if they may not.
    """

    share: Ints
    slowdown: Floats
    upper: Floats
    tail: Floats


class BelievedSlowdowns(KnownSlowdowns):
    """The slowdowns that a policy assumes.

    A pair that was measured at one split starts at another one if that is expected to be better by
    ``_MARGIN`` and its bounds, given what was measured, keep the gSLAs: its predictions under caps
    are corrected by the measurements under caps. After ``_MOST_TRIED`` splits, the pair starts at
    measured ones only.

    Slowdowns of three or more jobs without caps, each with one, or all but one behind it (share
    ``idle``) follow from their pairs (``instances.sets``) if no entry names the set; without caps
    by the rule that the cluster's owner declares, if any (``State.products``).

    Parameters
    ----------
    state : State
        The pool, whose predictions and measurements are read.

    Attributes
    ----------
    powered : sequence of Workload
        The state's workloads, each with its power alone.
    """

    def __init__(self, state: State) -> None:
        super().__init__(state.machines.rules, state.instance.workloads)
        self._state = state
        self._table = table = state.believed
        self._read = state.news, len(state.clashes)
        self._caps = np.array(
            [[share_code(x), share_code(y)] for x, y in table.caps], dtype=np.int64
        )
        self._place = {(x, y): k for k, (x, y) in enumerate(self._caps.tolist())}
        self._mirror = np.array(table.mirror, dtype=np.int64)
        self._slowdown = table.slowdown.copy()
        margin = curse_margin(state)
        excess = table.upper - 1
        self._upper = np.fmax(self._slowdown, 1 + np.maximum(excess, excess * margin))
        self._tried = np.zeros(self._slowdown.shape, dtype=bool)
        if table.seen is not None and table.seen.any():
            self._correct_untried(table.seen)
            self._upper = np.where(table.seen, table.upper, self._upper)
        for model, workload, other in state.clashes:
            self._slowdown[model, :, workload, other] = np.nan
        self._tail = np.where(np.isnan(table.p99), self._upper, table.p99)
        last = self.at_last[:, self._caps[:, 0]].T[None, :, :, None]
        self._upper, self._tail = np.maximum(self._upper, last), np.maximum(self._tail, last)
        self.powered = _powered(state.workloads)
        self._alone_w = np.array([one.power_w for one in self.powered], dtype=np.float64)
        both_w = np.add.outer(self._alone_w, self._alone_w)
        self._power_w = np.where(np.isnan(table.power_w), both_w, table.power_w)
        self._given, self._uncapped_sets = state.sets, state.products or not state.capped_sets
        known = IDLE in self.rules.shares and (NO_CAP, BEST_EFFORT) in self._place
        self._behind_caps = (
            (self._place[NO_CAP, BEST_EFFORT], self._place[BEST_EFFORT, NO_CAP]) if known else None
        )
        self._pairs: dict[GpuKind, KnownPairs] = {}
        self._least_bounds: dict[tuple[GpuKind, AnyShare], tuple[Floats, Floats]] = {}
        self._together: dict[int, Together] = {}

    def _correct_untried(self, seen: Bools) -> None:
        """Correct predictions for pairs that were measured at other splits, in place."""
        table, prior = self._table, self._table.prior or self._table
        self._tried = seen | seen[:, self._mirror].swapaxes(2, 3)
        capped = np.array([not {None, IDLE}.intersection(caps) for caps in table.caps])
        ratio = np.full(self._slowdown.shape, np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio[seen] = np.log(table.slowdown[seen] / prior.slowdown[seen])
        known = np.isfinite(ratio) & capped[:, None, None]
        total = np.where(known, ratio, 0.0).sum(axis=1, keepdims=True)
        factor = np.exp(total / np.maximum(known.sum(axis=1, keepdims=True), 1))
        untried = ~self._tried & self._tried.any(axis=1, keepdims=True)
        change = np.where(untried & capped[:, None, None], factor, 1.0)
        handicap = np.where(untried, 1.0 + _MARGIN, 1.0)
        self._upper = np.maximum(self._upper * np.maximum(change, 1.0), self._slowdown * change)
        self._slowdown = self._slowdown * change * handicap

    def is_of(self, state: State) -> bool:
        """Return whether the state has no new measurements or predictions since."""
        return (
            self._state is state
            and self._table is state.believed
            and self._read == (state.news, len(state.clashes))
        )

    @property
    def most(self) -> int:
        """The largest number of jobs on a GPU with estimates."""
        most = self.rules.max_jobs_per_gpu
        return most if self._state.products else min(most, LARGEST)

    @property
    def sets(self) -> bool:
        """Whether three or more jobs may share a GPU."""
        return self.most > 2

    def pairs(self, kind: GpuKind) -> KnownPairs:
        """Return the pairs that may share a GPU of a kind; see ``KnownSlowdowns``."""
        if kind not in self._pairs:
            m = self._table.models.index(kind.model)
            back = self._slowdown[m, self._mirror].swapaxes(1, 2)
            known = ~np.isnan(self._slowdown[m] + back) & self._once
            caps, a, b = np.nonzero(known)
            cells, mirrored = (m, caps, a, b), (m, self._mirror[caps], b, a)

            def both(table: Floats) -> Floats:
                return np.stack([table[cells], table[mirrored]], axis=1)

            tried = self._tried[m]
            fresh = tried[caps, a, b] | (tried.sum(axis=0)[a, b] < _MOST_TRIED)
            rows = Colocations(
                workload=np.stack([a, b], axis=1),
                share=self._caps[caps],
                slowdown=both(self._slowdown),
                upper=both(self._upper),
                tail=both(self._tail),
                power_w=self._power_w[cells],
            )
            self._pairs[kind] = KnownPairs(rows, len(self.workloads), fresh)
        return self._pairs[kind]

    @cached_property
    def _once(self) -> Bools:
        """The cells that name each pair once, (caps, workloads, workloads)."""
        count = len(self.workloads)
        above, same = np.triu(np.ones((count, count), dtype=bool), 1), np.eye(count, dtype=bool)
        first = np.arange(len(self._mirror)) <= self._mirror
        return np.asarray(above | (same & first[:, None, None]))

    def _find_set(self, kind: GpuKind, members: Sequence[Member]) -> Sharing | None:
        if len(members) > self.most:
            return None
        m = self._table.models.index(kind.model)
        if self._given.settles(kind, members):
            given = self._given.find(kind, members)
            return given and self._until_each_ends(m, members, given)
        together = np.array([[workload for workload, _ in members]])
        shares = [share for _, share in members]
        if not any(shares):
            if not self._uncapped_sets:
                return None
            found = self._sets(m, together)
        elif _all_capped(shares):
            if any(pair not in self._place for pair in combinations(shares, 2)):
                return None
            found = self._capped(m, together, shares)
        elif (first := _first_of(shares)) is not None and self._behind_caps:
            behind = [workload for k, (workload, _) in enumerate(members) if k != first]
            if any((m, a, b) in self._state.clashes for a, b in combinations(behind, 2)):
                return None
            found = self._behind(m, together, first)
        else:
            return None
        known = len(found) and not np.isnan(found.slowdown[0]).any()
        return found.figures(0) if known else None

    def _until_each_ends(self, model: int, members: Sequence[Member], given: Sharing) -> Sharing:
        """Return a set that an entry names, with bounds of at least those of what may remain."""
        workload, share = np.array(members).T[:, None]
        upper, tail = self._largest_left(model, workload, share)
        unknown = np.isnan(given.power_w)
        return Sharing(
            given.slowdown,
            tuple(np.fmax(given.upper, upper[0]).tolist()),
            tuple(np.fmax(given.tail, tail[0]).tolist()),
            float(self._alone_w[workload].sum()) if unknown else given.power_w,
        )

    def _largest_left(self, model: int, members: Ints, share: Ints) -> tuple[Floats, Floats]:
        """Return the largest bound and tail of each member with some of the others, (sets, size).

        They apply once the rest has ended. NaN if nothing is known.
        """
        upper, tail = self._largest_of_pairs(model, members, share)
        products = self._product_sets(model)
        for k in np.flatnonzero(~share.any(axis=1)).tolist() if self._state.products else ():
            whole = [(workload, NO_CAP) for workload in members[k].tolist()]
            for part, left in products.left_of(whole):
                for bound, values in ((upper, left.upper), (tail, left.tail)):
                    of = dict(zip(part, values, strict=True))
                    bound[k] = np.fmax(bound[k], [of.get(each, np.nan) for each in whole])
        return upper, tail

    def _product_sets(self, model: int) -> ProductSets:
        uncapped = model, self._place[NO_CAP, NO_CAP]
        tables = (values[uncapped] for values in (self._slowdown, self._upper, self._tail))
        kind = GpuKind(self._table.models[model], self.rules.sharing)
        return ProductSets(self._given, kind, *tables)

    def _largest_of_pairs(self, model: int, members: Ints, share: Ints) -> tuple[Floats, Floats]:
        """Return the largest bound and tail of each member with one other, (sets, size).

        They apply once the others have ended. NaN if no pair of the member is known.
        """
        upper, tail = np.full(members.shape, np.nan), np.full(members.shape, np.nan)
        for i, j in permutations(range(members.shape[1]), 2):
            caps = map(tuple, share[:, [i, j]].tolist())
            place = np.array([self._place.get(each, -1) for each in caps])
            cell = model, place, members[:, i], members[:, j]
            known = (place >= 0) & ~np.isnan(self._slowdown[cell])
            upper[:, i] = np.fmax(upper[:, i], np.where(known, self._upper[cell], np.nan))
            tail[:, i] = np.fmax(tail[:, i], np.where(known, self._tail[cell], np.nan))
        return upper, tail

    def _sets_beside(self, kind: GpuKind, held: Members) -> Iterator[Colocations]:
        most = min(self.most, self.most_on(kind))
        if most > 2:
            for found in self._derived(self._table.models.index(kind.model), held, most):
                yield self._not_given(kind, found)
            yield from self._of_entries(kind, held)

    def _of_entries(self, kind: GpuKind, held: Members) -> Iterator[Colocations]:
        """Yield the sets that entries name."""
        m = self._table.models.index(kind.model)
        for given in self._given.beside(kind, held):
            if given.workload.shape[1] > self.most_on(kind):
                continue
            found = self._startable(given, len(held))
            upper, tail = self._largest_left(m, found.workload, found.share)
            sum_w = self._alone_w[found.workload].sum(axis=1)
            yield replace(
                found,
                upper=np.fmax(found.upper, upper),
                tail=np.fmax(found.tail, tail),
                power_w=np.where(np.isnan(found.power_w), sum_w, found.power_w),
            )

    def _derived(self, model: int, held: Members, most: int) -> Iterator[Colocations]:
        """Yield the sets that follow from their pairs, by size and kind."""
        those, shares = [workload for workload, _ in held], [share for _, share in held]
        if not any(shares) and self._uncapped_sets:
            for members in self._grown(model, those, most):
                yield self._sets(model, members)
        if _all_capped(shares):
            yield from self._of_caps(model, those, shares, most)
        first = _first_of(shares) if held else 0
        if first is not None and self._behind_caps:
            for members in self._grown_behind(model, those, first, most):
                yield self._behind(model, members, first)

    def _not_given(self, kind: GpuKind, found: Colocations) -> Colocations:
        """Return sets without those that entries name."""
        if not len(self._given):
            return found
        rows = zip(found.workload.tolist(), found.share.tolist(), strict=True)
        named = (list(zip(*row, strict=True)) for row in rows)
        return found.take(
            np.array([not self._given.settles(kind, each) for each in named], dtype=bool)
        )

    @cached_property
    def speeds_up(self) -> bool:
        """Whether some job is expected to run faster with another than alone without a cap."""
        return bool((self._slowdown < 1).any())

    @cached_property
    def least_factor(self) -> Floats:
        """The least slowdown factor of each workload's modes, (workloads,)."""
        factors = [min(mode.slowdown_factor for mode in of) for of in self._state.modes]
        return np.array(factors, dtype=np.float64)

    def least_need_mib(self, workload: Ints, offered_mib: Floats) -> Floats:
        """Return the least memory of workers of these workloads on GPUs, (gpus, workloads).

        ``offered_mib`` is what each GPU offers to jobs. There is one row if none needs a part of
        it.
        """
        need, part = self._least_memory[workload].T
        if not part.any():
            return np.asarray(need[None])
        return np.asarray(need + part * np.maximum(offered_mib, 0.0)[:, None])

    @cached_property
    def _least_memory(self) -> Floats:
        """The least memory of each workload's modes in MiB and as a part, (workloads, 2)."""
        ways = [min((mode.memory_mib, mode.memory_part) for mode in of) for of in self._state.modes]
        return np.array(ways, dtype=np.float64).reshape(-1, 2)

    def beside_uncapped(
        self, model: Ints, there: Ints, joining: Ints
    ) -> tuple[Ints, Floats, Floats]:
        """Return the slowdowns of jobs without a cap and of those that join them, at each split.

        Parameters
        ----------
        model, there : (n,) int
            The GPU models, and the workloads that run there.
        joining : (k,) int
            The workloads that join them.

        Returns
        -------
        share : (splits,) int
            The share of the one that joins.
        theirs, own : (splits, n, k) float
            Without their sub-batches; NaN if the two may not share.
        """
        return self._caps[self._uncapped[0], 1], *self._both(self._slowdown, model, there, joining)

    def bounds_beside_uncapped(
        self, model: Ints, there: Ints, joining: Ints, tails: bool
    ) -> tuple[Floats, Floats]:
        """Return the bounds of these slowdowns, or of tail latencies, in the same order."""
        return self._both(self._tail if tails else self._upper, model, there, joining)

    def _both(
        self, table: Floats, model: Ints, there: Ints, joining: Ints
    ) -> tuple[Floats, Floats]:
        caps, back = (split[:, None, None] for split in self._uncapped)
        model, there = model[:, None], there[:, None]
        return table[model, caps, there, joining], table[model, back, joining, there]

    @cached_property
    def _uncapped(self) -> tuple[Ints, Ints]:
        return self._caps_beside(NO_CAP)

    def together(self, model: int) -> Together:
        """Return the pairs that may start together on a GPU model that holds two jobs."""
        if model not in self._together:
            may = np.isin(self._caps, self._starting).all(axis=1)
            may &= percent(self._caps).sum(axis=1) <= self.rules.share_sum
            there, tried = np.flatnonzero(may), self._tried[model]
            fresh = tried[there] | (tried.sum(axis=0) < _MOST_TRIED)
            back = self._mirror[there]

            def both(table: Floats) -> tuple[Floats, Floats]:
                return table[model, there], table[model, back].swapaxes(1, 2)

            slowdown = both(self._slowdown)
            never = ~fresh | np.isnan(slowdown[0] + slowdown[1])
            self._together[model] = Together(
                self._caps[there],
                np.stack([np.where(never, np.nan, one) for one in slowdown]),
                np.stack(both(self._upper)),
                np.stack(both(self._tail)),
            )
        return self._together[model]

    def least_bounds(self, kind: GpuKind, share: AnyShare) -> tuple[Floats, Floats]:
        """Return the least bounds of gSLAs when a job with this share is joined.

        Returns
        -------
        there, joining : (workloads, workloads) float
            Bounds of the running job (rows) and of the joining job (columns), without their
            sub-batches; inf if they may not share, 0 if an entry names a set with both.
        """
        if (kind, share) not in self._least_bounds:
            self._least_bounds[kind, share] = self._bounds_beside(kind, share_code(share))
        return self._least_bounds[kind, share]

    def _bounds_beside(self, kind: GpuKind, share: int) -> tuple[Floats, Floats]:
        m, (there, back) = self._table.models.index(kind.model), self._caps_beside(share)
        known = ~np.isnan(self._slowdown[m])
        bound = np.where(known, np.fmin(self._upper[m], self._tail[m]), np.inf)
        own = bound[there].min(axis=0, initial=np.inf)
        other = bound[back].min(axis=0, initial=np.inf).T
        for entry in self._table.sets:
            workloads = map(self.number.__getitem__, entry.workloads)
            members = zip(workloads, map(share_code, entry.shares), strict=True)
            for (a, x), (b, _) in permutations(members, 2):
                if x == share:
                    own[a, b] = other[a, b] = 0.0
        return own, other

    def _sets(self, model: int, members: Ints) -> Colocations:
        """Return those of these sets of workloads that may share, (n, size).

        Tail latencies with two others are unknown unless by a declared rule.
        """
        if self._state.products:
            found = self._product_sets(model).rows(members)
            return replace(found, power_w=self._alone_w[found.workload].sum(axis=1))
        pair = members[:, :, None], members[:, None]
        uncapped = self._place[NO_CAP, NO_CAP]
        slowdown = set_slowdown(self._slowdown[model, uncapped][pair])
        bounds = set_slowdown(self._upper[model, uncapped][pair], last=True)
        return self._colocations(members, np.zeros_like(members), slowdown, bounds)

    def _colocations(
        self, members: Ints, share: Ints, slowdown: Floats, bounds: Floats
    ) -> Colocations:
        """Return the sets of known slowdowns; their tail latencies and power are unknown."""
        keep = ~np.isnan(slowdown).any(axis=1)
        members, upper = members[keep], np.maximum(slowdown, bounds)[keep]
        return Colocations(
            workload=members,
            share=share[keep],
            slowdown=slowdown[keep],
            upper=upper,
            tail=np.full(upper.shape, np.inf),
            power_w=self._alone_w[members].sum(axis=1),
        )

    def _grown(self, model: int, held: Sequence[int], most: int) -> Iterator[Ints]:
        """Yield the sets of three, four, ... up to ``most`` with the ``held`` workloads, (n, size).

        Every pair of the joining workloads may share, and they are in ascending order.
        """
        known = ~np.isnan(self._slowdown[model, self._place[NO_CAP, NO_CAP]])
        known &= known.T
        members = np.array([held], dtype=np.int64)
        every = np.arange(len(self.workloads))
        for size in range(len(held) + 1, most + 1):
            able = known[members].all(axis=1)
            if size > len(held) + 1:
                able &= every >= members[:, -1:]
            if able.sum() > _MOST_SETS:
                return
            row, joining = np.nonzero(able)
            members = np.concatenate([members[row], joining[:, None]], axis=1)
            if size > 2:
                yield members

    def _of_caps(
        self, model: int, held: Sequence[int], shares: Sequence[int], most: int
    ) -> Iterator[Colocations]:
        """Yield the sets of three, four, ... up to ``most`` jobs, each with a cap.

        The ``held`` workloads have these shares. The caps of those that join leave the least of the
        GPU unused (``instances.shares.full_splits``).
        """
        place, allowed = self._place, caps_of(self.rules.shares)
        room = self.rules.share_sum - sum(shares)
        for size in range(max(3, len(held) + 1), most + 1):

            def fits(joining: tuple[int, ...]) -> bool:
                return all(pair in place for pair in combinations((*shares, *joining), 2))

            for joining in full_splits(allowed, size - len(held), room, fits):
                caps = (*shares, *joining)
                members = self._grown_capped(model, held, caps)
                if len(members):
                    yield self._capped(model, members, caps)

    def _grown_capped(self, model: int, held: Sequence[int], caps: Sequence[int]) -> Ints:
        """Return the workloads that may share at these caps with the ``held`` ones, (n, size).

        Those that join with equal caps are in ascending order. There are none if they are too many.
        """
        known, place = ~np.isnan(self._slowdown[model]), self._place
        members = np.array([held], dtype=np.int64)
        every = np.arange(len(self.workloads))
        for size in range(len(held), len(caps)):
            able = np.ones((len(members), len(every)), dtype=bool)
            for k in range(size):
                there, back = place[caps[k], caps[size]], place[caps[size], caps[k]]
                able &= known[there][members[:, k]] & known[back].T[members[:, k]]
            if size > len(held) and caps[size] == caps[size - 1]:
                able &= every >= members[:, -1:]
            if able.sum() > _MOST_SETS:
                return np.empty((0, len(caps)), dtype=np.int64)
            row, joining = np.nonzero(able)
            members = np.concatenate([members[row], joining[:, None]], axis=1)
        return members

    def _capped(self, model: int, members: Ints, caps: Sequence[int]) -> Colocations:
        """Return these sets of workloads at these caps, (n, size), as far as they may share."""
        at = np.array([[self._place.get((x, y), -1) for y in caps] for x in caps])
        pair = at, members[:, :, None], members[:, None]
        alone = self.at_last[members, caps]
        slowdown = capped_set_slowdown(self._slowdown[model][pair], alone)
        bounds = capped_set_slowdown(self._upper[model][pair], alone, last=True)
        share = np.broadcast_to(np.array(caps, dtype=np.int64), members.shape)
        return self._colocations(members, share, slowdown, bounds)

    def _behind(self, model: int, members: Ints, first: int) -> Colocations:
        """Return the sets of these workloads, (n, size), in which all others run behind one.

        Parameters
        ----------
        model : int
            The GPU model.
        members : (n, size) int
            Workloads, each of which may share with the one that they run behind.
        first : int
            The position of that one.
        """
        assert self._behind_caps is not None
        ahead, back = self._behind_caps
        others = [k for k in range(members.shape[1]) if k != first]
        own, theirs = members[:, [first]], members[:, others]

        def together(table: Floats) -> Floats:
            found = np.empty(members.shape)
            found[:, [first, *others]] = slowdown_with_idle(
                table[model, ahead, own, theirs], table[model, back, theirs, own]
            )
            return found

        share = np.full(members.shape, BEST_EFFORT)
        share[:, first] = NO_CAP
        slowdown = together(self._slowdown)
        return Colocations(
            workload=members,
            share=share,
            slowdown=slowdown,
            upper=np.maximum(slowdown, together(self._upper)),
            tail=together(self._tail),
            power_w=self._alone_w[members].sum(axis=1),
        )

    def _grown_behind(
        self, model: int, held: Sequence[int], first: int, most: int
    ) -> Iterator[Ints]:
        """Yield the sets of three, four, ... up to ``most`` that run behind one, (n, size).

        That one is at position ``first`` of the ``held`` workloads; if there are none, it is any
        workload and comes first. Joining workloads are in ascending order.
        """
        assert self._behind_caps is not None
        ahead, back = self._behind_caps
        behind = ~np.isnan(self._slowdown[model, ahead] + self._slowdown[model, back].T)
        clash = np.zeros(behind.shape, dtype=bool)
        for on, a, b in self._state.clashes:
            clash[a, b] |= on == model
        every = np.arange(len(self.workloads))
        members = np.array([held], dtype=np.int64) if held else every[:, None]
        there = [k for k in range(members.shape[1]) if k != first]
        able = behind[members[:, first]]
        for k in there:
            able &= ~clash[members[:, k]]
        for size in range(members.shape[1] + 1, most + 1):
            if able.sum() > _MOST_SETS:
                return
            row, joining = np.nonzero(able)
            members = np.concatenate([members[row], joining[:, None]], axis=1)
            able = able[row] & ~clash[joining] & (every >= joining[:, None])
            if size > 2:
                yield members

    def _caps_beside(self, share: int) -> tuple[Ints, Ints]:
        """Return the caps at which others may join a job with a share, and their mirrors."""
        own, other = self._caps.T
        may = (own == share) & np.isin(other, self._starting)
        there = np.flatnonzero(may & (percent(self._caps).sum(axis=1) <= self.rules.share_sum))
        return there, self._mirror[there]


def _powered(workloads: Sequence[Workload]) -> list[Workload]:
    """Return workloads with the mean power of the others, or 1 W, if theirs is unknown."""
    known = [one.power_w for one in workloads if one.power_w is not None]
    mean = fmean(known) if known else 1.0
    return [one if one.power_w is not None else one.replace(power_w=mean) for one in workloads]


def _first_of(shares: Sequence[int]) -> int | None:
    """Return the position of the job that all others run behind, or None."""
    first = [k for k, share in enumerate(shares) if share != BEST_EFFORT]
    return first[0] if len(first) == 1 and shares[first[0]] == NO_CAP else None


def _all_capped(shares: Iterable[int]) -> bool:
    return {NO_CAP, BEST_EFFORT}.isdisjoint(shares)


def curse_margin(state: State) -> float:
    """Return the factor, at least 1, on the excess over 1 of predicted upper bounds.

    Only here is the choice among many estimates corrected.

    *The optimiser's curse.* Among estimates ``x_k = t_k + e_k``, those that look best have the
    luckiest errors, so the true value of the chosen one is worse than its estimate on average (J.
    E. Smith and R. L. Winkler, *The Optimizer's Curse*, Management Science 52(3), 2006). A
    posterior has no such bias. The choice k* is a function of the observations D, so that for any
    chosen pair

        E[t_k* | D] = m_k*    and    P(t_k* > u_k* | D) = P(t_k > u_k | D) at k = k*.

    Slowdowns are therefore used as estimated. Bounds are compared with promises, and estimates need
    not be a posterior: a point prediction with an error known over all pairs has the full curse.
    Measured pairs were chosen earlier, with all their luck. So for each of them, ``r_k = (measured
    - 1) / (bound - 1)`` is the factor that its bound needed, and if the next pair is exchangeable
    with the n measured ones, its own r is at most the 90 % quantile of all n + 1 with a probability
    of 90 % (split conformal prediction: V. Vovk, A. Gammerman and G. Shafer, *Algorithmic Learning
    in a Random World*, Springer 2005). The unknown r is assumed to be 1.5.

    The factor depends only on ``State.believed``, so it is the same after a restart.
    """
    table = state.believed
    if table.seen is None or not table.seen.any():
        return _UNSEEN
    excess = (table.prior or table).upper[table.seen] - 1
    telling = excess > _LEAST_EXCESS
    needed = (table.slowdown[table.seen][telling] - 1) / excess[telling]
    return max(1.0, float(np.quantile(np.append(needed, _UNSEEN), _KEPT)))
