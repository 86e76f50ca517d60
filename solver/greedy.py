"""Solver: one job after the other in the order of the queue, each where it is best right now.

A job takes the GPUs, empty or shared, that add most to the objective while every job placed
before it stays; shares of jobs that start in the same round may still change. This is how
queue schedulers work, and it gives the exact solvers a solution to begin with.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dovetail.formulations.arrays import Ints
from dovetail.formulations.groups import Groups
from dovetail.formulations.hosts import HostUse
from dovetail.formulations.problems import Problem
from dovetail.formulations.scores import ceiling, score
from dovetail.solver.types import Choice, Limits

Rule = Literal["best", "alone", "random"]
"""How a job takes its GPUs: where it adds most; only empty ones; anywhere it may be."""

AT_LEAST = 100
"""Jobs that are gone through even where the time is up, so that a plan starts some."""

_NAMES: Mapping[Rule, str] = {"best": "greedy", "alone": "exclusive", "random": "random"}

_Seat = tuple[int, tuple[tuple[int, int], ...]]
"""A class of GPUs and the occupants of one: (job, variant) by job; variant -1 for 1-GPU jobs."""

_ANY_VARIANT = -1

_STEPS_PER_JOB = 500_000
"""Steps of work to look at what a job can make, about."""


class Greedy:
    """Solves rounds in the order of the queue.

    Parameters
    ----------
    rule : str
        How a job takes its GPUs (``Rule``).
    """

    def __init__(self, rule: Rule = "best") -> None:
        self.rule: Rule = rule
        self.name = _NAMES[rule]

    def solve(self, problem: Problem, limits: Limits) -> Choice:
        """Return the choice of groups that the rule leads to, with a simple bound."""
        counts = greedy_counts(problem, limits, self.rule)
        most = ceiling(problem.groups, problem.values)
        reached = score(problem.groups, problem.values, counts)
        proven_weight = not problem.values.two_stage or reached.weight >= most.weight
        return Choice(
            counts=counts,
            value=reached.value(problem.values),
            bound=most.value(problem.values) if proven_weight else math.inf,
            weight_bound=most.weight,
            stopped="time_limit" if limits.passed else "complete",
            solver=self.name,
            in_queue_order=True,
        )


def greedy_counts(problem: Problem, limits: Limits, rule: Rule = "best", at_least: int = 0) -> Ints:
    """Return how often each group is taken; jobs that the time did not reach wait.

    Parameters
    ----------
    problem : Problem
        The round.
    limits : Limits
        When to stop.
    rule : str
        How a job takes its GPUs.
    at_least : int
        The first jobs of the queue, so many, are reached whatever the time is.
    """
    seats = _Seats(problem)
    pick = _Pick(problem, seats, rule, random.Random(limits.seed))
    jobs = problem.round.jobs
    order = np.argsort(jobs.arrival_s, kind="stable")
    for k, job in enumerate(order[~jobs.running[order]].tolist()):
        if k >= at_least and limits.passed:
            break
        limits.budget.spend(_STEPS_PER_JOB)
        offers = pick.for_job(job)
        if seats.bear(offers):
            for offer, number in offers:
                seats.take(offer, number)
    return seats.counts()


@dataclass(frozen=True)
class _Offer:
    """A group that a job can make with the occupants of a GPU.

    Attributes
    ----------
    job, group : int
        The job and the group.
    seat : _Seat
        Who is there before the job.
    free : int
        How many such GPUs there are.
    gain : float
        The job's own gain there.
    change : float
        What the others' gains and the value of the GPU change by.
    """

    job: int
    group: int
    seat: _Seat
    free: int
    gain: float
    change: float


class _Seats:
    """Who is on the GPUs so far; GPUs with the same seat always have the same group."""

    def __init__(self, problem: Problem) -> None:
        groups = problem.groups
        jobs = len(problem.round)
        gang = problem.round.jobs.workers > 1
        self._size = len(groups)
        self._start = groups.start.tolist()
        self._job = groups.job.tolist()
        self._variant = np.where(gang[groups.job], groups.variant, _ANY_VARIANT).tolist()
        self._gain: list[float] = groups.gain.tolist()
        self._value: list[float] = groups.value.tolist()
        self._class = groups.gpu_class.tolist()
        self._positions = _positions_by_job(groups.job, jobs)
        self._partner = _partners(groups)
        self._alone = np.zeros(jobs, dtype=np.int64)
        self._group = groups.group_of_member
        self._hosts = HostUse.of(groups)
        self._free = [0 if c.residents else len(c.gpus) for c in problem.round.classes]
        self._number: dict[_Seat, int] = {}
        self._taken: dict[_Seat, int] = {}
        self._of_job: dict[int, set[_Seat]] = defaultdict(set)
        for group, gpu_class in enumerate(self._class):
            residents = problem.round.classes[gpu_class].residents
            if residents and len(residents) == len(self._members(group)):
                self._sit(self._seat(group), group, len(problem.round.classes[gpu_class].gpus))

    def offers(self, job: int) -> Iterator[_Offer]:
        """Yield every group that the job can make now; in pairs only with a job that is alone."""
        positions = self._positions[job]
        partner = self._partner[positions]
        for position in positions[(partner < 0) | (self._alone[partner] > 0)].tolist():
            group = int(self._group[position])
            seat = self._seat(group, without=position)
            free = self._number.get(seat, 0) if seat[1] else self._free[seat[0]]
            if free and self._hosts is not None:
                free = self._borne(group, seat, free)
            if free:
                before = self._value[self._taken[seat]] if seat[1] else 0.0
                change = self._change(group, position) + self._value[group] - before
                yield _Offer(job, group, seat, free, self._gain[position], change)

    def bear(self, offers: Iterable[tuple[_Offer, int]]) -> bool:
        """Tell whether the hosts bear so many of the offers together."""
        if self._hosts is None:
            return True
        counts = self.counts()
        for offer, number in offers:
            counts[offer.group] += number
            if offer.seat[1]:
                counts[self._taken[offer.seat]] -= number
        return self._hosts.allows(counts)

    def _borne(self, group: int, seat: _Seat, free: int) -> int:
        """Return on how many GPUs with a seat the host bears a group; jobs of one GPU need one."""
        assert self._hosts is not None
        counts = self.counts()
        for number in range(1, free + 1):
            counts[group] += 1
            if seat[1]:
                counts[self._taken[seat]] -= 1
            if not self._hosts.allows(counts):
                return number - 1
        return free

    def take(self, offer: _Offer, number: int) -> None:
        """Put the job of the offer on so many of the seat's GPUs."""
        if offer.seat[1]:
            self._leave(offer.seat, number)
        else:
            self._free[offer.seat[0]] -= number
        self._sit(self._seat(offer.group), offer.group, number)

    def all_with(self, jobs: Iterable[int]) -> set[_Seat]:
        """Return the seats that any of the jobs has."""
        return set().union(*(self._of_job[job] for job in jobs))

    def counts(self) -> Ints:
        """Return how often each group is taken."""
        counts = np.zeros(self._size, dtype=np.int64)
        for seat, group in self._taken.items():
            counts[group] += self._number[seat]
        return counts

    def mode(self, offer: _Offer) -> tuple[int, int]:
        """Return the variant that the job has in the offer's group, and the group's class."""
        variant = next(
            self._variant[k] for k in self._members(offer.group) if self._job[k] == offer.job
        )
        return variant, self._class[offer.group]

    def _seat(self, group: int, without: int = -1) -> _Seat:
        members = (k for k in self._members(group) if k != without)
        occupants = tuple((self._job[k], self._variant[k]) for k in members)
        return self._class[group], occupants

    def _change(self, group: int, position: int) -> float:
        """Return what the gains of the others in a group change by; a gang's never rises."""
        change: float = 0.0
        for k in self._members(group):
            if k != position:
                now = self._gain_of(self._job[k])
                gang = self._variant[k] != _ANY_VARIANT
                change += (min(now, self._gain[k]) if gang else self._gain[k]) - now
        return change

    def _gain_of(self, job: int) -> float:
        """Return the present gain of a placed job: that of its slowest worker."""
        return min(
            self._gain[k]
            for seat in self._of_job[job]
            for k in self._members(self._taken[seat])
            if self._job[k] == job
        )

    def _members(self, group: int) -> range:
        return range(self._start[group], self._start[group + 1])

    def _sit(self, seat: _Seat, group: int, number: int) -> None:
        self._taken[seat] = group
        self._number[seat] = self._number.get(seat, 0) + number
        for job, _ in seat[1]:
            self._of_job[job].add(seat)
        if len(seat[1]) == 1:
            self._alone[seat[1][0][0]] += number

    def _leave(self, seat: _Seat, number: int) -> None:
        self._number[seat] -= number
        if len(seat[1]) == 1:
            self._alone[seat[1][0][0]] -= number
        if not self._number[seat]:
            del self._number[seat], self._taken[seat]
            for job, _ in seat[1]:
                self._of_job[job].discard(seat)


class _Pick:
    """Picks the GPUs of one job among the offers."""

    def __init__(self, problem: Problem, seats: _Seats, rule: Rule, chance: random.Random) -> None:
        self._problem = problem
        self._seats = seats
        self._rule = rule
        self._chance = chance
        self._whole = problem.round.machines.rules.gang_sharing == "whole"

    def for_job(self, job: int) -> Sequence[tuple[_Offer, int]]:
        """Return the offers to take, each with the number of GPUs; empty if the job waits."""
        workers = int(self._problem.round.jobs.workers[job])
        picks = [
            pick
            for offers in self._alternatives(job)
            if (pick := self._best(offers, workers)) is not None
        ]
        if not picks:
            return ()
        worth, taken = max(picks, key=lambda pick: pick[0])
        if self._rule == "random":
            taken = self._chance.choice(picks)[1]
        elif worth <= 0 and not self._problem.values.two_stage:
            return ()
        return taken

    def _alternatives(self, job: int) -> Iterable[list[_Offer]]:
        """Return lists of offers that may be mixed: same variant and model of a gang.

        Where gangs share whole, all empty GPUs or all those of one partner.
        """
        found: dict[tuple[object, ...], dict[_Seat, _Offer]] = defaultdict(dict)
        classes = self._problem.round.classes
        for offer in self._seats.offers(job):
            others = tuple(k for k, _ in offer.seat[1])
            if self._rule == "alone" and others:
                continue
            variant, gpu_class = self._seats.mode(offer)
            key = (variant, classes[gpu_class].model, others if self._whole else None)
            known = found[key].get(offer.seat)
            if known is None or known.gain + known.change < offer.gain + offer.change:
                found[key][offer.seat] = offer
        return [
            list(by_seat.values())
            for key, by_seat in found.items()
            if not self._whole or self._covers(by_seat, job)
        ]

    def _covers(self, by_seat: Mapping[_Seat, _Offer], job: int) -> bool:
        """Tell whether the seats are all that their jobs have, and as many as the job needs."""
        others = {k for _, occupants in by_seat for k, _ in occupants}
        if not others:
            return True
        number = sum(offer.free for offer in by_seat.values())
        complete = self._seats.all_with(others) == set(by_seat)
        return complete and number == self._problem.round.jobs.workers[job]

    def _best(
        self, offers: Sequence[_Offer], workers: int
    ) -> tuple[float, list[tuple[_Offer, int]]] | None:
        """Return the best ``workers`` GPUs among the offers and their worth.

        For every offer as the slowest one taken, the best of those at least as fast are kept
        in a heap of the changes they bring to others.
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


def _positions_by_job(job: Ints, jobs: int) -> list[Ints]:
    order = np.argsort(job, kind="stable")
    ends = np.searchsorted(job[order], np.arange(jobs + 1))
    return [order[ends[k] : ends[k + 1]] for k in range(jobs)]


def _partners(groups: Groups) -> Ints:
    """Return the other job of each member of a pair; -1 in groups of other sizes, (m,)."""
    partner = np.full(len(groups.job), -1)
    first = groups.start[:-1][groups.sizes == 2]
    partner[first], partner[first + 1] = groups.job[first + 1], groups.job[first]
    return partner
