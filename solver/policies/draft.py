"""A decision under construction: the cluster as it would be after the steps so far."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain
from operator import attrgetter
from typing import Self

import numpy as np

from dovetail.formulations.arrays import Floats
from dovetail.formulations.rules import room_mib
from dovetail.instances._record import AnyShare
from dovetail.instances.hosts import FULL, RESOURCES, Hosts
from dovetail.instances.slowdowns.slowdown_table import UNCAPPED
from dovetail.solver.policies.policy import Decision, RoundProof, Start
from dovetail.solver.policies.queue_columns import QueueColumns
from dovetail.solver.policies.state import Job, State

_NUMBER = attrgetter("number")


class Draft:
    """The starts and stops of a policy so far, on top of an unchanged state.

    GPUs that are reserved for another job are treated as busy and full.

    Parameters
    ----------
    state : State
        The pool at the moment of the decision.

    Attributes
    ----------
    idle_count : list of int
        Idle GPUs of each node after the steps so far.
    idle_total : int
        The number of idle GPUs.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.idle_count = list(state.idle_count)
        self.idle_total = sum(self.idle_count)
        self._starts: list[Start] = []
        self._stops: list[Job] = []
        self._changed: dict[int, list[Job]] = {}
        self._started: dict[int, Start] = {}
        self._kept: set[int] = set()
        self._pending: QueueColumns | None = None
        self._running: QueueColumns | None = None
        self._queue: QueueColumns | None = None
        self._until_s: Floats | None = None
        if state.reserved:
            self.keep(state.reserved_gpus)

    def copy(self) -> Self:
        """Return a draft with the same steps, to try others on."""
        other = copy(self)
        other.idle_count = list(self.idle_count)
        other._starts, other._stops = list(self._starts), list(self._stops)
        other._changed, other._started = dict(self._changed), dict(self._started)
        other._kept = set(self._kept)
        return other

    def keep(self, gpus: Collection[int]) -> None:
        """Treat reserved GPUs as busy."""
        self._count_idle([gpu for gpu in gpus if self.is_idle(gpu)], -1)
        self._kept.update(gpus)

    def release(self, gpus: Collection[int]) -> set[int]:
        """Treat reserved GPUs normally again; return those that were treated as busy."""
        released = self._kept.intersection(gpus)
        self._kept -= released
        self._count_idle([gpu for gpu in released if self.is_idle(gpu)], 1)
        return released

    def is_kept(self, gpu: int, job: Job | None = None) -> bool:
        """Return whether a GPU is reserved for another job."""
        if gpu not in self._kept:
            return False
        own = None if job is None else self.state.reserved.get(job.number)
        return own is None or gpu not in own.gpus

    def _count_idle(self, gpus: Collection[int], change: int) -> None:
        for gpu in gpus:
            self.idle_count[self.state.machines.node[gpu]] += change
        self.idle_total += change * len(gpus)

    def residents(self, gpu: int) -> list[Job]:
        """Return the jobs on a GPU after the steps so far."""
        return self._changed.get(gpu, self.state.residents[gpu])

    def all_residents(self) -> Sequence[list[Job]]:
        """Return the jobs on every GPU after the steps so far."""
        if not self._changed:
            return self.state.residents
        return [self.residents(gpu) for gpu in range(len(self.state.residents))]

    def staying(self) -> Iterator[tuple[Job, Sequence[int]]]:
        """Yield every running job that the steps so far do not stop, with its GPUs."""
        for job in self.state.running.values():
            if job not in self._stops:
                yield job, job.gpus

    def placed(self) -> Iterator[tuple[Job, Sequence[int]]]:
        """Yield every job that is on GPUs after the steps so far, with its GPUs."""
        yield from self.staying()
        for start in self._starts:
            yield start.job, start.gpus

    def busy_until(self, ends: Mapping[int, float]) -> Floats:
        """Return when each GPU is expected to be idle, -inf for idle GPUs.

        Parameters
        ----------
        ends : mapping of int to float
            When jobs on GPUs are expected to end, by number; for running jobs always the same.
        """
        if self._until_s is None:
            running = [job for job, _ in self.staying()]
            held, number = [job.gpus for job in running], [job.number for job in running]
            end = np.repeat([ends[k] for k in number], list(map(len, held)))
            self._until_s = np.full(len(self.state.machines), -np.inf)
            np.maximum.at(self._until_s, list(chain.from_iterable(held)), end)
        until = self._until_s.copy()
        for start in self._starts:
            gpus = list(start.gpus)
            until[gpus] = np.maximum(until[gpus], ends[start.job.number])
        return until

    def host_load(self, hosts: Hosts) -> Floats:
        """Return the load of the hosts after the steps so far, (nodes, resources)."""
        machines = self.state.machines
        load = np.zeros((len(machines.node_ids), len(RESOURCES)))
        for job, gpus in self.placed():
            for gpu in gpus:
                node = machines.node[gpu]
                load[node] += hosts.part(node, job.workload, job.workers)
        return load

    def hosts_bear(self, job: Job, gpus: Sequence[int]) -> bool:
        """Return whether a job stays within the remaining capacity of the hosts of these GPUs."""
        hosts = self.state.hosts
        if hosts is None:
            return True
        load, asks = self.host_load(hosts), np.zeros((len(self.idle_count), len(RESOURCES)))
        for gpu in gpus:
            node = self.state.machines.node[gpu]
            asks[node] += hosts.part(node, job.workload, job.workers)
        return bool(((load + asks <= FULL) | (asks == 0)).all())

    @property
    def stops(self) -> Sequence[Job]:
        """The jobs that the steps so far stop."""
        return self._stops

    def waits(self, number: int) -> bool:
        """Return whether a waiting or stopped job does not start."""
        return number not in self._started

    @property
    def staying_columns(self) -> QueueColumns:
        """The running jobs that the steps so far do not stop, as if they were stopped now."""
        if self._running is None:
            self._running = QueueColumns.of(self.state, list(self.state.running.values()))
        if not self._stops:
            return self._running
        stopped = np.isin(self._running.number, [job.number for job in self._stops])
        return self._running.take(~stopped)

    @property
    def queue(self) -> QueueColumns:
        """The jobs that wait after the steps so far, in the order of their numbers."""
        if self._queue is None:
            if self._pending is None:
                waiting = sorted(self.state.pending.values(), key=_NUMBER)
                self._pending = QueueColumns.of(self.state, waiting)
            queue = self._pending
            if self._stops:
                queue = queue.joined([queue, QueueColumns.of(self.state, self._stops)])
                queue = queue.take(np.argsort(queue.number))
            if self._started:
                queue = queue.take(~np.isin(queue.number, list(self._started)))
            self._queue = queue
        return self._queue

    def is_idle(self, gpu: int) -> bool:
        """Return whether a working GPU has no job and is not reserved."""
        return (
            not self.residents(gpu)
            and gpu not in self._kept
            and self.state.machines.node[gpu] not in self.state.down
        )

    def idle_gpus(self) -> list[int]:
        """Return all idle GPUs, in the order of the file."""
        idle = [gpu for gpu, held in enumerate(self.state.residents) if not held]
        if not self._changed and not self._kept and not self.state.down:
            return idle
        freed = [gpu for gpu in self._changed if self.state.residents[gpu]]
        return sorted(gpu for gpu in [*idle, *freed] if self.is_idle(gpu))

    def idle_on(self, node: int) -> list[int]:
        """Return the idle GPUs of a node, in the order of the file."""
        return [gpu for gpu in self.state.machines.node_gpus[node] if self.is_idle(gpu)]

    def start(
        self,
        job: Job,
        gpus: Sequence[int],
        shares: tuple[AnyShare, ...] | None = None,
        mode: int = 0,
    ) -> None:
        """Start a job on the given GPUs; its reservation ends."""
        if (own := self.state.reserved.get(job.number)) is not None:
            self.release(own.gpus)
        self._count_idle([gpu for gpu in gpus if self.is_idle(gpu)], -1)
        for gpu in gpus:
            self._changed[gpu] = [*self.residents(gpu), job]
        self._starts.append(Start(job, tuple(gpus), shares, mode))
        self._started[job.number] = self._starts[-1]
        self._queue = None

    def stop(self, job: Job) -> None:
        """Remove a running job from its GPUs."""
        for gpu in job.gpus:
            self._changed[gpu] = [other for other in self.residents(gpu) if other is not job]
        self._count_idle([gpu for gpu in job.gpus if self.is_idle(gpu)], 1)
        self._stops.append(job)
        self._queue = self._until_s = None

    def has_room(self, gpu: int, job: Job, mode: int = 0) -> bool:
        """Return whether a job may join a GPU without a cap.

        There is room for one more, the memory of all fits, no pair with the job has failed before,
        and latency-critical jobs keep their gSLAs. Other slowdowns are not checked.
        """
        state = self.state
        machines = state.machines
        if machines.node[gpu] in state.down or self.is_kept(gpu, job):
            return False
        residents = self.residents(gpu)
        if len(residents) >= self._most_without_cap(gpu, residents):
            return False
        need = state.need_mib(gpu, job.workload, mode)
        need += sum(state.need_mib(gpu, o.workload, self._mode(o)) for o in residents)
        if need > room_mib(machines.memory_mib[gpu]):
            return False
        model = machines.model[gpu]
        if any((model, job.workload, o.workload) in state.clashes for o in residents):
            return False
        sharers = [state.sharer(o, self._share(o, gpu), self._mode(o)) for o in residents]
        return state.tails_kept(model, [state.sharer(job, None, mode), *sharers])

    def _most_without_cap(self, gpu: int, residents: Sequence[Job]) -> int:
        """Return how many jobs may be on a GPU if one without a cap joins these."""
        state = self.state
        most = state.machines.most_jobs[gpu]
        if not state.capped_sets:
            return most
        by_rule = state.products and not any(self._share(job, gpu) for job in residents)
        return most if by_rule else min(most, 2)

    def slowdowns(self, gpu: int, job: Job) -> tuple[float, float] | None:
        """Return the predicted slowdowns of a job and of the job on a GPU, without caps.

        The result is None if they may not share. Sub-batches are ignored.
        """
        (other,) = self.residents(gpu)
        model = self.state.machines.model[gpu]
        rows = self.state.predicted.rows[model][self.state.predicted.caps_place[UNCAPPED]]
        mine, theirs = rows[job.workload][other.workload], rows[other.workload][job.workload]
        return None if math.isnan(mine) or math.isnan(theirs) else (mine, theirs)

    def decision(self, wake_s: float | None = None, proof: RoundProof | None = None) -> Decision:
        """Return the collected decision."""
        return Decision(tuple(self._starts), tuple(self._stops), wake_s, proof)

    def _mode(self, job: Job) -> int:
        start = self._started.get(job.number)
        return start.mode if start else job.mode

    def _share(self, job: Job, gpu: int) -> AnyShare:
        start = self._started.get(job.number)
        if start is None:
            return job.share_on(gpu)
        return start.shares[start.gpus.index(gpu)] if start.shares else None
