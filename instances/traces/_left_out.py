"""Notes on jobs of a file that a trace cannot have."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.instances.traces.trace import Trace, TraceJob


def jobs_of(name: str, found: Iterable[TraceJob | None], notes: Iterable[str] = ()) -> Trace:
    """Return the trace of the jobs of a file, read one row at a time; None is a job left out."""
    jobs, count = [], 0
    for job in found:
        count += 1
        if job is not None:
            jobs.append(job)
    return Trace.of(name, jobs, (*left_out(count - len(jobs), count), *notes))


def left_out(count: int, jobs: int) -> tuple[str, ...]:
    """Return the note that ``count`` of ``jobs`` jobs ran on no GPU or for no time."""
    if count == 0:
        return ()
    return (f"{count} of {jobs} jobs left out: no GPUs or no run time",)
