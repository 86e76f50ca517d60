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
from typing import Final

import numpy as np

from dovetail.advising.reader import Reader
from dovetail.advising.readers._cells import TablePart, cells, header_and_parts
from dovetail.advising.readers._long_form import (
    TIMES,
    LongForm,
    MetricCells,
    SeriesClock,
    long_samples,
    stem_of,
)
from dovetail.advising.readers._metrics import (
    FRACTIONS,
    GpuMetric,
    metric_in,
    metric_of,
    scaled,
)
from dovetail.advising.readers._nvidia_smi import is_query
from dovetail.advising.readers._series import SampledGpu, Samples, gpu_name
from dovetail.advising.readers._times import is_time, times_s
from dovetail.advising.usage import UsageRecords
from dovetail.instances._record import listed, shown
from dovetail.instances.errors import InputError, source_name

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


def _recognises(name: str, start: str) -> bool:
    lines = start.split("\n", 2)
    header = cells(lines[0])
    if len(header) < 2 or _OF_TABLE.issubset(header) or is_query(header):
        return False
    return _long(header, name) is not None or _is_wide(header, name)


def _long(header: Sequence[str], name: str) -> LongForm | None:
    """Return the columns of a long series, None if it is none."""
    lower = [cell.lower() for cell in header]
    time = next((at for at, cell in enumerate(lower) if cell in TIMES), None)
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
    of_file = metric_in(stem_of(name))
    if not metrics and _VALUE in lower and of_file is not None:
        metrics[lower.index(_VALUE)] = of_file
    tells = any(metric.quantity in (*FRACTIONS, "memory_mib") for metric in metrics.values())
    return LongForm(time, words, metrics) if tells else None


def _is_wide(header: Sequence[str], name: str) -> bool:
    if metric_in(stem_of(name)) is None or _VALUE in [cell.lower() for cell in header]:
        return False
    return header[0].lower() in TIMES or all(map(is_time, header[1:]))


def _read(path: Path) -> UsageRecords:
    source = source_name(path)
    line, header, parts = header_and_parts(path)
    twice = next((cell for cell in header if header.count(cell) > 1), None)
    if twice is not None:
        rule = f"must name each column once, got {shown(twice)} twice"
        raise InputError(rule, f"line {line}", source)
    long = _long(header, path.name)
    if long is not None:
        return _read_long(path, header, long, parts)
    metric = metric_in(stem_of(path))
    by_columns = header[:1] and header[0].lower() in TIMES
    if metric is None or not (by_columns or (len(header) > 1 and all(map(is_time, header[1:])))):
        raise _unknown(header, line, source)
    read = _by_columns if by_columns else _by_rows
    return read(path, header, metric, parts)


def _unknown(header: Sequence[str], line: int, source: str) -> InputError:
    rule = "must have a column of times and one of a metric (such as gpu_util_percent or"
    rest = "memory_used_mib), or be named after its metric (gpu_util_percent.csv)"
    return InputError(f"{rule} {rest}, got {listed(header) or 'none'}", f"line {line}", source)


def _read_long(
    path: Path, header: Sequence[str], form: LongForm, parts: Iterator[TablePart]
) -> UsageRecords:
    stem = stem_of(path)
    samples, clock = long_samples(
        source_name(path), header, form, parts, lambda words: _gpu(words, stem)
    )
    return samples.usage(_notes(clock, "gpu" in form.words))


def _gpu(words: Mapping[str, str], default: str) -> SampledGpu:
    """Return the GPU that the words of a row name."""
    given = {name: text.strip() for name, text in words.items()}
    given = {name: text for name, text in given.items() if text.lower() not in ("", "none", "null")}
    job, gpu, node = given.get("job"), given.get("gpu", ""), given.get("node")
    if job is not None and "namespace" in given:
        job = f"{given['namespace']}/{job}"
    # A number names a GPU only on its node: without one, on that of the file.
    own = gpu_name(node or (default if gpu.isdecimal() else None), gpu) or default
    return SampledGpu(
        job or own,
        gpu,
        node,
        given.get("gpu_model"),
        given.get("user"),
        given.get("name"),
        known=job is not None,
    )


def _notes(clock: SeriesClock, names_gpus: bool) -> tuple[str, ...]:
    return (*((_UTC,) if clock.without_zone else ()), *(() if names_gpus else (_ONE_GPU,)))


def _by_columns(
    path: Path, header: Sequence[str], metric: GpuMetric, parts: Iterator[TablePart]
) -> UsageRecords:
    """Read a column of times, and one for each job."""
    source = source_name(path)
    clock = SeriesClock(header[0], source)
    values = MetricCells(metric, stem_of(path), source)
    samples = Samples(source)
    codes = [
        samples.code(SampledGpu(name or f"column {at}")) for at, name in enumerate(header[1:], 2)
    ]
    gathered = []
    for part in parts:
        samples.expect(len(part.lines) * len(codes), 1)
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
) -> UsageRecords:
    """Read a row for each job, and columns named by times."""
    source = source_name(path)
    refuse: Callable[[int, str], InputError] = lambda at, rule: InputError(  # noqa: E731
        rule, f"line 1: column {at + 2}", source
    )
    times = times_s(header[1:], np.nan, refuse)
    values = MetricCells(metric, stem_of(path), source)
    samples = Samples(source)
    gathered = []
    for part in parts:
        samples.expect(len(part.lines) * len(times), 1)
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
