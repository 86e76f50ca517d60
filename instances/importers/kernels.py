"""Kernels from the files of profilers: Nsight Systems, and ``torch.profiler``.

Read are an SQLite export (``nsys export --type sqlite``: the tables ``CUPTI_ACTIVITY_KIND_KERNEL``
and ``TARGET_INFO_GPU``), a table (``nsys stats --report cuda_gpu_trace --format csv``), and a trace
for Chrome's viewer (``export_chrome_trace``: events of the category ``kernel``), plain or ``.gz``.
"""

from __future__ import annotations

import csv
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import numpy as np

from dovetail.instances._record import listed, shown
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import SoloProfile
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.kernel_records import LIMITS, KernelGpu, KernelRecords, kernel_metrics
from dovetail.instances.metrics import Metrics
from dovetail.instances.reading.contents import FilePath, read_bytes
from dovetail.instances.reading.tables import MOST_ROWS, as_number, lines_in

NSIGHT: Final = "Nsight Systems"
TORCH: Final = "torch.profiler"

_MOST_SOURCE: Final = 200
_SQLITE: Final = b"SQLite format 3\0"
_BLANK: Final = 4096
_REPORTS: Final = (".nsys-rep", ".qdrep")
_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_GPUS: Final = "TARGET_INFO_GPU"
_GRID: Final = ("GrdX", "GrdY", "GrdZ")
_BLOCK: Final = ("BlkX", "BlkY", "BlkZ")
_SECONDS: Final[Mapping[str, float]] = {"ns": 1e-9, "us": 1e-6, "μs": 1e-6, "µs": 1e-6} | {
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
}
_BYTES: Final[Mapping[str, float]] = {"byte": 1.0, "bytes": 1.0, "B": 1.0, "KB": 1e3, "MB": 1e6} | {
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GB": 1e9,
}
_RANGES: Final = (
    ("start", -1e15, 1e15),
    ("duration", 0, 1e6),
    ("blocks of the grid", 1, 1e15),
    ("threads of a block", 1, 2048),
    ("registers of a thread", 0, 1024),
    ("shared memory of a block", 0, 1e9),
)
"""What kernels may have, in the order of the fields of `KernelRecords`."""

_Kernel = tuple[float, ...]


class FoundKernels(NamedTuple):
    """The kernels of one GPU that a file of a profiler has.

    Attributes
    ----------
    kernels : KernelRecords
        At least one.
    gpu : KernelGpu or None
        The GPU, if the file describes it.
    profiler : str
        Which profiler wrote the file.
    gpu_model : str or None
        The name of the GPU, if the file has it.
    """

    kernels: KernelRecords
    gpu: KernelGpu | None
    profiler: str
    gpu_model: str | None = None


def read_kernels(path: FilePath, device: int | None = None) -> FoundKernels:
    """Read the kernels of one GPU from the file of a profiler.

    Parameters
    ----------
    path : str or path
        The file; its content says of which kind it is.
    device : int, optional
        The number of the GPU in the file; needed if kernels ran on several.

    Raises
    ------
    InputError
        If it cannot be read, is of no such kind, has no kernels of the GPU, has impossible values,
        or has more than `MOST_ROWS` kernels.
    """
    source = source_name(path)
    if str(path).endswith(_REPORTS):
        raise InputError("must be exported first: nsys export --type sqlite FILE", "", source)
    try:
        if _is_sqlite(path):
            return _of_sqlite(path, device)
        content = read_bytes(path)
        if content[:_BLANK].strip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
            return _of_trace(content, device)
        return _of_table(content, path, device)
    except InputError as error:
        raise error.at(source) from None


def with_kernels(
    data: DataSet,
    workload: str,
    gpu_model: str,
    found: FoundKernels,
    *,
    iterations: int | None = None,
    batch_size: int | None = None,
) -> tuple[DataSet, SoloProfile]:
    """Return a data set in which a workload's profile describes its kernels, and that profile.

    The profile is the newest without a cap; a workload that has none on the GPU model gets one.
    Kernels a second are those of an iteration times the throughput of the profile, which no
    profiler slowed down, or else those of the file's span.

    Parameters
    ----------
    data : DataSet
        The data set to extend.
    workload, gpu_model : str
        The workload, and the GPU model of the data.
    found : FoundKernels
        Its kernels.
    iterations : int, optional
        The iterations in which they ran.
    batch_size : int, optional
        Of the profile. Default: the profile that plans use.

    Raises
    ------
    InputError
        If kernels a second cannot be computed, as all began and ended at once.
    """
    old = data.uncapped(workload, gpu_model, batch_size)
    known = old or SoloProfile(workload=workload, gpu_model=gpu_model, batch_size=batch_size)
    number, span_s = len(found.kernels.start_s), found.kernels.span_s
    if iterations is not None and known.throughput is not None:
        kernels_s = number / iterations * known.throughput
    elif span_s > 0:
        kernels_s = number / span_s
    else:
        raise InputError("must have kernels over some time, or give --iterations")
    metrics = {
        **(known.metrics.to_data() if known.metrics else {}),
        **kernel_metrics(found.kernels, kernels_s, found.gpu),
    }
    new = known.replace(
        metrics=Metrics.from_data(metrics), source=_source(known.source or "", found.profiler)
    )
    profiles = tuple(new if one is old else one for one in data.profiles)
    return data.replace(profiles=profiles if old else (*profiles, new)), new


def _source(source: str, profiler: str) -> str:
    """Return the origin of a profile, with that of its kernels at the end."""
    words = f"kernels: {profiler}"
    before = source.removesuffix(words).rstrip("; ")[: _MOST_SOURCE - len(words) - 2]
    return f"{before}; {words}" if before else words


def _is_sqlite(path: FilePath) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False  # the reader of files says why


# Nsight Systems: the SQLite export


def _of_sqlite(path: FilePath, device: int | None) -> FoundKernels:
    place = f"file:{quote(str(Path(path).absolute()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(place, uri=True)) as connection:
            names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            tables = {name for (name,) in names}
            if _KERNELS not in tables:
                rule = f"must be an export of Nsight Systems with a table {_KERNELS}"
                raise InputError(f"{rule}: profile with nsys profile --trace=cuda")
            chosen = _chosen(_devices(connection), device)
            rows = connection.execute(
                'SELECT start / 1e9, ("end" - start) / 1e9, gridX * gridY * gridZ,'
                " blockX * blockY * blockZ, registersPerThread,"
                f" staticSharedMemory + dynamicSharedMemory FROM {_KERNELS}"
                " WHERE deviceId = ? LIMIT ?",
                (chosen, MOST_ROWS + 1),
            )
            kernels = _records(rows)
            gpu = _gpu_of_export(connection) if _GPUS in tables else None
            model = _model_of_export(connection) if _GPUS in tables else None
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        raise InputError(f"must be an export of Nsight Systems: {error}") from None
    return FoundKernels(kernels, gpu, NSIGHT, model)


def _devices(connection: sqlite3.Connection) -> list[object]:
    found = connection.execute(f"SELECT DISTINCT deviceId FROM {_KERNELS} LIMIT 100")
    return [device for (device,) in found]


def _gpu_of_export(connection: sqlite3.Connection) -> KernelGpu | None:
    """Return the GPU of an export, if all GPUs in it are alike."""
    try:
        rows = connection.execute(
            f"SELECT DISTINCT smCount, computeMajor, computeMinor FROM {_GPUS} LIMIT 2"
        ).fetchall()
    except sqlite3.OperationalError:  # older exports have fewer columns
        return None
    return _gpu(*rows[0]) if len(rows) == 1 else None


def _model_of_export(connection: sqlite3.Connection) -> str | None:
    """Return the name of the GPUs of an export, if it is one."""
    try:
        rows = connection.execute(f"SELECT DISTINCT name FROM {_GPUS} LIMIT 2").fetchall()
    except sqlite3.OperationalError:
        return None
    return str(rows[0][0]) if len(rows) == 1 and rows[0][0] else None


# Nsight Systems: the table


def _of_table(content: bytes, path: FilePath, device: int | None) -> FoundKernels:
    reader = csv.reader(lines_in(content, str(path)))
    try:
        header = next((row for row in reader if _GRID[0] in row), None)
        if header is None:
            raise InputError(
                "must be of nsys export --type sqlite, of nsys stats --report cuda_gpu_trace "
                "--format csv, or a trace of torch.profiler"
            )
        columns = _TraceColumns(header)
        rows = [
            columns.kernel(row, reader.line_num)
            for row in reader
            if len(row) == len(header) and row[columns.grid[0]].strip()
        ]
    except csv.Error as error:
        raise InputError(f"must be a table: {error}", f"line {reader.line_num}") from None
    chosen = _chosen(list(dict.fromkeys(name for name, _ in rows)), device)
    return FoundKernels(_records(kernel for name, kernel in rows if name == chosen), None, NSIGHT)


class _TraceColumns:
    """Where the columns of a table are, and in which units."""

    def __init__(self, header: Sequence[str]) -> None:
        self._header = header
        self._start, start_s = self._found("Start", _SECONDS)
        self._duration, duration_s = self._found("Duration", _SECONDS)
        self._static, static = self._found("StcSMem", _BYTES)
        self._dynamic, dynamic = self._found("DymSMem", _BYTES)
        self._factors = (start_s, duration_s, static, dynamic)
        self._registers, self._device = self._at("Reg/Trd"), self._at("Device")
        self.grid = [self._at(name) for name in _GRID]
        self._block = [self._at(name) for name in _BLOCK]

    def kernel(self, row: Sequence[str], line: int) -> tuple[object, _Kernel]:
        """Return the device and the figures of a kernel."""

        def number(at: int) -> float:
            value = as_number(row[at].strip())
            if value is None or not math.isfinite(value):
                rule = f"must be a finite number, got {shown(row[at])}"
                raise InputError(rule, f"line {line}: {self._header[at]}")
            return value

        start_s, duration_s, static, dynamic = self._factors
        return _device_number(row[self._device]), (
            number(self._start) * start_s,
            number(self._duration) * duration_s,
            math.prod(map(number, self.grid)),
            math.prod(map(number, self._block)),
            number(self._registers),
            number(self._static) * static + number(self._dynamic) * dynamic,
        )

    def _at(self, name: str) -> int:
        if name not in self._header:
            raise InputError(f"must have a column {name}, got {listed(self._header, 30)}")
        return self._header.index(name)

    def _found(self, name: str, units: Mapping[str, float]) -> tuple[int, float]:
        """Return where a column is whose header ends in its unit, and the factor of the unit."""
        for at, title in enumerate(self._header):
            word, _, unit = title.strip().partition(" (")
            if word == name:
                unit = unit.rstrip(")")
                if unit not in units:
                    rule = f"must be in one of {listed(list(units), 20)}, got {shown(unit)}"
                    raise InputError(rule, f"column {name}")
                return at, units[unit]
        raise InputError(f"must have a column {name} (UNIT), got {listed(self._header, 30)}")


def _device_number(text: str) -> object:
    """Return the number of a GPU in a table: ``NVIDIA H200 (0)``; the text if it has none."""
    number = text.rpartition("(")[2].rstrip(") ")
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 5 else text


# torch.profiler


def _of_trace(content: bytes, device: int | None) -> FoundKernels:
    try:
        trace = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"must be JSON: {error}") from None
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list):
        raise InputError("must have a list traceEvents, as torch.profiler writes it")
    rows = list(_of_events(events))
    chosen = _chosen(list(dict.fromkeys(number for number, _ in rows)), device)
    kernels = _records(kernel for number, kernel in rows if number == chosen)
    known = trace.get("deviceProperties") if isinstance(trace, dict) else None
    return FoundKernels(kernels, _gpu_of_trace(known, chosen), TORCH, _model_in(known, chosen))


def _of_events(events: Iterable[object]) -> Iterator[tuple[object, _Kernel]]:
    for at, event in enumerate(events):
        if not isinstance(event, dict) or str(event.get("cat")).lower() != "kernel":
            continue
        args = event.get("args")
        if not isinstance(args, dict):
            raise InputError("must have args", f"traceEvents[{at}]")
        number = _NumbersOf(event, args, at)
        yield (
            args.get("device"),
            (
                number("ts") * 1e-6,
                number("dur") * 1e-6,
                number.product("grid"),
                number.product("block"),
                number("registers per thread"),
                number("shared memory"),
            ),
        )


class _NumbersOf:
    """The numbers of an event of a trace."""

    def __init__(self, event: Mapping[str, Any], args: Mapping[str, Any], at: int) -> None:
        self._found, self._at = {**args, "ts": event.get("ts"), "dur": event.get("dur")}, at

    def __call__(self, name: str) -> float:
        return self._checked(self._found.get(name), name)

    def product(self, name: str) -> float:
        """Return the product of three dimensions."""
        sizes = self._found.get(name)
        if not isinstance(sizes, list) or len(sizes) != 3:
            rule = f"must be three whole numbers, got {shown(sizes)}"
            raise InputError(rule, f"traceEvents[{self._at}]: {name}")
        return math.prod(self._checked(size, name) for size in sizes)

    def _checked(self, value: object, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_usual(value):
            rule = f"must be a finite number, got {shown(value)}"
            raise InputError(rule, f"traceEvents[{self._at}]: {name}")
        return float(value)


def _is_usual(value: float) -> bool:
    return abs(value) < 1e18  # neither NaN nor a whole number too large for a float


def _gpu_of_trace(known: object, device: object) -> KernelGpu | None:
    for one in known if isinstance(known, list) else ():
        if isinstance(one, dict) and one.get("id") == device:
            return _gpu(*(one.get(key) for key in ("numSms", "computeMajor", "computeMinor")))
    return None


def _model_in(known: object, device: object) -> str | None:
    for one in known if isinstance(known, list) else ():
        if isinstance(one, dict) and one.get("id") == device and isinstance(one.get("name"), str):
            return str(one["name"])
    return None


# all of them


def _gpu(sms: object, major: object, minor: object) -> KernelGpu | None:
    """Return a GPU, or None for one without documented limits."""
    capability = f"{major}.{minor}"
    if isinstance(sms, int) and 0 < sms < 100_000 and capability in LIMITS:
        return KernelGpu(sms, capability)
    return None


def _chosen(devices: Sequence[object], device: int | None) -> object:
    """Return the GPU whose kernels are wanted."""
    if not devices:
        raise _without_kernels()
    if device is None and len(devices) == 1:
        return devices[0]
    if device not in devices:
        known = listed([str(one) for one in devices], 16)
        got = "none was named" if device is None else f"got {device}"
        raise InputError(f"must be one of the GPUs of the file ({known}), {got}", "--device")
    return device


def _without_kernels() -> InputError:
    return InputError("must have kernels of the GPU; has none")


def _records(rows: Iterable[Sequence[object]]) -> KernelRecords:
    """Return kernels as columns, and refuse impossible ones."""
    flat = chain.from_iterable(map(_floats, rows))
    table = np.fromiter(flat, float).reshape(-1, len(_RANGES))
    if not len(table):
        raise _without_kernels()
    if len(table) > MOST_ROWS:
        raise InputError(f"must have at most {MOST_ROWS} kernels of a GPU; has more")
    for column, (name, least, most) in zip(table.T, _RANGES, strict=True):
        broken = ~((column >= least) & (column <= most))
        if broken.any():
            at = int(broken.argmax())
            rule = f"must be from {least:g} to {most:g}, got {column[at]:g}"
            raise InputError(rule, f"kernel {at + 1}: {name}")
    return KernelRecords(*table.T)


def _floats(row: Sequence[object]) -> Iterator[float]:
    for value in row:
        yield float(value) if isinstance(value, int | float) else math.nan
