"""Small traces for tests."""

from __future__ import annotations

from dovetail.instances.traces import Trace, TraceJob


def trace(*jobs, **fields):
    """Return a trace of (arrival, workers, duration) named a, b, c, ..."""
    return Trace.of(
        "made",
        (
            TraceJob(name, float(arrival), workers, float(duration), **fields)
            for name, (arrival, workers, duration) in zip("abcdefgh", jobs, strict=False)
        ),
    )


def ids(of):
    """Return the ids of a trace's jobs, in order, as one text."""
    return "".join(job.id for job in of.jobs)
