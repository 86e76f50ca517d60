"""Reading traces in the formats of others and our own; writing our own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dovetail.instances._record import listed, shown
from dovetail.instances._tables import first_line
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.importers.gavel_table import TRACE
from dovetail.instances.raw_files import FilePath, write_bytes
from dovetail.instances.traces import _muri, _pai, _sacct, _swf, _table
from dovetail.instances.traces._gavel import GAVEL_GPU_MODEL, read_gavel
from dovetail.instances.traces._logs import LOGS, log_of, read_log
from dovetail.instances.traces._philly_log import read_philly_log
from dovetail.instances.traces.trace import Trace

KINDS: Final = (
    *("csv", "parquet", "philly-log", *LOGS),
    *("alibaba-2020", "gavel", "muri", "sacct", "swf"),
)
_BY_ENDING: Final = {".parquet": "parquet", ".trace": "gavel", ".swf": "swf"}
_INSTANCE: Final = "dovetail-instance/"


def read_trace(
    path: FilePath,
    kind: str | None = None,
    *,
    throughputs: FilePath | None = None,
    gpu_model: str = GAVEL_GPU_MODEL,
    cores_per_gpu: int = 1,
    columns: Mapping[str, str] | None = None,
) -> Trace:
    """Read a trace from a file.

    Parameters
    ----------
    path : str or path
        The file; unpacked where its name ends in ``.gz``.
    kind : str, optional
        Its format, one of ``KINDS``; by default recognised by its name (``.parquet``, ``.trace``,
        ``.swf``) or by its first line.
    throughputs : str or path, optional
        Of ``gavel``: the file ``simulation_throughputs.json``; by default that in the folder of
        the trace or the one above.
    gpu_model : str
        Of ``gavel``: the GPU model of that file on which durations are those of jobs alone.
    cores_per_gpu : int
        Of ``swf``: how many processors make one GPU, rounded up.
    columns : mapping of str to str, optional
        Of ``csv`` (then the default) and ``parquet``: the column of the file that has a field of
        ``TraceJob``, as in ``{"arrival_s": "submit_time"}``. Of the others only those are read
        that a trace needs, and jobs without a name are called ``job-LINE``.

    Returns
    -------
    Trace
        Named after its file. Jobs of no GPUs or no duration are left out; ``notes`` says how many.

    Raises
    ------
    InputError
        With file, line and column of the first value that breaks a rule.
    UnsupportedError
        For Parquet without the extra that reads it.
    """
    place = Path(path)
    name = place.name.split(".")[0] or "trace"
    if columns and kind not in (None, "csv", "parquet"):
        raise InputError(f"are named in a csv or parquet file only, got {shown(kind)}", "columns")
    if columns and kind is None:
        kind = "parquet" if place.suffix == ".parquet" else "csv"
    match kind_of(place) if kind is None else kind:
        case "csv":
            return _table.read_csv_trace(place, name, columns or {})
        case "parquet":
            return _table.read_parquet_trace(place, name, columns or {})
        case "philly-log":
            return read_philly_log(place, name)
        case "alibaba-2020":
            return _pai.read_pai(place, name)
        case "gavel":
            return read_gavel(place, name, throughputs, gpu_model)
        case "muri":
            return _muri.read_muri(place, name)
        case "sacct":
            return _sacct.read_sacct(place, name)
        case "swf":
            return _swf.read_swf(place, name, cores_per_gpu)
        case str(other) if other in LOGS:
            return read_log(place, name, other)
    raise InputError(f"must be one of {listed(KINDS, len(KINDS))}, got {shown(kind)}", "kind")


def write_trace(path: FilePath, trace: Trace) -> None:
    """Write a trace to a file from which `read_trace` reads the same jobs.

    Parameters
    ----------
    path : str or path
        Parquet for ``.parquet``, CSV for other names; packed where it ends in ``.gz``. The file
        appears whole or not at all.
    trace : Trace
        What to write. Its name and notes are not written: a trace is called after its file.

    Raises
    ------
    InputError
        When the file cannot be written.
    UnsupportedError
        For Parquet without the extra that writes it.
    """
    packed = _table.parquet_of if Path(path).suffix == ".parquet" else _table.csv_of
    write_bytes(path, packed(trace))


def kind_of(path: FilePath) -> str:
    """Return the format of a trace by the ending of its name, or else by its first line.

    Raises
    ------
    InputError
        When the file cannot be read, or is known to be none of these and something else.
    """
    path = Path(path)
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    if ending in _BY_ENDING:
        return _BY_ENDING[ending]
    first = first_line(path)
    if ending in (".yaml", ".yml") or _INSTANCE in first:
        rule = "must be a table of jobs and when they arrive; an instance is planned, or is a world"
        raise InputError(rule, "", source_name(path))
    if first.lstrip().startswith("["):
        return "philly-log"
    if first.lstrip().startswith("{"):
        rule = "must be a table, got JSON; print Slurm's accounting by"
        raise InputError(f"{rule} {_sacct.COMMAND}", "", source_name(path))
    if _sacct.is_sacct(first):
        return "sacct"
    cells = [cell.strip() for cell in first.split(",")]
    columns = set(cells)
    if columns.issuperset(_muri.JOB_COLUMNS):
        return "muri"
    try:
        log = log_of(columns)
    except InputError as error:
        raise error.at(source_name(path)) from None
    if log is not None:
        return log
    if _pai.is_task_table(cells):
        return "alibaba-2020"
    if first.startswith(";") or len(first.split()) == len(_swf.FIELDS):
        return "swf"
    return "gavel" if first.count("\t") == len(TRACE) - 1 else "csv"
