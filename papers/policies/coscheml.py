"""Co-scheML and its baselines: the cheapest pair first, for several costs of a pair.

Waiting jobs with the same workload, size and limit on their tail latency are equivalent, so they
are evaluated as a group: the first job represents all, and the cost of a round depends on the
number of groups.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np

from dovetail.instances._record import field_path
from dovetail.instances.errors import InputError
from dovetail.instances.metrics import KERNEL_METRICS, METRICS
from dovetail.instances.slowdowns.slowdown_table import UNCAPPED
from dovetail.papers.policies.open_gpus import Cost, OpenGpus, by_node
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.state import Job, State

_COMPARED: Final = tuple(name for name in METRICS if name not in KERNEL_METRICS)
"""The papers' profiles say nothing of single kernels."""


@dataclass(frozen=True)
class CoScheML:
    """Use idle GPUs first, then pair by the least interference, the sum of both slowdowns.

    Source: Co-scheML (Cluster Computing 2021, eq. 1 and Algorithm 1). Interference comes from the
    profile repository, i.e. from pairs that were measured while they ran, or else from the
    prediction. At most one other job joins a job. Pairs that would run out of memory or have no
    prediction are not made; there is no other limit. The paper's jobs need one GPU; for gangs, see
    ``pair_up``.
    """

    def decide(self, state: State) -> Decision:
        """Start jobs on idle GPUs, then with jobs that run alone, the least interference first."""
        return pair_up(state, partial(_interference, state))


def _interference(state: State, job: Job, residents: Sequence[Job], gpu: int) -> float:
    if not residents:
        return 0.0
    if len(residents) > 1:
        return math.inf
    model, other = state.machines.model[gpu], residents[0]
    both = _slowdown(state, model, job.workload, other.workload)
    both += _slowdown(state, model, other.workload, job.workload)
    return math.inf if math.isnan(both) else both


def _slowdown(state: State, model: int, workload: int, other: int) -> float:
    caps = state.predicted.caps_place[UNCAPPED]
    return state.believed.rows[model][caps][workload][other]


@dataclass(frozen=True)
class LoadBalance:
    """Pair the waiting and the running job whose GPU utilisations add up to the least.

    Source: a baseline of Co-scheML (Cluster Computing 2021, section 6.1.3): pairs by average GPU
    utilisation, the least first; idle GPUs are used first. Utilisation is that of the solo profile
    (``gpu_util``, or else ``sm_active``). For gangs, see ``pair_up``.
    """

    def decide(self, state: State) -> Decision:
        """Start jobs on idle GPUs, then with others, the least utilised pair first."""
        return pair_up(state, partial(_load, state))


def _load(state: State, job: Job, residents: Sequence[Job], gpu: int) -> float:
    return sum([utilisation(state, other.workload) for other in (job, *residents)])


@dataclass
class Mystic:
    """Pair the waiting and the running job with the least similar metrics.

    Source: Ukidave et al., Mystic, IPDPS 2016, as the baseline of Co-scheML (Cluster Computing
    2021, sections 6.1.3 and 7.2): applications are compared by their metric vectors, and the less
    similar they are the less they are expected to interfere; idle GPUs are used first. Co-scheML
    does not name the measure; here it is the cosine of the vectors of all metrics that every
    workload has, each divided by its largest value, unweighted. Mystic's collaborative filtering,
    which completes a short profile, is not needed for complete profiles. With several residents
    the most similar one decides. For gangs, see ``pair_up``.
    """

    _alike: list[list[float]] = field(init=False, repr=False, default_factory=list)

    def decide(self, state: State) -> Decision:
        """Start jobs on idle GPUs, then with others, the least similar pair first."""
        if not self._alike:
            self._alike = similarities(state)
        return pair_up(state, self._similarity)

    def _similarity(self, job: Job, residents: Sequence[Job], gpu: int) -> float:
        row = self._alike[job.workload]
        return max([row[other.workload] for other in residents], default=0.0)


@dataclass(frozen=True)
class Binpack:
    """Place each job on the node with the fullest memory that still holds it.

    Source: a baseline of Co-scheML (Cluster Computing 2021, sections 2.3 and 6.1.3), which
    considers only the peak memory. Jobs are tried in the order of arrival; one that fits nowhere
    is skipped, as in Kubernetes, which the paper extends. On a node, the GPU with the fullest
    memory is used first.

    The paper's jobs need one GPU. A gang goes to the fullest node that holds all of it, else to
    several nodes in this order; each worker may have different co-runners.
    """

    def decide(self, state: State) -> Decision:
        """Start every waiting job that fits, packed as densely as memory allows."""
        if not state.pending:
            return NOTHING
        draft = Draft(state)
        open_gpus = OpenGpus(draft)
        if not open_gpus:
            return NOTHING

        def fullest(job: Job) -> list[int] | None:
            gpus = [gpu for alike in open_gpus.open_to(job) for gpu in alike]
            if len(gpus) < job.workers:
                return None
            return by_node(draft, job, gpus, lambda node: -_fullness(draft, node), free)

        def free(gpu: int) -> float:
            return -_used_mib(draft, gpu) / state.machines.memory_mib[gpu]

        start_in_turn(waiting_groups(state), open_gpus, fullest)
        return draft.decision()


def _fullness(draft: Draft, node: int) -> float:
    """Return the fraction of a node's GPU memory that is in use."""
    machines = draft.state.machines
    gpus = machines.node_gpus[node]
    used = sum([_used_mib(draft, gpu) for gpu in gpus])
    return used / sum([machines.memory_mib[gpu] for gpu in gpus])


def _used_mib(draft: Draft, gpu: int) -> float:
    return draft.state.used_mib(gpu, draft.residents(gpu))


Groups = dict[tuple[int, int, int, bool, float], list[Job]]
"""The waiting jobs by workload, workers, their rule for nodes and limit, the first to arrive at the
end."""


def pair_up(state: State, cost: Cost) -> Decision:
    """Start jobs on idle GPUs by arrival; pair the rest with running jobs, the cheapest first.

    This is Co-scheML's Algorithm 1 (Cluster Computing 2021, section 5) for any cost of a pair.
    Jobs that fit nowhere are skipped. The cost of a gang is that of the most expensive of its
    GPUs; it may hold some GPUs alone, which have the cost without a co-runner.

    Parameters
    ----------
    state : State
        The pool.
    cost : callable
        The cost of a waiting job with residents. It must not fall as more jobs join a GPU.
    """
    if not state.pending:
        return NOTHING
    draft = Draft(state)
    open_gpus = OpenGpus(draft)
    if not open_gpus:
        return NOTHING
    groups = waiting_groups(state)
    if draft.idle_total:
        start_in_turn(groups, open_gpus, partial(idle_gpus, draft))
    _start_cheapest(groups, open_gpus, cost)
    return draft.decision()


def waiting_groups(state: State) -> Groups:
    """Return the waiting jobs, grouped with equivalent ones."""
    groups: Groups = defaultdict(list)
    for job in sorted(state.pending.values(), key=lambda job: -job.number):
        kind = job.workload, job.workers, job.together, job.one_each, job.tail_limit
        groups[kind].append(job)
    return groups


def start_in_turn(
    groups: Groups, open_gpus: OpenGpus, place: Callable[[Job], list[int] | None]
) -> None:
    """Start jobs in the order of arrival on the GPUs of ``place``; skip jobs without a place."""
    heads = [(jobs[-1].number, group) for group, jobs in groups.items()]
    heapify(heads)
    while heads:
        _, group = heappop(heads)
        jobs = groups[group]
        gpus = place(jobs[-1])
        if gpus is None:
            continue
        open_gpus.start(jobs.pop(), gpus)
        if jobs:
            heappush(heads, (jobs[-1].number, group))


def _start_cheapest(groups: Groups, open_gpus: OpenGpus, cost: Cost) -> None:
    """Repeatedly start the job with the lowest cost.

    Every start leaves fewer and more expensive places. So the previous cost of a group is a lower
    bound of its cost, and only the group with the lowest bound must be evaluated again.
    """
    bounds = [(-1.0, jobs[-1].number, group) for group, jobs in groups.items() if jobs]
    heapify(bounds)
    while bounds:
        bound, _, group = heappop(bounds)
        jobs = groups[group]
        offer = open_gpus.cheapest(jobs[-1], cost)
        if offer is None:
            continue
        if offer[0] > bound:
            heappush(bounds, (offer[0], jobs[-1].number, group))
            continue
        open_gpus.start(jobs.pop(), offer[1])
        if jobs:
            heappush(bounds, (bound, jobs[-1].number, group))


def utilisation(state: State, workload: int) -> float:
    """Return a workload's GPU utilisation alone: ``gpu_util``, or else ``sm_active``.

    Raises
    ------
    InputError
        When it has neither.
    """
    metrics = state.workloads[workload].metrics
    if metrics is not None:
        for known in (metrics.gpu_util, metrics.sm_active):
            if known is not None:
                return known
    path = field_path(field_path("workloads", state.names[workload]), "metrics")
    raise InputError("the policy needs gpu_util or sm_active", path)


def similarities(state: State) -> list[list[float]]:
    """Return the cosine similarity of the metric vectors of every two workloads, in [0, 1].

    The vectors hold the metrics that every workload has, but those of kernels, each divided by its
    largest value.

    Raises
    ------
    InputError
        When no metric is known for all workloads.
    """
    rows = [[getattr(w.metrics, name, None) for name in _COMPARED] for w in state.workloads]
    table = np.array(rows, dtype=float)
    table = table[:, ~np.isnan(table).any(axis=0)]
    if not table.size:
        raise InputError("the policy needs a metric that every workload has", "workloads")
    table = table / np.maximum(table.max(axis=0), np.finfo(float).tiny)
    lengths = np.linalg.norm(table, axis=1, keepdims=True)
    table = table / np.where(lengths > 0, lengths, 1.0)
    found: list[list[float]] = (table @ table.T).tolist()
    return found
