"""Turn a policy's decision into journal events; every start is checked before it is placed.

Nothing starts while the disk has no room for the files that a start writes.

The checker of ``dovetail check`` checks the parts that are in a plan (``second_opinion``), on the
policy's state. The rest is checked here against the state machine and the pool: whether the devices
are free, and whether the shares compute correctly on them. Unknown devices are treated as busy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

from dovetail.executor.jobs import events
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import Run, Seat
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.rounds.policy_view import PolicyView
from dovetail.executor.second_opinion import malformed, violations
from dovetail.instances._record import IDLE
from dovetail.instances.errors import DovetailError
from dovetail.solver.policies.policy import Decision, Start
from dovetail.solver.policies.state import Job, Reservation, State

LEAST_BYTES: Final = 8 * 2**20
"""Space for the journal's log, and for a run's specification, claim, exit status and output."""

_LEAST_FILES: Final = 100
_LEAVING: Final = frozenset({JobState.STOPPING, JobState.LOST})


class CannotStartError(DovetailError):
    """Starts break a rule; nothing was changed, and the jobs wait."""


def require_space(directory: str) -> None:
    """Refuse a directory whose disk is almost full; do nothing if the name is empty.

    Raises
    ------
    CannotStartError
        If it is almost full.
    OSError
        If the disk cannot be examined.
    """
    if not directory:
        return
    found = os.statvfs(directory)
    few_files = found.f_files and found.f_favail < _LEAST_FILES
    if few_files or found.f_bavail * found.f_frsize < LEAST_BYTES:
        rule = f"its disk must have {LEAST_BYTES // 2**20} MiB and {_LEAST_FILES} files left"
        raise CannotStartError(f"{directory}: {rule}: nothing is started")


def in_groups(starts: Sequence[Start]) -> list[tuple[Start, ...]]:
    """Return the starts in groups that share no device with each other."""
    group_of: dict[int, list[Start]] = {}
    for start in starts:
        met = {id(group_of[gpu]): group_of[gpu] for gpu in start.gpus if gpu in group_of}
        group = [*chain.from_iterable(met.values()), start]
        group_of.update((gpu, group) for one in group for gpu in one.gpus)
    return [tuple(group) for group in {id(group): group for group in group_of.values()}.values()]


def is_fresh(state: State, start: Start) -> bool:
    """Return whether the devices of a start hold no job."""
    residents = state.residents
    return all(0 <= gpu < len(residents) and not residents[gpu] for gpu in start.gpus)


def place(
    view: PolicyView, starts: Sequence[Start], strays: Mapping[str, str]
) -> list[events.Placed]:
    """Return the events for one group of starts, and enter the starts into the view's state.

    The next ``renew`` of the view reverts starts whose events were not applied.

    Parameters
    ----------
    view : PolicyView
        The view on whose state the policy decided.
    starts : sequence of Start
        A group from ``in_groups``.
    strays : mapping of str to str
        Devices that runs without a job may still hold, with the run.

    Raises
    ------
    CannotStartError
        If one of them would break a rule (``refusal``), or the check itself fails.
    """
    names = ", ".join(start.job.id for start in starts)
    try:
        refused = refusal(view, starts, strays)
    except Exception as error:
        failed = f"{names} cannot start because the check failed: {type(error).__name__}"
        raise CannotStartError(failed) from error
    if refused:
        raise CannotStartError(f"{names} cannot start: {refused}")
    placed = []
    for start in starts:
        live = view.machine.jobs[start.job.id]
        profiling = not live.alone_only and not view.machine.may_share(live)
        run = _run(view, start)
        placed.append(events.Placed(at_s=view.state.now, run=run, profiling=profiling))
        view.enter(start)
    return placed


def refusal(view: PolicyView, starts: Sequence[Start], strays: Mapping[str, str]) -> str | None:
    """Return the rule that a group of starts would break; None if they break none."""
    unreadable = [why for start in starts for why in malformed(view.state, start)]
    if unreadable:
        return unreadable[0]
    residents = view.machine.residents()
    for start in starts:
        run = _run(view, start)
        refused = _busy(view, run, residents, strays) or _refused_by_pool(view, run, residents)
        if refused:
            return refused
    return next(iter(violations(view.state, starts)), None)


def _busy(
    view: PolicyView,
    run: Run,
    residents: Mapping[str, Sequence[LiveJob]],
    strays: Mapping[str, str],
) -> str | None:
    """Return why a run may not have its devices now; None if all are known to be free."""
    for gpu in (seat.gpu for seat in run.seats):
        device = view.machine.devices.get(gpu)
        if device is None or device.trouble:
            return f"{gpu} {device.trouble if device else 'is not a device of the pool'}"
        leaving = [job.id for job in residents[gpu] if job.state in _LEAVING]
        holder = strays.get(gpu) or next(iter(leaving), None)
        if holder:
            return f"{holder} may still be on {gpu}"
    # Events of a stray would be mistaken for events of a run with the same id.
    return f"another run {run.id} has not ended" if run.id in strays.values() else None


def _refused_by_pool(
    view: PolicyView, run: Run, residents: Mapping[str, Sequence[LiveJob]]
) -> str | None:
    """Return why the pool cannot run a job with its shares or its co-runners; None if it can."""
    for seat in run.seats:
        allowed = view.beliefs.allowed(run.spec, view.beliefs.devices.models[seat.gpu])
        if seat.share is not None and seat.share not in allowed:
            return f"a share of {seat.share_text} is not known to compute right on {seat.gpu}"
        for other in residents[seat.gpu]:
            apart = view.beliefs.pool.sharing(run.spec.owner.uid == other.spec.owner.uid)
            if apart:
                return f"{run.job} and {other.id} may not share: {apart}"
    return None


def _run(view: PolicyView, start: Start) -> Run:
    """Return the run that a start would begin."""
    live, gpu_ids = view.machine.jobs[start.job.id], view.state.machines.gpu_ids
    shares = start.shares or (None,) * start.job.workers
    seats = tuple(
        Seat(gpu=gpu_ids[gpu], share=share, memory_mib=live.spec.memory_mib)
        for gpu, share in zip(start.gpus, shares, strict=True)
    )
    first = view.beliefs.isolation(live) == "latency"
    return Run(
        id=f"{live.id}.{live.runs + 1}",
        job=live.id,
        spec=live.spec,
        seats=seats,
        isolated=first or IDLE in shares,
    )


def stop_reason(decision: Decision, job: Job) -> str:
    """Return for whom a decision stops a job, as its owner reads it."""
    starts = [one.job.id for one in decision.starts if not {*job.gpus}.isdisjoint(one.gpus)]
    others = ", ".join(name for name in starts if name != job.id)
    return f"the policy gives its devices to {others or 'others'}"


def reservations(
    view: PolicyView, wanted: Mapping[int, Reservation], now_s: float
) -> list[events.Reserved]:
    """Return the events that change the reservations in the journal to those of a decision."""
    jobs, ids = view.state.pending, view.state.machines.gpu_ids
    kept = {
        jobs[number].id: (tuple(ids[gpu] for gpu in one.gpus), one.until_s)
        for number, one in wanted.items()
        if number in jobs and all(0 <= gpu < len(ids) for gpu in one.gpus)
    }
    known = {job: (one.gpus, one.until_s) for job, one in view.machine.reserved.items()}
    gone = {job: ((), 0.0) for job in known if job not in kept}
    return [
        events.Reserved(at_s=now_s, job=job, gpus=gpus, until_s=until_s)
        for job, (gpus, until_s) in (gone | kept).items()
        if known.get(job) != (gpus, until_s)
    ]
