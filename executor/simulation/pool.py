"""The simulated pool: a cluster whose clock jumps from event to event."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dovetail.executor.second_opinion import malformed, violations
from dovetail.executor.simulation.history import Ending, History, Outcome, Stay
from dovetail.executor.simulation.options import Options
from dovetail.executor.simulation.physics import Physics
from dovetail.formulations.rules import largest_gang, most_bound, room_mib, share_total
from dovetail.instances.errors import DovetailError, InputError
from dovetail.instances.instance import Instance
from dovetail.instances.slowdown_table import SlowdownTable
from dovetail.instances.traces import Trace
from dovetail.solver.policies import Decision, Job, Start, State

_FINISH, _OBSERVE, _WAKE, _FAIL, _REPAIR = range(5)
_ALWAYS = -1
_LEAST_KEPT_S = 1e-6
MOST_BARREN: Final = 20_000
"""So many stays in a row that came to nothing end a simulation."""


class PolicyError(DovetailError):
    """A policy asked for what cannot be done, or left jobs waiting for ever."""


class SimulatedPool:
    """Runs the jobs of a trace at their true slowdowns, and shows a policy what it may know.

    Parameters
    ----------
    trace : Trace
        Every job names a workload of ``world``.
    world : Instance
        Cluster, workloads and the true slowdowns; its jobs are not read.
    predicted : SlowdownTable
        What the policy sees in place of the truth, for the same workloads and models.
    options : Options
        The rules of the world.

    Attributes
    ----------
    state : State
        What the policy sees.
    history : History
        What has happened.

    Raises
    ------
    InputError
        When a job can never run: its workload is unknown, or it asks for more GPUs of one model
        with enough memory than there are.
    """

    def __init__(
        self, trace: Trace, world: Instance, predicted: SlowdownTable, options: Options
    ) -> None:
        self.state = State(world, predicted)
        self._options = options
        self._draw = np.random.default_rng(options.seed)
        self._refuse_hopeless(trace)
        self._jobs = self._seen_as(trace)
        truth = SlowdownTable.of(world)
        self._caps_place = truth.caps_place
        self._physics = Physics(self.state, truth)
        metered = any(workload.power_w for workload in self.state.workloads)
        self._meter = _Meter(self._physics, len(self.state.machines), metered)
        self.history = History(
            self._jobs,
            [Outcome(job.duration_s) for job in trace.jobs],
            gpus=len(self.state.machines),
        )
        self._room_mib = np.array([room_mib(mib) for mib in self.state.machines.memory_mib])
        self._model = np.array(self.state.machines.model)
        self._tracks = [_Track() for _ in self._jobs]
        self._arrived = 0
        self._left = len(self._jobs)
        self._events: list[tuple[float, int, int, int, int]] = []
        self._order = 0
        self._wish = 0
        self._demanded = 0
        self._pace = 0.0
        self._due = math.inf
        self._barren = 0
        for node in range(len(self.state.machines.node_ids)):
            self._plan_failure(node)

    @property
    def ended(self) -> int:
        """How many jobs have ended."""
        return len(self._jobs) - self._left

    # The clock.

    def advance(self) -> bool:
        """Run to the next moment for a decision; False once every job has ended.

        Raises
        ------
        PolicyError
            When jobs wait, nobody runs and nothing will ever happen.
        """
        while self._left:
            at = self._next_event()
            if self._due < at:
                self.state.now, self._due = self._due, math.inf
                return True
            self._refuse_starvation(at)
            self.state.now = at
            if self._process(at) and self._left:
                if not self._options.round_s:
                    return True
                self._due = min(self._due, _next_multiple(at, self._options.round_s))
        self.history.energy_j = self._meter.energy_j
        return False

    def _next_event(self) -> float:
        at = self._events[0][0] if self._events else math.inf
        if self._arrived < len(self._jobs):
            return min(at, self._jobs[self._arrived].arrival_s)
        return at

    def _process(self, at: float) -> bool:
        """Process all events of one moment; tell whether they call for a decision."""
        jobs = self._jobs
        changed = False
        while self._arrived < len(jobs) and jobs[self._arrived].arrival_s <= at:
            job = jobs[self._arrived]
            self.state.pending[job.number] = job
            self._arrived += 1
            self._demanded += job.workers
            self.history.events += 1
            changed = True
        while self._events and self._events[0][0] <= at:
            _, _, kind, which, version = heappop(self._events)
            if self._happens(kind, which, version):
                self.history.events += 1
                changed = True
        return changed

    def _happens(self, kind: int, which: int, version: int) -> bool:
        """Process one event; False where it was overtaken by others."""
        if kind == _FINISH:
            if version != self._tracks[which].version:
                return False
            self._finish(self._jobs[which])
        elif kind == _OBSERVE:
            if version == self._tracks[which].version:
                self._observe(self._jobs[which])
            return False
        elif kind == _WAKE:
            return version in (_ALWAYS, self._wish)
        elif kind == _FAIL:
            self._fail(which)
        elif kind == _REPAIR:
            self._repair(which)
        return True

    def _push(self, at: float, kind: int, which: int = 0, version: int = 0) -> None:
        self._order += 1
        heappush(self._events, (at, self._order, kind, which, version))

    def _finish(self, job: Job) -> None:
        self._settle(job)
        job.done_s = self.history.outcomes[job.number].work_s
        gpus = job.gpus
        self._leave(job, "finished")
        self._left -= 1
        self._demanded -= job.workers
        self._rerate(gpus)

    def _fail(self, node: int) -> None:
        state = self.state
        state.down.add(node)
        gpus = state.machines.node_gpus[node]
        hit = {job.number: job for gpu in gpus for job in state.residents[gpu]}
        touched = {gpu for job in hit.values() for gpu in job.gpus}
        for job in hit.values():
            self._leave(job, "failed")
        state.idle_count[node] = 0
        self._rerate(touched)
        self._push(state.now + self._options.repair_s, _REPAIR, node)

    def _repair(self, node: int) -> None:
        self.state.down.discard(node)
        self.state.idle_count[node] = len(self.state.machines.node_gpus[node])
        self._plan_failure(node)

    def _plan_failure(self, node: int) -> None:
        if math.isfinite(self._options.node_mtbf_s):
            after = self._draw.exponential(self._options.node_mtbf_s)
            self._push(self.state.now + after, _FAIL, node)

    # Decisions.

    def carry_out(self, decision: Decision, decide_s: float) -> None:
        """Stop and start jobs.

        Raises
        ------
        PolicyError
            When the decision breaks a rule of the round problem.
        """
        touched: set[int] = set()
        for job in decision.stops:
            self._refuse(job.phase != "running", f"stops {job.id!r}, which does not run")
            touched.update(job.gpus)
            self._leave(job, "stopped")
        self._check(decision)
        self.state.reserved = dict(decision.reserved)
        for start in decision.starts:
            self._check_place(start)
            obstacles = self._physics.cannot_run(start)
            if obstacles:
                self._crash(start, obstacles)
            else:
                self._enter(start)
                touched.update(start.gpus)
        self._rerate(touched)
        self._wish += 1
        if decision.wake_s is not None:
            self._refuse(decision.wake_s <= self.state.now, "asks to be woken in the past")
            self._push(decision.wake_s, _WAKE, version=self._wish)
        self._note(decision, decide_s)

    def _check(self, decision: Decision) -> None:
        """Refuse a decision that the checker does not pass, if its policy proves what it does.

        Policies without a proof break the rules of the round problem by design, some of them.
        """
        if decision.proof is not None:
            for broken in violations(self.state, decision.starts):
                self._refuse(True, f"breaks a rule: {broken}")

    def _check_place(self, start: Start) -> None:
        machines, job = self.state.machines, start.job
        for why in malformed(self.state, start):
            self._refuse(True, why)
        models = {machines.model[gpu] for gpu in start.gpus}
        self._refuse(len(models) > 1, f"mixes GPU models for {job.id!r}")
        for gpu, share in zip(start.gpus, start.shares or (None,) * job.workers, strict=True):
            self._check_gpu(start, gpu, share)

    def _check_gpu(self, start: Start, gpu: int, share: int | None) -> None:
        state, rules, job = self.state, self.state.machines.rules, start.job
        where = f"puts {job.id!r} on {state.machines.gpu_ids[gpu]}"
        self._refuse(state.machines.node[gpu] in state.down, f"{where}, which is down")
        residents = state.residents[gpu]
        self._refuse(len(residents) >= rules.max_jobs_per_gpu, f"{where}, which is full")
        sharers = [state.sharer(other, other.share_on(gpu), other.mode) for other in residents]
        sharers.append(state.sharer(job, share, start.mode))
        kept = state.tails_kept(state.machines.model[gpu], sharers)
        self._refuse(not kept, f"{where}, where a latency-critical job would be over its gSLA")
        known = share is None or share in rules.shares
        self._refuse(not known, f"{where} at a share of {share}: none of shares")
        caps = share_total([share, *(other.share_on(gpu) for other in residents)])
        self._refuse(caps > rules.share_sum, f"{where}, whose caps then sum to {caps}")

    def _crash(self, start: Start, obstacles: Iterable[tuple[int, Job]]) -> None:
        """Let a start fail for want of memory; the pool remembers which workloads clash."""
        state, job, now = self.state, start.job, self.state.now
        for gpu, other in obstacles:
            if other is job:
                self._refuse(True, f"puts {job.id!r} on a GPU with too little memory for it")
            model = state.machines.model[gpu]
            state.clashes.add((model, job.workload, other.workload))
            state.clashes.add((model, other.workload, job.workload))
        self.history.stays.append(Stay(job.number, now, now, *start[1:], 0.0, 0.0, "out_of_memory"))
        self._push(now + max(self._options.restart_s, 1.0), _WAKE, version=_ALWAYS)

    def _enter(self, start: Start) -> None:
        """Put a job on its GPUs; the rates are the caller's to renew."""
        state, job, now = self.state, start.job, self.state.now
        outcome = self.history.outcomes[job.number]
        shares_one = any(state.residents[gpu] for gpu in start.gpus)
        if shares_one and math.isnan(outcome.idle_at_s):
            outcome.idle_at_s = self._idle_at(job)
            outcome.left_s = outcome.work_s - job.done_s
        if math.isnan(outcome.first_start_s):
            outcome.first_start_s = now
        del state.pending[job.number]
        state.reserved.pop(job.number, None)
        state.running[job.number] = job
        job.phase = "running"
        job.gpus, job.shares, job.mode = start.gpus, start.shares, start.mode
        job.started_s = now
        job.since_s = now + (self._options.restart_s if job.starts else 0.0)
        job.starts += 1
        track = self._tracks[job.number]
        track.delay_s = job.since_s - now
        track.done_at_start_s = job.done_s
        track.settled_s = now
        track.speed = self._speed(job)
        for gpu in job.gpus:
            if not state.residents[gpu]:
                state.idle_count[state.machines.node[gpu]] -= 1
            state.residents[gpu].append(job)

    def _leave(self, job: Job, ending: Ending) -> None:
        """Take a job off its GPUs; the rates of those who stay are the caller's to renew."""
        state, now = self.state, self.state.now
        track, outcome = self._tracks[job.number], self.history.outcomes[job.number]
        self._settle(job)
        if ending == "failed":
            gained = job.done_s - track.done_at_start_s
            job.done_s -= gained % self._options.checkpoint_s
        kept = job.done_s - track.done_at_start_s
        outcome.solo_s += kept / track.speed
        outcome.held_s += now - job.started_s
        stay = (job.number, job.started_s, now, job.gpus, job.shares, job.mode)
        self.history.stays.append(Stay(*stay, track.delay_s, kept, ending))
        self._refuse_treadmill(kept)
        self._pace -= job.rate * job.workers
        track.version += 1
        for gpu in job.gpus:
            state.residents[gpu].remove(job)
            node = state.machines.node[gpu]
            if not state.residents[gpu] and node not in state.down:
                state.idle_count[node] += 1
        del state.running[job.number]
        job.held_s = outcome.held_s
        job.gpus, job.shares, job.mode, job.rate = (), None, 0, 0.0
        job.started_s = math.nan
        job.since_s = job.waiting_since_s = now
        if ending == "finished":
            job.phase = "finished"
            outcome.finish_s = now
        else:
            job.phase = "pending"
            state.pending[job.number] = job

    # Progress.

    def _rerate(self, gpus: Iterable[int]) -> None:
        """Renew the rates of everyone on the given GPUs, whose residents have changed."""
        residents, now = self.state.residents, self.state.now
        affected: dict[int, Job] = {}
        for gpu in gpus:
            self._meter.changed(gpu, len(residents[gpu]), now)
            for job in residents[gpu]:
                affected[job.number] = job
        for job in affected.values():
            self._settle(job)
            track = self._tracks[job.number]
            track.slowdown = self._physics.slowdown(job)
            track.shares = any(len(residents[gpu]) > 1 for gpu in job.gpus)
            self._pace -= job.rate * job.workers
            job.rate = track.speed / track.slowdown
            self._pace += job.rate * job.workers
            outcome = self.history.outcomes[job.number]
            outcome.worst_slowdown = max(outcome.worst_slowdown, track.slowdown)
            track.version += 1
            left = max(0.0, outcome.work_s - job.done_s)
            begins = max(now, job.since_s)
            self._push(begins + left / job.rate, _FINISH, job.number, track.version)
            track.company = self._company(job)
            if track.company is not None and track.company not in self.state.seen:
                at = begins + self._options.observe_s
                self._push(at, _OBSERVE, job.number, track.version)

    def _settle(self, job: Job) -> None:
        """Book a running job's progress up to now at the rate it has had."""
        now = self.state.now
        track, outcome = self._tracks[job.number], self.history.outcomes[job.number]
        if now > job.since_s:
            job.done_s += job.rate * (now - job.since_s)
            job.since_s = now
        passed = now - track.settled_s
        track.settled_s = now
        if track.shares:
            outcome.shared_s += passed
        if track.slowdown > most_bound(job.gsla):
            outcome.breach_s += passed

    def _observe(self, job: Job) -> None:
        """Let a slowdown that a job has had for long enough be known."""
        track = self._tracks[job.number]
        if track.company is not None:
            stretch = self.state.modes[job.workload][job.mode].stretch
            self.state.seen[track.company] = track.slowdown / stretch

    def _company(self, job: Job) -> tuple[int, int, int, int] | None:
        """Return the pair that a job's slowdown is a measurement of, if it is of just one."""
        machines, residents = self.state.machines, self.state.residents
        found = None
        for gpu in job.gpus:
            if len(residents[gpu]) != 2:
                return None
            other = residents[gpu][0] if residents[gpu][1] is job else residents[gpu][1]
            caps = self._caps_place[job.share_on(gpu), other.share_on(gpu)]
            pair = (machines.model[gpu], caps, job.workload, other.workload)
            if found not in (None, pair):
                return None
            found = pair
        return found

    def _speed(self, job: Job) -> float:
        """Return the work seconds a second that a job does alone on its GPUs."""
        machines, options = self.state.machines, self._options
        speed = self.state.speed[machines.model[job.gpus[0]]][job.workload]
        if options.across_nodes > 1 and len({machines.node[gpu] for gpu in job.gpus}) > 1:
            speed /= options.across_nodes
        if options.across_racks > 1 and len({machines.rack[gpu] for gpu in job.gpus}) > 1:
            speed /= options.across_racks
        return speed

    def _idle_at(self, job: Job) -> float:
        """Return when enough GPUs that hold a job will be idle if nobody else starts.

        Others run on at their present rates; who starts at this moment, alone.
        """
        state, machines = self.state, self.state.machines
        idle_s = np.full(len(machines), state.now)
        running = list(state.running.values())
        end_s = np.repeat(self._end_s(running), [other.workers for other in running])
        np.maximum.at(idle_s, [gpu for other in running for gpu in other.gpus], end_s)
        usable = state.modes[job.workload][0].memory_mib <= self._room_mib
        usable &= ~np.isin(machines.node, list(state.down))
        free = [np.sort(idle_s[usable & (self._model == k)]) for k in range(len(machines.models))]
        enough = [float(idle[job.workers - 1]) for idle in free if job.workers <= len(idle)]
        return min(enough, default=math.inf)

    def _end_s(self, jobs: Sequence[Job]) -> NDArray[np.float64]:
        """Return when each of the running jobs ends at its present rate, (n,)."""
        now, outcomes, tracks = self.state.now, self.history.outcomes, self._tracks
        truth = [(outcomes[job.number].work_s, tracks[job.number].speed) for job in jobs]
        told = [(job.done_s, job.rate, job.since_s) for job in jobs]
        work, speed = np.array(truth, dtype=np.float64).reshape(-1, 2).T
        done, rate, since = np.array(told, dtype=np.float64).reshape(-1, 3).T
        left = np.maximum(0.0, work - (done + rate * np.maximum(0.0, now - since)))
        return np.asarray(np.maximum(now, since) + left / np.where(rate, rate, speed))

    # Beginning and end.

    def _note(self, decision: Decision, decide_s: float) -> None:
        series, state = self.history.series, self.state
        series.time_s.append(state.now)
        series.pending.append(len(state.pending))
        series.demanded.append(self._demanded)
        series.busy.append(self._meter.busy)
        series.shared.append(self._meter.shared)
        series.pace.append(self._pace)
        series.decide_s.append(decide_s)
        series.gap.append(decision.proof.gap if decision.proof else math.nan)

    def _seen_as(self, trace: Trace) -> list[Job]:
        """Return the jobs as the policy sees them: with believed work."""
        place = {name: k for k, name in enumerate(self.state.names)}
        error = self._draw.standard_normal(len(trace.jobs)) * self._options.estimate_error
        return [
            Job(
                number=k,
                id=job.id,
                workload=place[job.workload or ""],
                workers=job.workers,
                work_s=job.duration_s * math.exp(error[k]),
                arrival_s=job.arrival_s,
                gsla=math.inf if job.gsla is None else job.gsla,
                weight=job.weight,
                latency=job.priority == "latency",
                tenant=job.tenant or "",
                waiting_since_s=job.arrival_s,
            )
            for k, job in enumerate(trace.jobs)
        ]

    def _refuse_treadmill(self, kept_s: float) -> None:
        """Give up where jobs come and go without any work that lasts: it would go on for ever."""
        self._barren = 0 if kept_s > _LEAST_KEPT_S else self._barren + 1
        if self._barren >= MOST_BARREN:
            rule = (
                f"{MOST_BARREN:,} times in a row a job was stopped before it did any work that "
                f"lasts (at {self.state.now:.0f} s): no more will ever end; restores take "
                f"{self._options.restart_s:g} s, and failures cost the work since a checkpoint"
            )
            raise PolicyError(rule)

    def _refuse_hopeless(self, trace: Trace) -> None:
        workloads, rules = self.state.instance.workloads, self.state.machines.rules
        fitting = {name: largest_gang(rules, one.memory_mib) for name, one in workloads.items()}
        for k, job in enumerate(trace.jobs):
            most = fitting.get(job.workload or "")
            if most is None:
                rule = f"must be a workload of the cluster's instance, got {job.workload!r}"
                raise InputError(rule, f"jobs[{k}].workload", trace.name)
            if job.workers > most:
                rule = (
                    f"must be <= {most} (GPUs of one model that hold workload {job.workload!r}), "
                    f"got {job.workers} for job {job.id!r}"
                )
                if most:  # No number of nodes helps a workload that no GPU holds.
                    rule += "; take a larger cluster (--nodes) or leave such jobs out "
                    rule += "(--max-workers)"
                raise InputError(rule, f"jobs[{k}].workers", trace.name)

    def _refuse_starvation(self, at: float) -> None:
        stuck = math.isinf(at) or self._only_failures_ahead()
        self._refuse(stuck, f"leaves {len(self.state.pending)} jobs waiting for ever")

    def _only_failures_ahead(self) -> bool:
        """Tell whether nobody runs or comes, all nodes are up, and they can but fail."""
        idle = not self.state.running and not self.state.down
        return (
            idle
            and math.isinf(self._due)
            and self._arrived == len(self._jobs)
            and all(event[2] == _FAIL for event in self._events)
        )

    def _refuse(self, broken: bool, what: str) -> None:
        if broken:
            raise PolicyError(f"the policy {what} (at {self.state.now:.0f} s)")


class _Track:
    """What the pool keeps of a job beside what the policy may see."""

    __slots__ = (
        "company",
        "delay_s",
        "done_at_start_s",
        "settled_s",
        "shares",
        "slowdown",
        "speed",
        "version",
    )

    def __init__(self) -> None:
        self.version = 0
        self.slowdown = 0.0
        self.speed = 1.0
        self.shares = False
        self.company: tuple[int, int, int, int] | None = None
        self.settled_s = 0.0
        self.delay_s = 0.0
        self.done_at_start_s = 0.0


class _Meter:
    """Counts GPUs in use and adds up their energy."""

    def __init__(self, physics: Physics, gpus: int, metered: bool) -> None:
        self.busy = self.shared = 0
        self.energy_j = 0.0 if metered else math.nan
        self._physics = physics
        self._residents = [0] * gpus
        self._power_w = [0.0] * gpus
        self._since_s = [0.0] * gpus

    def changed(self, gpu: int, residents: int, now: float) -> None:
        """Take note that the residents of a GPU are others now."""
        before = self._residents[gpu]
        self._residents[gpu] = residents
        self.busy += (residents > 0) - (before > 0)
        self.shared += (residents > 1) - (before > 1)
        if not math.isnan(self.energy_j):
            self.energy_j += self._power_w[gpu] * (now - self._since_s[gpu])
            self._power_w[gpu] = self._physics.power_w(gpu)
            self._since_s[gpu] = now


def _next_multiple(at: float, step: float) -> float:
    """Return the first multiple that is not before ``at``, but for rounding."""
    return max(at, math.ceil(at / step - 1e-9) * step)
