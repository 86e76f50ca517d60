"""Reading traces in our own and other formats; writing our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dovetail.instances.errors import InputError, source_name
from dovetail.instances.reading.contents import FilePath, write_bytes
from dovetail.instances.reading.tables import first_line
from dovetail.instances.traces._sacct import COMMAND
from dovetail.instances.traces._table import csv_of, parquet_of
from dovetail.instances.traces.kinds import kinds_with, require_options, trace_kind
from dovetail.instances.traces.trace import Trace

_INSTANCE: Final = "dovetail-instance/"


def read_trace(path: FilePath, kind: str | None = None, **options: Any) -> Trace:  # noqa: ANN401
    """Read a trace from a file.

    Parameters
    ----------
    path : str or path
        The file; decompressed if it is a gzip file.
    kind : str, optional
        Its format, one of ``kind_names()``; by default recognised by its name or by its first
        line.
    **options
        Options of some formats; None means not given.

        - ``csv`` (the default if ``columns`` are given) and ``parquet``: ``columns``, the file's
          column for each field of ``TraceJob``, as in ``{"arrival_s": "submit_time"}``. Of the
          other columns, only required ones are read, and jobs without an id are called
          ``job-LINE``.
        - ``swf``: ``cores_per_gpu``, the number of processors that make one GPU (default: 1),
          rounded up.
        - a format of a plugin: those that its ``TraceKind`` names (``docs/howto/traces.md``).

    Returns
    -------
    Trace
        Named after its file. Jobs without GPUs or duration are left out; ``notes`` says how many.

    Raises
    ------
    InputError
        With file, line and column of the first value that breaks a rule.
    UnsupportedError
        For Parquet without the extra that reads it.
    """
    place = Path(path)
    given = {name: value for name, value in options.items() if value is not None}
    kind = kind_of(place, *given) if kind is None else kind
    reader = trace_kind(kind)
    require_options(kind, given)
    return reader.read(place, place.name.split(".")[0] or "trace", **given)


def write_trace(path: FilePath, trace: Trace) -> None:
    """Write a trace to a file; `read_trace` reads back the same jobs.

    Parameters
    ----------
    path : str or path
        Parquet for ``.parquet``, CSV for other names; compressed if it ends in ``.gz``. The file
        is written atomically.
    trace : Trace
        The trace to write. Its name and notes are not written: a trace is named after its file.

    Raises
    ------
    InputError
        When the file cannot be written.
    UnsupportedError
        For Parquet without the extra that writes it.
    """
    packed = parquet_of if Path(path).suffix == ".parquet" else csv_of
    write_bytes(path, packed(trace))


def kind_of(path: FilePath, *options: str) -> str:
    """Return the format of a trace by the ending of its name, or else by its first line.

    It is ``csv`` if no other format is recognised. Only formats that take the given options of
    ``read_trace`` are considered.

    Raises
    ------
    InputError
        When the file cannot be read, or is recognised as something other than a trace.
    """
    path = Path(path)
    kinds = kinds_with(options)
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    for name, kind in kinds.items():
        if ending in kind.endings:
            return name
    first = first_line(path)
    if ending in (".yaml", ".yml") or _INSTANCE in first:
        rule = "must be a table of jobs and when they arrive; an instance is planned, or is a world"
        raise InputError(rule, "", source_name(path))
    try:
        for name, kind in kinds.items():
            if kind.recognises(first):
                return name
    except InputError as error:
        raise error.at(source_name(path)) from None
    if first.lstrip().startswith("{"):
        raise InputError(
            f"must be a table, got JSON; print Slurm's accounting by {COMMAND}",
            "",
            source_name(path),
        )
    return "csv"
