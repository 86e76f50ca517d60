"""DCGM metrics of GPUs without GPM (before Hopper), read from ``dcgmi dmon``.

Sources: NVIDIA's documentation of ``dcgmi``, and transcripts in issues 3, 144 and 244 of
NVIDIA/DCGM. DCGM locks the driver's profiler for the whole machine, so it reports nothing while a
profiler such as Nsight runs.

``dmon`` rejects all fields if a GPU lacks one (issue 119; an L40S has neither FP64 nor NVLink), so
``profile`` is run first to list the fields of each GPU. Fields that it lists under one letter with
different numbers (``A.1``, ``A.2``) share hardware counters and are sampled in turns within each
second (NVIDIA's user guide, "Multiplexing of Profiling Counters"): the FP64, FP32 and FP16 pipes on
most GPUs. That hardly affects means over many seconds.
"""

from __future__ import annotations

import logging
import math
import re
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Final, NamedTuple

PROGRAM: Final = "dcgmi"
SOURCE: Final = "DCGM (dcgmi dmon)"

FIELDS: Final[Mapping[int, tuple[str, str]]] = MappingProxyType(
    {
        1001: ("GRACT", "graphics_active"),
        1002: ("SMACT", "sm_active"),
        1003: ("SMOCC", "sm_occupancy"),
        1004: ("TENSO", "tensor_active"),
        1005: ("DRAMA", "dram_active"),
        1006: ("FP64A", "fp64_active"),
        1007: ("FP32A", "fp32_active"),
        1008: ("FP16A", "fp16_active"),
        1009: ("PCITX", "pcie_tx_bytes_s"),
        1010: ("PCIRX", "pcie_rx_bytes_s"),
        1011: ("NVLTX", "nvlink_tx_bytes_s"),
        1012: ("NVLRX", "nvlink_rx_bytes_s"),
    }
)
"""Column and metric of each DCGM field; fractions, and bytes/s."""

EVERY_MS: Final = 1000
"""Sampling period in ms; below 100 ms values are invalid."""

AGAIN_S: Final = 60.0
"""Seconds until ``dcgmi`` is started again after it has ended."""

_ANSWER_S: Final = 10.0
_MOST_ROWS: Final = 600
_METRICS: Final = dict(FIELDS.values())
_ID: Final = re.compile(r"\|\s*(\d+)\s*\|")
_FIELD: Final = re.compile(r"\|\s*[A-Z]\.\d+\s*\|\s*(\d+)\s*\|")
_UUID: Final = re.compile(r"Device UUID:\s*(GPU-[0-9a-f-]+)")

_log = logging.getLogger(__name__)


class DcgmMetrics(NamedTuple):
    """Metrics of a GPU from one line, without blank values."""

    gpu: int
    metrics: Mapping[str, float]


def rows(lines: Iterable[str]) -> Iterator[DcgmMetrics]:
    """Yield the rows in the output of ``dcgmi dmon`` as they arrive.

    The header names the columns and is repeated every few rows. Other lines (errors, MIG instances,
    units) are skipped.
    """
    columns: list[str] = []
    for line in lines:
        words = line.replace("#", " ").split()
        if words[:1] == ["Entity"]:
            columns = words[1:]
        elif words[:1] == ["GPU"] and len(words) == 2 + len(columns) and words[1].isdecimal():
            values = zip(columns, map(_number, words[2:]), strict=True)
            yield DcgmMetrics(
                int(words[1]),
                {_METRICS[k]: v for k, v in values if k in _METRICS and v is not None},
            )


def uuids(lines: Iterable[str]) -> dict[int, str]:
    """Return the UUIDs of the GPUs by DCGM's index, from ``dcgmi discovery -l``."""
    found: dict[int, str] = {}
    gpu = None
    for line in lines:
        number, uuid = _ID.match(line), _UUID.search(line)
        if number:
            gpu = int(number[1])
        if uuid and gpu is not None:
            found[gpu] = uuid[1]
    return found


def fields(lines: Iterable[str]) -> frozenset[int]:
    """Return the ``FIELDS`` that a GPU has, from ``dcgmi profile --list``."""
    listed = (int(found[1]) for line in lines if (found := _FIELD.match(line)))
    return frozenset(FIELDS).intersection(listed)


class Dcgm:
    """Keeps ``dcgmi dmon`` running, and averages its metrics.

    Parameters
    ----------
    program : str
        Path of ``dcgmi``.
    """

    def __init__(self, program: str = PROGRAM) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._rows: dict[str, list[Mapping[str, float]]] = {}
        self._closing = threading.Event()
        self._running: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._read, name="dcgmi dmon", daemon=True)
        self._thread.start()

    def metrics(self, uuid: str) -> dict[str, float]:
        """Return the means of a GPU's metrics since the last call, empty if there are none."""
        with self._lock:
            found = self._rows.pop(uuid, [])
        names = {name for row in found for name in row}
        return {name: fmean(row[name] for row in found if name in row) for name in sorted(names)}

    def close(self) -> None:
        """End ``dcgmi``."""
        self._closing.set()
        with self._lock:
            if self._running is not None:
                self._running.terminate()
        self._thread.join(_ANSWER_S)

    def _read(self) -> None:
        while not self._closing.is_set():
            try:
                self._follow()
            except (OSError, subprocess.SubprocessError) as error:
                _log.info("%s cannot be run: %s", self._program, error)
            self._closing.wait(AGAIN_S)

    def _output(self, *words: str) -> list[str]:
        command = [self._program, *words]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
        return done.stdout.splitlines()

    def _follow(self) -> None:
        """Read metrics until ``dcgmi`` ends, as it does when its output is closed."""
        known = uuids(self._output("discovery", "-l"))
        has = {gpu: fields(self._output("profile", "--list", "-i", str(gpu))) for gpu in known}
        profiled = [gpu for gpu, found in has.items() if found]
        if not profiled:
            return
        common = frozenset.intersection(*(has[gpu] for gpu in profiled))
        entities, names = (",".join(map(str, one)) for one in (profiled, sorted(common)))
        command = [self._program, "dmon", "-i", entities, "-e", names, "-d", str(EVERY_MS)]
        with self._begun(command) as running:
            assert running.stdout is not None
            for row in rows(running.stdout):
                if row.gpu in known:
                    with self._lock:
                        kept = self._rows.setdefault(known[row.gpu], [])
                        kept.append(row.metrics)
                        del kept[:-_MOST_ROWS]

    def _begun(self, command: Sequence[str]) -> subprocess.Popen[str]:
        with self._lock:
            self._running = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
            )
            if self._closing.is_set():
                self._running.terminate()
            return self._running


def _number(word: str) -> float | None:
    """Return a value, or None for ``N/A`` and other blanks."""
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
