"""Simulations: a trace on a simulated cluster whose clock jumps from event to event."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dovetail.executor.rounds import run_rounds
from dovetail.executor.second_opinion import malformed, unlawful, violations
from dovetail.executor.simulation.cluster import FINISH, FIRST_KIND, SimulatedCluster
from dovetail.executor.simulation.history import Ending, History, JobTimes, Stay
from dovetail.executor.simulation.options import Options
from dovetail.formulations.rules import fit_together, largest_gang, modes, seat_refusal
from dovetail.instances.errors import DovetailError, InputError
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.instances.traces.trace import Trace
from dovetail.solver.policies.policy import Decision, Policy, Start
from dovetail.solver.policies.state import Job

_WAKE, _FAIL, _REPAIR = range(FIRST_KIND, FIRST_KIND + 3)
_ALWAYS = -1
_LEAST_KEPT_S = 1e-6
MOST_BARREN: Final = 20_000
"""Stays in a row without lasting work after which a simulation is aborted."""


class PolicyError(DovetailError):
    """A policy made an impossible decision, or left jobs waiting for ever."""


def simulate(
    trace: Trace,
    world: Instance,
    policy: Policy,
    options: Options | None = None,
    predicted: SlowdownTable | None = None,
    report: Callable[[int], None] | None = None,
) -> History:
    """Run a trace under a policy and return its history.

    Parameters
    ----------
    trace : Trace
        The jobs; each names a workload of ``world``.
    world : Instance
        Cluster, workloads and the true slowdowns; its jobs are not read.
    policy : Policy
        A new policy, since policies keep data between rounds.
    options : Options, optional
        The rules of the simulated world.
    predicted : SlowdownTable, optional
        The slowdowns that the policy sees, for the workloads and models of ``world``; by default
        the true ones.
    report : callable, optional
        Called, whenever a job ends, with the number of ended jobs.

    Raises
    ------
    InputError
        If a job can never run: its workload is unknown, or no GPU model has enough GPUs with
        enough memory.
    PolicyError
        If the policy breaks a rule or leaves jobs waiting for ever.
    """
    pool = SimulatedPool(trace, world, predicted, options or Options(), report)
    run_rounds(pool, policy)
    return pool.history


class SimulatedPool:
    """The pool of a simulation; see `simulate` for parameters and errors.

    Attributes
    ----------
    state : State
        The state that the policy sees.
    history : History
        The record so far.
    """

    def __init__(
        self,
        trace: Trace,
        world: Instance,
        predicted: SlowdownTable | None,
        options: Options,
        report: Callable[[int], None] | None = None,
    ) -> None:
        self._cluster = SimulatedCluster(world, predicted, options.observe_s, options.hosts_known)
        self.state = self._cluster.state
        self._options = options
        self._report = report
        self._draw = np.random.default_rng(options.seed)
        self._refuse_hopeless(trace)
        self._jobs = self._seen_as(trace)
        self.history = History(
            self._jobs,
            list(map(JobTimes, trace.columns.duration_s.tolist())),
            gpus=len(self.state.machines),
        )
        self._model = np.array(self.state.machines.model)
        self._able_of: dict[int, NDArray[np.bool_]] = {}
        self._arrived = 0
        self._left = len(self._jobs)
        self._wish = 0
        self._demanded = 0
        self._due = math.inf
        self._barren = 0
        self._idle_s: NDArray[np.float64] | None = None  # during a decision: when GPUs are idle
        for node in range(len(self.state.machines.node_ids)):
            self._plan_failure(node)

    # The clock.

    def advance(self) -> bool:
        """Run until the next decision is due; return False once every job has ended.

        Raises
        ------
        PolicyError
            If jobs wait and nothing more can happen.
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
        gpus = range(len(self.state.machines))
        self.history.energy_j = math.fsum(map(self._cluster.energy_j, gpus))
        return False

    def _next_event(self) -> float:
        at = self._cluster.next_s()
        if self._arrived < len(self._jobs):
            return min(at, self._jobs[self._arrived].arrival_s)
        return at

    def _process(self, at: float) -> bool:
        """Process all events of one moment; return whether they call for a decision."""
        jobs = self._jobs
        before = self.history.events
        while self._arrived < len(jobs) and jobs[self._arrived].arrival_s <= at:
            job = jobs[self._arrived]
            self.state.pending[job.number] = job
            self._arrived += 1
            self._demanded += job.workers
            self.history.events += 1
        for kind, which, version in self._cluster.advance(at):
            if kind == _WAKE and version not in (_ALWAYS, self._wish):
                continue
            self.history.events += 1
            if kind == FINISH:
                self._finish(jobs[which])
            elif kind == _FAIL:
                self._fail(which)
            elif kind == _REPAIR:
                self._repair(which)
        return self.history.events > before

    def _finish(self, job: Job) -> None:
        gpus = job.gpus
        self._leave(job, "finished")
        self._left -= 1
        self._demanded -= job.workers
        self._cluster.renew_rates(gpus)
        if self._report:
            self._report(len(self._jobs) - self._left)

    def _fail(self, node: int) -> None:
        state = self.state
        state.down.add(node)
        gpus = state.machines.node_gpus[node]
        hit = {job.number: job for gpu in gpus for job in state.residents[gpu]}
        touched = {gpu for job in hit.values() for gpu in job.gpus}
        for job in hit.values():
            self._leave(job, "failed")
        state.idle_count[node] = 0
        self._cluster.renew_rates(touched)
        self._cluster.push(state.now + self._options.repair_s, _REPAIR, node)

    def _repair(self, node: int) -> None:
        self.state.down.discard(node)
        self.state.idle_count[node] = len(self.state.machines.node_gpus[node])
        self._plan_failure(node)

    def _plan_failure(self, node: int) -> None:
        if math.isfinite(self._options.node_mtbf_s):
            after = self._draw.exponential(self._options.node_mtbf_s)
            self._cluster.push(self.state.now + after, _FAIL, node)

    # Decisions.

    def carry_out(self, decision: Decision, decide_s: float) -> None:
        """Stop and start jobs.

        Raises
        ------
        PolicyError
            If the decision breaks a rule of the round problem.
        """
        touched: set[int] = set()
        if decision.proof is not None:
            for rule in unlawful(self.state, decision.stops):
                raise self._broken(f"breaks a rule: {rule}")
        for job in decision.stops:
            if job.phase != "running":
                raise self._broken(f"stops {job.id!r}, which does not run")
            if job.latency:
                raise self._broken(f"stops {job.id!r}, which is latency-critical")
            touched.update(job.gpus)
            self._leave(job, "stopped")
        if decision.proof is not None:
            # Some policies without a proof break rules of the round problem by design.
            for rule in violations(self.state, decision.starts):
                raise self._broken(f"breaks a rule: {rule}")
        self.state.reserved = dict(decision.reserved)
        self._idle_s = None
        for start in decision.starts:
            for why in self._refusals(start):
                raise self._broken(why)
            obstacles = self._cluster.obstacles(start)
            if obstacles:
                self._crash(start, obstacles)
            else:
                self._enter(start)
                touched.update(start.gpus)
        self._cluster.renew_rates(touched)
        self._wish += 1
        if decision.wake_s is not None:
            if decision.wake_s <= self.state.now:
                raise self._broken("asks to be woken in the past")
            self._cluster.push(decision.wake_s, _WAKE, version=self._wish)
        self._note(decision, decide_s)

    def _refusals(self, start: Start) -> Iterator[str]:
        """Yield the limits of the cluster, except memory, that a start breaks."""
        state, job = self.state, start.job
        machines = state.machines
        yield from malformed(state, start)
        if len({machines.model[gpu] for gpu in start.gpus}) > 1:
            yield f"mixes GPU models for {job.id!r}"
        for gpu, share in zip(start.gpus, start.shares or (None,) * job.workers, strict=True):
            there = state.residents[gpu]
            taken = [other.share_on(gpu) for other in there]
            why = seat_refusal(machines.rules, taken, share, machines.most_jobs[gpu])
            if machines.node[gpu] in state.down:
                why = "its node is down"
            elif there and not why:
                sharers = [state.sharer(other, other.share_on(gpu), other.mode) for other in there]
                sharers.append(state.sharer(job, share, start.mode))
                if not state.tails_kept(machines.model[gpu], sharers):
                    why = "a latency-critical job would be over its gSLA"
            if why:
                yield f"puts {job.id!r} on {machines.gpu_ids[gpu]}: {why}"

    def _crash(self, start: Start, obstacles: Iterable[tuple[int, Job]]) -> None:
        """Make a start fail for lack of memory, and record which workloads clash."""
        state, job, now = self.state, start.job, self.state.now
        for gpu, other in obstacles:
            if other is job:
                raise self._broken(f"puts {job.id!r} on a GPU with too little memory for it")
            model = state.machines.model[gpu]
            state.clashes.add((model, job.workload, other.workload))
            state.clashes.add((model, other.workload, job.workload))
        self.history.stays.append(Stay(job.number, now, now, *start[1:], 0.0, 0.0, "out_of_memory"))
        self._cluster.push(now + max(self._options.restart_s, 1.0), _WAKE, version=_ALWAYS)

    def _enter(self, start: Start) -> None:
        """Put a job on its GPUs; the caller renews the rates."""
        state, job = self.state, start.job
        outcome = self.history.outcomes[job.number]
        shares_one = any(state.residents[gpu] for gpu in start.gpus)
        if shares_one and math.isnan(outcome.idle_at_s):
            outcome.idle_at_s = self._idle_at(job)
            outcome.left_s = outcome.work_s - job.done_s
        if math.isnan(outcome.first_start_s):
            outcome.first_start_s = state.now
        state.reserved.pop(job.number, None)
        delay_s = self._options.restart_s if job.starts else 0.0
        self._cluster.place(start, outcome, self._speed(start), delay_s)
        if self._idle_s is not None:
            held = list(job.gpus)
            self._idle_s[held] = np.maximum(self._idle_s[held], self._cluster.end_s(job))

    def _leave(self, job: Job, ending: Ending) -> None:
        """Take a job off its GPUs; the caller renews the rates of the jobs that stay."""
        state, now = self.state, self.state.now
        outcome, stay = self.history.outcomes[job.number], self._cluster.residences[job.number]
        self._cluster.settle(job)
        saves = ending != "failed" and self._options.saves_at_stop
        if ending != "finished" and not saves:
            job.done_s -= (job.done_s - stay.done_at_start_s) % self._options.checkpoint_s
        kept_s = job.done_s - stay.done_at_start_s
        outcome.solo_s += kept_s / stay.speed
        where = (job.number, job.started_s, now, job.gpus, job.shares, job.mode)
        self.history.stays.append(Stay(*where, stay.delay_s, kept_s, ending))
        self._refuse_treadmill(kept_s)
        self._cluster.remove(job)
        if ending == "finished":
            job.phase = "finished"
            outcome.finish_s = now
        else:
            state.pending[job.number] = job

    def _speed(self, start: Start) -> float:
        """Return the seconds of work per second that a job does alone on its GPUs."""
        machines, options, gpus = self.state.machines, self._options, start.gpus
        speed = self.state.speed[machines.model[gpus[0]]][start.job.workload]
        if options.across_nodes > 1 and len({machines.node[gpu] for gpu in gpus}) > 1:
            speed /= options.across_nodes
        if options.across_racks > 1 and len({machines.rack[gpu] for gpu in gpus}) > 1:
            speed /= options.across_racks
        return speed

    def _idle_at(self, job: Job) -> float:
        """Return when enough GPUs that can hold a job will be idle if no other job starts.

        Running jobs continue at their present rates; jobs that start now run as if alone.
        """
        state, machines = self.state, self.state.machines
        if self._idle_s is None:
            self._idle_s = self._cluster.idle_s()
        usable = self._able(job.workload)
        if state.down:
            usable = usable & ~np.isin(machines.node, list(state.down))
        free = [self._idle_s[usable & (self._model == k)] for k in range(len(machines.models))]
        nth = job.workers - 1
        return min(
            [float(np.partition(s, nth)[nth]) for s in free if nth < len(s)], default=math.inf
        )

    def _able(self, workload: int) -> NDArray[np.bool_]:
        """Return which GPUs have the memory for a worker of a workload."""
        if workload not in self._able_of:
            way = [self.state.modes[workload][0]]
            held = {mib: fit_together(way, mib) for mib in set(self.state.machines.memory_mib)}
            self._able_of[workload] = np.array([held[m] for m in self.state.machines.memory_mib])
        return self._able_of[workload]

    # Beginning and end.

    def _note(self, decision: Decision, decide_s: float) -> None:
        series, state = self.history.series, self.state
        series.time_s.append(state.now)
        series.pending.append(len(state.pending))
        series.demanded.append(self._demanded)
        series.busy.append(self._cluster.busy)
        series.shared.append(self._cluster.shared)
        series.pace.append(self._cluster.pace)
        series.decide_s.append(decide_s)
        series.gap.append(decision.proof.gap if decision.proof else math.nan)

    def _seen_as(self, trace: Trace) -> list[Job]:
        """Return the jobs as the policy sees them, with believed work."""
        place = {name: k for k, name in enumerate(self.state.names)}
        options = self._options
        error = self._draw.standard_normal(len(trace)) * options.estimate_error
        return [
            Job(
                number=k,
                id=job.id,
                workload=place[job.workload or ""],
                workers=job.workers,
                together=job.together,
                one_each=job.workers_per_node is not None,
                work_s=job.duration_s * math.exp(error[k]),
                arrival_s=job.arrival_s,
                gsla=math.inf if job.gsla is None else job.gsla,
                weight=job.weight,
                latency=job.priority == "latency",
                tenant=job.tenant or "",
                waiting_since_s=job.arrival_s,
                restart_s=options.restart_s,
                checkpoint_s=0.0 if options.saves_at_stop else options.checkpoint_s,
            )
            for k, job in enumerate(trace.jobs)
        ]

    def _refuse_treadmill(self, kept_s: float) -> None:
        """Abort if jobs start and stop without lasting work: the simulation would never end."""
        self._barren = 0 if kept_s > _LEAST_KEPT_S else self._barren + 1
        if self._barren >= MOST_BARREN:
            rule = (
                f"{MOST_BARREN:,} times in a row a job was stopped before it did any lasting work "
                f"(at {self.state.now:.0f} s), so no job will ever end; restores take "
                f"{self._options.restart_s:g} s, and failures cost the work since a checkpoint"
            )
            raise PolicyError(rule)

    def _refuse_hopeless(self, trace: Trace) -> None:
        workloads, rules = self.state.instance.workloads, self.state.machines.rules
        largest = cache(partial(largest_gang, rules))
        for k, job in enumerate(trace.jobs):
            workload = workloads.get(job.workload or "")
            if workload is None:
                rule = f"must be a workload of the cluster's instance, got {job.workload!r}"
                raise InputError(rule, f"jobs[{k}].workload", trace.name)
            one_each = job.workers_per_node is not None
            way = modes(workload, rules.per_process_mib)[0]
            most = largest(way, job.together, one_each)
            if job.workers > most:
                groups = f" in groups of {job.together} on a node" if job.together > 1 else ""
                rule = (
                    f"must be <= {most} (GPUs of one model{groups} that hold workload "
                    f"{job.workload!r}), got {job.workers} for job {job.id!r}"
                )
                if most:  # No number of nodes helps a workload that no GPU holds.
                    rule += "; take a larger cluster (--nodes) or leave such jobs out "
                    rule += "(--max-workers)"
                raise InputError(rule, f"jobs[{k}].workers", trace.name)

    def _refuse_starvation(self, at: float) -> None:
        if math.isinf(at) or self._only_failures_ahead():
            raise self._broken(f"leaves {len(self.state.pending)} jobs waiting for ever")

    def _only_failures_ahead(self) -> bool:
        """Return whether no job runs or will arrive, and only failures of nodes are ahead."""
        idle = not self.state.running and not self.state.down
        return (
            idle
            and math.isinf(self._due)
            and self._arrived == len(self._jobs)
            and self._cluster.kinds_ahead() <= {_FAIL}
        )

    def _broken(self, what: str) -> PolicyError:
        return PolicyError(f"the policy {what} (at {self.state.now:.0f} s)")


def _next_multiple(at: float, step: float) -> float:
    """Return the first multiple at or after ``at``, up to rounding."""
    return max(at, math.ceil(at / step - 1e-9) * step)
