"""What the monitors ``nvidia-smi dmon``, ``nvidia-smi pmon`` and ``dcgmi dmon`` print.

Lines with ``#`` name the columns, again and again; the next line may have their units. Without the
option ``-o DT``, and always with ``dcgmi``, there are no times: samples count alike then, and when
they were is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from dovetail.advising.reader import Reader
from dovetail.advising.readers._cells import TablePart, text_lines
from dovetail.advising.readers._long_form import LongForm, long_samples, stem_of
from dovetail.advising.readers._metrics import FRACTIONS, GpuMetric
from dovetail.advising.readers._series import SampledGpu
from dovetail.advising.usage import Omission, UsageRecords
from dovetail.instances._record import listed, shown
from dovetail.instances.errors import InputError, source_name

_ROWS: Final = 4096
_PERCENT: Final = 0.01

_NVIDIA_SMI: Final[Mapping[str, GpuMetric]] = MappingProxyType(
    {
        "sm": GpuMetric("gpu_util", _PERCENT),
        "mem": GpuMetric("mem_util", _PERCENT),
        "fb": GpuMetric("memory_mib", 1.0),
        "pwr": GpuMetric("power_w", 1.0),
        "rxpci": GpuMetric("pcie_rx_bytes_s", 2.0**20),
    }
)
"""Columns of ``nvidia-smi dmon`` and ``pmon``. ``sm`` is ``utilization.gpu``: the part of the time
in which a kernel ran, not the part of the SMs."""

_DCGMI: Final[Mapping[str, GpuMetric]] = MappingProxyType(
    {
        "GPUTL": GpuMetric("gpu_util", _PERCENT),
        "MCUTL": GpuMetric("mem_util", _PERCENT),
        "FBUSD": GpuMetric("memory_mib", 1.0),
        "FBFRE": GpuMetric("free_mib", 1.0),
        "FBRSV": GpuMetric("reserved_mib", 1.0),
        "FBTTL": GpuMetric("card_mib", 1.0),
        "SMACT": GpuMetric("sm_active", 1.0),
        "SMOCC": GpuMetric("sm_occupancy", 1.0),
        "DRAMA": GpuMetric("dram_active", 1.0),
        "PCIRX": GpuMetric("pcie_rx_bytes_s", 1.0),
        "POWER": GpuMetric("power_w", 1.0),
    }
)
"""Short names of the fields of DCGM."""

_NO_TIMES: Final = "{} has no times: its samples count alike, and when its jobs ran is not known{}."
_CLOCK: Final = "The times are those of the machine's clock, taken as UTC."
_GRAPHICS: Final = "they draw graphics and compute nothing"
_PARTS: Final = "they are divided into instances, which Dovetail does not place"


class _Monitor(NamedTuple):
    """A monitor: its name, the first column that it names, and its metrics."""

    name: str
    key: str
    metrics: Mapping[str, GpuMetric]
    hint: str = ""


_DMON: Final = _Monitor("nvidia-smi dmon", "gpu", _NVIDIA_SMI, " (-o DT prints them)")
_PMON: Final = _Monitor("nvidia-smi pmon", "gpu", _NVIDIA_SMI, " (-o DT prints them)")
_DCGM: Final = _Monitor("dcgmi dmon", "Entity", _DCGMI)


def _names(line: str) -> list[str]:
    """Return the columns that a line names; none if it is no such line."""
    words = line.replace(",", " ").replace("#", " ").split()
    return words if line.lstrip().startswith("#") else []


def _header(start: str, key: str) -> list[str]:
    """Return the columns that the beginning of a file names, with a certain one among them."""
    found = (_names(line) for line in start.splitlines()[:20])
    return next((names for names in found if key in names), [])


def _recognises_dmon(_name: str, start: str) -> bool:
    names = _header(start, "gpu")
    return bool(names) and "pid" not in names


def _recognises_pmon(_name: str, start: str) -> bool:
    return "pid" in _header(start, "gpu")


def _recognises_dcgmi(_name: str, start: str) -> bool:
    return bool(_header(start, "Entity"))


class _PrintedRows:
    """The rows of a monitor, in parts with a column of times at the end.

    Attributes
    ----------
    names : list of str
        The columns, known before the first row.
    drawing : set of str
        Processes that only draw graphics, whose rows are left out.
    divided : set of str
        GPUs in MIG mode: their instances follow them.
    """

    def __init__(self, path: Path, monitor: _Monitor) -> None:
        self._monitor, self._source = monitor, source_name(path)
        self._rows = self._all_rows(path)
        self.names: list[str] = []
        self.drawing: set[str] = set()
        self.divided: set[str] = set()
        self._first = next(self._rows, None)
        if not self.names:
            rule = f"must be printed by {monitor.name}: it has no line # {monitor.key} ..."
            raise InputError(rule, "", self._source)
        self.dated = {"Date", "Time"}.issubset(self.names)

    def parts(self) -> Iterator[TablePart]:
        """Yield the rows of GPUs, or of processes that compute."""
        rows = chain([] if self._first is None else [self._first], self._rows)
        time = self._date if self.dated else self._number()
        while part := list(islice(filter(self._is_used, rows), _ROWS)):
            lines = [number for number, _ in part]
            times = [time(number, words) for number, words in part]
            columns = list(zip(*(words for _, words in part), strict=True))
            yield TablePart(lines, [*columns, times])

    def _all_rows(self, path: Path) -> Iterator[tuple[int, list[str]]]:
        """Yield line and words of each row; all headers must name the same columns."""
        for number, line in enumerate(text_lines(path), 1):
            if line.lstrip().startswith("#"):
                self._take_header(number, _names(line))
                continue
            words = line.replace(",", " ").split()
            if words and self.names and words[0] not in ("ID", "Id"):
                yield number, self._fitted(number, words)

    def _take_header(self, number: int, names: list[str]) -> None:
        if self._monitor.key not in names:
            return
        if self.names and names != self.names:
            rule = f"must have the columns of the first header ({' '.join(self.names)})"
            raise InputError(f"{rule}, got {' '.join(names)}", f"line {number}", self._source)
        self.names = names

    def _fitted(self, number: int, words: list[str]) -> list[str]:
        """Return a word for each column: the name of a GPU and a command may have several."""
        width = len(self.names)
        if self.names[0] == "Entity" and not words[0].isdecimal():
            words = [" ".join(words[:2]), *words[2:]]
        if self.names[-1] in ("command", "name") and len(words) > width:
            words = [*words[: width - 1], " ".join(words[width - 1 :])]
        if len(words) != width:
            rule = f"must have {width} words as its header, got {len(words)}"
            raise InputError(rule, f"line {number}", self._source)
        return words

    def _is_used(self, row: tuple[int, list[str]]) -> bool:
        found = dict(zip(self.names, row[1], strict=True))
        if "pid" in found:
            if found.get("type") == "G" and found["pid"] != "-":
                self.drawing.add(found["pid"])
            return found["pid"] != "-" and found.get("type") != "G"
        entity = found.get("Entity", "")
        if entity.startswith("GPU-"):
            self.divided.add(self._gpu)
            return False
        self._gpu = entity
        return True

    _gpu = ""

    def _date(self, number: int, words: Sequence[str]) -> str:
        """Return the moment of a row: ``20261129 10:00:00``."""
        day = words[self.names.index("Date")]
        if len(day) == 8 and day.isdecimal():
            day = f"{day[:4]}-{day[4:6]}-{day[6:]}"
        elif not day[:4].isdecimal() or len(day) != 10:
            rule = f"must be a date as 20261129, got {shown(day)}"
            raise InputError(rule, f"line {number}: Date", self._source)
        return f"{day} {words[self.names.index('Time')]}"

    def _number(self) -> Callable[[int, Sequence[str]], str]:
        """Return what numbers the samples of each GPU or process, in place of times."""
        at = [self.names.index(name) for name in (self._monitor.key, "pid") if name in self.names]
        counts: Counter[tuple[str, ...]] = Counter()

        def number(_line: int, words: Sequence[str]) -> str:
            who = tuple(words[each] for each in at)
            counts[who] += 1
            return str(counts[who] - 1)

        return number


def _usage(path: Path, monitor: _Monitor) -> UsageRecords:
    source, stem = source_name(path), stem_of(path)
    rows = _PrintedRows(path, monitor)
    names = rows.names
    metrics = {
        at: monitor.metrics[name] for at, name in enumerate(names) if name in monitor.metrics
    }
    if not any(metric.quantity in (*FRACTIONS, "memory_mib") for metric in metrics.values()):
        rule = f"must have a column such as {listed(list(monitor.metrics)[:3])}"
        raise InputError(f"{rule}, got {' '.join(names)}", "", source)
    words = {name: names.index(name) for name in (monitor.key, "pid", "command") if name in names}
    samples, _ = long_samples(
        source,
        [*names, "time"],
        LongForm(len(names), words, metrics),
        rows.parts(),
        lambda found: _gpu(found, monitor.key, stem),
    )
    left_out = (
        Omission(len(rows.drawing), "processes", _GRAPHICS),
        Omission(len(rows.divided), "GPUs in MIG mode", _PARTS),
    )
    note = _CLOCK if rows.dated else _NO_TIMES.format(monitor.name, monitor.hint)
    usage = samples.usage((note,), left_out)
    divided = {_gpu({monitor.key: gpu}, monitor.key, stem).job for gpu in rows.divided}
    jobs = usage.jobs[~usage.jobs["job"].isin(divided)].reset_index(drop=True)
    if not rows.dated:
        jobs = jobs.assign(start_s=np.nan, end_s=np.nan)
    return UsageRecords.of(jobs, left_out=usage.left_out, notes=usage.notes)


def _gpu(words: Mapping[str, str], key: str, stem: str) -> SampledGpu:
    gpu = words[key].removeprefix("GPU ")
    if "pid" in words:
        job = f"{stem}/pid {words['pid']}"
        return SampledGpu(job, gpu, name=words.get("command"), whole=False)
    return SampledGpu(f"{stem}/gpu {gpu}", gpu, known=False)


NVIDIA_SMI_DMON: Final = Reader(
    "nvidia-smi dmon -s pumt -o DT", _recognises_dmon, lambda path: _usage(path, _DMON)
)
NVIDIA_SMI_PMON: Final = Reader(
    "nvidia-smi pmon -s um -o DT", _recognises_pmon, lambda path: _usage(path, _PMON)
)
DCGMI_DMON: Final = Reader(
    "dcgmi dmon -e 203,252,1002,1005", _recognises_dcgmi, lambda path: _usage(path, _DCGM)
)
