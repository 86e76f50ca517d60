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
=============  ==========================  ======================

Every gain decreases with s, so a gang, which runs at the pace of its slowest worker, has the gain
at its largest slowdown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.candidates.rows import Rows
from dovetail.formulations.rounds import Round
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.requirements import require_fields

LEAST_SENSITIVITY = 0.01

SHORTER_BY = 1e-9
"""The relative amount by which sharing must shorten a mean completion."""


class JobValues:
    """The gains of the jobs of one round under one objective.

    Parameters
    ----------
    compiled : Round
        The round.
    objective : str
        Name of the objective.

    Attributes
    ----------
    objective : str
        The objective whose rules decide which jobs may share and which fields are needed.
    name : str
        The displayed name: ``python:MODULE.CLASS`` for a user's subclass.
    weight : (n,) float
        The weight of each job.
    two_stage : bool
        Whether the placed weight is maximised first.
    ratio : bool
        Whether the gains are divided by the power of the GPUs in use (``energy``).
    outside : (float, float)
        The contribution of running jobs outside of the round to both terms of the ratio: gain and
        watts.
    minimised : bool
        Whether the value is shown with the opposite sign, as a cost.
    reads_remaining : bool
        Whether a gain or a rule depends on the remaining time of a job.
    by_itself : (n,) float
        The part of each job's gain that depends neither on its slowdown nor on its co-runners; 0 if
        it is not separated from the rest.
    grouped : bool
        Whether a gain depends on the other jobs of the group, or groups have a ``value``.

    Raises
    ------
    InputError
        When the instance lacks a field that the objective needs.
    """

    grouped = False

    def __init__(self, compiled: Round, objective: ObjectiveName = "throughput") -> None:
        if compiled.source is not None:
            require_fields(compiled.source, objective)
        self.objective = objective
        self.name: str = objective
        self.two_stage = objective in ("slowdown", "sensitivity", "energy")
        self.ratio = objective == "energy"
        self.outside = 0.0, 0.0
        self.minimised = objective in ("slowdown", "sensitivity")
        self.weight = compiled.jobs.weight
        self._round = compiled
        self.reads_remaining = objective in ("jct", "completion")
        self.by_itself = np.zeros(len(compiled))
        self._scale = self.weight / self._divisor()
        if self.ratio:
            # A running gang counts as a whole even if only some of its GPUs take part.
            workers = np.maximum(compiled.jobs.workers, compiled.jobs.holds)
            self._scale = self.weight * workers

    def gain(self, job: Ints, slowdown: Floats, model: str) -> Floats:
        """Return the gain of each job at its slowdown on GPUs of one model.

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
            return np.asarray(-self._scale[job] * slowdown)
        return np.asarray(self._scale[job] * self._round.speed[model][job] / slowdown)

    def gains(self, rows: Rows, job: Ints) -> Floats:
        """Return the gain of each job of some groups of one size, (n, size).

        Parameters
        ----------
        rows : Rows
            The groups.
        job : (n, size) int
            The jobs of the groups.
        """
        model = self._round.class_model[rows.gpu_class]
        gain = np.empty(job.shape)
        for index, name in enumerate(self._round.models):
            here = model == index
            found = self.gain(job[here].ravel(), rows.slowdown[here].ravel(), name)
            gain[here] = found.reshape(-1, job.shape[1])
        return gain

    def value(self, rows: Rows, job: Ints) -> Floats:
        """Return the value of each group beyond its jobs' gains, (n,); NaN if it is not allowed.

        It is at most 0: bounds, and the groups that are left out because of them, rely on this. The
        arguments are those of ``gains``.
        """
        return np.zeros(len(rows))

    def _divisor(self) -> Floats:
        jobs = self._round.jobs
        if self.objective == "sensitivity":
            return sensitivities(self._round)
        if self.objective == "jct":
            return np.where(jobs.remaining_s > 0, jobs.remaining_s, 1.0)
        return np.ones(len(self._round))


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
    rows = [known.rows for known in set(map(compiled.entries.pairs, compiled.models))]
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
