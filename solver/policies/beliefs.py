"""What a policy believes of workloads that share a GPU, as the book of a round.

Predictions say how much two workloads slow each other; what was measured on running pairs
overrides them, and pairs that ran out of memory are struck out.

A workload of unknown power counts as the mean of the others, and jobs together as the sum of what
they take alone where their power together is unknown. So no sharing seems to save energy that is
not known to; and while no power is known at all, GPUs that run one job count the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import fmean

import numpy as np

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.entries import Book, Combination, Member, Template
from dovetail.formulations.rules import share_of, share_total
from dovetail.instances.instance import Workload
from dovetail.instances.sets import LARGEST, set_slowdown
from dovetail.instances.slowdown_table import UNCAPPED
from dovetail.solver.policies.state import State

_KEPT = 0.9
"""The part of the slowdowns that bounds promise to keep."""

_UNSEEN = 1.5
"""What a pair that was not measured yet is taken to need."""

_LEAST_EXCESS = 0.02
"""Predicted bounds closer to 1 than this say nothing of a factor."""

_MOST_SETS = 100_000
"""Sets of one size are left out where there are more of them on a GPU model."""


class BeliefBook(Book):
    """The slowdowns that a policy believes in.

    Those of three and more without caps follow from their pairs (``instances.sets``).

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
        for cell, slowdown in state.seen.items():
            self._slowdown[cell], self._upper[cell] = slowdown, measured[cell]
        for model, workload, other in state.clashes:
            self._slowdown[model, :, workload, other] = np.nan
        p99 = self._table.p99
        self._tail = np.where(np.isnan(p99), self._upper, p99)
        self.powered = _powered(state.workloads)
        self._alone_w = np.array([one.power_w for one in self.powered], dtype=np.float64)
        both_w = np.add.outer(self._alone_w, self._alone_w)
        self._power_w = np.where(np.isnan(self._table.power_w), both_w, self._table.power_w)
        self._templates: dict[tuple[str, tuple[Member, ...]], Sequence[Template]] = {}
        self._number = {name: k for k, name in enumerate(self.workloads)}
        self._caps = _usable_caps(state)

    def is_of(self, state: State) -> bool:
        """Tell whether nothing of a state has been measured since, or believed otherwise."""
        return (
            self._state is state
            and self._table is state.predicted
            and self._read == (len(state.seen), len(state.clashes))
        )

    @property
    def most(self) -> int:
        """The most jobs on a GPU of which anything is believed."""
        return min(self.rules.max_jobs_per_gpu, LARGEST)

    @property
    def sets(self) -> bool:
        """Whether three and more may share a GPU."""
        return self.most > 2

    def find(self, model: str, members: Sequence[Member]) -> Combination | None:
        """Return what is believed of some members, None of others or where they may not share."""
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
        if len(members) > self.most or any(share is not None for _, share in members):
            return None
        together = np.array([[self._number[name] for name, _ in members]])
        return next(iter(self._combinations(self._sets(m, together, 0))), None)

    def known(self, model: str) -> Sequence[Combination]:
        """Return every pair and every set that may run on a GPU model."""
        return [each for t in self.templates(model, ()) for each in self._combinations(t)]

    def templates(self, model: str, held: tuple[Member, ...]) -> Sequence[Template]:
        """Return the pairs and sets in which others may join, see ``Book``."""
        key = model, held
        if key not in self._templates:
            m, most = self._table.models.index(model), min(self.most, self.most_on(model))
            found = []
            if len(held) < 2 <= most:
                a, b, there, back = self._beside(held[0]) if held else self._from_scratch()
                found.append(self._pairs(m, a, b, there, back, len(held)))
            if most > 2 and all(share is None for _, share in held):
                those = [self._number[name] for name, _ in held]
                found += [
                    self._sets(m, members, len(held)) for members in self._grown(m, those, most)
                ]
            self._templates[key] = [template for template in found if len(template.free)]
        return self._templates[key]

    @property
    def speeds_up(self) -> bool:
        """Whether some job is believed to run faster with another than alone without a cap."""

        def made() -> bool:
            return bool((self._slowdown < 1).any())

        return self.once("speeds up", made)

    @property
    def least_modes(self) -> Floats:
        """The least memory and the least stretch of each workload's modes, (workloads, 2)."""

        def made() -> Floats:
            ways = [[(mode.memory_mib, mode.stretch) for mode in of] for of in self._state.modes]
            return np.array([np.min(of, axis=0) for of in ways], dtype=np.float64)

        return self.once("least modes", made)

    def least_bounds(self, model: str, share: int | None) -> tuple[Floats, Floats]:
        """Return the least that gSLAs are held against where a job is joined that has a share.

        Returns
        -------
        there, joining : (workloads, workloads) float
            Of the job that is there (rows) and of the one that joins it (columns), without
            their sub-batches; inf where they may not share.
        """

        def made() -> tuple[Floats, Floats]:
            m, (there, back) = self._table.models.index(model), self._caps_beside(share)
            known = ~np.isnan(self._slowdown[m])
            bound = np.where(known, np.fmin(self._upper[m], self._tail[m]), np.inf)
            own, other = bound[there], bound[back]
            return own.min(axis=0, initial=np.inf), other.min(axis=0, initial=np.inf).T

        return self.once(f"least bounds on {model} with {share}", made)

    def _pairs(
        self, model: int, a: Ints, b: Ints, there: Ints, back: Ints, held: int = 0
    ) -> Template:
        """Return the pairs that may share of these: workloads, caps and their mirrors, (n,)."""
        keep = ~np.isnan(self._slowdown[model, there, a, b] + self._slowdown[model, back, b, a])
        a, b, there, back = a[keep], b[keep], there[keep], back[keep]

        def both(table: Floats) -> Floats:
            return np.stack([table[model, there, a, b], table[model, back, b, a]], axis=1)

        caps = np.array([[x or 0, y or 0] for x, y in self._table.caps], dtype=np.int64)
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
        """Return the sets that may share of these workloads, (n, size).

        Nothing is known of tail latencies with two others, nor of the power together.
        """
        pair = members[:, :, None], members[:, None]
        uncapped = self._table.caps_place[UNCAPPED]
        slowdown = set_slowdown(self._slowdown[model, uncapped][pair])
        keep = ~np.isnan(slowdown).any(axis=1)
        upper = np.maximum(slowdown, set_slowdown(self._upper[model, uncapped][pair]))[keep]
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
        """Yield the sets of three, of four, ... to ``most`` with some workloads there, (n, size).

        Of those that are not there every pair may share, and they come in ascending order.
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

    def _combinations(self, found: Template) -> Iterator[Combination]:
        """Yield what is believed of GPUs without residents."""
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
        """Return workloads and caps of every pair that may start together, once each."""
        caps, mirror = self._caps
        a, b = np.triu_indices(len(self.workloads))
        there = np.array(caps, dtype=np.int64).repeat(len(a))
        back = np.array(mirror, dtype=np.int64).repeat(len(a))
        a, b = np.tile(a, len(caps)), np.tile(b, len(caps))
        once = (a != b) | (there <= back)
        return a[once], b[once], there[once], back[once]

    def _beside(self, member: Member) -> tuple[Ints, Ints, Ints, Ints]:
        """Return workloads and caps of every pair with a member, which comes first."""
        name, share = member
        there, back = self._caps_beside(share)
        count = len(self.workloads)
        other = np.tile(np.arange(count), len(there))
        own = np.full(len(other), self._number[name])
        return own, other, there.repeat(count), back.repeat(count)

    def _caps_beside(self, share: int | None) -> tuple[Ints, Ints]:
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


def _powered(workloads: Sequence[Workload]) -> list[Workload]:
    """Return workloads with the mean power of the others, or 1 W, where theirs is unknown."""
    known = [one.power_w for one in workloads if one.power_w is not None]
    mean = fmean(known) if known else 1.0
    return [one if one.power_w is not None else one.replace(power_w=mean) for one in workloads]


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
    """Return what the excess over 1 of predicted upper bounds is multiplied by, at least 1.

    The one place where the choice among many beliefs is corrected.

    *The optimiser's curse.* Of estimates ``x_k = t_k + e_k``, those that look best have the
    luckiest errors, so the truth of the chosen one is worse than its estimate on average (J. E.
    Smith and R. L. Winkler, *The Optimizer's Curse*, Management Science 52(3), 2006). A posterior
    has no such bias. The choice k* is a function of what was seen, D, so that for whichever pair is
    chosen

        E[t_k* | D] = m_k*    and    P(t_k* > u_k* | D) = P(t_k > u_k | D) at k = k*.

    Slowdowns are therefore taken as they are believed. Bounds are held against promises, and
    beliefs need not be a posterior: a point prediction with an error known over all pairs has the
    whole curse. Pairs that were measured were chosen before, with all their luck. So of each,
    ``r_k = (measured - 1) / (bound - 1)`` is what its bound needed, and if the next pair is
    exchangeable with the n that were measured, its own r is at most the 90 % quantile of all n + 1
    with a probability of 90 % (split conformal prediction: V. Vovk, A. Gammerman and G. Shafer,
    *Algorithmic Learning in a Random World*, Springer 2005). The unknown one is taken for 1.5.

    It follows from ``State.seen`` alone, so it is the same after a restart.
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
