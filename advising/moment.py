"""The busiest moment as an instance, and the fewest GPUs for its jobs.

All jobs of the moment wait, and as many GPUs are free as they held. A job has the limit of the
owners as its gSLA, and entries say which jobs may share and at which shares. So the objective
``fewest`` of any exact solver gives the number, and a user can plan the same moment again. In
pairs, a matching gives it sooner; sets of three and more are planned and checked. Jobs on several
GPUs are gangs that share all of their GPUs or none.

Pairs have the best of some splits. Three and more jobs have equal shares, 100 per cent divided by
their number and rounded down, or the shares that a replay would give them
(``dovetail.advising.sets``). If there are too many sets to list, only those are listed that pack
the jobs well, in many orders; then numbers of jobs and their memory alone bound the GPUs.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from dovetail.advising.matched import matched
from dovetail.advising.sets import Members, SharingSets, cap_choices, pools_of
from dovetail.advising.sharing import (
    RESERVE_MIB,
    SPLITS,
    KindPairs,
    has_partner,
)
from dovetail.advising.work import CASES, Floats, Ints, Work
from dovetail.formulations.budget import Budget
from dovetail.instances.builder import InstanceBuilder
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import SOURCES
from dovetail.solver.rounds import solve

_LIKELY: Final = CASES.index("likely")
_MOST_LISTED: Final = 10_000
"""The most sets that an instance lists."""

_ORDERS: Final = 6
"""Random orders in which jobs are packed, besides those of memory."""

_SEARCH_S: Final = 10.0
"""Seconds for the search for sets of three and more."""

_LONGEST_NAME: Final = 180
_TOLERANCE: Final = 1e-6


class Moment(NamedTuple):
    """The moment at which the records use most GPUs, and the fewest that are enough then.

    Attributes
    ----------
    at_s : float
        The time; 0 without times.
    jobs : int
        How many jobs run then.
    gpus_now : int
        How many GPUs they hold.
    gpus : tuple of int
        The fewest with sharing, in each of ``CASES``.
    bounds : tuple of int
        No fewer are possible for the numbers of each case, proven.
    instance : Instance
        The moment in the case ``likely``.
    mates : mapping of (kinds, shares) to int
        On how many GPUs jobs of these kinds share at these shares, in the case ``likely``.
    """

    at_s: float
    jobs: int
    gpus_now: int
    gpus: tuple[int, ...]
    bounds: tuple[int, ...]
    instance: Instance
    mates: dict[tuple[Members, tuple[int, ...]], int]

    @property
    def proven(self) -> bool:
        """Whether every number is proven to be the fewest."""
        return self.gpus == self.bounds


class _MomentEntry(NamedTuple):
    """Kinds that may share a GPU, their shares and slowdowns."""

    kinds: Members
    shares: tuple[int, ...]
    slowdowns: tuple[float, ...]


class _ListedSets(NamedTuple):
    """Sets of three and more that are listed, and pairs that tables lack.

    Attributes
    ----------
    entries : list of _MomentEntry
        The sets.
    complete : bool
        Whether these are all, besides pairs of tables; if not, those pairs do not count.
    best : list of _MomentEntry
        The sets of the packing that needs the fewest GPUs.
    """

    entries: list[_MomentEntry]
    complete: bool
    best: list[_MomentEntry]


def busiest(
    work: Work,
    tables: Sequence[KindPairs],
    limit: float,
    most: int,
    budget: Budget,
) -> Moment:
    """Return the busiest moment, and the fewest GPUs for its jobs in each case.

    Parameters
    ----------
    work : Work
        The jobs.
    tables : sequence of KindPairs
        The pairs of kinds in each case.
    limit : float
        The slowdown that owners accept.
    most : int
        The most jobs on a GPU.
    budget : Budget
        The time for it.

    Raises
    ------
    OutOfTimeError
        When the budget is spent.
    """
    at, jobs = _running_most(work)
    kinds = np.sort(work.kind[jobs])
    solved = [
        _Solved.of(_Case(work, case, kinds, tables[: case + 1], limit, most), budget)
        for case in range(len(CASES))
    ]
    likely = solved[_LIKELY]
    return Moment(
        at,
        len(jobs),
        int(work.gpus[kinds].sum()),
        tuple(each.gpus for each in solved),
        tuple(each.bound for each in solved),
        likely.instance,
        likely.mates,
    )


def _running_most(work: Work) -> tuple[float, Ints]:
    """Return the moment at which most GPUs are held, and the jobs that run then."""
    if not work.timed:
        return 0.0, np.arange(len(work.kind))
    held = work.gpus[work.kind]
    times = np.concatenate([work.begin_s, work.end_s])
    change = np.concatenate([held, -held])
    # What ends at a moment does so before what begins.
    order = np.lexsort((change, times))
    most = int(np.argmax(np.cumsum(change[order])))
    at = float(times[order][most])
    return at, np.flatnonzero((work.begin_s <= at) & (work.end_s > at))


class _Case:
    """The jobs of the moment in a case, and what may share."""

    def __init__(
        self,
        work: Work,
        case: int,
        kinds: Ints,
        tables: Sequence[KindPairs],
        limit: float,
        most: int,
    ) -> None:
        self.work, self.case, self.kinds, self.pairs = work, case, kinds, tables[-1]
        self.laws, self.limit, self.most = [table.law for table in tables], limit, most
        self.law = self.pairs.law
        self.present, self.counts = np.unique(kinds, return_counts=True)
        self.mib = work.memory_mib[case]
        self.pool = pools_of(work)
        self.able = has_partner(work, self.pairs.allowed)

    def choices(self) -> Iterator[Ints]:
        """Yield shares that a replay would give."""
        return cap_choices(self.able, self.limit, self.most, self.laws)

    def sharing_sets(self, shares: Ints) -> SharingSets:
        """Return which sets may share at these shares."""
        return SharingSets(self.work, self.case, self.law, shares, self.limit, self.most)

    def bound(self) -> int:
        """Return a number of GPUs that numbers of jobs and memory prove to be needed."""
        with_partner = np.zeros_like(self.able)
        among = np.ix_(self.present, self.present)
        others = self.pairs.fits[among].copy()
        np.fill_diagonal(others, others.diagonal() & (self.counts > 1))
        with_partner[self.present] = others.any(axis=1)
        needed = 0
        for pool in np.unique(self.pool[self.kinds]).tolist():
            kinds = self.kinds[self.pool[self.kinds] == pool]
            able = kinds[with_partner[kinds]]
            places = len(kinds) - len(able)
            if len(able):
                part = self.mib[able] / (self.work.card_mib[able].max() - RESERVE_MIB)
                by_memory = float(np.minimum(part, 1.0).sum())
                places += math.ceil(max(by_memory - _TOLERANCE, len(able) / self.most))
            needed += places * int(self.work.gpus[kinds[0]])
        return needed


class _Solved(NamedTuple):
    """The fewest GPUs in a case."""

    gpus: int
    bound: int
    instance: Instance
    mates: dict[tuple[Members, tuple[int, ...]], int]

    @classmethod
    def of(cls, moment: _Case, budget: Budget) -> _Solved:
        """Return the fewest GPUs."""
        if moment.most == 2:
            return cls._paired(moment, budget)
        sets = _sets_of(moment, budget)
        packed = cls._planned(moment, sets.best, budget, "auto", complete=False)
        if packed.gpus == packed.bound and not sets.complete:
            return packed
        part = _part(budget)
        found = cls._planned(moment, sets.entries, part, "cpsat", complete=sets.complete)
        if packed.gpus < found.gpus:
            return packed._replace(bound=min(packed.gpus, max(packed.bound, found.bound)))
        return found

    @classmethod
    def _paired(cls, moment: _Case, budget: Budget) -> _Solved:
        """Match jobs on equally many GPUs in pairs."""
        table, held = moment.pairs, moment.work.gpus
        gpus = bound = 0
        mates: Counter[tuple[Members, tuple[int, ...]]] = Counter()
        for size in np.unique(held[moment.kinds]).tolist():
            kinds = moment.kinds[held[moment.kinds] == size]
            found = matched(kinds, len(kinds), table.allowed, table.slowdown, budget)
            own = np.flatnonzero(found.mate > np.arange(len(kinds)))
            gpus += size * (len(kinds) - len(own))
            bound += size * (len(kinds) - found.most_pairs)
            both = np.sort(np.stack([kinds[own], kinds[found.mate[own]]], axis=1), axis=1)
            for a, b in both.tolist():
                mates[(a, b), SPLITS[int(table.split[a, b])]] += size
        instance, _ = _instance(moment, [], True)
        return cls(gpus, min(bound, gpus), instance, dict(mates))

    @classmethod
    def _planned(
        cls,
        moment: _Case,
        entries: Sequence[_MomentEntry],
        budget: Budget,
        solver: str,
        complete: bool,
    ) -> _Solved:
        """Plan with these entries, and with the pairs of the tables if the entries are complete."""
        instance, kind_of = _instance(moment, entries, complete)
        budget.check()
        result = solve(instance, "fewest", solver, time_limit=budget, explain=False)
        gpus, mates = _gpus_and_mates(result.plan, kind_of)
        held = len(instance.places)
        if len(result.plan.assignments) < len(instance.jobs):
            # The time was up: each job keeps its GPUs.
            gpus, mates = held, {}
        bound = moment.bound()
        if complete and result.bound is not None:
            bound = max(bound, math.ceil(result.bound - _TOLERANCE))
        return cls(gpus, min(bound, gpus), instance, mates)


def _part(budget: Budget) -> Budget:
    """Return the part of a budget for one search."""
    left = budget.left_s
    return budget.part(min(0.25, _SEARCH_S / left)) if left > 0 else budget


class _MomentPairs(NamedTuple):
    """Pairs of kinds, with their shares and slowdowns, shape (pairs, 2)."""

    kinds: Ints
    shares: Ints
    slowdowns: Floats


def _table_pairs(moment: _Case) -> _MomentPairs:
    """Return the pairs of the tables."""
    present, pairs = moment.present, moment.pairs
    may = np.triu(pairs.allowed[np.ix_(present, present)])
    np.fill_diagonal(may, may.diagonal() & (moment.counts > 1))
    first, second = (present[each] for each in np.nonzero(may))
    slowdowns = np.stack([pairs.slowdown[first, second], pairs.slowdown[second, first]], axis=1)
    shares = np.array(SPLITS)[pairs.split[first, second]]
    return _MomentPairs(np.stack([first, second], axis=1), shares, slowdowns.astype(np.float64))


def _pair_arrays(entries: Sequence[_MomentEntry]) -> _MomentPairs:
    columns = (np.array([each[k] for each in entries]).reshape(-1, 2) for k in range(3))
    kinds, shares, slowdowns = columns
    return _MomentPairs(kinds.astype(np.int64), shares.astype(np.int64), slowdowns)


def _sets_of(moment: _Case, budget: Budget) -> _ListedSets:
    """Return all sets that may share if they are few, else those of good packings."""
    best, packed = _packings(moment, budget)
    room = _MOST_LISTED - len(_table_pairs(moment).kinds)
    listed = _all_sets(moment, room, budget) if room > 0 else None
    return _ListedSets(packed, False, best) if listed is None else _ListedSets(listed, True, best)


def _all_sets(moment: _Case, room: int, budget: Budget) -> list[_MomentEntry] | None:
    """Return all sets that may share and are no pairs of the tables; None if there are too many."""
    choices = list(moment.choices())
    found: list[_MomentEntry] = []
    for pool in np.unique(moment.pool[moment.present]).tolist():
        own = moment.able[moment.present] & (moment.pool[moment.present] == pool)
        kinds, counts = moment.present[own], moment.counts[own]
        free_mib = moment.work.card_mib[kinds] - RESERVE_MIB
        sets = np.arange(len(kinds))[:, None]
        for size in range(2, moment.most + 1):
            budget.check()
            grown = _grown(sets, moment.mib[kinds], counts, free_mib, room)
            if grown is None:
                return None
            sets = grown
            found += _judged(moment, kinds[sets], choices, size)
            if len(found) > room:
                return None
    return found


def _grown(sets: Ints, mib: Floats, counts: Ints, free_mib: Floats, room: int) -> Ints | None:
    """Return sets with a job more whose memory fits; None if they are more than some room.

    Sets are positions of kinds in ascending order.
    """
    last = sets[:, -1] if len(sets) else np.zeros(0, np.int64)
    further = len(mib) - last
    if further.sum() > 50 * room:
        return None
    base = np.repeat(np.arange(len(sets)), further)
    start = np.cumsum(further) - further
    other = np.arange(len(base)) - start[base] + last[base]
    grown = np.column_stack([sets[base], other])
    fits = mib[grown].sum(axis=1) <= free_mib[grown].min(axis=1)
    fits &= (grown == other[:, None]).sum(axis=1) <= counts[other]
    grown = grown[fits]
    return None if len(grown) > 4 * room else grown


def _judged(
    moment: _Case, kinds: Ints, choices: Sequence[Ints], size: int
) -> Iterator[_MomentEntry]:
    """Yield the sets that may share, each at the first shares that let it."""
    if moment.case == CASES.index("low"):
        service = moment.work.service[kinds]
        kinds = kinds[(service == service[:, :1]).all(axis=1)]
    equal = np.full(len(moment.work.gpus), 100 // size)
    if size == 2:
        kinds = kinds[~moment.pairs.allowed[kinds[:, 0], kinds[:, 1]]]
    for shares in [*([equal] if size > 2 else []), *choices]:
        given = shares[kinds]
        tried = np.flatnonzero((given > 0).all(axis=1) & (given.sum(axis=1) <= 100))
        slowdowns = moment.law.slowdowns(kinds[tried], given[tried])
        within = (slowdowns <= moment.limit).all(axis=1)
        rows = tried[within]
        for each in zip(
            kinds[rows].tolist(), given[rows].tolist(), slowdowns[within].tolist(), strict=True
        ):
            yield _MomentEntry(*map(tuple, each))
        kinds = np.delete(kinds, rows, axis=0)


def _packings(moment: _Case, budget: Budget) -> tuple[list[_MomentEntry], list[_MomentEntry]]:
    """Return the sets of the best packing, and of all that were tried."""
    draw = random.Random(0)
    able = moment.kinds[moment.able[moment.kinds]].tolist()
    by_memory = sorted(able, key=lambda kind: (-moment.mib[kind], kind))
    orders = [by_memory, by_memory[::-1], *(draw.sample(able, len(able)) for _ in range(_ORDERS))]
    every: dict[Members, _MomentEntry] = {}
    best: list[_MomentEntry] = []
    saved = -1
    choices = [np.where(moment.able, 100 // size, 0) for size in range(2, moment.most + 1)]
    for shares in (*choices, *moment.choices()):
        sets = moment.sharing_sets(shares)
        for order in orders:
            budget.check()
            packing = _packed(moment, sets, [kind for kind in order if shares[kind]])
            entries = [
                _MomentEntry(one, tuple(shares[list(one)].tolist()), sets.slowdowns(one))
                for one in packing
                if len(one) > 1
            ]
            less = sum(
                int(moment.work.gpus[each.kinds[0]]) * packing[each.kinds] * (len(each.kinds) - 1)
                for each in entries
            )
            if len(every) < _MOST_LISTED:
                every.update((each.kinds, each) for each in entries if each.kinds not in every)
            if less > saved:
                best, saved = entries, less
    return best, list(every.values())


def _packed(moment: _Case, sets: SharingSets, order: Sequence[int]) -> Counter[Members]:
    """Return sets of the jobs, each put where it leaves the least memory."""
    placed: dict[int, Counter[Members]] = {}
    for kind in order:
        of_pool = placed.setdefault(int(moment.pool[kind]), Counter())
        open_sets = [members for members in of_pool if len(members) < moment.most]
        grown = [
            (one.free_mib, members, one.members)
            for members, one in zip(open_sets, sets.joined(open_sets, kind), strict=True)
            if one is not None
        ]
        if grown:
            _, before, after = min(grown)
            of_pool[before] -= 1
            if not of_pool[before]:
                del of_pool[before]
        else:
            after = (kind,)
        of_pool[after] += 1
    return sum(placed.values(), Counter[Members]())


def _instance(
    moment: _Case, entries: Sequence[_MomentEntry], with_tables: bool
) -> tuple[Instance, dict[str, int]]:
    """Return the moment as an instance, and the kind of each of its jobs."""
    work, name_of = moment.work, _names(moment)
    pairs = [_pair_arrays([each for each in entries if len(each.kinds) == 2])]
    pairs += [_table_pairs(moment)] if with_tables else []
    larger = [each for each in entries if len(each.kinds) > 2]
    shares = {share for each in larger for share in each.shares}
    shares.update(*(np.unique(each.shares).tolist() for each in pairs))
    made = InstanceBuilder(
        "busiest moment",
        max_jobs_per_gpu=moment.most,
        shares=sorted(shares),
        gang_sharing="whole",
        reserve_mib=RESERVE_MIB,
    )
    kinds, present = moment.kinds, moment.present
    models = np.array([model or "unknown" for model in work.models])
    card = np.maximum(np.nan_to_num(work.card_mib), RESERVE_MIB + 1)
    for model in dict.fromkeys(models[present].tolist()):
        own = kinds[models[kinds] == model]
        made.add_node(model, int(work.gpus[own].sum()), model, float(card[own].max()))
    for kind in present.tolist():
        # It ran on this card, whatever the case assumes.
        memory = min(float(np.nan_to_num(moment.mib[kind])), float(card[kind]) - RESERVE_MIB)
        made.add_workload(name_of[kind], memory)
    kind_of = {}
    for kind, count in zip(present.tolist(), moment.counts.tolist(), strict=True):
        for number in range(1, count + 1):
            job = f"{name_of[kind]}:{number}"
            made.add_job(job, name_of[kind], workers=int(work.gpus[kind]), gsla=moment.limit)
            kind_of[job] = kind
    for each in larger:
        names = [name_of[kind] for kind in each.kinds]
        made.add_slowdown(names, each.slowdowns, share=each.shares, source="estimate")
    instance = made.instance()
    # There may be a million pairs, too many to check one by one: they fit the rules as made here.
    of_pairs = [_as_slowdowns(both, moment, instance) for both in pairs]
    return instance.replace(slowdowns=Slowdowns.joined([instance.slowdowns, *of_pairs])), kind_of


def _as_slowdowns(pairs: _MomentPairs, moment: _Case, instance: Instance) -> Slowdowns:
    return Slowdowns.of_pairs(
        tuple(instance.workloads),
        np.searchsorted(moment.present, pairs.kinds),
        share=pairs.shares,
        # Numbers of 32 bits are rounded, and so may be above the limit.
        slowdown=np.minimum(pairs.slowdowns, moment.limit),
        source=SOURCES.index("estimate"),
    )


def _names(moment: _Case) -> dict[int, str]:
    """Return a name for each kind, none twice."""
    labels = {kind: moment.work.label(kind)[:_LONGEST_NAME] for kind in moment.present.tolist()}
    if len({*labels.values()}) == len(labels) and all(labels.values()):
        return labels
    return {kind: f"{label}#{kind}" for kind, label in labels.items()}


def _gpus_and_mates(
    plan: Plan, kind_of: dict[str, int]
) -> tuple[int, dict[tuple[Members, tuple[int, ...]], int]]:
    """Return how many GPUs a plan uses, and which kinds share how many of them."""
    on: dict[str, list[tuple[int, int]]] = {}
    for each in plan.assignments:
        for gpu, share in zip(each.gpus, each.shares, strict=True):
            on.setdefault(gpu, []).append((kind_of[each.job], int(share or 0)))
    mates: Counter[tuple[Members, tuple[int, ...]]] = Counter()
    for jobs in on.values():
        if len(jobs) > 1:
            kinds, shares = zip(*sorted(jobs), strict=True)
            mates[kinds, shares] += 1
    return len(on), dict(mates)
