"""Invariants of every state, written without the state machine's own code.

If one of them is violated, a job may be lost, run twice or share what it must not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from dovetail.executor.jobs.live_jobs import KEPT_STEPS, LiveJob
from dovetail.executor.jobs.state_machine import StateMachine

_WAITS = {"submitted", "waiting"}
_HOLDS = {"starting", "profiling", "running", "paused", "stopping", "lost"}
_RUNS = {"profiling", "running", "paused"}
_ENDED = {"finished", "failed", "cancelled"}


def violations(machine: StateMachine) -> tuple[str, ...]:
    """Return what does not hold of a state machine, a line each; nothing where all is well."""
    found = [*_of_all(machine)]
    for name, job in machine.jobs.items():
        rules = (*_of_history(job), *_of_run(job), *_of_profile(machine, job), *_of_stop(job))
        found += [f"{name}: {rule}" for rule in rules]
    return (*found, *_of_devices(machine))


def _of_all(machine: StateMachine) -> Iterator[str]:
    numbers = [job.sequence for job in machine.jobs.values()]
    if numbers != sorted(set(numbers)) or numbers[-1:] > [machine.sequence]:
        yield "the jobs are not in the order of submission"
    if not len(machine.jobs) <= machine.submitted <= machine.sequence:
        yield f"{len(machine.jobs)} jobs are known, {machine.submitted} were submitted"
    if {name for _, _, name in machine.over} != {
        name for name, job in machine.jobs.items() if job.state in _ENDED
    }:
        yield "the index of what is over is not what the jobs are"
    if any(number > machine.sequence for number in machine.unrecorded):
        yield "something is measured that has not happened yet"
    waits = {name: job for name, job in machine.jobs.items() if job.state in _WAITS}
    if machine.queued != {name: job for name, job in waits.items() if not job.barred}:
        yield "the index of jobs that wait for devices is not what the jobs are"
    if machine.barred != {name: job for name, job in waits.items() if job.barred}:
        yield "the index of jobs that are held or wait for others is not what the jobs are"
    if machine.resting != {name: job for name, job in waits.items() if job.again_s is not None}:
        yield "the index of services that rest is not what the jobs are"
    if machine.holding != {name: job for name, job in machine.jobs.items() if job.state in _HOLDS}:
        yield "the index of jobs that hold devices is not what the jobs are"
    over = {name for name, job in machine.jobs.items() if job.state in _ENDED}
    if any(over & {*job.awaits} for job in waits.values()):
        yield "a job waits for the end of one that is over"
    of_array = Counter(
        job.array
        for job in machine.jobs.values()
        if job.spec.most_running is not None
        and (job.state in _HOLDS or (job.state in _WAITS and not job.barred))
    )
    if machine.active != of_array:
        yield "the count of each array's active jobs is not what the jobs are"
    for job in machine.jobs.values():
        most, active = job.spec.most_running, of_array[job.array]
        alone = job.state in _WAITS and job.crowded and not (job.held or job.awaits)
        if most is not None and (active > most or (alone and active < most)):
            yield f"{job.id}: {active} of its array run or compete, {most} may"
    waiting = [job.spec.owner.uid for job in machine.queued.values()]
    if machine.waiting != Counter(waiting):
        yield "the count of each user's waiting jobs is not what the jobs are"
    if not {*waiting} <= machine.used.keys():
        yield "of a user whose jobs wait it is not known what was used"
    reserved = [gpu for kept in machine.reserved.values() for gpu in kept.gpus]
    if not machine.reserved.keys() <= machine.queued.keys():
        yield "devices are reserved for a job that does not wait"
    if not machine.devices.keys() >= {*reserved}:
        yield "a device is reserved that was never there"
    for name, job in machine.jobs.items():
        if job.id != name:
            yield f"{job.id} is filed as {name}"


def _of_history(job: LiveJob) -> Iterator[str]:
    states = [str(step.state) for step in job.history]
    if not states or states[-1] != job.state:
        yield f"it is {job.state}, and its history says {states[-1:]}"
    if any(state in _ENDED for state in states[:-1]):
        yield f"it lived on after its end: {', '.join(states)}"
    placed = sum(
        1 for before, after in pairwise(states) if before in _WAITS and after == "starting"
    )
    # A service forgets the oldest.
    if placed != job.runs and not (job.spec.service and len(states) > KEPT_STEPS):
        yield f"it was placed {placed} times and has {job.runs} runs"


def _of_run(job: LiveJob) -> Iterator[str]:
    if (job.run is None) != (job.runs == 0):
        yield f"it has {job.runs} runs, and its last one is {job.run}"
    if job.run is None:
        if job.state in _HOLDS:
            yield f"it is {job.state} without a run"
        return
    if (job.run.id, job.run.job, job.run.spec) != (f"{job.id}.{job.runs}", job.id, job.spec):
        yield f"its run is {job.run.id} of {job.run.job}, or not what was submitted"
    if len(job.ranks) != len(job.run.seats):
        yield f"{len(job.ranks)} ranks are on {len(job.run.seats)} devices"
    yield from _of_ranks(job)


def _of_ranks(job: LiveJob) -> Iterator[str]:
    ranks = Counter(str(rank.state) for rank in job.ranks)
    if (job.state in _HOLDS) != (ranks["over"] < len(job.ranks)):
        yield f"it is {job.state} with {ranks['over']} of {len(job.ranks)} ranks over"
    if job.state in _RUNS and ranks["ready"] + ranks["over"] < len(job.ranks):
        yield f"it is {job.state} with ranks that are {', '.join(sorted(ranks))}"
    if (job.state == "lost") != (ranks["lost"] > 0) and job.state != "stopping":
        yield f"it is {job.state} with {ranks['lost']} ranks lost"
    if job.state == "finished" and any(rank.status != 0 for rank in job.ranks):
        yield f"it finished with statuses {[rank.status for rank in job.ranks]}"
    if any(rank.state == "ready" and not rank.proven for rank in job.ranks):
        yield "a rank is ready without proof"


def _of_profile(machine: StateMachine, job: LiveJob) -> Iterator[str]:
    known = job.spec.key in machine.profiled
    if job.state in _WAITS and (job.state == "waiting") != known:
        yield f"it is {job.state}, and its workload has {'a' if known else 'no'} profile"
    if job.state == "profiling" and (known or job.alone_only or not job.profiling):
        yield "it is measured alone for nothing"


def _of_stop(job: LiveJob) -> Iterator[str]:
    if job.state in _RUNS and (job.state == "paused") != bool(job.paused):
        yield f"it is {job.state}, and it is {job.paused} that it is to stand still"
    if job.stop_then and job.state in {"starting", "profiling", "running", "paused", "lost"}:
        yield f"it is {job.state} although it is to {job.stop_then}"
    if job.spec.service and (
        job.state == "finished" or (job.state == "failed" and not _gave_up(job))
    ):
        yield f"it is a service without an end, and {job.state}: {job.why}"
    if job.again_s is not None and (not job.spec.service or job.state not in _WAITS):
        yield f"it is {job.state}, and rests"
    if job.failures > job.spec.retries and job.state not in _ENDED:
        yield f"it lives after {job.failures} failures, {job.spec.retries} retries"


def _gave_up(job: LiveJob) -> bool:
    """Return whether a service may have ended for good: by a stop, or by ending too often."""
    return job.stop_then == "fail" or 0 < job.spec.retries < job.quick_ends


def _of_devices(machine: StateMachine) -> Iterator[str]:
    held: dict[str, list[LiveJob]] = {}
    for job in machine.jobs.values():
        if job.state in _HOLDS and job.run is not None:
            for seat in job.run.seats:
                held.setdefault(seat.gpu, []).append(job)
    for gpu, jobs in held.items():
        names = ", ".join(job.id for job in jobs)
        if gpu not in machine.devices:
            yield f"{gpu}: {names} on an unknown device"
        alone = [job.id for job in jobs if job.alone_only or job.spec.key not in machine.profiled]
        if alone and len(jobs) > 1:
            yield f"{gpu}: {', '.join(alone)} must run alone, and {names} are there"
        first = [f"j{int(job.id[1:]) - (job.spec.place or 0)}" for job in jobs if job.spec.service]
        if len({*first}) < len(first):
            yield f"{gpu}: replicas of one service are there: {names}"
        staying = {job.id for job in jobs if job.state != "stopping"}
        for pair in machine.apart:
            if staying.issuperset(pair):
                yield f"{gpu}: {' and '.join(pair)} were separated, and both are there"
