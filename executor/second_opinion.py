"""Check decisions before they are carried out, in simulations and in live mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dovetail.executor.state_instance import instance_of_starts, starting, staying
from dovetail.instances.checker import check
from dovetail.instances.plan import Plan
from dovetail.solver.policies.policy import Start
from dovetail.solver.policies.state import State


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
    return [str(violation) for violation in check(instance, plan).violations]


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
