"""Traces: the jobs that arrive at a cluster over time, as others recorded them or as drawn."""

from dovetail.instances.traces._gavel import GAVEL_GPU_MODEL, gavel_models
from dovetail.instances.traces._muri import Stages, muri_stages
from dovetail.instances.traces.draws import with_gslas, with_workloads
from dovetail.instances.traces.files import KINDS, kind_of, read_trace, write_trace
from dovetail.instances.traces.filters import FILTERS, filtered
from dovetail.instances.traces.library import library_trace, library_world, trace_names
from dovetail.instances.traces.synthetic import synthetic
from dovetail.instances.traces.trace import Trace, TraceJob

__all__ = [
    "FILTERS",
    "GAVEL_GPU_MODEL",
    "KINDS",
    "Stages",
    "Trace",
    "TraceJob",
    "filtered",
    "gavel_models",
    "kind_of",
    "library_trace",
    "library_world",
    "muri_stages",
    "read_trace",
    "synthetic",
    "trace_names",
    "with_gslas",
    "with_workloads",
    "write_trace",
]
