"""The simulated cluster: jobs that slow each other down on GPUs, with a clock that callers advance.

The simulation of a trace advances it from event to event (`pool.SimulatedPool`); the simulated pool
of live mode advances it with the machine's clock (``pools.simulated.SimulatedNode``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dovetail.executor.simulation.history import JobTimes
from dovetail.formulations.budget import WorkClock
from dovetail.formulations.rules import most_bound, room_mib, slowdown_alone, slowdown_at_last
from dovetail.formulations.slowdowns import KnownSets
from dovetail.instances._record import IDLE, AnyShare
from dovetail.instances.hosts import FULL, Hosts, host_slowdown
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.entry import GpuKind
from dovetail.instances.slowdowns.sets import product_slowdown, slowdown_at
from dovetail.instances.slowdowns.shares import share_code
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.solver.policies.policy import Start
from dovetail.solver.policies.state import Job, State

FINISH: Final = 0
_OBSERVE: Final = 1
FIRST_KIND: Final = 2
"""Kinds of events from this number on are defined by the owner of the cluster."""

Member = tuple[int, AnyShare]
"""A workload and its share on a GPU."""


@dataclass(slots=True)
class Residence:
    """The present stay of a job on its GPUs.

    Attributes
    ----------
    outcome : JobTimes
        Record of its times; ``work_s`` is the true work of the job.
    speed : float
        Seconds of work per second that the job does alone on these GPUs.
    delay_s : float
        Seconds without progress at the start.
    done_at_start_s : float
        Seconds of work done before this stay.
    settled_s : float
        The moment up to which its progress is recorded.
    paused : bool
        Whether it is suspended; it still slows its co-runners down.
    slowdown, shares
        Its present slowdown, and whether it has a co-runner.
    version : int
        Events of the job with another number are outdated.
    pair : tuple or None
        The cell (model, caps, workload, other) that ``slowdown`` measures, if any.
    """

    outcome: JobTimes
    speed: float
    delay_s: float
    done_at_start_s: float
    settled_s: float
    paused: bool = False
    slowdown: float = 0.0
    shares: bool = False
    version: int = 0
    pair: tuple[int, int, int, int] | None = None


class SimulatedCluster:
    """GPUs, the jobs on them, and the future events.

    `place` and `remove` move jobs; afterwards `renew_rates` must be called once with all GPUs whose
    residents have changed.

    Parameters
    ----------
    world : Instance
        Cluster, workloads and the true slowdowns of pairs, also those that ``cluster.assumed``
        declares; slowdowns of three or more jobs without an entry follow by ``slowdown_at``, or by
        the declared rule. Its jobs are not read.
    predicted : SlowdownTable, optional
        Slowdowns that policies see in ``state`` instead of the true ones.
    observe_s : float
        Seconds after which the slowdown of a pair that runs together enters ``state.believed``,
        unless the host slows either job at that time.
    hosts_known : bool
        Whether policies see the resources of hosts and the demands of workloads on them.

    Attributes
    ----------
    state : State
        Jobs and GPUs; its ``now`` is the clock.
    residences : dict of int to Residence
        The stays of the running jobs, by job number.
    busy, shared : int
        Number of GPUs with at least one job, and with several.
    pace : float
        Seconds of work per second, summed over workers.
    """

    def __init__(
        self,
        world: Instance,
        predicted: SlowdownTable | None = None,
        observe_s: float = math.inf,
        hosts_known: bool = True,
    ) -> None:
        truth = SlowdownTable.of(world)
        seen = world if hosts_known else _without_hosts(world)
        self.state = State(seen, truth if predicted is None else predicted, clock=WorkClock())
        self.residences: dict[int, Residence] = {}
        self.busy = self.shared = 0
        self.pace = 0.0
        self._observe_s = observe_s
        self._truth = truth
        self._true_sets = KnownSets(truth.sets, world.workloads)
        self._events: list[tuple[float, int, int, int, int]] = []
        self._order = 0
        hosts = Hosts(world.cluster.nodes, tuple(world.workloads.values()))
        self._hosts = hosts if hosts.asked else None
        self._short: set[int] = set()
        gpus = len(self.state.machines)
        self._metered = any(workload.power_w for workload in self.state.workloads)
        self._count = [0] * gpus
        self._energy_j = [0.0 if self._metered else math.nan] * gpus
        self._power_w = [0.0] * gpus
        self._power_since_s = [0.0] * gpus

    # The clock.

    def push(self, at_s: float, kind: int, which: int = 0, version: int = 0) -> None:
        """Add an event; events of the same moment happen in the order in which they were added."""
        self._order += 1
        heappush(self._events, (at_s, self._order, kind, which, version))

    def next_s(self) -> float:
        """Return when the next event happens; infinity if there is none."""
        while self._events:
            at_s, _, kind, which, version = self._events[0]
            if kind >= FIRST_KIND or self._is_present(which, version):
                return at_s
            heappop(self._events)
        return math.inf

    def advance(self, until_s: float) -> Iterator[tuple[int, int, int]]:
        """Advance the clock, and yield kind, number and version of each event on the way.

        `FINISH` is the end of the work of the job with this number; other kinds are yielded as they
        were given to ``push``.
        """
        while (at_s := self.next_s()) <= until_s:
            *_, kind, which, version = heappop(self._events)
            self.state.now = at_s
            if kind == _OBSERVE:
                self._observe(self.state.running[which])
                continue
            if kind == FINISH:
                job = self.state.running[which]
                self.settle(job)
                # Avoid the rounding errors of many small steps.
                job.done_s = self.residences[which].outcome.work_s
            yield kind, which, version
        self.state.now = until_s

    def kinds_ahead(self) -> set[int]:
        """Return the kinds of the future events."""
        return {event[2] for event in self._events}

    def _is_present(self, which: int, version: int) -> bool:
        stay = self.residences.get(which)
        return stay is not None and stay.version == version

    # Places.

    def place(self, start: Start, outcome: JobTimes, speed: float, delay_s: float = 0.0) -> None:
        """Put a job on its GPUs; for outcome, speed and delay see `Residence`."""
        state, job = self.state, start.job
        state.pending.pop(job.number, None)
        state.running[job.number] = job
        job.phase = "running"
        job.gpus, job.shares, job.mode = start.gpus, start.shares, start.mode
        job.started_s, job.since_s = state.now, state.now + delay_s
        job.resumed_s = job.done_s
        job.starts += 1
        stay = Residence(outcome, speed, delay_s, job.done_s, state.now)
        self.residences[job.number] = stay
        for gpu in job.gpus:
            if not state.residents[gpu]:
                state.idle_count[state.machines.node[gpu]] -= 1
            state.residents[gpu].append(job)

    def remove(self, job: Job) -> None:
        """Take a job off its GPUs."""
        state = self.state
        self.settle(job)
        outcome = self.residences.pop(job.number).outcome
        outcome.held_s += state.now - job.started_s
        self.pace -= job.rate * job.workers
        for gpu in job.gpus:
            state.residents[gpu].remove(job)
            node = state.machines.node[gpu]
            if not state.residents[gpu] and node not in state.down:
                state.idle_count[node] += 1
        del state.running[job.number]
        job.phase = "pending"
        job.held_s = outcome.held_s
        job.gpus, job.shares, job.mode, job.rate = (), None, 0, 0.0
        job.started_s = math.nan
        job.since_s = job.waiting_since_s = state.now

    def pause(self, job: Job, on: bool) -> None:
        """Suspend or resume a running job."""
        self.residences[job.number].paused = on
        self.renew_rates(job.gpus)

    # Progress.

    def renew_rates(self, gpus: Iterable[int]) -> None:
        """Recompute the rates of all jobs on GPUs whose residents have changed."""
        residents = self.state.residents
        affected: dict[int, Job] = {}
        changed = set(gpus)
        for gpu in sorted(changed):
            self._count_and_meter(gpu)
        for gpu in sorted(changed | self._on_short_hosts(changed)):
            for job in residents[gpu]:
                affected[job.number] = job
        for job in affected.values():
            self.settle(job)
            self._renew(job, self.residences[job.number])

    def _renew(self, job: Job, stay: Residence) -> None:
        stay.slowdown = self._slowdown(job)
        stay.shares = any(len(self.state.residents[gpu]) > 1 for gpu in job.gpus)
        stay.outcome.worst_slowdown = max(stay.outcome.worst_slowdown, stay.slowdown)
        stay.version = self._order + 1
        self.pace -= job.rate * job.workers
        job.rate = 0.0 if stay.paused else stay.speed / stay.slowdown
        self.pace += job.rate * job.workers
        if stay.paused:
            return
        self.push(self.end_s(job), FINISH, job.number, stay.version)
        stay.pair = self._observed_pair(job) if self._observe_s < math.inf else None
        if stay.pair is not None and not self.state.has_seen(stay.pair):
            at_s = max(self.state.now, job.since_s) + self._observe_s
            self.push(at_s, _OBSERVE, job.number, stay.version)

    def settle(self, job: Job) -> None:
        """Record a running job's progress up to now at the rate it has had."""
        now = self.state.now
        stay = self.residences[job.number]
        if now > job.since_s:
            job.done_s += job.rate * (now - job.since_s)
            job.since_s = now
        passed_s = now - stay.settled_s
        stay.settled_s = now
        if stay.shares:
            stay.outcome.shared_s += passed_s
        if stay.slowdown > most_bound(job.gsla):
            stay.outcome.breach_s += passed_s

    def end_s(self, job: Job) -> float:
        """Return when a running job ends at its present rate (alone if it has no rate yet)."""
        now, stay = self.state.now, self.residences[job.number]
        left_s = max(0.0, stay.outcome.work_s - job.done(now))
        return max(now, job.since_s) + left_s / (job.rate or stay.speed)

    def idle_s(self) -> NDArray[np.float64]:
        """Return when each GPU will be idle if its jobs go on at their present rates; see `end_s`.

        That is now if it has none.
        """
        jobs, now = list(self.state.running.values()), self.state.now
        stays = [self.residences[job.number] for job in jobs]
        found = [
            (stay.outcome.work_s, job.done_s, job.rate, job.since_s, job.rate or stay.speed)
            for job, stay in zip(jobs, stays, strict=True)
        ]
        work, done, rate, since, pace = np.array(found, dtype=np.float64).reshape(-1, 5).T
        left = np.maximum(0.0, work - (done + rate * np.maximum(0.0, now - since)))
        end = np.repeat(np.maximum(now, since) + left / pace, [len(job.gpus) for job in jobs])
        idle = np.full(len(self.state.residents), now)
        np.maximum.at(idle, [gpu for job in jobs for gpu in job.gpus], end)
        return idle

    def _observe(self, job: Job) -> None:
        """Enter a slowdown that has lasted long enough into the state as measured."""
        stay = self.residences[job.number]
        if stay.pair is not None:
            slowdown_factor = self.state.modes[job.workload][job.mode].slowdown_factor
            self.state.see(stay.pair, stay.slowdown / slowdown_factor)

    def _observed_pair(self, job: Job) -> tuple[int, int, int, int] | None:
        """Return the pair whose slowdown a job's slowdown measures; None unless it is one pair."""
        machines, residents = self.state.machines, self.state.residents
        found = None
        for gpu in job.gpus:
            if len(residents[gpu]) != 2 or self._by_host(job, gpu) > 1:
                return None
            other = residents[gpu][0] if residents[gpu][1] is job else residents[gpu][1]
            caps = self._truth.caps_place[job.share_on(gpu), other.share_on(gpu)]
            pair = (machines.model[gpu], caps, job.workload, other.workload)
            if found not in (None, pair):
                return None
            found = pair
        return found

    # What truly happens on GPUs.

    def _slowdown(self, job: Job) -> float:
        """Return the job slowdown: the largest over its GPUs, times its sub-batch's factor."""
        state = self.state
        slowdown_factor: float = state.modes[job.workload][job.mode].slowdown_factor
        worst = 0.0
        for k, gpu in enumerate(job.gpus):
            residents = state.residents[gpu]
            mine: Member = (job.workload, job.shares[k] if job.shares else None)
            if len(residents) == 1:
                there = slowdown_alone(state.workloads[job.workload], mine[1]) or 1.0
            else:
                others = [_member(other, gpu) for other in residents if other is not job]
                there = self._beside(gpu, mine, others)
                if math.isnan(there):  # what remains of a set may have no entry: they take turns
                    there = float(len(residents))
            worst = max(worst, there * self._by_host(job, gpu))
        return worst * slowdown_factor

    def _by_host(self, job: Job, gpu: int) -> float:
        """Return the factor by which the host slows a job's worker on a GPU."""
        node = self.state.machines.node[gpu]
        if self._hosts is None or node not in self._short:
            return 1.0
        part = self._hosts.part(node, job.workload, job.workers)
        return float(host_slowdown(part, self._host_load(node)))

    def _host_load(self, node: int) -> NDArray[np.float64]:
        assert self._hosts is not None
        residents = self.state.residents
        jobs = [job for gpu in self.state.machines.node_gpus[node] for job in residents[gpu]]
        workload = np.array([job.workload for job in jobs], dtype=np.int64)
        workers = np.array([job.workers for job in jobs], dtype=np.int64)
        return np.asarray(self._hosts.part(node, workload, workers).sum(axis=0))

    def _on_short_hosts(self, gpus: Iterable[int]) -> set[int]:
        """Return all GPUs of those nodes whose hosts are overloaded or were until now."""
        if self._hosts is None:
            return set()
        machines, found = self.state.machines, set[int]()
        for node in {machines.node[gpu] for gpu in gpus}:
            before, short = node in self._short, bool((self._host_load(node) > FULL).any())
            (self._short.add if short else self._short.discard)(node)
            if before or short:
                found.update(machines.node_gpus[node])
        return found

    def obstacles(self, start: Start) -> list[tuple[int, Job]]:
        """Return the (GPU, resident) pairs with which a starting job would run out of memory.

        If a GPU cannot hold the job even alone, the pair names the job itself.
        """
        return [
            (gpu, other)
            for k, gpu in enumerate(start.gpus)
            for other in self._obstacles_on(start, k, gpu)
        ]

    def _obstacles_on(self, start: Start, k: int, gpu: int) -> list[Job]:
        state = self.state
        job = start.job
        residents = state.residents[gpu]
        need = state.need_mib(gpu, job.workload, start.mode) + state.used_mib(gpu, residents)
        if need > room_mib(state.machines.memory_mib[gpu]):
            return residents or [job]
        mine: Member = (job.workload, start.shares[k] if start.shares else None)
        there = self._on(gpu, [mine, *(_member(other, gpu) for other in residents)])
        if self._true_sets.settles(*there):
            return [] if self._true_sets.find(*there) else residents
        if self.state.products and self._is_forbidden(*there):
            return residents
        return [other for other in residents if self._clashes(gpu, mine, _member(other, gpu))]

    def _is_forbidden(self, kind: GpuKind, members: Sequence[tuple[int, int]]) -> bool:
        """Return whether some of these jobs may not share according to an entry."""
        return any(figures is None for _, figures in self._true_sets.parts(kind, members))

    def _on(self, gpu: int, members: Sequence[Member]) -> tuple[GpuKind, list[tuple[int, int]]]:
        """Return the kind of a GPU, and members with the codes of their shares."""
        machines = self.state.machines
        coded = [(workload, share_code(share)) for workload, share in members]
        return machines.kinds[machines.kind[gpu]], coded

    def _clashes(self, gpu: int, mine: Member, other: Member) -> bool:
        """Return whether two jobs may not share; jobs that are both at ``idle`` never clash."""
        both_idle = mine[1] == other[1] == IDLE
        return not both_idle and math.isnan(self._pair(gpu, mine, other))

    def _beside(self, gpu: int, mine: Member, others: Sequence[Member]) -> float:
        if len(others) == 1:
            return self._pair(gpu, mine, others[0])
        members = [mine, *others]
        given = self._true_sets.find(*self._on(gpu, members))
        if given is not None:
            return given.slowdown[0]
        pairs = [[self._pair(gpu, a, b) for b in members] for a in members]
        if self.state.products and all(share is None for _, share in members):
            return float(product_slowdown(pairs)[0])
        workloads = self.state.workloads
        alone = [slowdown_at_last(workloads[workload], share) for workload, share in members]
        return float(slowdown_at(pairs, [share for _, share in members], alone=alone)[0])

    def _pair(self, gpu: int, mine: Member, other: Member) -> float:
        caps = self._truth.caps_place.get((mine[1], other[1]))
        if caps is None:
            return math.nan
        return self._truth.rows[self.state.machines.model[gpu]][caps][mine[0]][other[0]]

    # GPUs in use, and their energy.

    def energy_j(self, gpu: int) -> float:
        """Return the energy of a GPU so far; NaN if a power is unknown."""
        passed_s = self.state.now - self._power_since_s[gpu]
        return self._energy_j[gpu] + self._power_w[gpu] * passed_s

    def _count_and_meter(self, gpu: int) -> None:
        before, after = self._count[gpu], len(self.state.residents[gpu])
        self._count[gpu] = after
        self.busy += (after > 0) - (before > 0)
        self.shared += (after > 1) - (before > 1)
        if self._metered:
            self._energy_j[gpu] = self.energy_j(gpu)
            self._power_w[gpu] = self._power(gpu)
            self._power_since_s[gpu] = self.state.now

    def _power(self, gpu: int) -> float:
        """Return the power of a GPU in watts: 0 if it is idle, NaN if it is unknown."""
        residents = self.state.residents[gpu]
        if not residents:
            return 0.0
        if len(residents) == 1:
            return self.state.workloads[residents[0].workload].power_w or math.nan
        if len(residents) > 2:
            return math.nan
        (a, x), (b, y) = (_member(job, gpu) for job in residents)
        caps = self._truth.caps_place.get((x, y))
        model = self.state.machines.model[gpu]
        return math.nan if caps is None else float(self._truth.power_w[model, caps, a, b])


def _without_hosts(world: Instance) -> Instance:
    """Return a world whose nodes have no known hosts."""
    nodes = tuple(node.replace(host=None) for node in world.cluster.nodes)
    return world.altered(cluster=world.cluster.replace(nodes=nodes))


def _member(job: Job, gpu: int) -> Member:
    return job.workload, job.share_on(gpu)
