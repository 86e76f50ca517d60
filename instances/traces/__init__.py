"""Traces: the jobs that arrive at a cluster over time, as others recorded them or as drawn."""

from dovetail.instances.traces._muri import Stages, muri_stages
from dovetail.instances.traces.files import KINDS, read_trace, write_trace
from dovetail.instances.traces.trace import Trace, TraceJob

__all__ = ["KINDS", "Stages", "Trace", "TraceJob", "muri_stages", "read_trace", "write_trace"]
