"""Series of ``nvidia-smi --query-gpu`` and ``--query-compute-apps`` with ``--format=csv -l``.

A row of the first is a GPU, one of the second a process and its memory on a GPU. Without a header
nothing tells the columns, so only those of one documented order are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from dovetail.advising.reader import Reader
from dovetail.advising.readers._cells import TablePart, cells, header_and_parts
from dovetail.advising.readers._long_form import LongForm, long_samples, stem_of
from dovetail.advising.readers._metrics import FRACTIONS, metric_of
from dovetail.advising.readers._nvidia_smi import GPUS, PROCESSES, fields, is_query, is_row
from dovetail.advising.readers._series import SampledGpu, gpu_name
from dovetail.advising.usage import UsageRecords
from dovetail.instances.errors import InputError, source_name

_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "gpu": ("uuid", "gpu_uuid", "gpu_bus_id", "pci.bus_id", "index"),
    "gpu_model": ("name", "gpu_name"),
    "pid": ("pid",),
    "name": ("process_name",),
}
_LOCAL: Final = "The times are those of the machine's clock, taken as UTC."


def _recognises(_name: str, start: str) -> bool:
    first = cells(start.lstrip().partition("\n")[0])
    return is_query(first) or is_row(first)


def _read(path: Path) -> UsageRecords:
    source = source_name(path)
    line, header, parts = header_and_parts(path)
    if is_row(header):
        parts = chain([TablePart([line], [[cell] for cell in header])], parts)
        header = _agreed(header, line, source)
    form = _form(header, line, source)
    stem = stem_of(path)
    samples, _ = long_samples(
        source, header, form, _without_headers(header, parts), lambda words: _gpu(words, stem)
    )
    return samples.usage((_LOCAL,))


def _agreed(row: Sequence[str], line: int, source: str) -> list[str]:
    """Return the columns of a file without a header."""
    for columns in (GPUS, PROCESSES):
        if len(columns) == len(row) and row[1].startswith(("GPU-", "MIG-")):
            return list(columns)
    gpus, processes = ",".join(fields(GPUS)), ",".join(fields(PROCESSES))
    rule = "must have a header (leave out noheader), or have been asked for"
    raise InputError(
        f"{rule} --query-gpu={gpus} or --query-compute-apps={processes}", f"line {line}", source
    )


def _form(header: Sequence[str], line: int, source: str) -> LongForm:
    names = fields(header)
    if "timestamp" not in names:
        rule = "must have the column timestamp: nvidia-smi --query-gpu=timestamp,..."
        raise InputError(f"{rule}, got {', '.join(names)}", f"line {line}", source)
    words = {}
    for meaning, known in _WORDS.items():
        found = next((names.index(name) for name in known if name in names), None)
        if found is not None:
            words[meaning] = found
    metrics = {at: metric for at, name in enumerate(header) if (metric := metric_of(name))}
    if not any(metric.quantity in (*FRACTIONS, "memory_mib") for metric in metrics.values()):
        rule = "must have utilization.gpu or memory.used (of processes: used_gpu_memory)"
        raise InputError(f"{rule}, got {', '.join(names)}", f"line {line}", source)
    return LongForm(names.index("timestamp"), words, metrics)


def _without_headers(header: Sequence[str], parts: Iterator[TablePart]) -> Iterator[TablePart]:
    """Yield parts without the headers of further runs that were written to the same file."""
    for part in parts:
        again = {at for at, cell in enumerate(part.columns[0]) if cell.strip() == header[0]}
        if not again:
            yield part
            continue
        rows = [at for at in range(len(part.lines)) if at not in again]
        if rows:
            columns = [[column[at] for at in rows] for column in part.columns]
            yield TablePart([part.lines[at] for at in rows], columns)


def _gpu(words: Mapping[str, str], stem: str) -> SampledGpu:
    given = {name: text.strip() for name, text in words.items()}
    gpu, model = given.get("gpu", ""), given.get("gpu_model")
    if "pid" in given:
        job = f"{stem}/pid {given['pid']}"
        return SampledGpu(job, gpu, None, model, None, given.get("name"), whole=False)
    own = gpu_name(stem, gpu) if gpu.isdecimal() or not gpu else gpu
    return SampledGpu(own, gpu, None, model, known=False)


NVIDIA_SMI: Final = Reader(
    "nvidia-smi --query-gpu=... or --query-compute-apps=... --format=csv -l", _recognises, _read
)
