"""What passes between the round and its solvers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from dovetail.formulations.arrays import Ints
from dovetail.formulations.budget import UNLIMITED, Budget
from dovetail.formulations.groups import Ceiling, Groups
from dovetail.formulations.integer_program import IntegerProgram
from dovetail.formulations.problems import Problem
from dovetail.formulations.scores import gain_ceiling, score
from dovetail.formulations.values import JobValues
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plan import Stopped

if TYPE_CHECKING:
    from dovetail.solver.pairing.result import Prices


MATCHING = "matching"
"""The solver that takes rounds in which jobs share interchangeable GPUs in pairs."""

OPTIMAL_GAP = 1e-6
"""The relative gap up to which a plan is called optimal."""

_NOT_ALL_LISTED = "the time was up before all groups were listed: the bound is a rough one"

_CHOSEN_BY_PRICES = "the sets of jobs are too many to list: some were chosen, the bound is for all"

MOST_GROUPS = 4000
"""Groups times nodes up to which ties are broken exactly, among all groups."""


Progress = Callable[[str, float, float | None], None]
"""Is called with what is optimised, its best value so far, and a bound on it; None for none."""


@dataclass(frozen=True)
class Watch:
    """Tells a user how far a search is, in the user's terms.

    Attributes
    ----------
    tell : callable
        Tells it.
    name : str
        What is optimised.
    factor, offset : float
        What is added to what the search maximises, and what the sum is multiplied by then.
    """

    tell: Progress
    name: str
    factor: float = 1.0
    offset: float = 0.0

    def __call__(self, value: float, bound: float) -> None:
        """Tell the best value and the bound that a search knows."""
        most = None if math.isinf(bound) else self.factor * (bound + self.offset)
        self.tell(self.name, self.factor * (value + self.offset), most)


@dataclass(frozen=True)
class Limits:
    """When to stop, and whom to tell of what is found until then.

    Attributes
    ----------
    budget : Budget
        Time, or work.
    gap : float
        Relative gap at which the search may stop.
    seed : int
        Seed of whatever a solver does at random.
    effort : float
        Work that CP-SAT may do in addition, in its deterministic units (about seconds).
    previous : Prices, optional
        Of the last round, by job, to begin with. They change how fast a proof is found, never
        what is proven.
    watch : Watch, optional
        Is told the best value and bound now and then.
    """

    budget: Budget = UNLIMITED
    gap: float = 0.0
    seed: int = 0
    effort: float = math.inf
    previous: Prices | None = None
    watch: Watch | None = None

    @property
    def seconds_left(self) -> float:
        """Seconds until the answer is due, never negative; inf where it never is."""
        return self.budget.left_s

    @property
    def passed(self) -> bool:
        """Whether the answer is due."""
        return self.budget.passed

    def report(self, value: float, bound: float) -> None:
        """Tell the best value so far of what is maximised, and a bound on it (inf for none)."""
        if self.watch is not None:
            self.watch(value, bound)

    def watched(
        self, name: str | None = None, factor: float | None = None, offset: float = 0.0
    ) -> Limits:
        """Return the same limits with other terms of ``watch``."""
        if (watch := self.watch) is None:
            return self
        factor = watch.factor if factor is None else factor
        return replace(self, watch=Watch(watch.tell, name or watch.name, factor, offset))

    def unwatched(self) -> Limits:
        """Return the same limits for a search of something else."""
        return replace(self, watch=None)

    def exact(self) -> Limits:
        """Return the same limits without a gap to stop at."""
        return replace(self, gap=0.0)


@dataclass(frozen=True)
class Answer:
    """A backend's answer to one integer program (to be maximised).

    Attributes
    ----------
    x : (n,) int or None
        The best solution found.
    bound : float
        Proven upper bound on the objective; inf where there is none.
    stopped : str
        Why the search ended.
    """

    x: Ints | None
    bound: float
    stopped: Stopped


@dataclass(frozen=True, kw_only=True)
class Maximum:
    """A choice of groups that was found to maximise a linear function.

    Attributes
    ----------
    counts : (n,) int
        How often it takes each group.
    bound : float
        A proven upper bound on the maximum.
    stopped : str
        Why the search ended.
    proof, prices, groups
        As of ``Choice``.
    """

    counts: Ints
    bound: float
    stopped: Stopped
    proof: Proof | None = None
    prices: Prices | None = None
    groups: Groups | None = None


@dataclass(frozen=True)
class Proven:
    """What a certificate proves, found without trusting its maker.

    Attributes
    ----------
    bound : float
        The upper bound on ``Choice.value`` that the certificate is of.
    errors : tuple of str
        What is wrong with the certificate; it proves the bound where nothing is.
    """

    bound: float
    errors: tuple[str, ...]


Proof = Callable[[Problem], Proven]
"""Checks the certificate of a choice's bound for the same problem, written down anew."""


@dataclass(frozen=True)
class Choice:
    """A solver's answer to a round: how often each group is taken, and what is proven of it.

    Attributes
    ----------
    counts : (n,) int
        For every group (see ``groups_of``).
    value, bound : float
        What the last stage maximised, and a proven upper bound on it over all plans (of those
        that place the largest weight, under a two-stage objective); inf where there is none.
    weight_bound : float
        Proven upper bound on the placed weight; inf where there is none.
    stopped : str
        Why the search ended.
    solver : str
        Which solver did it.
    in_queue_order : bool
        Whether it follows the queue, so that none of equal value may take its place.
    note : str
        What the user should know of how it was done; empty for nothing.
    proof : callable, optional
        Checks the certificate of ``bound``, where there is one.
    prices : Prices, optional
        Of the jobs, for the next round to begin with.
    groups : Groups, optional
        The groups that ``counts`` is for, where they are not all groups of the problem.
    """

    counts: Ints
    value: float
    bound: float
    weight_bound: float
    stopped: Stopped
    solver: str
    in_queue_order: bool = False
    note: str = ""
    proof: Proof | None = None
    prices: Prices | None = None
    groups: Groups | None = None

    def groups_of(self, problem: Problem) -> Groups:
        """Return the groups that ``counts`` is for."""
        return problem.groups if self.groups is None else self.groups

    def merged(self, problem: Problem) -> Choice:
        """Return a choice of the groups of ``problem.apart`` as one of the problem's own."""
        if self.groups is not None or problem.apart is problem:
            return self
        proof = self.proof and partial(_proven_apart, self.proof)
        return replace(self, counts=problem.merged(self.counts), proof=proof)

    def bounded(self, problem: Problem) -> Choice:
        """Return the choice with bounds that hold where groups are missing, too."""
        groups, values = self.groups_of(problem), problem.values
        if groups.complete:
            return self
        if groups.ceiling is not None:
            return self._under(groups, groups.ceiling, values)
        most = math.inf if values.two_stage else gain_ceiling(problem.round, values)
        return replace(
            self,
            bound=max(self.value, most),
            weight_bound=float(values.weight.sum()),
            stopped="time_limit",
            note="; ".join(filter(None, (self.note, _NOT_ALL_LISTED))),
            proof=None,
        )

    def _under(self, groups: Groups, most: Ceiling, values: JobValues) -> Choice:
        """Return the choice with the bounds of groups that prices have chosen."""
        placed = score(groups, values, self.counts).weight
        # The largest weight that can be placed is no less, and its price is not below 0.
        bound = most.gain - most.per_weight * placed
        return replace(
            self,
            bound=max(self.value, bound),
            weight_bound=max(most.weight, placed),
            note="; ".join(filter(None, (self.note, _CHOSEN_BY_PRICES))),
            proof=None,
        )


def _proven_apart(proof: Proof, problem: Problem) -> Proven:
    """Return what a certificate proves that is of the groups of single jobs."""
    return proof(problem.apart)


def relative_gap(bound: float, value: float) -> float:
    """Return |bound - value| / max(|bound|, |value|), 0 where both are 0."""
    largest = max(abs(bound), abs(value))
    return 0.0 if largest == 0 else abs(bound - value) / largest


class Backend(Protocol):
    """A solver of integer programs; one file each."""

    name: str

    def solve(self, program: IntegerProgram, limits: Limits, start: Ints | None = None) -> Answer:
        """Maximise; ``start`` is a feasible solution that the backend may begin with."""
        ...


@contextmanager
def refusals_of(solver: str) -> Iterator[None]:
    """Let refusals name the solver, and those to take instead."""
    try:
        yield
    except UnsupportedError as refusal:
        others = "auto, cpsat, highs or milp"
        raise UnsupportedError(
            f"solver {solver} cannot take this instance, {others} can: {refusal}"
        ) from None
