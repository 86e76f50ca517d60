"""Check decisions before they are carried out, in simulations and in live mode."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from dovetail.executor.state_instance import instance_of_starts, starting, staying
from dovetail.instances.checking.checker import violations_of_starts
from dovetail.instances.plan import Plan
from dovetail.solver.policies.policy import Start
from dovetail.solver.policies.state import Job, State

_ROUNDING: Final = 1e-8
"""Relative difference up to which times count as equal."""


def violations(state: State, starts: Sequence[Start]) -> list[str]:
    """Return a line for each rule of the round problem that a set of starts breaks.

    The rules are the ones that ``dovetail check`` applies, on the state before the starts; measured
    slowdowns of running pairs replace predictions.

    Parameters
    ----------
    state : State
        The pool; jobs that the decision stops are pending already.
    starts : sequence of Start
        Starts of pending jobs.
    """
    unreadable = [why for start in starts for why in malformed(state, start)]
    if unreadable or not starts:
        return unreadable
    instance = instance_of_starts(state, starts)
    assigned = *staying(instance), *(starting(state, start) for start in starts)
    plan = Plan.model_construct(assignments=assigned)
    return [str(violation) for violation in violations_of_starts(instance, plan)]


def unlawful(state: State, stops: Sequence[Job]) -> list[str]:
    """Return a line for each rule of stops that stopping these running jobs breaks.

    The rules are those of ``solver.policies.stops``, for policies that prove their decisions.

    Parameters
    ----------
    state : State
        The pool before the stops.
    stops : sequence of Job
        The jobs that a decision takes off their GPUs.
    """
    return [f"stops {job.id!r}, which {why}" for job in stops for why in _kept(state, job)]


def _kept(state: State, job: Job) -> Iterator[str]:
    """Yield why a job may not be stopped now."""
    now_s = state.now
    if state.running.get(job.number) is not job:
        yield "does not run"
        return
    if any(other.latency for gpu in job.gpus for other in state.residents[gpu]):
        yield "is latency-critical or shares a GPU with such a job"
    if job.checkpoint_s == math.inf:
        yield "does not resume from checkpoints"
    again_s = job.waiting_since_s + job.stops_apart_s
    if job.starts > 1 and now_s < again_s * (1 - _ROUNDING):
        yield f"was stopped {now_s - job.waiting_since_s:.0f} s ago"
    if job.gsla < math.inf:
        speeds = [of_model[job.workload] for of_model in state.speed]
        here_s = max(0.0, job.done(now_s) - job.resumed_s - job.checkpoint_s) / max(speeds)
        if now_s - job.started_s + job.restart_s > job.gsla * here_s * (1 + _ROUNDING):
            yield f"would break its gSLA of {job.gsla:g} by the restart"


def malformed(state: State, start: Start) -> Iterator[str]:
    """Yield the reasons why a start cannot be checked: its job is not waiting, for instance."""
    job, gpus = start.job, start.gpus
    if job.phase != "pending" or state.pending.get(job.number) is not job:
        yield f"starts {job.id!r}, which is {job.phase}"
    if len(set(gpus)) != job.workers or len(gpus) != job.workers:
        yield f"gives {job.id!r} {len(set(gpus))} GPUs for {job.workers} workers"
    if start.shares is not None and len(start.shares) != job.workers:
        yield f"gives {job.id!r} {len(start.shares)} shares"
    if not 0 <= start.mode < len(state.modes[job.workload]):
        yield f"runs {job.id!r} in no known mode"
    if not all(0 <= gpu < len(state.machines) for gpu in gpus):
        yield f"puts {job.id!r} on a GPU that is not there"
