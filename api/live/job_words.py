"""What the command line and the page say of jobs in the same words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dovetail.executor.jobs.states import MANY_QUICK_ENDS, QUEUED, UNDER_WAY
from dovetail.toolkit.wording import figure, lasting

if TYPE_CHECKING:
    from dovetail.executor.live.views import JobView


def name_of(job: JobView) -> str:
    """Return the name of a job, with its index in an array; empty if it is not shown."""
    place = "" if job.index is None else f"[{job.index}]"
    return f"{job.name or job.workload}{place}"


def state_text(job: JobView) -> str:
    """Return the state of a job, or ``held`` or whether a service rests or answers."""
    if job.state in QUEUED and job.held:
        return "held"
    if job.state in QUEUED and job.again_s is not None:
        return "failing" if is_failing(job) else "restarting"
    return f"{job.state.value}, not ready" if is_silent(job) else job.state.value


def memory_limit(job: JobView) -> str:
    """Return the memory limit of each worker of a job, empty if it has none."""
    if job.memory_percent is not None:
        now = f" ({job.memory_limit_mib:,.0f} MiB)" if job.memory_limit_mib is not None else ""
        return f"{job.memory_percent:.15g} % of its GPU a worker{now}"
    return "" if job.memory_mib is None else f"{job.memory_mib:,.0f} MiB a worker"


def is_failing(job: JobView) -> bool:
    """Return whether a service has ended quickly many times in a row."""
    return job.quick_ends >= MANY_QUICK_ENDS


def is_silent(job: JobView) -> bool:
    """Return whether a service runs and does not answer its probe."""
    return job.ready is False and job.state in UNDER_WAY


def service_facts(job: JobView, now_s: float) -> Iterator[tuple[str, str]]:
    """Yield name and text of what only a service has; a text is empty if there is nothing to say.

    What the user wrote is among it as it was written.
    """
    if job.service:
        several = job.replica is not None or (job.replicas or 0) > 1
        replica = f"replica {job.replica or 0} of {job.replicas}" if several else "one replica"
        yield "service", replica
        yield "address", job.address
        yield "probe", job.probe or ""
        yield "ready", "" if job.ready is None else "yes" if job.ready else "no"
        yield "restarts", _restarts(job, now_s)
    yield "requests", _requests(job)


def _restarts(job: JobView, now_s: float) -> str:
    ends = f"{job.quick_ends} quick end{'s' * (job.quick_ends > 1)} in a row"
    again = "" if job.again_s is None else f"next in {lasting(max(0.0, job.again_s - now_s))}"
    return ", ".join(filter(None, [str(job.restarts), ends if job.quick_ends else "", again]))


def _requests(job: JobView) -> str:
    if job.requests_per_s is None:
        return ""
    return f"{figure(job.requests_per_s, 3)} a second" if job.requests_per_s else "no requests"


def p99_text(job: JobView) -> str:
    """Return the 99th percentiles of the latencies that a job reports, or of its probe."""
    known = (("now", job.p99_s), ("alone", job.p99_alone_s), ("promised", job.p99_promised_s))
    return ", ".join(f"{name} {_latency(each)}" for name, each in known if each is not None)


def _latency(time_s: float) -> str:
    return f"{time_s:.3g} s" if time_s >= 1 else f"{1000 * time_s:.3g} ms"
