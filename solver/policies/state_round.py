"""The state of a pool as a round, and a choice of its groups as starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.formulations.groups import Groups
from dovetail.formulations.placement import place
from dovetail.formulations.rounds import Jobs, Round
from dovetail.formulations.rules import most_bound
from dovetail.solver.policies.beliefs import BeliefBook
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.queue_forecast import remaining_work
from dovetail.solver.policies.state import Job, State
from dovetail.solver.types import Choice

Bools = NDArray[np.bool_]


class Host(NamedTuple):
    """A running job that others may join, and the GPUs that it has to itself."""

    job: Job
    gpus: tuple[int, ...]


class StateRound:
    """The round of some waiting jobs on idle GPUs and beside running jobs.

    A running job takes part with the GPUs that it has to itself. On the others it is held to
    its measured slowdown.

    Parameters
    ----------
    draft : Draft
        The pool and what is decided already.
    jobs : sequence of Job
        The waiting jobs that take part.
    hosts : sequence of Host
        The running jobs that others may join.
    book : BeliefBook
        What is believed of jobs that share a GPU.
    lent_s : mapping of int to float
        The reserved GPUs, and the pool's time until which each is lent.
    """

    def __init__(
        self,
        draft: Draft,
        jobs: Sequence[Job],
        hosts: Sequence[Host],
        book: BeliefBook,
        lent_s: Mapping[int, float],
    ) -> None:
        state = draft.state
        idle = draft.idle_gpus()
        self._state = state
        self._jobs = [*(host.job for host in hosts), *jobs]
        self.round = Round(
            _columns(state, hosts, jobs),
            state.machines,
            state.workloads,
            book,
            gpus=[*idle, *(gpu for host in hosts for gpu in host.gpus)],
            until_s={gpu: lent_s[gpu] - state.now for gpu in idle if gpu in lent_s},
        )

    def carry_out(self, groups: Groups, choice: Choice, draft: Draft) -> None:
        """Enter the starts of a choice of groups into a draft."""
        number = self._state.machines.number
        pending = ~self.round.jobs.running[groups.job]
        starting = np.bincount(groups.group_of_member, pending, len(groups)) > 0
        seats: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for gpu, group in place(groups, np.where(starting, choice.counts, 0)).items():
            for member in groups.members(group):
                if pending[member]:
                    seats[int(groups.job[member])].append((number[gpu], member))
        for index, held in seats.items():
            self._start(self._jobs[index], groups, held, draft)

    def _start(
        self, job: Job, groups: Groups, held: Sequence[tuple[int, int]], draft: Draft
    ) -> None:
        shares = tuple(int(groups.share[member]) or None for _, member in held)
        sub_batch = groups.variants[int(groups.variant[held[0][1]])].sub_batch
        modes = [mode.sub_batch for mode in self._state.modes[job.workload]]
        capped = shares if any(shares) else None
        draft.start(job, [gpu for gpu, _ in held], capped, modes.index(sub_batch))


def joinable(draft: Draft, lent_s: Mapping[int, float]) -> list[Host]:
    """Return the running jobs that others may join; none that holds a reserved GPU."""
    state = draft.state
    rules = state.machines.rules
    if rules.max_jobs_per_gpu < 2:
        return []
    alone: dict[int, list[int]] = defaultdict(list)
    for gpu, held in enumerate(state.residents):
        if len(held) == 1:
            alone[held[0].number].append(gpu)
    partial, kept = rules.gang_sharing == "partial", lent_s.keys()
    hosts = [Host(state.running[number], tuple(gpus)) for number, gpus in alone.items()]
    return [
        Host(job, gpus)
        for job, gpus in hosts
        if (partial or len(gpus) == job.workers) and kept.isdisjoint(job.gpus)
    ]


def may_join(state: State, jobs: Sequence[Job], hosts: Sequence[Host], book: BeliefBook) -> Bools:
    """Tell which waiting jobs (columns) may join which running ones (rows), as far as is cheap.

    Memory, gSLAs and whether their slowdowns are believed at all; what is False breaks a rule
    at every share and sub-batch.
    """
    machines = state.machines
    seats: dict[tuple[int, int | None], list[int]] = defaultdict(list)
    for k, (job, gpus) in enumerate(hosts):
        for share in {None} if job.shares is None else {job.share_on(gpu) for gpu in gpus}:
            seats[machines.model[gpus[0]], share].append(k)
    mode = [state.modes[job.workload][job.mode] for job, _ in hosts]
    stretch = np.array([each.stretch for each in mode])
    need = np.array([each.memory_mib for each in mode])
    accepted = most_bound(np.array([job.gsla for job, _ in hosts]))
    asked = most_bound(np.array([job.gsla for job in jobs]))
    of_host = np.array([job.workload for job, _ in hosts], dtype=np.int64)
    of_job = np.array([job.workload for job in jobs], dtype=np.int64)
    least_need, least_stretch = book.least_modes[of_job].T
    found = np.zeros((len(hosts), len(jobs)), dtype=bool)
    for (model, share), rows in seats.items():
        there, joining = book.least_bounds(machines.models[model], share)
        cells = np.ix_(of_host[rows], of_job)
        found[rows] |= (
            (there[cells] * stretch[rows, None] <= accepted[rows, None])
            & (joining[cells] * least_stretch <= asked)
            & (need[rows, None] + least_need <= machines.memory_by_model[model][1])
        )
    return found


def _columns(state: State, hosts: Sequence[Host], waiting: Sequence[Job]) -> Jobs:
    jobs = [*(host.job for host in hosts), *waiting]
    slowdown = np.full(len(jobs), np.nan)
    holds = np.zeros(len(jobs), dtype=np.int64)
    workers = np.array([job.workers for job in jobs], dtype=np.int64)
    for k, (job, gpus) in enumerate(hosts):
        slowdown[k] = state.speed[state.machines.model[gpus[0]]][job.workload] / job.rate
        holds[k], workers[k] = job.workers, len(gpus)
    return Jobs(
        ids=[job.id for job in jobs],
        workload=np.array([job.workload for job in jobs], dtype=np.int64),
        workers=workers,
        weight=np.array([job.weight for job in jobs], dtype=np.float64),
        gsla=np.array([job.gsla for job in jobs], dtype=np.float64),
        remaining_s=remaining_work(jobs, state.now),
        arrival_s=np.array([job.arrival_s for job in jobs], dtype=np.float64),
        latency=np.array([job.latency for job in jobs], dtype=bool),
        running=np.arange(len(jobs)) < len(hosts),
        slowdown=slowdown,
        held={
            k: (
                gpus,
                tuple(job.share_on(gpu) for gpu in gpus),
                state.modes[job.workload][job.mode].sub_batch,
            )
            for k, (job, gpus) in enumerate(hosts)
        },
        holds=holds,
    )
