"""The state of a pool as a round, and a choice of its groups as starts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dovetail.formulations.arrays import Bools
from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.hosts import KnownHosts
from dovetail.formulations.programs.placement import seat
from dovetail.formulations.rounds import Jobs, Round
from dovetail.formulations.rules import most_bound, room_mib
from dovetail.formulations.values import JobValues
from dovetail.instances._record import IDLE, AnyShare
from dovetail.instances.slowdowns.shares import share_code, share_of
from dovetail.solver.policies.beliefs import BelievedSlowdowns
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.queue_columns import QueueColumns, remaining_work, waiting_work
from dovetail.solver.policies.state import Job, State
from dovetail.solver.types import Choice


class Host(NamedTuple):
    """Running jobs that others may join, and the GPUs that only they hold."""

    jobs: tuple[Job, ...]
    gpus: tuple[int, ...]


class StateRound:
    """The round of waiting jobs on idle GPUs and beside running jobs.

    A running job takes part with the GPUs of its hosts. On its other GPUs it keeps its measured
    slowdown.

    Parameters
    ----------
    draft : Draft
        The pool and the decision so far.
    jobs : sequence of Job
        The waiting jobs that take part.
    hosts : sequence of Host
        The running jobs that others may join, no two with the same GPU.
    book : BelievedSlowdowns
        The estimates for jobs that share a GPU.
    lent_s : mapping of int to float
        The reserved GPUs, and the pool's time until which each is lent.
    """

    def __init__(
        self,
        draft: Draft,
        jobs: Sequence[Job],
        hosts: Sequence[Host],
        book: BelievedSlowdowns,
        lent_s: Mapping[int, float],
    ) -> None:
        state = draft.state
        idle = [gpu for gpu in draft.idle_gpus() if lent_s.get(gpu, math.inf) > state.now]
        self._state = state
        held = _held(hosts)
        compiled = Round(
            _columns(state, held, jobs),
            state.machines,
            book.powered,
            book,
            gpus=[*idle, *(gpu for host in hosts for gpu in host.gpus)],
            until_s={gpu: lent_s[gpu] - state.now for gpu in idle if gpu in lent_s},
            on_hosts=None
            if state.hosts is None
            else KnownHosts(state.hosts, draft.host_load(state.hosts)),
        )
        if compiled.hosts is not None:
            # Running jobs that no job joins matter too if their host slows them.
            held |= {j.number: list(on) for j, on in draft.staying() if j.number not in held}
            closed = _closed_hosts(draft, held)
            columns = _columns(state, held, jobs)
            assert compiled.on_hosts is not None
            on_hosts = compiled.on_hosts._replace(closed=closed)
            compiled = replace(compiled, jobs=columns, on_hosts=on_hosts)
        self._jobs = [*(state.running[number] for number in held), *jobs]
        self.round = compiled

    def carry_out(self, choice: Choice, draft: Draft) -> None:
        """Add the starts of a choice of groups to a draft."""
        groups = choice.groups
        pending = ~self.round.jobs.running[groups.job]
        starting = np.bincount(groups.group_of_member, pending, len(groups)) > 0
        groups, placed = seat(groups, np.where(starting, choice.counts, 0))
        pending = ~self.round.jobs.running[groups.job]
        seats: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for gpu, group in placed.items():
            for member in groups.members(group):
                if pending[member]:
                    seats[int(groups.job[member])].append((gpu, member))
        for index, held in seats.items():
            self._start(self._jobs[index], groups, held, draft)

    def _start(
        self, job: Job, groups: Groups, held: Sequence[tuple[int, int]], draft: Draft
    ) -> None:
        shares = tuple(share_of(int(groups.share[member])) for _, member in held)
        sub_batch = int(groups.variants.sub_batch[groups.variant[held[0][1]]]) or None
        modes = [mode.sub_batch for mode in self._state.modes[job.workload]]
        capped = shares if any(shares) else None
        draft.start(job, [gpu for gpu, _ in held], capped, modes.index(sub_batch))


def joinable(draft: Draft, lent_s: Mapping[int, float], most: int) -> list[Host]:
    """Return the running jobs that others may join, with at most ``most`` jobs on a GPU then.

    Jobs that hold a reserved GPU, or a GPU on which a job already starts, do not take part.
    """
    state = draft.state
    starting = {gpu for start in draft.decision().starts for gpu in start.gpus}
    on: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for gpu, residents in enumerate(draft.all_residents()):
        if 0 < len(residents) < most and gpu not in starting:
            on[tuple([job.number for job in residents])].append(gpu)
    partial, kept = state.machines.rules.gang_sharing == "partial", lent_s.keys() | starting
    hosts = [
        Host(tuple([state.running[number] for number in jobs]), tuple(gpus))
        for jobs, gpus in on.items()
    ]
    return [
        host
        for host in hosts
        if (partial or all(len(host.gpus) == job.workers for job in host.jobs))
        and all(kept.isdisjoint(job.gpus) for job in host.jobs)
    ]


def may_join(
    state: State, jobs: QueueColumns, hosts: Sequence[Host], book: BelievedSlowdowns
) -> Bools:
    """Return which waiting jobs (columns) may join which running ones (rows), by cheap tests.

    The tests are memory, gSLAs and whether their slowdowns are known; False means that a rule is
    broken at every share and sub-batch.
    """
    machines = state.machines
    first = np.cumsum([0, *(len(host.jobs) for host in hosts)])[:-1]
    row = np.repeat(np.arange(len(hosts)), np.diff(first, append=sum(len(h.jobs) for h in hosts)))
    residents = [job for host in hosts for job in host.jobs]
    seats: dict[tuple[int, AnyShare], list[int]] = defaultdict(list)
    behind: list[int] = []  # Jobs behind another do not restrict those that join them there.
    for k, job in enumerate(residents):
        gpus = hosts[row[k]].gpus
        for share in {None} if job.shares is None else {job.share_on(gpu) for gpu in gpus}:
            if share == IDLE and len(hosts[row[k]].jobs) > 1:
                behind.append(k)
            else:
                seats[machines.model[gpus[0]], share].append(k)
    mode = [state.modes[job.workload][job.mode] for job in residents]
    slowdown_factor = np.array([each.slowdown_factor for each in mode])
    offered = np.array([machines.memory_by_model[machines.model[h.gpus[0]]][1] for h in hosts])
    held = [way.need_mib(on) for way, on in zip(mode, offered[row].tolist(), strict=True)]
    need = np.bincount(row, held, len(hosts))
    accepted = most_bound(np.array([job.gsla for job in residents]))
    asked = most_bound(jobs.gsla)
    there = np.array([job.workload for job in residents], dtype=np.int64)
    of_job = jobs.workload
    least_stretch = book.least_factor[of_job]
    accepts = np.zeros((len(residents), len(jobs)), dtype=bool)
    accepts[behind] = True
    for (model, share), which in seats.items():
        staying, joining = book.least_bounds(machines.kinds[model], share)
        cells = np.ix_(there[which], of_job)
        accepts[which] |= (
            (staying[cells] * slowdown_factor[which, None] <= accepted[which, None])
            & (joining[cells] * least_stretch <= asked)
            & np.isfinite(staying[cells])  # else their slowdown is unknown
        )
    # No job is slowed less by several jobs than by one of them.
    fits = need[:, None] + book.least_need_mib(of_job, offered) <= room_mib(offered)[:, None]
    return np.asarray(fits & np.logical_and.reduceat(accepts, first))


def outside(
    draft: Draft, hosts: Sequence[Host], book: BelievedSlowdowns, values: JobValues
) -> tuple[float, float]:
    """Return the throughput of running jobs that are not among these hosts, and what they cost.

    These are ``JobValues.outside``: weight x workers x rate, and the cost or the power (W) of GPUs
    without a host. A job that has just been started is assumed to run as fast as alone.
    """
    state, machines = draft.state, draft.state.machines
    inside = {job.number for host in hosts for job in host.jobs}
    busy = {gpu for _, gpus in draft.placed() for gpu in gpus}
    gain = cost = 0.0
    for job, gpus in draft.placed():
        if job.number not in inside:
            started = job.number in state.pending
            rate = state.speed[machines.model[gpus[0]]][job.workload] if started else job.rate
            gain += job.weight * job.workers * rate
    for gpu in busy.difference(*(host.gpus for host in hosts)):
        if values.cheapest:
            cost += float(machines.model_cost[machines.model[gpu]])
            continue
        members = [(job.workload, share_code(job.share_on(gpu))) for job in draft.residents(gpu)]
        kind = machines.kinds[machines.kind[gpu]]
        together = book.find(kind, members) if len(members) > 1 else None
        alone = [book.powered[job.workload].power_w or 0.0 for job in draft.residents(gpu)]
        cost += together.power_w if together else math.fsum(alone)
    return gain, cost


def _closed_hosts(draft: Draft, held: Mapping[int, Sequence[int]]) -> set[int]:
    """Return the nodes with jobs that already start or take part with only some of their GPUs."""
    running, node = draft.state.running, draft.state.machines.node
    parted = [job.gpus for job, _ in draft.staying() if len(held[job.number]) < job.workers]
    starting = [gpus for job, gpus in draft.placed() if job.number not in running]
    return {node[gpu] for gpus in (*parted, *starting) for gpu in gpus}


def _held(hosts: Sequence[Host]) -> dict[int, list[int]]:
    """Return the GPUs of each running job, by its number."""
    held: dict[int, list[int]] = defaultdict(list)
    for jobs, gpus in hosts:
        for job in jobs:
            held[job.number] += gpus
    return held


def _columns(state: State, held: Mapping[int, Sequence[int]], waiting: Sequence[Job]) -> Jobs:
    """Return the jobs of a round: running jobs with these GPUs, then waiting jobs."""
    hosts = [(state.running[number], tuple(gpus)) for number, gpus in held.items()]
    jobs = [*(job for job, _ in hosts), *waiting]
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
        together=np.array([job.together for job in jobs], dtype=np.int64),
        one_each=np.array([job.one_each for job in jobs], dtype=bool),
        weight=np.array([job.weight for job in jobs], dtype=np.float64),
        gsla=np.array([job.gsla for job in jobs], dtype=np.float64),
        remaining_s=np.concatenate(
            [remaining_work([job for job, _ in hosts], state.now), waiting_work(waiting, state.now)]
        ),
        arrival_s=np.array([job.arrival_s for job in jobs], dtype=np.float64),
        latency=np.array([job.latency for job in jobs], dtype=bool),
        running=np.arange(len(jobs)) < len(hosts),
        sharing=np.full(len(jobs), -1),
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
