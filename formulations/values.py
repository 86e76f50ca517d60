"""The value of a placed job: the objectives of the contract as numbers per job.

All objectives are written as a *gain* to be maximised. With weight w, slowdown s and speed v:

=============  ==========================  ======================
objective      gain of a placed job        first stage
=============  ==========================  ======================
throughput     w v / s                     none
slowdown       -w s                        placed weight
sensitivity    -w s / sigma                placed weight
jct            w v / (s remaining)         none
energy         w workers v / s, over power placed weight
fewest         w v / s                     placed weight
=============  ==========================  ======================

Under ``fewest`` a stage between the two minimises the cost of the GPUs in use, which is the value:
the gains only choose among the cheapest plans.

Every gain decreases with s, so a gang, which runs at the pace of its slowest worker, has the gain
at its largest slowdown.

What else formulations and solvers have to know of an objective are the class attributes of
``JobValues``: built-in objectives and users' own differ in nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Bools, Floats, Ints, RowColumns
from dovetail.formulations.rounds import Round
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.requirements import require_power, require_remaining

LEAST_SENSITIVITY = 0.01

RuleCategory = Literal["jct", "completion", "objective"]
"""The word by which explanations name the rule of an objective."""

SHORTER_BY = 1e-9
"""The relative amount by which sharing must shorten a mean completion."""


def own_name(made: Callable[[Round], object]) -> str:
    """Return the displayed name of a user's objective, by which it can be imported."""
    return f"python:{made.__module__}.{getattr(made, '__qualname__', '')}"


@dataclass(frozen=True)
class Rows(RowColumns):
    """Groups of one size, a row each: what an objective gives a value.

    Attributes
    ----------
    gpu_class : (n,) int
        The class of the GPU.
    job, variant : (n, size) int
        The jobs, and their variants.
    share : (n, size) int
        The code of the share of each.
    slowdown : (n, size) float
        Slowdown of each on this GPU, the sub-batch's slowdown factor included.
    power_w : (n,) float
        Power of the GPU, NaN where unknown.
    """

    gpu_class: Ints
    job: Ints
    variant: Ints
    share: Ints
    slowdown: Floats
    power_w: Floats

    @classmethod
    def none(cls, size: int) -> Self:
        """Return an empty set of groups of ``size`` jobs."""
        whole, real = np.empty((0, size), dtype=np.int64), np.empty((0, size))
        return cls(whole[:, 0], whole, whole, whole, real, real[:, 0])

    def __len__(self) -> int:
        return len(self.variant)


class JobValues:
    """The gains of the jobs of one round under one objective.

    A subclass is an objective of its own: it overrides ``gain`` or sets ``scale``, and its class
    attributes say which properties its values have. The defaults are true of every subclass,
    except that more properties let solvers do less work.

    Parameters
    ----------
    compiled : Round
        The round.

    Attributes
    ----------
    name : str
        The displayed name: ``python:MODULE.CLASS`` for a user's subclass.
    judged_by : str
        The built-in objective by whose rules the checker judges plans: ``throughput`` has no rules
        beyond those of every round.
    two_stage : bool
        Whether the placed weight is maximised first.
    ratio : bool
        Whether the gains are divided by the power of the GPUs in use, which must be known. Needs
        ``two_stage``.
    cheapest : bool
        Whether the cost of the GPUs in use is minimised, and is the value; the gains choose among
        the cheapest plans. Needs ``two_stage``.
    minimised : bool
        Whether the gains are shown with the opposite sign, as costs.
    reads_remaining : bool
        Whether a gain or a rule depends on the remaining time of a job, which must be known.
    pairs_only : bool
        Whether at most two jobs may share a GPU.
    grouped : bool
        Whether a gain depends on the other jobs of the group, or groups have a ``value``.
    timed : bool
        Whether no group is allowed that would end later than its GPU is free (``Round.until_s``).
    relative : bool
        Whether the value is that of starting jobs: a plan in which no job starts is worth 0, so
        groups that make every plan worth less are not needed.
    proportional : bool
        Whether the gain of a job is its gain at slowdown 1, which is not below 0, divided by its
        slowdown; or, if ``minimised``, its gain at slowdown 1, which is not above 0, times it.
        Large rounds of pairs then need no list of all pairs.
    by_kind : bool
        Whether jobs gain equally, apart from ``by_itself``, if they have the same workload, gSLA,
        weight and priority, and the same remaining time if the values read it. Jobs of one GPU that
        are equal in these are then counted instead of named.
    category, rule : str
        The word (``jct``, ``completion`` or ``objective``) and the clause by which explanations say
        that ``may_share`` or ``value`` keeps jobs from sharing a GPU.
    round : Round
        The round.
    weight : (n,) float
        The weight of each job.
    scale : (n,) float
        The gain of each job at slowdown 1 and speed 1, less than 0 if ``minimised``; by default its
        weight.
    outside : (float, float)
        The contribution of running jobs outside of the round to both terms of the ratio: gain and
        watts.
    by_itself : (n,) float
        The part of each job's gain that depends neither on its slowdown nor on its co-runners; 0 if
        it is not separated from the rest.

    Raises
    ------
    InputError
        When the instance lacks a field that the objective needs.
    """

    name: str = "throughput"
    judged_by: ObjectiveName = "throughput"
    two_stage: bool = False
    ratio: bool = False
    cheapest: bool = False
    minimised: bool = False
    reads_remaining: bool = False
    pairs_only: bool = False
    grouped: bool = False
    timed: bool = False
    relative: bool = False
    proportional: bool = False
    by_kind: bool = False
    category: RuleCategory = "objective"
    rule: str = "the objective does not let them share"

    def __init_subclass__(cls) -> None:
        """Name the class, unless it has a name."""
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = own_name(cls)

    def __init__(self, compiled: Round) -> None:
        if compiled.source is not None and self.reads_remaining:
            require_remaining(compiled.source, self.name)
        if compiled.source is not None and self.ratio:
            require_power(compiled.source, self.name)
        self.round = compiled
        self.outside = 0.0, 0.0
        self.weight = compiled.jobs.weight
        self.scale: Floats = -self.weight if self.minimised else self.weight
        self.by_itself = np.zeros(len(compiled))

    def gain(self, job: Ints, slowdown: Floats, model: str) -> Floats:
        """Return the gain of each job at its slowdown on GPUs of one model.

        By default it is ``scale`` times the job's speed over its slowdown or, if ``minimised``,
        times its slowdown.

        Parameters
        ----------
        job : (m,) int
            Indices of jobs.
        slowdown : (m,) float
            The slowdowns of the jobs.
        model : str
            The GPU model.
        """
        if self.minimised:
            return np.asarray(self.scale[job] * slowdown)
        return np.asarray(self.scale[job] * self.round.speed[model][job] / slowdown)

    def gains(self, rows: Rows) -> Floats:
        """Return the gain of each job of some groups of one size, (n, size)."""
        model = self.round.classes.model[rows.gpu_class]
        gain = np.empty(rows.job.shape)
        for index, name in enumerate(self.round.models):
            here = model == index
            found = self.gain(rows.job[here].ravel(), rows.slowdown[here].ravel(), name)
            gain[here] = found.reshape(-1, rows.job.shape[1])
        return gain

    def value(self, rows: Rows) -> Floats:
        """Return the value of each group beyond its jobs' gains, (n,); NaN if it is not allowed.

        It is at most 0: bounds, and the groups that are left out because of them, rely on this.
        """
        return np.zeros(len(rows))

    def cost(self, rows: Rows) -> Floats:
        """Return what each GPU with a group costs, (n,), if ``cheapest``; else its power in W."""
        if not self.cheapest:
            return rows.power_w
        model = self.round.classes.model[rows.gpu_class]
        return np.asarray(self.round.machines.model_cost[model])

    def may_share(self, rows: Rows) -> Bools:
        """Return which groups of two or more jobs the rule of the objective allows, (n,)."""
        return np.ones(len(rows), dtype=bool)

    @property
    def sign(self) -> float:
        """The factor by which the maximised value is shown: -1 if it is a cost, else 1."""
        return -1.0 if self.minimised or self.cheapest else 1.0

    @property
    def has_rule(self) -> bool:
        """Whether ``may_share`` or ``pairs_only`` may refuse a group."""
        return self.pairs_only or type(self).may_share is not JobValues.may_share


class ThroughputValues(JobValues):
    """Work per second, the default."""

    name = "throughput"
    proportional = True
    by_kind = True


class SlowdownValues(JobValues):
    """Weighted slowdowns, after placing as much weight as possible."""

    name = "slowdown"
    judged_by = "slowdown"
    two_stage = True
    minimised = True
    proportional = True
    by_kind = True


class SensitivityValues(JobValues):
    """Slowdowns over how much each depends on the co-runner."""

    name = "sensitivity"
    judged_by = "sensitivity"
    two_stage = True
    minimised = True
    proportional = True
    by_kind = True

    def __init__(self, compiled: Round) -> None:
        super().__init__(compiled)
        self.scale = -(self.weight / sensitivities(compiled))


class JctValues(JobValues):
    """Rates over remaining times; pairs share only if they end earlier on average."""

    name = "jct"
    judged_by = "jct"
    reads_remaining = True
    pairs_only = True
    proportional = True
    by_kind = True
    category = "jct"
    rule = "the two would end no earlier on average than one after the other"

    def __init__(self, compiled: Round) -> None:
        super().__init__(compiled)
        remaining = compiled.jobs.remaining_s
        self.scale = self.weight / np.where(remaining > 0, remaining, 1.0)

    def may_share(self, rows: Rows) -> Bools:
        """Return which pairs end earlier on average."""
        jobs, alone = self.round.jobs, self.round.variants.slowdown_factor[rows.variant]
        left, running = jobs.remaining_s[rows.job], jobs.running[rows.job]
        return shortens_mean_completion(rows.slowdown, alone, left, running)


class EnergyValues(JobValues):
    """Work per joule, after placing as much weight as possible."""

    name = "energy"
    judged_by = "energy"
    two_stage = True
    ratio = True
    proportional = True
    by_kind = True

    def __init__(self, compiled: Round) -> None:
        super().__init__(compiled)
        # A running gang counts as a whole even if only some of its GPUs take part.
        self.scale = self.weight * np.maximum(compiled.jobs.workers, compiled.jobs.holds)


class FewestValues(JobValues):
    """The cost of the GPUs in use, after placing as much weight as possible; then throughput."""

    name = "fewest"
    judged_by = "fewest"
    two_stage = True
    cheapest = True
    proportional = True
    by_kind = True


def sensitivities(compiled: Round) -> Floats:
    """Return how much each job's slowdown depends on its partner (TensorShare's S2).

    The population standard deviation, over all other jobs, of the job's own lowest slowdown over
    the known pairs with that job's workload; at least 0.01; 1 if fewer than two are known.
    """
    lowest = _lowest_slowdowns(compiled)
    of_job = compiled.jobs.workload.tolist()
    count = Counter(of_job)
    spread = {}
    for own in count:
        values: list[float] = []
        for other, number in count.items():
            if (own, other) in lowest:
                others = number - 1 if own == other else number
                values += [lowest[own, other]] * others
        spread[own] = max(float(np.std(values)), LEAST_SENSITIVITY) if len(values) > 1 else 1.0
    return np.array([spread[workload] for workload in of_job], dtype=np.float64)


def _lowest_slowdowns(compiled: Round) -> dict[tuple[int, int], float]:
    """Return the least slowdown of each workload with each other, on any model at any shares."""
    # Models that no entry names share their pairs.
    rows = [known.rows for known in set(map(compiled.slowdowns.pairs, compiled.kinds))]
    pair = np.concatenate([each.workload for each in rows])
    slowdown = np.concatenate([each.slowdown for each in rows])
    names, of = np.unique(np.vstack([pair, pair[:, ::-1]]), axis=0, return_inverse=True)
    lowest = np.full(len(names), np.inf)
    np.minimum.at(lowest, of.reshape(-1), slowdown.T.ravel())
    return dict(zip(map(tuple, names.tolist()), lowest.tolist(), strict=True))


def shortens_mean_completion(
    slowdown: Floats, alone: Floats, remaining: Floats, running: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which pairs finish earlier on average by sharing now: Castor (2025), theorem 1.

    The mean completion of sharing, until the first of the two jobs ends, is compared with the mean
    completion if they run one after the other: the running job first, or the shorter of two pending
    jobs. A job keeps its sub-batch until it ends, so its factor outlasts the sharing; a pending job
    that waits will start at full batch.

    Parameters
    ----------
    slowdown : (n, 2) float
        Slowdown of both jobs while they share, including the factor of the sub-batch.
    alone : (n, 2) float
        Slowdown of both jobs alone, at the same sub-batch.
    remaining : (n, 2) float
        Seconds that each still needs alone at full batch.
    running : (n, 2) bool
        Which of them already run (at most one of a pair).

    Returns
    -------
    (n,) bool
    """
    of_both = ((values[:, 0], values[:, 1]) for values in (slowdown, alone, remaining))
    shared_mean = mean_completion(*of_both)
    in_turn = np.where(running, alone * remaining, remaining)
    rows = np.arange(len(slowdown))
    leader = np.where(running.any(axis=1), running.argmax(axis=1), remaining.argmin(axis=1))
    sequential_mean = in_turn[rows, leader] + in_turn[rows, 1 - leader] / 2
    return np.asarray(shared_mean < sequential_mean * (1 - SHORTER_BY))


def mean_completion(
    slowdown: Sequence[Floats], alone: Sequence[Floats], remaining: Sequence[Floats]
) -> Floats:
    """Return the mean end of a pair if it shares until the first of the two ends.

    Castor (2025), equations 16 to 19, with sharing from now on. Each argument has an item for each
    of the two jobs; arrays of any shapes that broadcast. NaN where a slowdown is NaN.

    Parameters
    ----------
    slowdown : two float arrays
        Slowdowns while they share.
    alone : two float arrays
        Slowdowns once the other has ended.
    remaining : two float arrays
        Seconds that each still needs alone at slowdown 1.

    Returns
    -------
    float array
        Mean seconds from now.
    """
    (a, b), (alone_a, alone_b), (left_a, left_b) = slowdown, alone, remaining
    end_a, end_b = a * left_a, b * left_b
    after_a = alone_b * (left_b - end_a / b)
    after_b = alone_a * (left_a - end_b / a)
    return np.asarray(np.minimum(end_a, end_b) + np.where(end_a <= end_b, after_a, after_b) / 2)
