"""The measurements of ParvaGPU (SC 2024): equal processes on slices of an A100-80GB.

Source: the repository ``MunQ-Lee/ParvaGPU_SC24``, ``prof_data/MODEL.csv``: 11 inference models,
each on five MIG slices, with nine batch sizes, as 1 to 5 equal processes under MPS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.errors import InputError
from dovetail.instances.reading.tables import Row, read_csv

GPU_MODEL = "A100-80GB"
SLICES: Mapping[int, str] = {
    1: f"{GPU_MODEL} MIG 1g.10gb",
    2: f"{GPU_MODEL} MIG 2g.20gb",
    3: f"{GPU_MODEL} MIG 3g.40gb",
    4: f"{GPU_MODEL} MIG 4g.40gb",
    7: GPU_MODEL,
}
"""The GPU model of a slice by its number of parts; all 7 are the whole GPU."""

_COLUMNS = ("Mig instance", "Batch size", "Workload Number", "Throughput")
_SOURCE = "ParvaGPU"
_MOST_PROCESSES = 100


class _SliceProcesses(NamedTuple):
    """Equal processes on one slice."""

    row: Row
    family: str
    gpu_model: str
    batch_size: int
    processes: int
    rate: float

    @property
    def workload(self) -> str:
        return f"{self.family} inference b{self.batch_size}"


def parvagpu_data(directory: str) -> DataSet:
    """Return ParvaGPU's measurements as a data set.

    ``Throughput`` is that of each process, in samples/s: it is the batch size over the column
    ``Latency``, for any number of processes. One process gives the profile, with throughput /
    batch size iterations/s; 2 to 5 give a measurement of this number of equal workloads with
    slowdown = throughput of one / throughput of each. A throughput of 0 means that they failed to
    run (out of memory); configurations that did not run alone are left out.

    Parameters
    ----------
    directory : str
        Folder with ``MODEL.csv`` for each model (or the same with ``.gz``). Other tables, those of
        the service levels (``SLO_*.csv``), are not read.

    Raises
    ------
    InputError
        With file, line and column of the first value that breaks a rule.
    """
    runs = [run for path in _tables(directory) for run in _runs(path)]
    alone = {(r.workload, r.gpu_model): r for r in runs if r.processes == 1 and r.rate > 0}
    return DataSet(
        name="parvagpu",
        profiles=tuple(map(_profile, alone.values())),
        measurements=tuple(_measurements(runs, alone)),
    )


def _tables(directory: str) -> list[Path]:
    found = [path for end in (".csv", ".csv.gz") for path in Path(directory).glob(f"*{end}")]
    tables = sorted(path for path in found if not path.name.startswith("SLO_"))
    if not tables:
        raise InputError("must have a file MODEL.csv for each model", "", directory)
    return tables


def _runs(path: Path) -> Iterator[_SliceProcesses]:
    family = path.name.split(".")[0]
    for row in read_csv(path, _COLUMNS):
        yield _SliceProcesses(
            row,
            family,
            _slice(row),
            row.count("Batch size"),
            _processes(row),
            row.number("Throughput"),
        )


def _processes(row: Row) -> int:
    count = row.count("Workload Number")
    if count > _MOST_PROCESSES:
        raise row.broken("Workload Number", f"must be <= {_MOST_PROCESSES}, got {count:g}")
    return count


def _slice(row: Row) -> str:
    parts = row.count("Mig instance")
    if parts not in SLICES:
        rule = f"must be one of {', '.join(map(str, SLICES))}, got {parts}"
        raise row.broken("Mig instance", rule)
    return SLICES[parts]


def _profile(run: _SliceProcesses) -> SoloProfile:
    return run.row.record(
        SoloProfile,
        workload=run.workload,
        gpu_model=run.gpu_model,
        family=run.family,
        batch_size=run.batch_size,
        throughput=run.rate / run.batch_size,
        source=_SOURCE,
    )


def _measurements(
    runs: Iterable[_SliceProcesses], alone: Mapping[tuple[str, str], _SliceProcesses]
) -> Iterator[Measurement]:
    for run in runs:
        one = alone.get((run.workload, run.gpu_model))
        if run.processes > 1 and one:
            slowdown = (one.rate / run.rate,) * run.processes if run.rate else None
            yield run.row.record(
                Measurement,
                workloads=(run.workload,) * run.processes,
                gpu_model=run.gpu_model,
                slowdown=slowdown,
                source=_SOURCE,
            )
        elif run.processes > 1 and run.rate:
            rule = f"{run.processes} processes ran, so that one must have a throughput"
            raise run.row.broken("Throughput", rule)
