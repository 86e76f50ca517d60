"""FGD: each job goes where it causes the least fragmentation for likely arrivals."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dovetail.formulations.arrays import Bools, Floats
from dovetail.formulations.rules import Mode, room_mib
from dovetail.papers.policies.open_gpus import OpenGpus, by_node
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.queues import Queue, by_arrival
from dovetail.solver.policies.state import Job, State

_SPANNING = 1e6
"""The cost of a node on which only part of a gang fits: above any fragmentation."""

_Task = tuple[int, int]
"""The key of equivalent jobs in the mix: workload and workers."""


@dataclass
class Fgd:
    """Fragmentation gradient descent: the least growth of the expected fragmentation.

    Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
    Fragmentation Gradient Descent" (USENIX ATC 2023): the fragmentation measure and the algorithm
    FGD, in the form of the authors' public simulator. The fragmentation of a node for a task is
    the free capacity of its GPUs without room for the task, or the whole free capacity of the node
    if the task does not fit on it. Its expectation is taken over the mix of tasks. A job goes to
    the node, and there to the GPU, with the least growth of the expectation.

    A GPU here has memory and a place for each job that it may hold, not the paper's thousandths of
    a GPU, which jobs in this model do not request: the free capacity of a GPU is the free fraction
    of its memory, and a task has room if its memory and a place are free. CPUs are not modelled.
    The mix is that of the jobs that have arrived so far, by workload and GPUs. Slowdowns are
    ignored.

    A gang goes to one node if one holds it, otherwise to few nodes; its workers may share GPUs
    with different co-runners. Jobs are tried in the order of arrival; later jobs may overtake a
    job that does not fit, as in Kubernetes.
    """

    _queue: Queue = field(init=False, repr=False, default_factory=partial(Queue, by_arrival))
    _mix: Counter[_Task] = field(init=False, repr=False, default_factory=Counter)
    _last: int = field(init=False, repr=False, default=-1)

    def decide(self, state: State) -> Decision:
        """Start every job of the queue that fits somewhere."""
        if not state.pending:
            return NOTHING
        self._count(state)
        draft = Draft(state)
        open_gpus = OpenGpus(draft)
        fragments = Fragments(draft, self._mix)
        for job in self._queue.jobs(state):
            if not open_gpus:
                break
            gpus = [gpu for alike in open_gpus.open_to(job) for gpu in alike]
            chosen = _least_growth(draft, fragments, job, gpus)
            if chosen is not None:
                open_gpus.start(job, chosen)
                fragments.take(job, chosen)
        return draft.decision()

    def _count(self, state: State) -> None:
        """Add the jobs that have arrived since the last call to the mix."""
        jobs = [*state.running.values(), *state.pending.values()]
        new = [job for job in jobs if job.number > self._last]
        self._mix.update((job.workload, job.workers) for job in new)
        self._last = max((job.number for job in new), default=self._last)


class Fragments:
    """The free capacity of GPUs, and the part of it that a mix of tasks cannot use.

    Parameters
    ----------
    draft : Draft
        The initial occupancy of the GPUs.
    mix : Counter of (workload, workers)
        The frequency of each task.
    """

    def __init__(self, draft: Draft, mix: Counter[_Task]) -> None:
        state, machines = draft.state, draft.state.machines
        self._state = state
        self._offered_mib = np.array(machines.memory_mib)
        self._room_mib = room_mib(self._offered_mib)
        self._places = np.array(machines.most_jobs)
        self._free_mib = self._room_mib.copy()
        for job, gpus in draft.placed():
            self.take(job, gpus)
        self._node = np.array(machines.node)
        self._size = np.array([len(gpus) for gpus in machines.node_gpus])
        first = np.cumsum(self._size) - self._size
        self._has_gpus = np.flatnonzero(self._size)
        self._first = first[self._has_gpus]
        self._place_on_node = np.arange(len(machines)) - first[self._node]
        needs = [self._need(state.modes[workload][0]) for workload, _ in mix]
        self._need_mib = np.array([np.broadcast_to(need, len(machines)) for need in needs])
        self._workers = np.array([workers for _, workers in mix])
        self._part = np.array([*mix.values()]) / mix.total()

    def take(self, job: Job, gpus: Sequence[int]) -> None:
        """Add a job to the occupancy."""
        for gpu in gpus:
            self._free_mib[gpu] -= self._state.need_mib(gpu, job.workload, job.mode)
        self._places[list(gpus)] -= 1

    def growth(self, job: Job, joined: Bools) -> Floats:
        """Return the growth of the expected fragmentation of each node by a job.

        ``joined`` are the GPUs, on all nodes, that it would use.
        """
        return self._expected(self._need_of(job), joined) - self._expected()

    def growth_by_gpu(self, job: Job) -> Floats:
        """Return the growth of a node's expected fragmentation by a worker on each of its GPUs."""
        found, before, need = np.zeros(len(self._node)), self._expected(), self._need_of(job)
        for place in range(int(self._size.max())):
            joined = self._place_on_node == place
            after = self._expected(need, joined)
            found[joined] = (after - before)[self._node[joined]]
        return found

    def _need_of(self, job: Job) -> Floats | float:
        return self._need(self._state.modes[job.workload][job.mode])

    def _need(self, way: Mode) -> Floats | float:
        """Return the memory of a worker in a mode on each GPU, or on every one."""
        if not way.memory_part:
            return way.memory_mib
        return np.asarray(way.memory_part * np.maximum(self._offered_mib, 0.0))

    def _expected(self, need_mib: Floats | float = 0.0, joined: Bools | bool = False) -> Floats:
        """Return the expected fragmentation of each node, in GPUs, if a job joined some GPUs."""
        free, places = self._free_mib - need_mib * joined, self._places - joined
        left = free / self._room_mib
        has_room = ((places > 0) & (self._need_mib <= free)).astype(np.float64)
        fits = self._by_node(has_room) >= np.minimum(self._workers[:, None], self._size)
        usable = fits * self._by_node(has_room * left)
        return np.asarray(self._by_node(left) - self._part @ usable, dtype=np.float64)

    def _by_node(self, of_gpus: Floats) -> Floats:
        """Return sums over the GPUs of each node, which are adjacent."""
        found = np.zeros((*of_gpus.shape[:-1], len(self._size)))
        found[..., self._has_gpus] = np.add.reduceat(of_gpus, self._first, axis=-1)
        return found


def _least_growth(
    draft: Draft, fragments: Fragments, job: Job, gpus: list[int]
) -> list[int] | None:
    """Return the GPUs for a whole gang among those open to it, or None if they are too few."""
    if len(gpus) < job.workers:
        return None
    growth = fragments.growth_by_gpu(job).tolist()
    on_node: dict[int, list[int]] = defaultdict(list)
    for gpu in sorted(gpus, key=lambda gpu: (growth[gpu], gpu)):
        on_node[draft.state.machines.node[gpu]].append(gpu)
    joined = np.zeros(len(draft.state.machines), dtype=np.bool_)
    for best in on_node.values():
        joined[best[: job.workers]] = True
    whole = fragments.growth(job, joined).tolist()

    def cost(node: int) -> float:
        count = len(on_node[node])
        return whole[node] if count >= job.workers else _SPANNING - count

    return by_node(draft, job, gpus, cost, growth.__getitem__)
