"""The round: which of the possible starts to make so that their gains sum to the most, proven.

A job starts in one way at most, a running job takes one newcomer at most in a round (those of
later rounds see what the first has done to it), and idle GPUs are limited:

    max  sum gain_o x_o
    s.t. sum_{o of j} x_o <= 1 for every waiting job j and every running job,
         sum_{o on kind k} gpus_o x_o <= idle GPUs of k,   x binary.

Three ways lead to the optimum. If everybody's best start can be had at once, that is it. If all
starts are of one job alone, two on idle GPUs, or one beside a running job, it is a matching
(``match_pairs``). Otherwise HiGHS solves the program.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.solver.pairing import Prices, match_pairs

Floats = NDArray[np.float64]


class Option(NamedTuple):
    """A possible start.

    Attributes
    ----------
    gain : float
        What it is worth, > 0.
    jobs : tuple of int
        The one or two jobs that it starts, by number.
    hosts : tuple of int
        The running jobs that it joins, by number.
    kind : hashable
        Of the idle GPUs it takes; None where it takes none.
    gpus : int
        How many of these.
    workers : int
        GPUs that each of its jobs takes.
    detail : any
        What the caller needs to carry it out.
    """

    gain: float
    jobs: tuple[int, ...]
    hosts: tuple[int, ...]
    kind: Hashable
    gpus: int
    workers: int
    detail: Any = None


class Chosen(NamedTuple):
    """The starts to make, what they are worth, and a proven bound on what any could be."""

    options: list[Option]
    value: float
    bound: float


@dataclass
class RoundSolver:
    """Solves rounds, beginning with the prices of the last one.

    Parameters
    ----------
    time_limit_s : float
        After which the best choice so far is taken, with its bound.
    """

    time_limit_s: float = math.inf
    _kept: tuple[dict[int, int], Prices] | None = field(default=None, init=False)

    def solve(self, options: Sequence[Option], idle: Mapping[Any, int]) -> Chosen:
        """Return the best starts within the idle GPUs of each kind."""
        at_once = _best_of_each(options, idle)
        if at_once is not None:
            return at_once
        if _is_matching(options):
            return self._matched(options, idle)
        return _programmed(options, idle, self.time_limit_s)

    def _matched(self, options: Sequence[Option], idle: Mapping[Any, int]) -> Chosen:
        graph = _Graph(options)
        kind = next((option.kind for option in options if option.kind is not None), None)
        found = match_pairs(
            graph.pair_value,
            graph.single_value,
            idle.get(kind, 0) + len(graph.hosts),
            graph.size,
            graph.required,
            None if math.isinf(self.time_limit_s) else self.time_limit_s,
            previous=self._previous(graph.place),
        )
        self._kept = graph.place, found.prices
        chosen = graph.chosen(found.mate)
        if found.status != "optimal":
            chosen = max(chosen, _greedily(options, idle), key=_value)
        value = _value(chosen)
        return Chosen(chosen, value, max(found.bound, value))

    def _previous(self, place: dict[int, int]) -> Prices | None:
        if self._kept is None:
            return None
        before, prices = self._kept
        return prices.reindexed(np.array([before.get(job, -1) for job in place], dtype=np.int64))


def _best_of_each(options: Sequence[Option], idle: Mapping[Any, int]) -> Chosen | None:
    """Return every job's best start if these exclude each other nowhere, else None.

    A start of two jobs counts half for each, so the sum of all jobs' best is a bound.
    """
    best: dict[int, tuple[float, Option]] = {}
    for option in options:
        part = option.gain / len(option.jobs)
        for job in option.jobs:
            if job not in best or part > best[job][0]:
                best[job] = part, option
    chosen = list({id(option): option for _, option in best.values()}.values())
    if not fits(chosen, idle):
        return None
    bound = math.fsum(part for part, _ in best.values())
    return Chosen(chosen, math.fsum(option.gain for option in chosen), bound)


def fits(options: Sequence[Option], idle: Mapping[Any, int]) -> bool:
    """Tell whether no two options exclude each other."""
    jobs = [job for option in options for job in (*option.jobs, *option.hosts)]
    if len(set(jobs)) < len(jobs):
        return False
    used: dict[Hashable, int] = defaultdict(int)
    for option in options:
        used[option.kind] += option.gpus
    return all(count <= idle.get(kind, 0) for kind, count in used.items() if kind is not None)


def _is_matching(options: Sequence[Option]) -> bool:
    kinds = {option.kind for option in options if option.kind is not None}
    beside = [option for option in options if option.hosts]
    return len(kinds) <= 1 and all(
        o.gpus == 0 and o.workers == 1 and len(o.hosts) == 1 for o in beside
    )


class _Graph:
    """Waiting jobs and hosts as the nodes of a matching; hosts stay whatever happens."""

    def __init__(self, options: Sequence[Option]) -> None:
        self.hosts = list(dict.fromkeys(host for o in options for host in o.hosts))
        jobs = dict.fromkeys(job for o in options for job in o.jobs)
        self.place = {job: k for k, job in enumerate([*jobs, *self.hosts])}
        count = len(self.place)
        self.pair_value = np.full((count, count), np.nan)
        self.single_value = np.full(count, np.nan)
        self.size = np.ones(count, dtype=np.int64)
        self.required = np.zeros(count, dtype=bool)
        self.required[len(jobs) :] = True
        self.single_value[len(jobs) :] = 0.0
        self._options: dict[tuple[int, int], Option] = {}
        for option in options:
            self._enter(option)

    def _enter(self, option: Option) -> None:
        ends = [self.place[job] for job in (*option.jobs, *option.hosts)]
        self.size[ends] = option.workers
        a, b = min(ends), max(ends)
        if (a, b) in self._options and self._options[a, b].gain >= option.gain:
            return
        self._options[a, b] = option
        if a == b:
            self.single_value[a] = option.gain
        else:
            self.pair_value[a, b] = self.pair_value[b, a] = option.gain

    def chosen(self, mate: NDArray[np.int64]) -> list[Option]:
        """Return the options of a matching."""
        ends = [(a, int(b)) for a, b in enumerate(mate.tolist()) if b >= a]
        return [self._options[pair] for pair in ends if pair in self._options]


def _programmed(options: Sequence[Option], idle: Mapping[Any, int], time_limit_s: float) -> Chosen:
    """Return what HiGHS finds, or where the time was too short what is taken greedily."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    entries, limits = _rows(options, idle)
    rows, columns, counts = np.array(entries).T
    gains = np.array([option.gain for option in options])
    scale = 1000.0 / gains.max()
    answer = milp(
        -gains * scale,
        integrality=np.ones(len(options), dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(
            csr_array((counts, (rows, columns)), shape=(len(limits), len(options))),
            ub=np.array(limits),
        ),
        options={"mip_rel_gap": 0.0, "time_limit": time_limit_s},
    )
    chosen = _greedily(options, idle)
    if answer.x is not None:
        found = [option for option, x in zip(options, answer.x.tolist(), strict=True) if x > 0.5]
        chosen = max(chosen, found, key=_value)
    value = _value(chosen)
    bound = getattr(answer, "mip_dual_bound", None)
    bound = _sum_of_best(options) if bound is None else -bound / scale
    return Chosen(chosen, value, max(bound, value))


def _rows(
    options: Sequence[Option], idle: Mapping[Any, int]
) -> tuple[list[tuple[int, int, int]], list[float]]:
    """Return (row, column, coefficient) of the program and the limit of each row."""
    limits: dict[Hashable, float] = {}
    entries = []
    for column, option in enumerate(options):
        uses: list[tuple[Hashable, int, int]] = [
            (("job", job), 1, 1) for job in (*option.jobs, *option.hosts)
        ]
        if option.kind is not None:
            uses.append((("kind", option.kind), option.gpus, idle.get(option.kind, 0)))
        for row, count, limit in uses:
            limits.setdefault(row, limit)
            entries.append((row, column, count))
    place = {row: k for k, row in enumerate(limits)}
    return [(place[row], column, count) for row, column, count in entries], list(limits.values())


def _greedily(options: Sequence[Option], idle: Mapping[Any, int]) -> list[Option]:
    taken: set[int] = set()
    left = dict(idle)
    chosen = []
    for option in sorted(options, key=lambda o: -o.gain):
        busy = (*option.jobs, *option.hosts)
        room = option.kind is None or left.get(option.kind, 0) >= option.gpus
        if room and taken.isdisjoint(busy):
            taken.update(busy)
            chosen.append(option)
            if option.kind is not None:
                left[option.kind] -= option.gpus
    return chosen


def _value(options: Sequence[Option]) -> float:
    return math.fsum(option.gain for option in options)


def _sum_of_best(options: Sequence[Option]) -> float:
    best: dict[int, float] = defaultdict(float)
    for option in options:
        for job in option.jobs:
            best[job] = max(best[job], option.gain / len(option.jobs))
    return math.fsum(best.values())
