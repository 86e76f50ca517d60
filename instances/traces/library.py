"""Traces shipped with the package, each with a world for it. All jobs are synthetic."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from dovetail.instances._record import Name, Record, Text, listed, shown
from dovetail.instances.errors import InputError
from dovetail.instances.files import read_instance
from dovetail.instances.instance import Instance
from dovetail.instances.reading.contents import parse_yaml
from dovetail.instances.traces._table import read_csv_trace
from dovetail.instances.traces.trace import Trace

__all__ = ["LibraryTrace", "library_trace", "library_world", "manifest", "trace_names"]


class LibraryTrace(Record):
    """The manifest's entry of a shipped trace; ``world`` is the instance for its jobs."""

    title: Text
    source: Text
    world: Name


class _TraceManifest(Record):
    traces: Mapping[str, LibraryTrace]


@cache
def manifest() -> Mapping[str, LibraryTrace]:
    """Return the entry of every shipped trace by its name."""
    data = parse_yaml(_file("manifest.yaml").read_text(encoding="utf-8"))
    return _TraceManifest.from_data(data, "manifest.yaml").traces


def trace_names() -> tuple[str, ...]:
    """Return the names of the shipped traces, in the order of the manifest."""
    return tuple(manifest())


def library_trace(name: str) -> Trace:
    """Return a shipped trace.

    Raises
    ------
    InputError
        When there is none of that name.
    """
    _entry(name)
    return read_csv_trace(_file(f"{name}.csv"), name, {})


def library_world(name: str) -> Instance:
    """Return the world of a shipped trace: cluster, workloads and slowdowns, no jobs.

    Raises
    ------
    InputError
        When there is no trace of that name.
    """
    return read_instance(_file(f"{_entry(name).world}.yaml"))


def _entry(name: str) -> LibraryTrace:
    if name not in manifest():
        raise InputError(f"must be one of {listed(manifest())}, got {shown(name)}", "library")
    return manifest()[name]


def _file(name: str) -> Path:
    return Path(str(files("dovetail.instances.traces").joinpath("shipped", name)))
