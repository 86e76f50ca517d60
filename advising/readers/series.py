"""Series of utilisation as CSV, one row for a sample, or one column or row for a job.

The long form has a time, words that name the job or the GPU, and a column for each metric, or one
column ``value`` whose metric is in the name of the file (as in cluster-trace-v2026-GenAI). The wide
form has one metric, which is in the name of the file, too: a column of times and one for each job,
or a row for each job and columns named by times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.reader import Reader
from dovetail.advising.readers._cells import TablePart, cells, header_and_parts
from dovetail.advising.readers._metrics import (
    FRACTIONS,
    GpuMetric,
    cell_numbers,
    factor_of,
    limit_of,
    metric_in,
    metric_of,
    scaled,
    unit_in,
)
from dovetail.advising.readers._series import SampledGpu, Samples, gpu_name
from dovetail.advising.readers._times import is_time, times_s
from dovetail.advising.usage import Usage
from dovetail.instances._record import listed, shown
from dovetail.instances.errors import InputError, source_name

_TIMES: Final[Mapping[str, float]] = MappingProxyType(
    {
        **dict.fromkeys(("time", "timestamp", "timestamps", "timestamp_anon", "datetime"), np.nan),
        **dict.fromkeys(("date", "ts", "t", "_time", "epoch", "moment"), np.nan),
        **dict.fromkeys(("time_s", "timestamp_s", "ts_s", "epoch_s", "seconds"), 1.0),
        **dict.fromkeys(("time_ms", "timestamp_ms", "ts_ms", "epoch_ms", "unix_ms"), 1e-3),
    }
)
"""Columns of times, and the seconds of their unit if the name says it."""

_WORDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "job": (
            *("job", "job_id", "jobid", "hpc_job", "slurm_job_id", "exported_pod", "pod"),
            *("pod_name", "workload", "app", "task", "container_id", "container_ip", "container"),
            *("container_name", "service"),
        ),
        "namespace": ("exported_namespace", "namespace"),
        "user": ("user", "username", "owner", "user_id"),
        "gpu": (
            *("uuid", "gpu_uuid", "gpu", "gpu_id", "gpu_index", "index", "device", "device_id"),
            "minor_number",
        ),
        "node": ("hostname", "host", "node", "node_name", "server", "machine", "instance"),
        "gpu_model": ("gpu_model", "modelname", "model_name", "gpu_name", "gpu_type"),
        "name": ("job_name", "name", "workload_name"),
    }
)
"""Columns of words by their meaning; the first that the header has is taken."""

_OF_TABLE: Final = frozenset(("job", "gpus"))
_VALUE: Final = "value"
_UTC: Final = "Times without a zone are taken as UTC."
_ONE_GPU: Final = "The series names no GPUs: each job is taken to use one."


class _LongForm(NamedTuple):
    """What the columns of a long series are: their positions in the header."""

    time: int
    words: Mapping[str, int]
    metrics: Mapping[int, GpuMetric]


def _recognises(name: str, start: str) -> bool:
    lines = start.split("\n", 2)
    header = cells(lines[0])
    if len(header) < 2 or _OF_TABLE.issubset(header) or _is_of_nvidia_smi(header):
        return False
    return _long(header, name) is not None or _is_wide(header, name)


def _is_of_nvidia_smi(header: Sequence[str]) -> bool:
    """Return whether all columns have names of ``nvidia-smi --query-gpu``."""
    fields = [cell.partition("[")[0].strip() for cell in header]
    plain = {"timestamp", "index", "uuid", "name", "gpu_name", "gpu_uuid", "pid", "process_name"}
    plain |= {"count", "pstate", "serial", "driver_version", "gpu_serial", "gpu_bus_id"}
    dotted = any("." in field or field == "used_gpu_memory" for field in fields)
    return dotted and all("." in field or field in plain for field in fields)


def _long(header: Sequence[str], name: str) -> _LongForm | None:
    """Return the columns of a long series, None if it is none."""
    lower = [cell.lower() for cell in header]
    time = next((at for at, cell in enumerate(lower) if cell in _TIMES), None)
    if time is None:
        return None
    words = {}
    for meaning, names in _WORDS.items():
        found = next((lower.index(one) for one in names if one in lower), None)
        if found is not None:
            words[meaning] = found
    metrics: dict[int, GpuMetric] = {}
    for at, cell in enumerate(header):
        metric = metric_of(cell)
        if at == time or at in words.values() or metric is None:
            continue
        if metric.quantity not in {one.quantity for one in metrics.values()}:
            metrics[at] = metric
    of_file = metric_in(_stem(name))
    if not metrics and _VALUE in lower and of_file is not None:
        metrics[lower.index(_VALUE)] = of_file
    tells = any(metric.quantity in (*FRACTIONS, "memory_mib") for metric in metrics.values())
    return _LongForm(time, words, metrics) if tells else None


def _is_wide(header: Sequence[str], name: str) -> bool:
    if metric_in(_stem(name)) is None or _VALUE in [cell.lower() for cell in header]:
        return False
    return header[0].lower() in _TIMES or all(map(is_time, header[1:]))


def _stem(name: str) -> str:
    return Path(name).name.removesuffix(".gz").rpartition(".")[0] or Path(name).name


def _read(path: Path) -> Usage:
    source = source_name(path)
    line, header, parts = header_and_parts(path)
    twice = next((cell for cell in header if header.count(cell) > 1), None)
    if twice is not None:
        rule = f"must name each column once, got {shown(twice)} twice"
        raise InputError(rule, f"line {line}", source)
    long = _long(header, path.name)
    if long is not None:
        return _read_long(path, header, long, parts)
    metric = metric_in(_stem(path.name))
    by_columns = header[:1] and header[0].lower() in _TIMES
    if metric is None or not (by_columns or (len(header) > 1 and all(map(is_time, header[1:])))):
        raise _unknown(header, line, source)
    read = _by_columns if by_columns else _by_rows
    return read(path, header, metric, parts)


def _unknown(header: Sequence[str], line: int, source: str) -> InputError:
    rule = "must have a column of times and one of a metric (such as gpu_util_percent or"
    rest = "memory_used_mib), or be named after its metric (gpu_util_percent.csv)"
    return InputError(f"{rule} {rest}, got {listed(header) or 'none'}", f"line {line}", source)


class _MetricCells:
    """The numbers of a metric in parts, until their unit is known from the largest."""

    def __init__(self, metric: GpuMetric, name: str, source: str) -> None:
        self._metric, self._name, self._source = metric, name, source
        self._most = 0.0
        self._where = ""

    def of(self, texts: Sequence[str], part: TablePart, column: int) -> NDArray[np.float64]:
        """Return the numbers of cells, in the unit of the file."""
        if np.isnan(self._metric.factor):
            self._metric = self._metric._replace(factor=unit_in(texts[:100]))
        found = cell_numbers(texts, part.refuse(column, self._name, self._source))
        if np.isfinite(found).any():
            row = int(np.nanargmax(found))
            if found[row] > self._most:
                self._most, self._where = float(found[row]), f"line {part.lines[row]}: {self._name}"
        return found

    def factor(self) -> float:
        """Return the factor to the unit of the quantity; refuse numbers above the most."""
        try:
            factor = factor_of(self._metric, self._most, self._name)
        except InputError as error:
            raise error.at(self._source) from None
        most = limit_of(self._metric, factor)
        if self._most > most:
            rule = f"must be <= {most:g}, got {self._most:.15g}"
            raise InputError(rule, self._where, self._source)
        return factor


class _SeriesClock:
    """The times of a series; all parts have the unit of the first."""

    def __init__(self, name: str, source: str) -> None:
        self._name, self._source = name, source
        self._factor = _TIMES.get(name.lower(), np.nan)
        self.without_zone = False

    def times_s(self, texts: Sequence[str], part: TablePart, column: int) -> NDArray[np.float64]:
        refuse = part.refuse(column, self._name, self._source)
        times = times_s(texts, self._factor, refuse)
        self.without_zone |= _without_zone(texts[0])
        if np.isnan(self._factor) and _is_number(texts[0]):
            first = float(texts[0])
            self._factor = times[0] / first if first else np.nan
        return times


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _without_zone(text: str) -> bool:
    clock = text.strip()[10:]
    return not _is_number(text) and not any(mark in clock for mark in ("Z", "z", "+", "-"))


def _read_long(
    path: Path, header: Sequence[str], long: _LongForm, parts: Iterator[TablePart]
) -> Usage:
    source = source_name(path)
    clock = _SeriesClock(header[long.time], source)
    values = {at: _MetricCells(metric, header[at], source) for at, metric in long.metrics.items()}
    samples = Samples(source)
    codes: dict[tuple[str, ...], int] = {}
    gathered = []
    named = list(long.words)
    for part in parts:
        times = clock.times_s(part.columns[long.time], part, long.time)
        words = [part.columns[long.words[name]] for name in named]
        rows = list(zip(*words, strict=True)) if words else [()] * len(times)
        for row in dict.fromkeys(rows):
            if row not in codes:
                gpu = _gpu(dict(zip(named, row, strict=True)), _stem(path.name))
                codes[row] = samples.code(gpu)
        gpus = np.array([codes[row] for row in rows])
        gathered.append(
            (gpus, times, {at: one.of(part.columns[at], part, at) for at, one in values.items()})
        )
    factors = {at: one.factor() for at, one in values.items()}
    for gpus, times, columns in gathered:
        quantities = {
            long.metrics[at].quantity: scaled(long.metrics[at].quantity, column, factors[at])
            for at, column in columns.items()
        }
        samples.add(gpus, times, quantities)
    return samples.usage(_notes(clock, "gpu" in long.words))


def _gpu(words: Mapping[str, str], default: str) -> SampledGpu:
    """Return the GPU that the words of a row name."""
    given = {name: text.strip() for name, text in words.items()}
    given = {name: text for name, text in given.items() if text.lower() not in ("", "none", "null")}
    job, gpu, node = given.get("job"), given.get("gpu", ""), given.get("node")
    if job is not None and "namespace" in given:
        job = f"{given['namespace']}/{job}"
    own = gpu_name(node, gpu) or default
    return SampledGpu(
        job or own,
        gpu,
        node,
        given.get("gpu_model"),
        given.get("user"),
        given.get("name"),
        known=job is not None,
    )


def _notes(clock: _SeriesClock, names_gpus: bool) -> tuple[str, ...]:
    return (*((_UTC,) if clock.without_zone else ()), *(() if names_gpus else (_ONE_GPU,)))


def _by_columns(
    path: Path, header: Sequence[str], metric: GpuMetric, parts: Iterator[TablePart]
) -> Usage:
    """Read a column of times, and one for each job."""
    source = source_name(path)
    clock = _SeriesClock(header[0], source)
    values = _MetricCells(metric, _stem(path.name), source)
    samples = Samples(source)
    codes = [
        samples.code(SampledGpu(name or f"column {at}")) for at, name in enumerate(header[1:], 2)
    ]
    gathered = []
    for part in parts:
        times = clock.times_s(part.columns[0], part, 0)
        found = [values.of(column, part, at) for at, column in enumerate(part.columns[1:], 1)]
        gathered.append((times, found))
    factor = values.factor()
    for times, found in gathered:
        for code, column in zip(codes, found, strict=True):
            numbers = scaled(metric.quantity, column, factor)
            samples.add(np.full(len(times), code), times, {metric.quantity: numbers})
    return samples.usage(_notes(clock, False))


def _by_rows(
    path: Path, header: Sequence[str], metric: GpuMetric, parts: Iterator[TablePart]
) -> Usage:
    """Read a row for each job, and columns named by times."""
    source = source_name(path)
    refuse: Callable[[int, str], InputError] = lambda at, rule: InputError(  # noqa: E731
        rule, f"line 1: column {at + 2}", source
    )
    times = times_s(header[1:], np.nan, refuse)
    values = _MetricCells(metric, _stem(path.name), source)
    samples = Samples(source)
    gathered = []
    for part in parts:
        codes = [samples.code(SampledGpu(name.strip() or "(empty)")) for name in part.columns[0]]
        found = [values.of(column, part, at) for at, column in enumerate(part.columns[1:], 1)]
        gathered.append((np.array(codes), found))
    factor = values.factor()
    for codes_of, found in gathered:
        for now_s, column in zip(times, found, strict=True):
            numbers = scaled(metric.quantity, column, factor)
            samples.add(codes_of, np.full(len(codes_of), now_s), {metric.quantity: numbers})
    return samples.usage((_ONE_GPU,))


SERIES_CSV: Final = Reader("a CSV series of utilisation or memory", _recognises, _read)
