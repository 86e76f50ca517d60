"""The types that a round and its solvers exchange, and values as whole numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.budget import UNLIMITED, Budget
from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.programs.program import IntegerProgram
from dovetail.formulations.values import JobValues
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.plan import Stopped

if TYPE_CHECKING:
    from dovetail.solver.pairing.result import Prices


MATCHING = "matching"
"""The solver of rounds in which jobs share interchangeable GPUs in pairs."""

OPTIMAL_GAP = 1e-6
"""The relative gap up to which a plan is called optimal."""

MOST_GROUPS = 4000
"""Number of groups times nodes up to which ties are broken exactly, among all groups."""


_EXACT = 2.0**53
"""Whole numbers up to here are exact as floats."""

Progress = Callable[[str, float, float | None], None]
"""Called with the optimised quantity, its best value so far, and a bound on it or None."""


@dataclass(frozen=True)
class Watch:
    """Reports the progress of a search to a user, in the user's terms.

    Attributes
    ----------
    tell : callable
        Receives the report.
    name : str
        The name of the optimised quantity.
    factor, offset : float
        The offset is added to the maximised value, and the sum is multiplied by the factor.
    """

    tell: Progress
    name: str
    factor: float = 1.0
    offset: float = 0.0

    def __call__(self, value: float, bound: float) -> None:
        """Report the best value and the bound of a search."""
        most = None if math.isinf(bound) else self.factor * (bound + self.offset)
        self.tell(self.name, self.factor * (value + self.offset), most)


@dataclass(frozen=True)
class Limits:
    """When a search must stop, and the receiver of its progress.

    Attributes
    ----------
    budget : Budget
        The limit of time or of work.
    gap : float
        Relative gap at which the search may stop.
    seed : int
        Seed of all random choices of a solver.
    effort : float
        Work that CP-SAT may do in addition, in its deterministic units (about seconds).
    previous : Prices, optional
        Initial prices from the last round, by job. They affect how fast a proof is found, never the
        result.
    watch : Watch, optional
        Receives the best value and bound from time to time.
    """

    budget: Budget = UNLIMITED
    gap: float = 0.0
    seed: int = 0
    effort: float = math.inf
    previous: Prices | None = None
    watch: Watch | None = None

    @property
    def seconds_left(self) -> float:
        """Seconds until the answer is due, never negative; inf without a limit."""
        return self.budget.left_s

    @property
    def passed(self) -> bool:
        """Whether the answer is due."""
        return self.budget.passed

    def report(self, value: float, bound: float) -> None:
        """Report the best value of the maximised quantity so far, and a bound (inf for none)."""
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
        """Return the same limits without reports, for a search of another quantity."""
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
        Proven upper bound on the objective; inf if there is none.
    stopped : str
        Why the search ended.
    """

    x: Ints | None
    bound: float
    stopped: Stopped


@dataclass(frozen=True, kw_only=True)
class Maximum:
    """The choice of groups found when maximising a linear function.

    Attributes
    ----------
    counts : (n,) int
        How often each group is taken.
    bound : float
        A proven upper bound on the maximum.
    stopped : str
        Why the search ended.
    proof, prices
        See ``Choice``.
    groups : Groups, optional
        The groups that ``counts`` is for, if the search chose them.
    """

    counts: Ints
    bound: float
    stopped: Stopped
    proof: Proof | None = None
    prices: Prices | None = None
    groups: Groups | None = None


@dataclass(frozen=True)
class Proven:
    """What a certificate proves, found without trusting its creator.

    Attributes
    ----------
    bound : float
        The upper bound on ``Choice.value`` that the certificate is for.
    errors : tuple of str
        The errors in the certificate; it proves the bound if there are none.
    """

    bound: float
    errors: tuple[str, ...]


Proof = Callable[[JobValues], Proven]
"""Checks the certificate of a choice's bound for the same objective and round, formulated again."""


@dataclass(frozen=True)
class Choice:
    """A solver's answer to a round: how often each group is taken, and the proven bounds.

    Attributes
    ----------
    groups : Groups
        The candidate groups of the round, or those from which the solver chose.
    counts : (n,) int
        How often each group is taken.
    value, bound : float
        The value that the last stage maximised, and a proven upper bound on it over all plans
        (under a two-stage objective, over those that place the largest weight); inf if there is
        none.
    weight_bound : float
        Proven upper bound on the placed weight; inf if there is none.
    stopped : str
        Why the search ended.
    solver : str
        The name of the solver.
    in_queue_order : bool
        Whether it follows the queue, so that no plan of equal value may replace it.
    note : str
        A note for the user on how it was solved, or "".
    proof : callable, optional
        Checks the certificate of ``bound``, if there is one.
    prices : Prices, optional
        Prices of the jobs, from which the next round may start.
    selected : bool
        Whether ``groups`` are only some of the candidate groups, so that ties cannot be broken
        among all.
    """

    groups: Groups
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
    selected: bool = False

    def merged(self, groups: Groups) -> Choice:
        """Return a choice of ``groups.apart`` as a choice of ``groups``."""
        return replace(self, groups=groups, counts=groups.merged(self.counts))


def relative_gap(bound: float, value: float) -> float:
    """Return |bound - value| / max(|bound|, |value|), 0 if both are 0."""
    largest = max(abs(bound), abs(value))
    return 0.0 if largest == 0 else abs(bound - value) / largest


class Backend(Protocol):
    """A solver of integer programs; one file each."""

    name: str

    def solve(self, program: IntegerProgram, limits: Limits, start: Ints | None = None) -> Answer:
        """Maximise; ``start`` is a feasible solution that the backend may start from."""
        ...


@contextmanager
def refusals_of(solver: str) -> Iterator[None]:
    """Add to refusals the solver and the solvers to use instead."""
    try:
        yield
    except UnsupportedError as refusal:
        others = "auto, cpsat, highs or milp"
        raise UnsupportedError(
            f"solver {solver} cannot take this instance, {others} can: {refusal}"
        ) from None


class IntegerWeights(NamedTuple):
    """Weights as whole numbers.

    Attributes
    ----------
    numbers : (n,) float
        The whole numbers.
    scale : float
        The factor on the weights.
    rounding : float
        The largest rounding error of a difference between two sums of the numbers.
    """

    numbers: Floats
    scale: float
    rounding: float


def integer_scale(values: Floats, most: float) -> float:
    """Return the largest power of two that keeps all values within ``most``; 1 for no values."""
    largest = float(np.abs(values).max(initial=0.0))
    return 2.0 ** min(1023, math.floor(math.log2(most) - math.log2(largest))) if largest else 1.0


def integer_weights(weights: Floats, most: float) -> IntegerWeights:
    """Return whole numbers of at most ``most`` in the ratio of the weights.

    The numbers are exact for decimals, so that equal sums stay equal. Weights with too many digits
    for ``most`` are rounded.
    """
    for digits in range(16):
        scale = 10.0**digits
        nearest = np.round(weights * scale)
        if nearest.max(initial=0.0) > _EXACT:
            break
        if (np.abs(weights * scale - nearest) <= 1e-15 * nearest).all():
            unit = float(np.gcd.reduce(nearest.astype(np.int64))) or 1.0
            if nearest.max(initial=0.0) <= unit * most:
                return IntegerWeights(nearest / unit, scale / unit, 0.0)
            break
    scale = integer_scale(weights, most)
    numbers = np.round(weights * scale)
    return IntegerWeights(numbers, scale, float(np.abs(weights * scale - numbers).sum()))


def power_of_two(at_least: float) -> float:
    """Return a power of two, by which multiplication is exact; 0 for 0."""
    return 2.0 ** math.ceil(math.log2(at_least)) if at_least > 0 else 0.0
