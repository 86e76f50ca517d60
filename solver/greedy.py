"""Solver: one job after the other in queue order, each on the GPUs that are best at the moment.

A job takes the GPUs, empty or shared, that add most to the objective while every job placed before
it stays; shares of jobs that start in the same round may still change. Queue schedulers work this
way, and it gives the exact solvers an initial solution.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints, packed
from dovetail.formulations.candidates.groups import (
    Groups,
    best_gains,
    ceiling,
    idle_counts,
    places_all,
    score,
)
from dovetail.formulations.candidates.listing import candidate_groups
from dovetail.formulations.hosts import HostUse
from dovetail.formulations.rounds import Round
from dovetail.formulations.values import JobValues
from dovetail.solver.types import Choice, Limits

Rule = Literal["best", "alone", "random"]
"""The GPUs that a job takes: where it adds most; empty ones only; any allowed ones."""

AT_LEAST = 100
"""Jobs that are processed even if the time is up, so that a plan starts some."""

_NAMES: Mapping[Rule, str] = {"best": "greedy", "alone": "exclusive", "random": "random"}

_PACES = 20
"""Paces of its slowest worker that are tried for a gang whose workers stay together on nodes."""

_STEPS_PER_JOB = 500_000
"""Approximate steps of work to examine the groups that a job can form."""


class Greedy:
    """Solves rounds in the order of the queue.

    Parameters
    ----------
    rule : str
        The GPUs that a job takes (``Rule``).
    """

    def __init__(self, rule: Rule = "best") -> None:
        self.rule: Rule = rule
        self.name = _NAMES[rule]

    def solve(self, values: JobValues, limits: Limits) -> Choice:
        """Return the rule's choice of groups, with a simple bound."""
        return self.best(candidate_groups(values, limits.budget), limits)

    def best(self, groups: Groups, limits: Limits) -> Choice:
        """Return the rule's choice of these groups."""
        counts, values = greedy_counts(groups, limits, self.rule), groups.values
        most, reached = ceiling(groups), score(groups, counts)
        proven_weight = not values.two_stage or reached.weight >= most.weight
        if values.cheapest:
            proven_weight = places_all(groups, counts)
        return Choice(
            groups=groups,
            counts=counts,
            value=reached.value(values),
            bound=most.value(values) if proven_weight else math.inf,
            weight_bound=most.weight,
            stopped="time_limit" if limits.passed else "complete",
            solver=self.name,
            in_queue_order=True,
        )


def greedy_counts(groups: Groups, limits: Limits, rule: Rule = "best", at_least: int = 0) -> Ints:
    """Return how often each group is taken; jobs that are not reached in time wait.

    Parameters
    ----------
    groups : Groups
        The groups to choose from.
    limits : Limits
        When to stop.
    rule : str
        The GPUs that a job takes.
    at_least : int
        Number of jobs at the head of the queue that are processed whatever the time.
    """
    groups = _priced(groups) if groups.values.cheapest else groups
    seats = _GpuOccupancy(groups)
    pick = _GpuPick(groups, seats, rule, random.Random(limits.seed))
    jobs, kinds = groups.round.jobs, groups.kinds
    order = np.argsort(jobs.arrival_s, kind="stable")
    refused: set[int] = set()
    for k, job in enumerate(order[~jobs.running[order]].tolist()):
        if k >= at_least and limits.passed:
            break
        kind = int(kinds.first[job])
        if kind in refused:  # and nothing has changed since
            continue
        limits.budget.spend(_STEPS_PER_JOB)
        offers = pick.for_job(kind, float(kinds.less[job]))
        if not offers or not seats.bear(offers):
            refused.add(kind)
            continue
        refused.clear()
        for offer, number in offers:
            seats.take(offer, number)
    return seats.counts()


def _priced(groups: Groups) -> Groups:
    """Return the groups less their costs, which count more than all gains together."""
    most = np.abs(best_gains(groups)).max(axis=1, where=np.isfinite(best_gains(groups)), initial=0)
    price = 1 + 2 * float(most.sum()) / float(groups.cost.min(initial=np.inf))
    return replace(groups, value=groups.value - price * groups.cost)


@dataclass(frozen=True)
class _Offer:
    """A group that a job can form with the occupants of a GPU.

    Attributes
    ----------
    job, group : int
        The job and the group.
    node : int
        The node of the GPU; -1 for any.
    seat : int
        The occupants before the job, see ``_GpuOccupancy``.
    others : tuple of int
        The jobs that are there.
    free : int
        The number of such GPUs.
    gain : float
        The job's own gain there.
    change : float
        The change of the others' gains and of the value of the GPU.
    """

    job: int
    group: int
    node: int
    seat: int
    others: tuple[int, ...]
    free: int
    gain: float
    change: float


class _GpuOccupancy:
    """The jobs on the GPUs so far; GPUs with the same *seat* always have the same group.

    A seat is a class of GPUs and the occupants of one: jobs of one GPU, or gangs at a sub-batch. It
    is on a certain node if workers of an occupant stay together. Seats are numbered, the empty GPUs
    of each class first.
    """

    def __init__(self, groups: Groups) -> None:
        compiled = groups.round
        self._groups = groups
        self._gang = compiled.jobs.workers[groups.job] > 1
        self._group = groups.group_of_member
        self._seat, self._before = _numbered(groups, self._gang)
        self._positions = _positions_by_job(groups)
        single = np.where(self._gang, 0.0, groups.gain)
        self._singles = np.bincount(self._group, single, len(groups)) + groups.value
        self._with_gangs = np.bincount(self._group, self._gang, len(groups)) > 0
        hosts = compiled.hosts
        self._hosts = None if hosts is None else HostUse.of(groups, hosts)
        seats = 1 + int(max(self._seat.max(initial=0), self._before.max(initial=0)))
        seats = max(seats, len(compiled.classes))
        self._number = np.zeros(seats, dtype=np.int64)
        self._taken = np.full(seats, -1)
        self._of_gang: dict[int, set[int]] = defaultdict(set)
        self._moves = _moves_to_node(groups, self._seat, self._before)
        self._left = compiled.gpus_by_node.copy() if self._moves.any() else None
        held = compiled.classes.residents
        self._number[: len(held)] = np.where(held > 0, 0, compiled.classes.size)
        for group, number in enumerate(idle_counts(groups).tolist()):
            if number and held[groups.gpu_class[group]]:
                self._sit(group, number)

    def offers(self, job: int, alone: bool) -> list[_Offer]:
        """Return every group that the job can form now, or only those in which it is alone."""
        positions = self._possible(job, alone)
        changes = self._changes(positions)
        found = (self._offer(*each) for each in zip(positions.tolist(), changes, strict=True))
        return [offer for offer in found if offer.free]

    def best(self, job: int, alone: bool) -> list[_Offer]:
        """Return the group that adds most; of equal groups, the one with the largest own gain.

        The job has one GPU and may take any.
        """
        positions = self._possible(job, alone)
        if not len(positions):
            return []
        changes, gain = self._changes(positions), self._groups.gain[positions]
        first = np.lexsort((-gain, -(gain + changes)))[0]
        return [self._offer(int(positions[first]), float(changes[first]))]

    def _possible(self, job: int, alone: bool) -> Ints:
        """Return the group members that the job could be now."""
        positions = self._positions[job]
        able = self._number[self._before[positions]] > 0
        if self._left is not None:
            able &= self._on_node(positions) > 0
        if alone:
            able &= self._groups.sizes[self._group[positions]] == 1
        return positions[able]

    def _offer(self, position: int, change: float) -> _Offer:
        groups, group, seat = self._groups, int(self._group[position]), int(self._before[position])
        free = int(self._number[seat])
        if self._left is not None:
            free = min(free, int(self._on_node(np.array([position]))[0]))
        if self._hosts is not None:
            free = self._borne(group, seat, free)
        others = tuple(int(groups.job[k]) for k in groups.members(group) if k != position)
        gain = float(groups.gain[position])
        job, node = int(groups.job[position]), int(groups.node[group])
        return _Offer(job, group, node, seat, others, free, gain, change)

    def _on_node(self, positions: Ints) -> Ints:
        """Return how many GPUs of their node each group can still get with this member."""
        assert self._left is not None
        groups, group = self._groups, self._group[positions]
        left = self._left[groups.gpu_class[group], groups.node[group]]
        return np.where(self._moves[positions], left, len(groups.round.machines))

    def left(self, offer: _Offer) -> tuple[tuple[int, int], int] | None:
        """Return the class and node of which an offer takes GPUs, and how many are left.

        The result is None if its GPUs are on the node already.
        """
        if self._left is None or offer.node < 0 or not self._pooled(offer.seat):
            return None
        place = int(self._groups.gpu_class[offer.group]), offer.node
        return place, int(self._left[place])

    def number(self, seat: int) -> int:
        """Return the number of GPUs with a seat."""
        return int(self._number[seat])

    def _pooled(self, seat: int) -> bool:
        taken = int(self._taken[seat])
        return taken < 0 or int(self._groups.node[taken]) < 0

    def bear(self, offers: Iterable[tuple[_Offer, int]]) -> bool:
        """Return whether the hosts can bear these numbers of offers together."""
        if self._hosts is None:
            return True
        counts = self.counts()
        for offer, number in offers:
            counts[offer.group] += number
            if offer.others:
                counts[self._taken[offer.seat]] -= number
        return self._hosts.allows(counts)

    def _borne(self, group: int, seat: int, free: int) -> int:
        """Return the number of GPUs with a seat on which the host can bear a group."""
        assert self._hosts is not None
        counts, before = self.counts(), int(self._taken[seat])
        for number in range(1, free + 1):
            counts[group] += 1
            if before >= 0:
                counts[before] -= 1
            if not self._hosts.allows(counts):
                return number - 1
        return free

    def take(self, offer: _Offer, number: int) -> None:
        """Put the job of the offer on ``number`` of the seat's GPUs."""
        if (place := self.left(offer)) is not None and self._left is not None:
            self._left[place[0]] -= number
        self._number[offer.seat] -= number
        if not self._number[offer.seat] and offer.others:
            for job in self._gangs(int(self._taken[offer.seat])):
                self._of_gang[job].discard(offer.seat)
        self._sit(offer.group, number)

    def all_with(self, gangs: Iterable[int]) -> set[int]:
        """Return the seats of all of these gangs."""
        return set().union(*(self._of_gang[gang] for gang in gangs))

    def counts(self) -> Ints:
        """Return how often each group is taken."""
        seats = np.flatnonzero((self._number > 0) & (self._taken >= 0))
        counts = np.bincount(self._taken[seats], self._number[seats], len(self._groups))
        return counts.astype(np.int64)

    def mode(self, offer: _Offer) -> tuple[int | None, int]:
        """Return the variant that a gang has in the offer's group, and the group's class."""
        members = self._groups.members(offer.group)
        position = next(k for k in members if self._groups.job[k] == offer.job)
        variant = int(self._groups.variant[position]) if self._gang[position] else None
        return variant, int(self._groups.gpu_class[offer.group])

    def _changes(self, positions: Ints) -> Floats:
        """Return the change of others' gains and a GPU's value; a gang's gain never increases."""
        group, before = self._group[positions], self._taken[self._before[positions]]
        own = np.where(self._gang[positions], 0.0, self._groups.gain[positions])
        change = self._singles[group] - own - np.where(before < 0, 0.0, self._singles[before])
        for row in np.flatnonzero(self._with_gangs[group]).tolist():
            for k in self._groups.members(int(group[row])):
                if k != positions[row] and self._gang[k]:
                    now = self._gain_of(int(self._groups.job[k]))
                    change[row] += min(0.0, float(self._groups.gain[k]) - now)
        return np.asarray(change)

    def _gain_of(self, gang: int) -> float:
        """Return the present gain of a placed gang, which is that of its slowest worker."""
        return min(
            float(self._groups.gain[k])
            for seat in self._of_gang[gang]
            for k in self._groups.members(int(self._taken[seat]))
            if self._groups.job[k] == gang
        )

    def _gangs(self, group: int) -> list[int]:
        return [int(self._groups.job[k]) for k in self._groups.members(group) if self._gang[k]]

    def _sit(self, group: int, number: int) -> None:
        seat = int(self._seat[group])
        self._taken[seat] = group
        self._number[seat] += number
        for job in self._gangs(group):
            self._of_gang[job].add(seat)


class _GpuPick:
    """Picks the GPUs of one job among the offers."""

    def __init__(
        self, groups: Groups, seats: _GpuOccupancy, rule: Rule, chance: random.Random
    ) -> None:
        self._values = groups.values
        self._round = groups.round
        self._seats = seats
        self._rule = rule
        self._chance = chance
        self._whole = groups.round.machines.rules.gang_sharing == "whole"

    def for_job(self, job: int, less: float) -> Sequence[tuple[_Offer, int]]:
        """Return the offers to take, each with the number of GPUs; empty if the job waits.

        ``less`` is how much less it gains than its representative in the groups.
        """
        workers = int(self._round.jobs.workers[job])
        picks = [
            pick
            for offers in self._alternatives(job)
            if (pick := self._picked(offers, job, workers)) is not None
        ]
        if not picks:
            return ()
        worth, taken = max(picks, key=lambda pick: pick[0])
        if self._rule == "random":
            taken = self._chance.choice(picks)[1]
        elif worth <= less and not self._values.two_stage:
            return ()
        return taken

    def _alternatives(self, job: int) -> Iterable[list[_Offer]]:
        """Return lists of offers that may be combined: same variant and model of a gang.

        If gangs share whole, all empty GPUs or all GPUs of one partner.
        """
        found: dict[tuple[object, ...], dict[tuple[int, int], _Offer]] = defaultdict(dict)
        model = self._round.classes.model.tolist()
        alone, one = self._rule == "alone", self._round.jobs.workers[job] == 1
        plain = one and self._rule != "random" and self._round.hosts is None
        offers = self._seats.best if plain else self._seats.offers
        for offer in offers(job, alone):
            variant, gpu_class = self._seats.mode(offer)
            key = (variant, model[gpu_class], offer.others if self._whole else None)
            known = found[key].get((offer.seat, offer.node))
            if known is None or known.gain + known.change < offer.gain + offer.change:
                found[key][offer.seat, offer.node] = offer
        return [
            list(by_seat.values())
            for key, by_seat in found.items()
            if not self._whole or self._covers(by_seat, job)
        ]

    def _covers(self, by_seat: Mapping[tuple[int, int], _Offer], job: int) -> bool:
        """Return whether the seats are all those of their gangs and exactly what the job needs."""
        others = {k for offer in by_seat.values() for k in offer.others}
        if not others or self._round.jobs.workers[job] == 1:
            return True
        seats = {seat for seat, _ in by_seat}
        number = sum(map(self._seats.number, seats))
        complete = self._seats.all_with(others) == seats
        return complete and number == self._round.jobs.workers[job]

    def _picked(
        self, offers: Sequence[_Offer], job: int, workers: int
    ) -> tuple[float, list[tuple[_Offer, int]]] | None:
        """Return the best GPUs for a job among the offers and their worth."""
        if not self._round.on_nodes[job]:
            return self._best(offers, workers)
        worth = {
            id(o): self._chance.random() if self._rule == "random" else o.change for o in offers
        }
        paces = sorted({offer.gain for offer in offers}, reverse=True)
        found = []
        for pace in paces[:: max(1, len(paces) // _PACES)]:
            fast = [offer for offer in offers if offer.gain >= pace]
            taken = _WholeNodes(self._seats, self._round, fast, worth).taken(job, workers)
            if taken:
                slowest = min(offer.gain for offer, _ in taken)
                found.append((slowest + sum(worth[id(o)] * n for o, n in taken), taken))
        return max(found, key=lambda pick: pick[0], default=None)

    def _best(
        self, offers: Sequence[_Offer], workers: int
    ) -> tuple[float, list[tuple[_Offer, int]]] | None:
        """Return the best ``workers`` GPUs among the offers and their worth.

        For every offer as the slowest one taken, a heap keeps the best offers that are at least as
        fast, by their change for others.
        """
        worth = {
            id(o): self._chance.random() if self._rule == "random" else o.change for o in offers
        }
        heap: list[tuple[float, int]] = []
        total, best, best_worth = 0.0, None, -math.inf
        ranked = sorted(offers, key=lambda o: -o.gain)
        for k, offer in enumerate(ranked):
            for _ in range(min(offer.free, workers)):
                heapq.heappush(heap, (worth[id(offer)], k))
                total += worth[id(offer)]
                if len(heap) > workers:
                    total -= heapq.heappop(heap)[0]
            if len(heap) == workers and offer.gain + total > best_worth:
                best_worth = offer.gain + total
                best = [k for _, k in heap]
        if best is None:
            return None
        return best_worth, [(ranked[k], best.count(k)) for k in sorted(set(best))]


class _WholeNodes:
    """Takes GPUs for whole groups of workers on nodes, each time on the node that is best then.

    Parameters
    ----------
    seats : _GpuOccupancy
        The GPUs so far.
    compiled : Round
        The round.
    offers : sequence of _Offer
        The offers to choose from.
    worth : mapping
        What each offer adds, by identity.
    """

    def __init__(
        self,
        seats: _GpuOccupancy,
        compiled: Round,
        offers: Sequence[_Offer],
        worth: Mapping[int, float],
    ) -> None:
        self._jobs = compiled.jobs
        self._worth = worth
        self._place = {id(offer): seats.left(offer) for offer in offers}
        self._left = dict(filter(None, self._place.values()))
        self._number = {
            offer.seat: offer.free if self._place[id(offer)] is None else seats.number(offer.seat)
            for offer in offers
        }
        self._on: dict[int, list[_Offer]] = defaultdict(list)
        for offer in sorted(offers, key=lambda o: -worth[id(o)]):
            self._on[offer.node].append(offer)

    def taken(self, job: int, workers: int) -> list[tuple[_Offer, int]]:
        """Return the offers for all workers of a job with the number of GPUs, or nothing."""
        together, one_each = int(self._jobs.together[job]), bool(self._jobs.one_each[job])
        found: dict[int, tuple[_Offer, int]] = {}
        heap = [(self._cost(node, together), node) for node in self._on]
        heapq.heapify(heap)
        for _ in range(workers // together):
            # What a node costs only rises as its GPUs, or those of a shared seat, are taken.
            while heap and (now := self._cost(heap[0][1], together)) != heap[0][0]:
                heapq.heapreplace(heap, (now, heap[0][1]))
            if not heap or heap[0][0] == math.inf:
                return []
            for offer, number in self._chosen(heap[0][1], together):
                self._change(offer, -number)
                found[id(offer)] = offer, number + found.get(id(offer), (offer, 0))[1]
            if one_each:
                heapq.heappop(heap)
        return list(found.values())

    def _cost(self, node: int, together: int) -> float:
        """Return what the best GPUs of a node for a group of workers cost, inf for none."""
        chosen = self._chosen(node, together)
        cost = -sum(self._worth[id(offer)] * number for offer, number in chosen)
        return cost if chosen else math.inf

    def _chosen(self, node: int, together: int) -> list[tuple[_Offer, int]]:
        """Return the best offers of a node for a group of workers, nothing if it has too few."""
        needed, found = together, []
        for offer in self._on[node]:
            place = self._place[id(offer)]
            most = min(needed, self._number[offer.seat])
            if place is not None:
                most = min(most, self._left[place[0]])
            if most:
                self._change(offer, -most)
                found.append((offer, most))
                needed -= most
            if not needed:
                break
        for offer, number in found:
            self._change(offer, number)
        return [] if needed else found

    def _change(self, offer: _Offer, number: int) -> None:
        self._number[offer.seat] += number
        if (place := self._place[id(offer)]) is not None:
            self._left[place[0]] += number


def _moves_to_node(groups: Groups, seat: Ints, before: Ints) -> Bools:
    """Return with which members a GPU of any node comes to be on a certain one, (m,)."""
    node = np.full(1 + int(max(seat.max(initial=0), before.max(initial=0))), -1)
    node[seat] = groups.node
    return np.asarray((groups.node[groups.group_of_member] >= 0) & (node[before] < 0))


def _positions_by_job(groups: Groups) -> list[Ints]:
    """Return the members that name each job, only the first in each group."""
    key = groups.group_of_member * len(groups.round) + groups.job
    first = np.flatnonzero(np.diff(key, prepend=-1))
    order = first[np.argsort(groups.job[first], kind="stable")]
    ends = np.searchsorted(groups.job[order], np.arange(len(groups.round) + 1))
    return [order[a:b] for a, b in pairwise(ends.tolist())]


def _numbered(groups: Groups, gang: Bools) -> tuple[Ints, Ints]:
    """Return the number of each group's seat, (n,), and of the seat without each member, (m,)."""
    occupant = np.where(gang, len(groups.round) + groups.variant, groups.job)
    seat, before = np.empty(len(groups), dtype=np.int64), groups.gpu_class[groups.group_of_member]
    number = len(groups.round.classes)
    sizes, tied = groups.sizes, groups.round.on_nodes[groups.job]
    for size in range(1, int(sizes.max(initial=0)) + 1):
        own, larger = np.flatnonzero(sizes == size), np.flatnonzero(sizes == size + 1)
        tables = [groups.start[own][:, None] + np.arange(size)]
        member = groups.start[larger][:, None] + np.arange(size + 1)
        tables += [np.delete(member, k, axis=1) for k in range(size + 1)]
        every = np.concatenate(tables)
        group = np.concatenate([own, *[larger] * (size + 1)])
        node = np.where(tied[every].any(axis=1), groups.node[group] + 1, 0)
        columns = [groups.gpu_class[group], node, occupant[every]]
        _, found = np.unique(packed(np.column_stack(columns)), return_inverse=True)
        seat[own] = number + found[: len(own)]
        before[member.T.ravel()] = number + found[len(own) :]
        number += int(found.max(initial=-1)) + 1
    return seat, before
