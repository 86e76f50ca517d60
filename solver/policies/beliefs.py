"""A policy's estimates for workloads that share a GPU, as the ``Book`` of a round.

Predictions say how much two workloads slow each other; measurements of running pairs override them,
and pairs that ran out of memory are excluded.

A workload of unknown power is assumed to take the mean of the others, and jobs of unknown power
together the sum of their powers alone. So sharing appears to save energy only if that is known; and
while no power is known at all, all GPUs with one job count the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice, permutations
from statistics import fmean

import numpy as np

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.entries import Book, Combination, Member, Template
from dovetail.formulations.rules import slowdown_at_last
from dovetail.instances._record import IDLE, AnyShare
from dovetail.instances.instance import Workload
from dovetail.instances.slowdowns.isolated import BEHIND
from dovetail.instances.slowdowns.sets import (
    LARGEST,
    capped_set_slowdown,
    set_slowdown,
    slowdown_with_idle,
)
from dovetail.instances.slowdowns.shares import (
    BEST_EFFORT,
    caps_of,
    full_splits,
    share_code,
    share_of,
    share_total,
)
from dovetail.instances.slowdowns.slowdown_table import UNCAPPED
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


class BeliefBook(Book):
    """The slowdowns that a policy assumes.

    A pair that was measured at one split starts at another one if that is expected to be better by
    ``_MARGIN`` and its bounds, given what was measured, keep the gSLAs: its predictions under caps
    are corrected by the measurements under caps. After ``_MOST_TRIED`` splits, the pair starts at
    measured ones only.

    Slowdowns of three or more jobs without caps, each with one, or all but one behind it (share
    ``idle``) follow from their pairs (``instances.sets``) if no entry names the set.

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
        super().__init__(state.machines.rules, state.names)
        self._state = state
        self._table = state.predicted
        self._read = len(state.seen), len(state.clashes)
        self._slowdown = self._table.slowdown.copy()
        measured = {cell: state.seen_upper.get(cell, seen) for cell, seen in state.seen.items()}
        margin = curse_margin(state)
        excess = self._table.upper - 1
        self._upper = np.fmax(self._slowdown, 1 + np.maximum(excess, excess * margin))
        self._tried = np.zeros(self._slowdown.shape, dtype=bool)
        if state.seen:
            self._correct_untried()
        for cell, slowdown in state.seen.items():
            self._slowdown[cell], self._upper[cell] = slowdown, measured[cell]
        for model, workload, other in state.clashes:
            self._slowdown[model, :, workload, other] = np.nan
        p99 = self._table.p99
        self._tail = np.where(np.isnan(p99), self._upper, p99)
        last = _at_last(state)[None, :, :, None]
        self._upper, self._tail = np.maximum(self._upper, last), np.maximum(self._tail, last)
        self.powered = _powered(state.workloads)
        self._alone_w = np.array([one.power_w for one in self.powered], dtype=np.float64)
        both_w = np.add.outer(self._alone_w, self._alone_w)
        self._power_w = np.where(np.isnan(self._table.power_w), both_w, self._table.power_w)
        self._templates: dict[tuple[str, tuple[Member, ...]], Sequence[Template]] = {}
        self._number = {name: k for k, name in enumerate(self.workloads)}
        self._caps = _usable_caps(state)
        self._given, self._capped_sets = state.sets, state.capped_sets
        self._alone = {
            share: np.array([slowdown_at_last(one, share) for one in state.workloads])
            for share in {share for caps in self._table.caps for share in caps}
        }
        caps = self._table.caps_place
        known = IDLE in self.rules.shares and BEHIND in caps
        self._behind_caps = (caps[BEHIND], caps[BEHIND[::-1]]) if known else None

    def _correct_untried(self) -> None:
        """Correct predictions for pairs that were measured at other splits, in place."""
        table, prior = self._table, self._state.prior or self._table
        seen = tuple(np.array(list(self._state.seen), dtype=np.int64).T)
        mirror = [table.caps_place[theirs, mine] for mine, theirs in table.caps]
        self._tried[seen] = True
        self._tried |= self._tried[:, mirror].swapaxes(2, 3)
        capped = np.array([not {None, IDLE}.intersection(caps) for caps in table.caps])
        ratio = np.full(self._slowdown.shape, np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio[seen] = np.log(np.array([*self._state.seen.values()]) / prior.slowdown[seen])
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
            and self._table is state.predicted
            and self._read == (len(state.seen), len(state.clashes))
        )

    @property
    def most(self) -> int:
        """The largest number of jobs on a GPU with estimates."""
        return min(self.rules.max_jobs_per_gpu, LARGEST)

    @property
    def sets(self) -> bool:
        """Whether three or more jobs may share a GPU."""
        return self.most > 2

    def find(self, model: str, members: Sequence[Member]) -> Combination | None:
        """Return the estimates for these members, or None if they may not share or are unknown."""
        m = self._table.models.index(model)
        if len(members) > self.limited.get(model, np.inf):
            return None
        if len(members) == 2:
            (a, x), (b, y) = ((self._number[name], share) for name, share in members)
            place = self._table.caps_place
            if (x, y) not in place:
                return None
            cells = (m, place[x, y], a, b), (m, place[y, x], b, a)
            tables = self._slowdown, self._upper, self._tail
            slowdown, upper, tail = (tuple([float(t[cell]) for cell in cells]) for t in tables)
            if np.isnan(slowdown).any():
                return None
            power_w = float(self._power_w[cells[0]])
            return Combination(tuple(members), slowdown, upper, tail, power_w)
        if len(members) > self.most:
            return None
        if self._given.settles(model, members):
            given = self._given.find(model, members)
            return given and self._until_each_ends(m, given)
        together = np.array([[self._number[name] for name, _ in members]])
        shares = [share for _, share in members]
        if all(share is None for share in shares):
            if self._capped_sets:
                return None
            found = self._sets(m, together, 0)
        elif not {None, IDLE}.intersection(shares):
            if any(pair not in self._table.caps_place for pair in combinations(shares, 2)):
                return None
            found = self._capped(m, together, caps_of(shares), 0)
        elif (first := _first_of(shares)) is not None and self._behind_caps:
            behind = [self._number[name] for k, (name, _) in enumerate(members) if k != first]
            if any((m, a, b) in self._state.clashes for a, b in combinations(behind, 2)):
                return None
            found = self._behind(m, together, first, 0)
        else:
            return None
        return next((c for c in self._combinations(found) if not np.isnan(c.slowdown).any()), None)

    def _until_each_ends(self, model: int, given: Combination) -> Combination:
        """Return a set that an entry names, with bounds of at least those of its pairs."""
        members = np.array([[self._number[name] for name, _ in given.members]])
        share = np.array([[share_code(share) for _, share in given.members]])
        upper, tail = self._largest_of_pairs(model, members, share)
        uppers = given.upper or given.slowdown
        return given._replace(
            upper=tuple(np.fmax(uppers, upper[0]).tolist()),
            p99=tuple(np.fmax(given.p99 or uppers, tail[0]).tolist()),
            power_w=given.power_w or self._sum_w(given.members),
        )

    def _largest_of_pairs(self, model: int, members: Ints, share: Ints) -> tuple[Floats, Floats]:
        """Return the largest bound and tail of each member with one other, (sets, size).

        They apply once the others have ended. NaN if no pair of the member is known.
        """
        upper, tail = np.full(members.shape, np.nan), np.full(members.shape, np.nan)
        for i, j in permutations(range(members.shape[1]), 2):
            caps = [(share_of(x), share_of(y)) for x, y in share[:, [i, j]].tolist()]
            place = np.array([self._table.caps_place.get(each, -1) for each in caps])
            cell = model, place, members[:, i], members[:, j]
            known = (place >= 0) & ~np.isnan(self._slowdown[cell])
            upper[:, i] = np.fmax(upper[:, i], np.where(known, self._upper[cell], np.nan))
            tail[:, i] = np.fmax(tail[:, i], np.where(known, self._tail[cell], np.nan))
        return upper, tail

    def _sum_w(self, members: Sequence[Member]) -> float:
        """Return the sum of the powers of all members alone."""
        return float(sum(self._alone_w[self._number[name]] for name, _ in members))

    def known(self, model: str) -> Sequence[Combination]:
        """Return every pair and every set that may run on a GPU model."""
        return [each for t in self.templates(model, ()) for each in self._combinations(t)]

    def templates(self, model: str, held: tuple[Member, ...]) -> Sequence[Template]:
        """Return the pairs and sets in which jobs may join others; see ``Book``."""
        key = model, held
        if key not in self._templates:
            m, most = self._table.models.index(model), min(self.most, self.most_on(model))
            found = []
            if len(held) < 2 <= most:
                a, b, there, back = self._beside(held[0]) if held else self._from_scratch()
                found.append(self._pairs(m, a, b, there, back, len(held)))
            if most > 2:
                found += map(self._not_given(model, held), self._derived(m, held, most))
                found += self._of_entries(model, held)
            self._templates[key] = [template for template in found if len(template.free)]
        return self._templates[key]

    def _of_entries(self, model: str, held: tuple[Member, ...]) -> Iterator[Template]:
        """Yield the sets that entries name."""
        there = np.array([self._number[name] for name, _ in held], dtype=np.int64)
        m = self._table.models.index(model)
        for found in self._given.templates(model, held):
            first = np.broadcast_to(there, (len(found.free), len(there)))
            members = np.hstack([first, found.free])
            upper, tail = self._largest_of_pairs(m, members, found.share)
            sum_w = self._alone_w[members].sum(axis=1)
            yield replace(
                found,
                upper=np.fmax(found.upper, upper),
                tail=np.fmax(found.tail, tail),
                power_w=np.where(np.isnan(found.power_w), sum_w, found.power_w),
            )

    def _derived(self, model: int, held: tuple[Member, ...], most: int) -> Iterator[Template]:
        """Yield the sets that follow from their pairs, a template per size and kind."""
        those = [self._number[name] for name, _ in held]
        shares = [share for _, share in held]
        if all(share is None for share in shares) and not self._capped_sets:
            for members in self._grown(model, those, most):
                yield self._sets(model, members, len(held))
        if not {None, IDLE}.intersection(shares):
            yield from self._of_caps(model, those, caps_of(shares), most)
        first = _first_of(shares) if held else 0
        if first is not None and self._behind_caps:
            for members in self._grown_behind(model, those, first, most):
                yield self._behind(model, members, first, len(held))

    def _not_given(self, model: str, held: tuple[Member, ...]) -> Callable[[Template], Template]:
        """Return a function that removes the sets that entries name from a template."""

        def settled(free: list[int], share: list[int]) -> bool:
            names = (self.workloads[k] for k in free)
            joining = zip(names, map(share_of, share[len(held) :]), strict=True)
            return self._given.settles(model, [*held, *joining])

        def others(found: Template) -> Template:
            rows = zip(found.free.tolist(), found.share.tolist(), strict=True)
            keep = [not settled(*row) for row in rows]
            return found.take(np.flatnonzero(keep))

        return others if self._given.sets else lambda found: found

    @property
    def speeds_up(self) -> bool:
        """Whether some job is expected to run faster with another than alone without a cap."""

        def made() -> bool:
            return bool((self._slowdown < 1).any())

        return self.once("speeds up", made)

    @property
    def least_modes(self) -> Floats:
        """The least memory and slowdown factor of each workload's modes, (workloads, 2)."""

        def made() -> Floats:
            ways = [
                [(mode.memory_mib, mode.slowdown_factor) for mode in of] for of in self._state.modes
            ]
            return np.array([np.min(of, axis=0) for of in ways], dtype=np.float64)

        return self.once("least modes", made)

    def least_bounds(self, model: str, share: AnyShare) -> tuple[Floats, Floats]:
        """Return the least bounds of gSLAs when a job with this share is joined.

        Returns
        -------
        there, joining : (workloads, workloads) float
            Bounds of the running job (rows) and of the joining job (columns), without their
            sub-batches; inf if they may not share, 0 if an entry names a set with both.
        """

        def made() -> tuple[Floats, Floats]:
            m, (there, back) = self._table.models.index(model), self._caps_beside(share)
            known = ~np.isnan(self._slowdown[m])
            bound = np.where(known, np.fmin(self._upper[m], self._tail[m]), np.inf)
            own = bound[there].min(axis=0, initial=np.inf)
            other = bound[back].min(axis=0, initial=np.inf).T
            for entry in self._table.sets:
                members = zip(
                    map(self._number.__getitem__, entry.workloads), entry.shares, strict=True
                )
                for (a, x), (b, _) in permutations(members, 2):
                    if x == share:
                        own[a, b] = other[a, b] = 0.0
            return own, other

        return self.once(f"least bounds on {model} with {share}", made)

    def _pairs(
        self, model: int, a: Ints, b: Ints, there: Ints, back: Ints, held: int = 0
    ) -> Template:
        """Return those of these pairs that may share: workloads, caps and their mirrors, (n,)."""
        keep = ~np.isnan(self._slowdown[model, there, a, b] + self._slowdown[model, back, b, a])
        if not held:
            tried = self._tried[model]
            keep &= tried[there, a, b] | (tried.sum(axis=0)[a, b] < _MOST_TRIED)
        a, b, there, back = a[keep], b[keep], there[keep], back[keep]

        def both(table: Floats) -> Floats:
            return np.stack([table[model, there, a, b], table[model, back, b, a]], axis=1)

        caps = np.array(
            [[share_code(x), share_code(y)] for x, y in self._table.caps], dtype=np.int64
        )
        share = caps[there]
        twin = np.zeros(share.shape, dtype=bool)
        if not held:
            twin[:, 1] = (a == b) & (share[:, 0] == share[:, 1])
        return Template(
            free=np.stack([a, b], axis=1)[:, held:],
            twin=twin,
            share=share,
            slowdown=both(self._slowdown),
            upper=both(self._upper),
            tail=both(self._tail),
            power_w=both(self._power_w)[:, 0],
        )

    def _sets(self, model: int, members: Ints, held: int) -> Template:
        """Return those of these sets of workloads that may share, (n, size).

        Tail latencies with two others and the power together are unknown.
        """
        pair = members[:, :, None], members[:, None]
        uncapped = self._table.caps_place[UNCAPPED]
        slowdown = set_slowdown(self._slowdown[model, uncapped][pair])
        keep = ~np.isnan(slowdown).any(axis=1)
        upper = np.maximum(slowdown, set_slowdown(self._upper[model, uncapped][pair], last=True))
        upper = upper[keep]
        twin = np.diff(members[keep], axis=1, prepend=-1) == 0
        twin[:, : held + 1] = False
        return Template(
            free=members[keep][:, held:],
            twin=twin,
            share=np.zeros_like(members[keep]),
            slowdown=slowdown[keep],
            upper=upper,
            tail=np.full(upper.shape, np.inf),
            power_w=self._alone_w[members[keep]].sum(axis=1),
        )

    def _grown(self, model: int, held: Sequence[int], most: int) -> Iterator[Ints]:
        """Yield the sets of three, four, ... up to ``most`` with the ``held`` workloads, (n, size).

        Every pair of the joining workloads may share, and they are in ascending order.
        """
        known = ~np.isnan(self._slowdown[model, self._table.caps_place[UNCAPPED]])
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
    ) -> Iterator[Template]:
        """Yield the sets of three, four, ... up to ``most`` jobs, each with a cap, a template each.

        The ``held`` workloads have these shares. The caps of those that join leave the least of the
        GPU unused (``instances.shares.full_splits``).
        """
        place, allowed = self._table.caps_place, caps_of(self.rules.shares)
        room = self.rules.share_sum - sum(shares)
        for size in range(max(3, len(held) + 1), most + 1):

            def fits(joining: tuple[int, ...]) -> bool:
                return all(pair in place for pair in combinations((*shares, *joining), 2))

            for joining in full_splits(allowed, size - len(held), room, fits):
                caps = (*shares, *joining)
                members = self._grown_capped(model, held, caps)
                if len(members):
                    yield self._capped(model, members, caps, len(held))

    def _grown_capped(self, model: int, held: Sequence[int], caps: Sequence[int]) -> Ints:
        """Return the workloads that may share at these caps with the ``held`` ones, (n, size).

        Those that join with equal caps are in ascending order. There are none if they are too many.
        """
        known, place = ~np.isnan(self._slowdown[model]), self._table.caps_place
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

    def _capped(self, model: int, members: Ints, caps: Sequence[int], held: int) -> Template:
        """Return these sets of workloads at these caps, (n, size), as far as they may share.

        Tail latencies with two others and the power together are unknown.
        """
        size, place = len(caps), self._table.caps_place
        at = np.array([[place.get((x, y), -1) for y in caps] for x in caps])
        pair = at, members[:, :, None], members[:, None]
        alone = np.stack([self._alone[cap][members[:, k]] for k, cap in enumerate(caps)], axis=1)
        slowdown = capped_set_slowdown(self._slowdown[model][pair], alone)
        keep = ~np.isnan(slowdown).any(axis=1)
        bounds = capped_set_slowdown(self._upper[model][pair], alone, last=True)
        upper = np.maximum(slowdown, bounds)[keep]
        equal = np.array([k > 0 and caps[k] == caps[k - 1] for k in range(size)])
        twin = (np.diff(members[keep], axis=1, prepend=-1) == 0) & equal
        twin[:, : held + 1] = False
        return Template(
            free=members[keep][:, held:],
            twin=twin,
            share=np.broadcast_to(np.array(caps, dtype=np.int64), members[keep].shape),
            slowdown=slowdown[keep],
            upper=upper,
            tail=np.full(upper.shape, np.inf),
            power_w=self._alone_w[members[keep]].sum(axis=1),
        )

    def _behind(self, model: int, members: Ints, first: int, held: int) -> Template:
        """Return the sets of these workloads, (n, size), in which all others run behind one.

        Parameters
        ----------
        model : int
            The GPU model.
        members : (n, size) int
            Workloads, each of which may share with the one that they run behind.
        first : int
            The position of that one.
        held : int
            The number of workloads that are already there.
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
        share[:, first] = 0
        twin = np.diff(members, axis=1, prepend=-1) == 0
        twin[:, : max(held, 1) + 1] = False  # No place is equal to that of the first.
        slowdown = together(self._slowdown)
        return Template(
            free=members[:, held:],
            twin=twin,
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

    def _combinations(self, found: Template) -> Iterator[Combination]:
        """Yield the rows of a template without residents as combinations."""
        for free, share, slowdown, upper, tail, power_w in zip(
            found.free.tolist(),
            found.share.tolist(),
            found.slowdown.tolist(),
            found.upper.tolist(),
            found.tail.tolist(),
            found.power_w.tolist(),
            strict=True,
        ):
            names = [self.workloads[k] for k in free]
            members = tuple(zip(names, map(share_of, share), strict=True))
            yield Combination(members, tuple(slowdown), tuple(upper), tuple(tail), power_w)

    def _from_scratch(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the workloads and caps of every pair that may start together, once each."""
        caps, mirror = self._caps
        a, b = np.triu_indices(len(self.workloads))
        there = np.array(caps, dtype=np.int64).repeat(len(a))
        back = np.array(mirror, dtype=np.int64).repeat(len(a))
        a, b = np.tile(a, len(caps)), np.tile(b, len(caps))
        once = (a != b) | (there <= back)
        return a[once], b[once], there[once], back[once]

    def _beside(self, member: Member) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the workloads and caps of every pair with a member, which comes first."""
        name, share = member
        there, back = self._caps_beside(share)
        count = len(self.workloads)
        other = np.tile(np.arange(count), len(there))
        own = np.full(len(other), self._number[name])
        return own, other, there.repeat(count), back.repeat(count)

    def _caps_beside(self, share: AnyShare) -> tuple[Ints, Ints]:
        """Return the caps at which others may join a job with a share, and their mirrors."""
        table, rules = self._table, self.rules
        found = [
            (k, table.caps_place[y, x])
            for k, (x, y) in enumerate(table.caps)
            if x == share
            and (y is None or y in rules.shares)
            and share_total((x, y)) <= rules.share_sum
        ]
        there, back = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return there, back


def _at_last(state: State) -> Floats:
    """Return the slowdown of each workload after its co-runner has ended, (caps, workloads)."""
    return np.array(
        [[slowdown_at_last(w, share) for w in state.workloads] for share, _ in state.predicted.caps]
    )


def _powered(workloads: Sequence[Workload]) -> list[Workload]:
    """Return workloads with the mean power of the others, or 1 W, if theirs is unknown."""
    known = [one.power_w for one in workloads if one.power_w is not None]
    mean = fmean(known) if known else 1.0
    return [one if one.power_w is not None else one.replace(power_w=mean) for one in workloads]


def _first_of(shares: Sequence[AnyShare]) -> int | None:
    """Return the position of the job that all others run behind, or None."""
    first = [k for k, share in enumerate(shares) if share != IDLE]
    return first[0] if len(first) == 1 and shares[first[0]] is None else None


def _usable_caps(state: State) -> tuple[list[int], list[int]]:
    """Return the caps at which two jobs may start together, and the mirror of each."""
    table, rules = state.predicted, state.machines.rules
    allowed = {None, *rules.shares}
    caps = [
        k
        for k, (x, y) in enumerate(table.caps)
        if x in allowed and y in allowed and share_total((x, y)) <= rules.share_sum
    ]
    return caps, [table.caps_place[table.caps[k][1], table.caps[k][0]] for k in caps]


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

    The factor depends only on ``State.seen``, so it is the same after a restart.
    """
    if not state.seen:
        return _UNSEEN
    cells = tuple(np.array(list(islice(state.seen, None)), dtype=np.int64).T)
    prior = state.prior or state.predicted
    excess = prior.upper[cells] - 1
    telling = excess > _LEAST_EXCESS
    seen = np.array(list(state.seen.values()))
    needed = (seen[telling] - 1) / excess[telling]
    return max(1.0, float(np.quantile(np.append(needed, _UNSEEN), _KEPT)))
