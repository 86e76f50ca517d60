"""Answers of Prometheus to queries of metrics of GPUs: ``/api/v1/query_range``, and ``query``.

The jobs are those of dcgm-exporter's labels (pods, or Slurm's jobs in ``hpc_job``), and of other
exporters that name pods. If the exporter itself runs in a pod, Prometheus calls the pod of the job
``exported_pod``, and ``pod`` is the exporter's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.reader import Reader
from dovetail.advising.readers._long_form import stem_of
from dovetail.advising.readers._metrics import (
    FRACTIONS,
    GpuMetric,
    factor_of,
    limit_of,
    metric_in,
    metric_of,
    scaled,
    without_blanks,
)
from dovetail.advising.readers._series import MOST_NUMBERS, SampledGpu, Samples, gpu_name
from dovetail.advising.usage import Omission, UsageRecords
from dovetail.instances._record import listed, shown
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.reading.contents import read_text

_Numbers = NDArray[np.float64]
_Labels = Mapping[str, str]

_JOBS: Final = ("hpc_job", "slurm_job_id", "slurmjobid", "jobid", "job_id")
_PODS: Final = ("pod", "pod_name", "podname")
_NAMESPACES: Final = ("namespace", "pod_namespace", "podnamespace")
_GPUS: Final = ("gpu", "minor_number", "index", "gpu_index", "gpu_id", "device")
_UUIDS: Final = ("UUID", "uuid", "gpu_uuid", "deviceuuid")
_NODES: Final = ("Hostname", "hostname", "node", "kubernetes_node", "exported_instance")
_MODELS: Final = ("modelName", "model_name", "model", "gpu_model", "name")
_USERS: Final = ("user", "username", "hpc_user")
_EXPORTER: Final = re.compile(r"(^|-)(dcgm|gpu|nvidia-smi)-exporter")
_MOST_DEEP: Final = "must not be nested so deeply"

_AGAIN: Final = "another series tells of the same GPU and time"
_PARTS: Final = "they are parts of GPUs with memory of their own, which Dovetail does not place"
_BETWEEN: Final = "no job had them, while other series of the same GPUs name one"


class _LabelledSeries(NamedTuple):
    """A series of an answer: its labels, times and values."""

    labels: _Labels
    time_s: _Numbers
    values: _Numbers


def _recognises(_name: str, start: str) -> bool:
    text = start.lstrip()
    if not text.startswith(("{", "[")):
        return False
    answer = '"resultType"' in text or ('"result"' in text and '"metric"' in text)
    return answer or bool(re.match(r'\{\s*"status"\s*:\s*"error"', text))


def _read(path: Path) -> UsageRecords:
    source = source_name(path)
    try:
        series = list(_all_series(_documents(read_text(path))))
        return _usage(series, path, source)
    except InputError as error:
        raise error if error.source else error.at(source) from None


# from the text to series


def _documents(text: str) -> Iterator[object]:
    """Yield the JSON documents of a text, one or several after each other."""
    if sum(map(text.count, ",")) > MOST_NUMBERS:
        raise InputError(f"must have at most {MOST_NUMBERS:,} numbers, got more: split it by jobs")
    decoder = json.JSONDecoder(object_hook=_compact)
    at = _after_blanks(text, 0)
    try:
        while True:
            found, at = decoder.raw_decode(text, at)
            yield found
            at = _after_blanks(text, at)
            if at == len(text):
                return
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        problem = error.msg[:1].lower() + error.msg[1:]
        raise InputError(f"is not valid JSON at {place}: {problem}") from None
    except RecursionError:
        raise InputError(_MOST_DEEP) from None
    except ValueError:  # Python reads no integer of thousands of digits
        raise InputError("must not have a number with thousands of digits") from None


def _after_blanks(text: str, at: int) -> int:
    found = re.compile(r"\s*").match(text, at)
    return found.end() if found else at


def _compact(found: dict[str, object]) -> object:
    """Return a series of an answer as arrays; all else, and a faulty series, as it is."""
    labels = found.get("metric")
    points = found.get("values", [found.get("value")])
    if not isinstance(labels, dict) or not isinstance(points, list):
        return found
    if not all(isinstance(text, str) for text in labels.values()):
        return found
    try:
        times = np.array([time for time, _ in points], dtype=np.float64)
        values = np.array([value for _, value in points], dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return found
    if times.ndim != 1 or values.ndim != 1 or not np.isfinite(times).all():
        return found
    return _LabelledSeries(labels, times, values)


def _all_series(documents: Iterable[object]) -> Iterator[_LabelledSeries]:
    for number, document in enumerate(documents):
        if isinstance(document, list) and document and not isinstance(document[0], _LabelledSeries):
            for at, one in enumerate(document):
                yield from _of_answer(one, f"[{at}]")
        else:
            yield from _of_answer(document, f"document {number + 1}" if number else "")


def _of_answer(answer: object, where: str) -> Iterator[_LabelledSeries]:
    place = f"{where}." if where else ""
    if not isinstance(answer, dict):
        raise InputError(f"must be an answer of Prometheus, got {shown(answer)}", where)
    if answer.get("status", "success") != "success":
        text = f"{answer.get('errorType', 'error')}: {answer.get('error', 'without a text')}"
        raise InputError(f"is an answer with an error: {text}", where)
    data = answer.get("data", answer)
    if not isinstance(data, dict):
        raise InputError(f"must be an object, got {shown(data)}", f"{place}data")
    kind, result = data.get("resultType", "matrix"), data.get("result")
    if kind not in ("matrix", "vector"):
        rule = f"must be matrix or vector, got {shown(kind)}"
        raise InputError(rule, f"{place}data.resultType")
    if not isinstance(result, list):
        raise InputError(f"must be a list, got {shown(result)}", f"{place}data.result")
    for at, one in enumerate(result):
        if not isinstance(one, _LabelledSeries):
            raise _faulty(one, f"{place}data.result[{at}]")
        yield one


def _faulty(series: object, where: str) -> InputError:
    """Return what is wrong with a series."""
    if not isinstance(series, dict):
        return InputError(f"must be a series with metric and values, got {shown(series)}", where)
    labels = series.get("metric")
    if not isinstance(labels, dict) or not all(isinstance(text, str) for text in labels.values()):
        return InputError(f"must be labels with texts, got {shown(labels)}", f"{where}.metric")
    points = series.get("values", [series.get("value")])
    if isinstance(points, list):
        for at, point in enumerate(points):
            if isinstance(_compact({"metric": {}, "values": [point]}), dict):
                rule = f"must be a time and a number in quotes, got {json.dumps(point)}"
                return InputError(rule, f"{where}.values[{at}]")
    return InputError(f"must be a list, got {shown(points)}", f"{where}.values")


# from series to usage


class _GpuSeries(NamedTuple):
    """A series that is read: its GPU and quantity, and the values in the quantity's unit."""

    gpu: SampledGpu
    quantity: str
    time_s: _Numbers
    values: _Numbers


def _usage(series: Sequence[_LabelledSeries], path: Path, source: str) -> UsageRecords:
    exported = any("exported_pod" in one.labels for one in series)
    of_mig = [one for one in series if one.labels.get("GPU_I_ID")]
    named = _with_metrics([one for one in series if not one.labels.get("GPU_I_ID")], path)
    found = [
        _GpuSeries(_gpu(one.labels, exported), quantity, one.time_s, values)
        for one, quantity, values in named
    ]
    kept, between = _without_free(found)
    samples = Samples(source)
    again = _add(kept, samples)
    instances = {(_first(one.labels, _NODES), _uuid(one.labels)) for one in of_mig}
    out = (
        Omission(len(instances), "GPUs in MIG mode", _PARTS),
        Omission(len(between), "series of GPUs", _BETWEEN),
        Omission(again, "samples", _AGAIN),
    )
    return samples.usage(left_out=out)


def _with_metrics(
    series: Sequence[_LabelledSeries], path: Path
) -> Iterator[tuple[_LabelledSeries, str, _Numbers]]:
    """Yield the series of metrics that are read, with quantity and values in its unit."""
    groups: dict[str, list[_LabelledSeries]] = {}
    for one in series:
        groups.setdefault(one.labels.get("__name__", ""), []).append(one)
    metrics = {name: metric_of(name) if name else metric_in(stem_of(path)) for name in groups}
    tells = {metric.quantity for metric in metrics.values() if metric}
    if groups and tells.isdisjoint((*FRACTIONS, "memory_mib")):
        names = listed([name or "(without a name)" for name in groups], 8)
        rule = "must have a metric such as DCGM_FI_DEV_GPU_UTIL or DCGM_FI_DEV_FB_USED, or be named"
        raise InputError(f"{rule} after it (gpu_util_percent.json), got {names}", "__name__")
    done: set[str] = set()
    for name, metric in metrics.items():
        if metric and metric.quantity not in done:
            done.add(metric.quantity)
            yield from _scaled(groups[name], name or stem_of(path), metric)


def _scaled(
    series: Sequence[_LabelledSeries], name: str, metric: GpuMetric
) -> Iterator[tuple[_LabelledSeries, str, _Numbers]]:
    clean = [without_blanks(one.values) for one in series]
    most = [float(np.nanmax(values)) if not np.isnan(values).all() else 0.0 for values in clean]
    factor = factor_of(metric, max(most), name)
    limit = limit_of(metric, factor)
    for one, values, highest in zip(series, clean, most, strict=True):
        least = float(np.nanmin(values)) if not np.isnan(values).all() else 0.0
        if highest > limit or least < 0:
            rule = f"must be from 0 to {limit:g}, got {least if least < 0 else highest:.15g}"
            raise InputError(rule, name + _written(one.labels))
        yield one, metric.quantity, scaled(metric.quantity, values, factor)


def _written(labels: _Labels) -> str:
    """Return labels as Prometheus writes them, without the name of the metric."""
    given = (f"{name}={json.dumps(text)}" for name, text in labels.items() if name != "__name__")
    return f"{{{','.join(given)}}}"


def _gpu(labels: _Labels, exported: bool) -> SampledGpu:
    job = _first(labels, _JOBS) or _pod(labels, exported)
    node = _first(labels, _NODES) or labels.get("instance", "").rpartition(":")[0] or None
    number, uuid = _first(labels, _GPUS) or "", _uuid(labels)
    model = _first(labels, _MODELS)
    own = gpu_name(node, number or uuid) or "gpu"
    return SampledGpu(
        job or own, uuid or number, node, model, _first(labels, _USERS), None, bool(job)
    )


def _pod(labels: _Labels, exported: bool) -> str | None:
    """Return namespace and name of the pod of a series, if it is not the exporter's."""
    before = "exported_" if exported else ""
    pod = _first(labels, [before + name for name in _PODS])
    if not pod or _EXPORTER.search(pod):
        return None
    namespace = _first(labels, [before + name for name in _NAMESPACES])
    return f"{namespace}/{pod}" if namespace else pod


def _uuid(labels: _Labels) -> str:
    return _first(labels, _UUIDS) or ""


def _first(labels: _Labels, names: Iterable[str]) -> str | None:
    return next((labels[name] for name in names if labels.get(name)), None)


def _without_free(found: Sequence[_GpuSeries]) -> tuple[list[_GpuSeries], list[_GpuSeries]]:
    """Return the series without those of GPUs between their jobs, and those."""
    with_job = {(one.gpu.node, one.gpu.gpu) for one in found if one.gpu.known}
    kept: list[_GpuSeries] = []
    between: list[_GpuSeries] = []
    for one in found:
        free = not one.gpu.known and (one.gpu.node, one.gpu.gpu) in with_job
        (between if free else kept).append(one)
    return kept, between


def _add(found: Sequence[_GpuSeries], samples: Samples) -> int:
    """Add series to samples; return how many values are left out, as there are others."""
    by_gpu: dict[int, dict[str, list[_GpuSeries]]] = {}
    for one in found:
        of_gpu = by_gpu.setdefault(samples.code(one.gpu), {})
        of_gpu.setdefault(one.quantity, []).append(one)
    again = 0
    for code, quantities in by_gpu.items():
        joined = {}
        for quantity, several in quantities.items():
            times, first = np.unique(
                np.concatenate([one.time_s for one in several]), return_index=True
            )
            values = np.concatenate([one.values for one in several])
            again += len(values) - len(first)
            joined[quantity] = times, values[first]
        time_s = np.unique(np.concatenate([times for times, _ in joined.values()]))
        values_of = {}
        for quantity, (times, values) in joined.items():
            values_of[quantity] = np.full(len(time_s), np.nan)
            values_of[quantity][np.searchsorted(time_s, times)] = values
        samples.add(np.full(len(time_s), code), time_s, values_of)
    return again


PROMETHEUS: Final = Reader("the JSON of a range query of Prometheus", _recognises, _read)
