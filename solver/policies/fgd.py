"""FGD: each job goes where it leaves the fewest fragments for the jobs that are likely to come."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dovetail.formulations.arrays import Floats, Ints
from dovetail.formulations.rules import room_mib
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.queues import Queue, by_arrival
from dovetail.solver.policies.rooms import Rooms, by_node
from dovetail.solver.policies.state import Job, State

_SPANNING = 1e6
"""Dearer than any fragmentation: a node on which only a part of a gang fits."""

_Task = tuple[int, int]
"""What makes jobs alike for the mix: workload and workers."""


@dataclass
class Fgd:
    """Fragmentation gradient descent: the least growth of the expected fragmentation.

    Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
    Fragmentation Gradient Descent" (USENIX ATC 2023): the fragmentation measure and the algorithm
    FGD, in the form of the authors' public simulator. The fragmentation of a node for a task is
    what is left of those of its GPUs on which the task has no room; it is all that is left of the
    node if the task does not fit on it. Its expectation is taken over the mix of tasks. A job goes
    to the node, and there to the GPU, where the expectation grows least.

    A GPU here has memory and ``max_jobs_per_gpu`` places, in place of the paper's thousandths of a
    GPU, which jobs of this model do not ask for: what is left of a GPU is the part of its memory
    that is free, and a task has room where its memory and a place are free. CPUs are not modelled.
    The mix is that of the jobs that have arrived so far, by workload and GPUs. Slowdowns are not
    looked at.

    A gang goes to one node if one holds it, otherwise to few nodes; its workers may share GPUs
    with different co-runners. Jobs are tried in the order of arrival; the ones behind a job that
    does not fit may pass it, as in Kubernetes.
    """

    _queue: Queue = field(init=False, repr=False, default_factory=partial(Queue, by_arrival))
    _mix: Counter[_Task] = field(init=False, repr=False, default_factory=Counter)
    _last: int = field(init=False, repr=False, default=-1)

    def decide(self, state: State) -> Decision:
        """Start every job of the queue that has room somewhere."""
        if not state.pending:
            return NOTHING
        self._count(state)
        draft = Draft(state)
        rooms = Rooms(draft)
        fragments = Fragments(draft, self._mix)
        for job in self._queue.jobs(state):
            if not rooms:
                break
            gpus = [gpu for alike in rooms.open_to(job) for gpu in alike]
            chosen = _least_growth(draft, fragments, job, gpus)
            if chosen is not None:
                rooms.start(job, chosen)
                fragments.take(job, chosen)
        return draft.decision()

    def _count(self, state: State) -> None:
        """Add the jobs that have arrived since the last time to the mix."""
        jobs = [*state.running.values(), *state.pending.values()]
        new = [job for job in jobs if job.number > self._last]
        self._mix.update((job.workload, job.workers) for job in new)
        self._last = max((job.number for job in new), default=self._last)


class Fragments:
    """What is left of GPUs, and how much of it a mix of tasks cannot use.

    Parameters
    ----------
    draft : Draft
        What is on the GPUs at first.
    mix : Counter of (workload, workers)
        How often each task comes.
    """

    def __init__(self, draft: Draft, mix: Counter[_Task]) -> None:
        state, machines = draft.state, draft.state.machines
        self._state = state
        self._room_mib = np.array([room_mib(memory) for memory in machines.memory_mib])
        self._places = np.full(len(machines), machines.rules.max_jobs_per_gpu)
        self._free_mib = self._room_mib.copy()
        self._node_gpus = [np.array(gpus) for gpus in machines.node_gpus]
        for job, gpus in draft.placed():
            self.take(job, gpus)
        self._need_mib = np.array([state.modes[workload][0].memory_mib for workload, _ in mix])
        self._workers = np.array([workers for _, workers in mix])
        self._part = np.array([*mix.values()]) / mix.total()

    def take(self, job: Job, gpus: Sequence[int]) -> None:
        """Count a job in."""
        for gpu in gpus:
            self._free_mib[gpu] -= self._state.needs_mib(job)
            self._places[gpu] -= 1

    def expected(self, node: int, more: dict[int, float] | None = None) -> float:
        """Return the expected fragmentation of a node, in GPUs.

        ``more`` are MiB that another job would take, by GPU.
        """
        gpus = self._node_gpus[node]
        free, places = self._free_mib[gpus], self._places[gpus]
        for gpu, need in (more or {}).items():
            place = int(np.flatnonzero(gpus == gpu)[0])
            free[place] -= need
            places[place] -= 1
        return self._unusable(free, places, free / self._room_mib[gpus])

    def growth(self, node: int, job: Job, gpus: list[int]) -> float:
        """Return by how much a job on GPUs of a node would raise its expected fragmentation."""
        need = self._state.needs_mib(job)
        return self.expected(node, dict.fromkeys(gpus, need)) - self.expected(node)

    def _unusable(self, free: Floats, places: Ints, left: Floats) -> float:
        has_room = (places > 0) & (self._need_mib[:, None] <= free)
        fits = has_room.sum(axis=1) >= np.minimum(self._workers, len(free))
        return float(self._part @ ((~(has_room & fits[:, None])) @ left))


def _least_growth(
    draft: Draft, fragments: Fragments, job: Job, gpus: list[int]
) -> list[int] | None:
    """Return the GPUs for a whole gang, of those open to it, None if they are too few."""
    if len(gpus) < job.workers:
        return None
    node_of = draft.state.machines.node
    growth = {gpu: fragments.growth(node_of[gpu], job, [gpu]) for gpu in gpus}
    on_node: dict[int, list[int]] = defaultdict(list)
    for gpu in sorted(gpus, key=lambda gpu: (growth[gpu], gpu)):
        on_node[node_of[gpu]].append(gpu)

    def cost(node: int) -> float:
        if len(on_node[node]) < job.workers:
            return _SPANNING - len(on_node[node])
        return fragments.growth(node, job, on_node[node][: job.workers])

    return by_node(draft, job, gpus, cost, growth.__getitem__)
