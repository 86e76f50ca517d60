"""Shipped traces, each with a world for it. All jobs are synthetic."""

from __future__ import annotations

from dovetail.instances.files import read_instance
from dovetail.instances.instance import Instance
from dovetail.instances.library import TRACES
from dovetail.instances.traces._table import read_csv_trace
from dovetail.instances.traces.trace import Trace


def trace_names() -> tuple[str, ...]:
    """Return the names of the shipped traces, in the order of the manifest."""
    return tuple(TRACES.manifest)


def library_trace(name: str) -> Trace:
    """Return a shipped trace.

    Raises
    ------
    InputError
        When there is none of that name.
    """
    TRACES.entry(name)
    return read_csv_trace(TRACES.folder / f"{name}.csv", name, {})


def library_world(name: str) -> Instance:
    """Return the world of a shipped trace: cluster, workloads and slowdowns, no jobs.

    Raises
    ------
    InputError
        When there is no trace of that name.
    """
    return read_instance(TRACES.folder / f"{TRACES.entry(name).world}.yaml")
