"""Traces: the jobs that arrive at a cluster over time, as others recorded them or as drawn."""

from dovetail.instances.traces.trace import Trace, TraceJob

__all__ = ["Trace", "TraceJob"]
