"""The rules that every start has to keep, whatever a policy thought."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from dovetail.executor.live.beliefs import WHOLE
from dovetail.instances.slowdown_table import SlowdownTable
from dovetail.solver.policies import Job, Start, State

GSLA_SLACK = 1e-9
"""By how much a bound may be above a gSLA: rounding."""

_SLACK_MIB = 1e-6


@dataclass(frozen=True)
class StartRules:
    """Looks a start through by code that shares nothing with any policy.

    Attributes
    ----------
    state : State
        What the policy decided on, and the starts that were let through since.
    allowed : callable
        The shares that a workload of the state may have on a device model.
    """

    state: State
    allowed: Callable[[int, str], Collection[int]]

    def broken(self, start: Start, joined: Collection[int] = ()) -> Iterator[str]:
        """Yield every rule that a start breaks; ``joined``: where others start with it."""
        state, job, gpus = self.state, start.job, start.gpus
        if state.pending.get(job.number) is not job:
            yield "it does not wait"
            return
        shares = start.shares or (None,) * job.workers
        for what, got in (("devices", len(set(gpus))), ("shares", len(shares))):
            if got != job.workers:
                yield f"it needs {job.workers} {what}, got {got}"
                return
        if len({state.machines.model[gpu] for gpu in gpus}) > 1:
            yield "its devices are of several models"
        if start.mode:
            yield "it has one mode only"
        for gpu, share in zip(gpus, shares, strict=True):
            yield from self._broken_on(job, gpu, share, gpu in joined)

    def shares_on(self, job: Job, gpu: int) -> Collection[int]:
        """Return the shares that a job may have on a device."""
        machines = self.state.machines
        return self.allowed(job.workload, machines.models[machines.model[gpu]])

    def _broken_on(self, job: Job, gpu: int, share: int | None, joined: bool) -> Iterator[str]:
        state, machines = self.state, self.state.machines
        rules, where, residents = machines.rules, machines.gpu_ids[gpu], state.residents[gpu]
        if machines.node[gpu] in state.down:
            yield f"{where} takes no jobs"
        if len(residents) >= rules.max_jobs_per_gpu:
            yield f"{where} is full"
        if share is not None and share not in self.shares_on(job, gpu):
            yield f"a share of {share} % is not allowed to it on {where}"
        alone = not residents and not joined
        if share is not None and alone and rate_alone(state, job, share) is None:
            yield f"nobody knows how fast it runs alone at {share} %"
        capped = (share or 0) + sum(other.share_on(gpu) or 0 for other in residents)
        if capped > rules.share_sum:
            yield f"the shares on {where} would sum to {capped} %"
        need = state.modes[job.workload][0].memory_mib + sum(map(state.needs_mib, residents))
        if need > machines.memory_mib[gpu] + _SLACK_MIB:
            yield f"{where} has too little memory"
        for other in residents:
            yield from self._broken_beside(job, share, other, gpu)

    def _broken_beside(self, job: Job, share: int | None, other: Job, gpu: int) -> Iterator[str]:
        state, theirs = self.state, other.share_on(gpu)
        model, table = state.machines.model[gpu], state.predicted
        there = table.caps_place.get((share, theirs))
        back = table.caps_place.get((theirs, share))
        if there is None or back is None:
            yield f"nothing is believed of it beside {other.id} at these shares"
            return
        mine = _bound(table, job, (model, there, job.workload, other.workload))
        theirs_bound = _bound(table, other, (model, back, other.workload, job.workload))
        if math.isnan(mine) or math.isnan(theirs_bound):
            yield f"it may not share with {other.id}"
        if mine > job.gsla + GSLA_SLACK:
            yield f"{other.id} would slow it to {mine:.3g}, its gSLA is {job.gsla:g}"
        if theirs_bound > other.gsla + GSLA_SLACK:
            yield f"it would slow {other.id} to {theirs_bound:.3g}, whose gSLA is {other.gsla:g}"


def _bound(table: SlowdownTable, job: Job, cell: tuple[int, int, int, int]) -> float:
    """Return what the gSLA of a job is checked against, NaN where it may not share."""
    upper, p99 = float(table.upper[cell]), float(table.p99[cell])
    known = job.latency and not math.isnan(upper) and not math.isnan(p99)
    return p99 if known else upper


def rate_alone(state: State, job: Job, share: int | None) -> float | None:
    """Return a job's rate alone at a cap, as a part of that without one; None = not measured."""
    if share is None:
        return 1.0
    throughput = state.workloads[job.workload].throughput
    if share not in throughput or WHOLE not in throughput:
        return None
    return throughput[share] / throughput[WHOLE]
