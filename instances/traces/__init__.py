"""Traces: the jobs that arrive at a cluster over time, recorded or synthetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail.instances.traces.draws import with_gslas, with_workloads
    from dovetail.instances.traces.files import kind_of, read_trace, write_trace
    from dovetail.instances.traces.filters import FILTERS, filtered
    from dovetail.instances.traces.generated import synthetic
    from dovetail.instances.traces.kinds import TraceKind, kind_names
    from dovetail.instances.traces.library import library_trace, library_world, trace_names
    from dovetail.instances.traces.trace import Trace, TraceJob

__all__ = [
    "FILTERS",
    "Trace",
    "TraceJob",
    "TraceKind",
    "filtered",
    "kind_names",
    "kind_of",
    "library_trace",
    "library_world",
    "read_trace",
    "synthetic",
    "trace_names",
    "with_gslas",
    "with_workloads",
    "write_trace",
]

_HOME = {
    "draws": ("with_gslas", "with_workloads"),
    "files": ("kind_of", "read_trace", "write_trace"),
    "filters": ("FILTERS", "filtered"),
    "kinds": ("TraceKind", "kind_names"),
    "library": ("library_trace", "library_world", "trace_names"),
    "generated": ("synthetic",),
    "trace": ("Trace", "TraceJob"),
}


def __getattr__(name: str) -> object:
    """Import a name when it is first used: the command line needs only names of formats."""
    from importlib import import_module

    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"dovetail.instances.traces.{module}"), name)
    raise AttributeError(f"module 'dovetail.instances.traces' has no attribute {name!r}")
