"""Latency-critical jobs: services, which start before all others and are never stopped.

Their own rules, whatever the policy is. A policy decides which of them join running jobs, and what
joins them (``State.tails_kept``).
"""

from __future__ import annotations

from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.policy import Decision
from dovetail.solver.policies.state import Job, State


def services_first(state: State) -> Decision | None:
    """Return the starts of latency-critical jobs on idle GPUs, before a policy decides.

    None where none can start. GPUs that are reserved for other jobs stay theirs.
    """
    waiting = [job for job in state.pending.values() if job.latency]
    if not waiting:
        return None
    draft, kept = Draft(state), dict(state.reserved)
    for job in sorted(waiting, key=lambda job: job.number):
        gpus = idle_gpus(draft, job)
        others = {gpu for number, own in kept.items() if number != job.number for gpu in own.gpus}
        if gpus is not None and others.isdisjoint(gpus) and draft.hosts_bear(job, gpus):
            draft.start(job, gpus)
            kept.pop(job.number, None)
    decision = draft.decision()
    return decision._replace(reserved=kept) if decision.starts else None


def held_by_services(state: State) -> frozenset[int]:
    """Return the numbers of the running latency-critical jobs, and of all that share with one."""
    return frozenset(
        other.number
        for job in state.running.values()
        if job.latency
        for gpu in job.gpus
        for other in state.residents[gpu]
    )


def hosts(state: State) -> list[Job]:
    """Return the running latency-critical jobs that share no GPU, which others may join."""
    return [
        job
        for job in state.running.values()
        if job.latency and all(len(state.residents[gpu]) == 1 for gpu in job.gpus)
    ]


def movable(state: State) -> list[Job]:
    """Return the running jobs that a policy which preempts may stop or move."""
    held = held_by_services(state)
    return [job for number, job in state.running.items() if number not in held]
