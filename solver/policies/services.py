"""Latency-critical jobs: services, which start before all others and are never stopped.

These rules apply to every policy. A policy decides which services join running jobs, and which jobs
join them (``State.tails_kept``). For a service that still waits then, the GPUs that are expected to
be idle first are reserved: otherwise other jobs could keep joining each other there forever.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from operator import attrgetter

from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus
from dovetail.solver.policies.policy import Decision
from dovetail.solver.policies.queue_forecast import believed_ends
from dovetail.solver.policies.reservations import earliest, intact
from dovetail.solver.policies.state import Job, Reservation, State


def services_wait(state: State) -> bool:
    """Return whether latency-critical jobs wait."""
    return any(map(attrgetter("latency"), state.pending.values()))


def services_first(state: State) -> Decision | None:
    """Return the starts of latency-critical jobs on idle GPUs, before a policy decides.

    The result is None if none can start. GPUs that are reserved for other jobs are not used. A
    replica of a service goes to a node without one, if such a node has idle GPUs for it.
    """
    waiting = [job for job in state.pending.values() if job.latency]
    if not waiting:
        return None
    draft, kept, on = Draft(state), dict(state.reserved), _nodes_of_services(state)
    for job in sorted(waiting, key=lambda job: job.number):
        gpus = _spread(draft, job, on) or idle_gpus(draft, job)
        if gpus is not None and draft.hosts_bear(job, gpus):
            draft.start(job, gpus)
            on[job.replica_of].update(state.machines.node[gpu] for gpu in gpus)
            kept.pop(job.number, None)
    decision = draft.decision()
    return decision._replace(reserved=kept) if decision.starts else None


def _nodes_of_services(state: State) -> defaultdict[str, set[int]]:
    """Return the nodes on which each service has a replica."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for job in state.running.values():
        if job.replica_of:
            found[job.replica_of].update(state.machines.node[gpu] for gpu in job.gpus)
    return found


def _spread(draft: Draft, job: Job, on: Mapping[str, set[int]]) -> list[int] | None:
    """Return idle GPUs for a replica on nodes without one of its service; None if too few."""
    nodes = on[job.replica_of] if job.replica_of else ()
    on_nodes = (gpu for node in nodes for gpu in draft.state.machines.node_gpus[node])
    closed = [gpu for gpu in on_nodes if draft.is_idle(gpu)]
    if not closed:
        return None
    draft.keep(closed)
    found = idle_gpus(draft, job)
    draft.release(closed)
    return found


def services_kept(state: State, decision: Decision) -> Decision:
    """Return a policy's decision with the reservations of latency-critical jobs.

    A service that the decision leaves waiting has a reservation from then on, and no other job
    starts on these GPUs: starts there are removed from the decision, with its proof. A reservation
    that the policy itself returns (``Decision.reserved``) is left to it, including the jobs that it
    starts there in the meantime.
    """
    services = {number: job for number, job in state.pending.items() if job.latency}
    if not services:
        return decision
    known = {n: kept for n, kept in intact(state).items() if n in services}
    by_policy, starting = decision.reserved, {start.job.number for start in decision.starts}
    closed = {n: kept for n, kept in known.items() if n not in by_policy and n not in starting}
    decision = _without_starts(decision, _gpus(closed))
    starting = {start.job.number for start in decision.starts}
    waiting = [job for number, job in sorted(services.items()) if number not in starting]
    kept = {n: one for n, one in (known | {**by_policy}).items() if n not in starting}
    new = _new_reservations(
        state, decision, [job for job in waiting if job.number not in kept], kept
    )
    return _without_starts(decision, _gpus(new))._replace(reserved=kept | new)


def _new_reservations(
    state: State, decision: Decision, jobs: Collection[Job], kept: Mapping[int, Reservation]
) -> dict[int, Reservation]:
    """Return reservations for services that have none, on GPUs that no other service takes."""
    found: dict[int, Reservation] = {}
    if jobs:
        ends = believed_ends(state) | {job.number: state.now for job in decision.stops}
        starts = [start.gpus for start in decision.starts if start.job.latency]
        taken = {gpu for gpus in starts for gpu in gpus} | _gpus(kept)
        for job in jobs:
            reservation = earliest(state, job, ends, taken)
            if reservation is not None:
                found[job.number] = reservation
                taken.update(reservation.gpus)
    return found


def _gpus(reserved: Mapping[int, Reservation]) -> set[int]:
    return {gpu for kept in reserved.values() for gpu in kept.gpus}


def _without_starts(decision: Decision, gpus: Collection[int]) -> Decision:
    """Return a decision without its starts on these GPUs."""
    rest = decision.without(lambda start: not set(gpus).isdisjoint(start.gpus))
    return decision if rest is decision else rest._replace(proof=None)


def held_by_services(state: State) -> frozenset[int]:
    """Return the numbers of the running latency-critical jobs and of all their co-runners."""
    return frozenset(
        other.number
        for job in state.running.values()
        if job.latency
        for gpu in job.gpus
        for other in state.residents[gpu]
    )


def services_alone(state: State) -> list[Job]:
    """Return the running latency-critical jobs that share no GPU, which others may join."""
    return [
        job
        for job in state.running.values()
        if job.latency and all(len(state.residents[gpu]) == 1 for gpu in job.gpus)
    ]


def movable(state: State) -> list[Job]:
    """Return the running jobs that a preempting policy may stop or move."""
    held = held_by_services(state)
    return [job for number, job in state.running.items() if number not in held]
