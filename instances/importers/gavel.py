"""The throughputs published with Gavel (OSDI 2020), and its job traces.

Source: the repository ``stanford-futuredata/gavel``, ``simulation_throughputs.json``:
``{device: {"('job type', gpus)": {"null": solo it/s, "('other', gpus)": [mine, theirs]}}}``.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

from dovetail.instances._record import Record, listed, shown
from dovetail.instances._tables import Row, read_tsv
from dovetail.instances.datasets._measured import entries, nodes
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.errors import InputError
from dovetail.instances.files import read_data
from dovetail.instances.instance import Instance

TRACE = ("job type", "command", "steps flag", "data flag", "total steps", "arrival s", "GPUs")

_KEY = re.compile(r"""\((['"])(?P<job_type>.+)\1, (?P<gpus>[1-9][0-9]{0,5})\)""")

_BATCH = re.compile(r"(?P<family>.+) \(batch size (?P<size>[1-9][0-9]{0,5})\)")
_SOURCE = "Gavel"
_COPIED = "_unconsolidated"

_Row = Mapping[str, object]
_Job = dict[str, object]
_Rates = tuple[float, float]
_R = TypeVar("_R", bound=Record)


class _Gang(NamedTuple):
    """A row or column of the published table: a job type on a number of GPUs."""

    job_type: str
    gpus: int

    @property
    def workload(self) -> str:
        return self.job_type if self.gpus == 1 else f"{self.job_type} x{self.gpus}"


def import_gavel(
    throughputs: str,
    device: str,
    gpus: int,
    *,
    trace: str | None = None,
    at_s: float | None = None,
    gangs_as_single: bool = False,
    gpus_per_node: int = 8,
) -> Instance:
    """Return an instance with Gavel's measured slowdowns (solo / co-located throughput).

    Without a trace there is one job of each one-GPU type. With a trace the jobs are those that
    would still be unfinished at ``at_s`` if each had run alone, without waiting, from its
    arrival on: the trace does not say when jobs started, so this is the shortest queue there
    can be. ``remaining_s`` is what would be left then. All are pending, with ids ``job-LINE``.

    Only pairs of one-GPU jobs were measured. A gang therefore gets a workload of its own,
    ``TYPE xGPUS``, that has no entries: it runs alone. Pairs of which one side made no progress
    did not run (most likely out of memory) and may not share. Both orders of a pair, and both
    copies of a type with itself, are averaged.

    Parameters
    ----------
    throughputs : str
        The file of throughputs, ``.json`` or ``.json.gz``.
    device : str
        One of the file's devices, for example ``p100``; the GPU model of the instance.
    gpus : int
        GPUs of the cluster.
    trace : str, optional
        Trace file, tab separated: type, command, steps flag, data flag, total steps,
        arrival (s), GPUs; may end in ``.gz``.
    at_s : float, optional
        The moment of the trace, in seconds; needed with ``trace``.
    gangs_as_single : bool
        Assume that every worker of a gang behaves like the one-GPU job of its type: with the
        same slowdowns, and with the same pace where the gang's own was not measured.
    gpus_per_node : int
        GPUs of a node; the last may have fewer.

    Returns
    -------
    Instance
        Unpartitioned, no gSLAs. The data have no memory figures: workloads need 0 MiB.

    Raises
    ------
    InputError
        With file and place of the first value that breaks a rule; for a gang whose solo
        throughput was not measured, unless ``gangs_as_single``.
    """
    if (trace is None) != (at_s is None):
        raise InputError("trace and at_s go together", "at_s")
    if at_s is not None and not (math.isfinite(at_s) and at_s >= 0):
        raise InputError(f"must be a finite number >= 0, got {at_s}", "at_s")
    table = _Table(throughputs, device, _device(throughputs, device))
    jobs = table.one_of_each()
    if trace is not None and at_s is not None:
        jobs = _jobs_at(trace, at_s, table, gangs_as_single)
    data = {
        "name": "-".join(["gavel", device, *([f"{_stem(trace)}-{at_s:g}"] if trace else [])]),
        "cluster": {"nodes": nodes([device], gpus, gpus_per_node)},
        "workloads": table.workloads(),
        "jobs": jobs,
        "slowdowns": entries(table.measurements()),
    }
    return Instance.from_data(data, trace or throughputs)


def gavel_data(throughputs: str) -> DataSet:
    """Return Gavel's measurements of all devices as a data set.

    Every type and gang size that ran alone gives a profile with its throughput (iterations/s);
    its batch size and its family are read from the name (``ResNet-18 (batch size 16)``). The
    pairs are those of one-GPU jobs; one of which a side made no progress failed. The file has
    most pairs in both orders: where both say the same they are one measurement (in the
    published file they always do), else two.

    Devices ``NAME_unconsolidated`` are left out: their gangs ran spread over machines, and what
    ran on one GPU is copied from ``NAME``.

    Parameters
    ----------
    throughputs : str
        The file of throughputs, ``.json`` or ``.json.gz``.

    Raises
    ------
    InputError
        With file and place of the first value that breaks a rule.
    """
    devices = _mapping(throughputs, "", read_data(throughputs))
    tables = [
        _Table(throughputs, device, rows)
        for device, rows in devices.items()
        if not device.endswith(_COPIED)
    ]
    return DataSet(
        name="gavel",
        profiles=tuple(chain.from_iterable(table.profiles() for table in tables)),
        measurements=tuple(chain.from_iterable(table.measurements() for table in tables)),
    )


def gpu_models(throughputs: str) -> tuple[str, ...]:
    """Return the devices of the file of throughputs, without those ``NAME_unconsolidated``.

    Raises
    ------
    InputError
        When the file cannot be read.
    """
    devices = _mapping(throughputs, "", read_data(throughputs))
    return tuple(device for device in devices if not device.endswith(_COPIED))


def solo_throughputs(throughputs: str, device: str) -> dict[tuple[str, int], float]:
    """Return the measured solo iterations/s of one device, by job type and number of GPUs.

    Raises
    ------
    InputError
        With file and place of the first value that breaks a rule.
    """
    return _Table(throughputs, device, _device(throughputs, device)).solo()


class _Table:
    """The part of the published file that belongs to one device."""

    def __init__(self, source: str, device: str, rows_by_key: object) -> None:
        self._source = source
        self._device = device
        rows = _mapping(source, device, rows_by_key)
        self._rows = {self._gang(key): self._row(key, row) for key, row in rows.items()}
        self._solo = {gang: self._solo_rate(gang, row) for gang, row in self._rows.items()}

    def workloads(self) -> dict[str, object]:
        """Return a workload for each type and gang size that ran alone."""
        return {
            gang.workload: {"memory_mib": 0.0, "throughput": {100: rate}}
            for gang, rate in self._solo.items()
            if rate > 0
        }

    def one_of_each(self) -> list[_Job]:
        """Return one job for each one-GPU type that ran alone."""
        names = [gang.workload for gang, rate in self._solo.items() if gang.gpus == 1 and rate > 0]
        return [{"id": name, "workload": name} for name in names]

    def profiles(self) -> Iterator[SoloProfile]:
        """Yield the profile of each type and gang size that ran alone."""
        for gang, rate in self._solo.items():
            if rate > 0:
                batch = _BATCH.fullmatch(gang.job_type)
                yield self._record(
                    SoloProfile,
                    f"{tuple(gang)}",
                    workload=gang.job_type,
                    family=batch["family"] if batch else gang.job_type,
                    workers=gang.gpus,
                    batch_size=int(batch["size"]) if batch else None,
                    throughput=rate,
                )

    def measurements(self) -> Iterator[Measurement]:
        """Yield every measured pair of one-GPU types that ran alone, mirrored ones once."""
        seen: set[tuple[_Gang, _Gang, _Rates]] = set()
        for mine, row in self._rows.items():
            for key in row:
                other = None if key == "null" else self._gang(key)
                if not (other and mine.gpus == other.gpus == 1 and self._ran(mine, other)):
                    continue
                rates = self._pair_rates(mine, key, row[key])
                if (other, mine, rates[::-1]) not in seen:
                    seen.add((mine, other, rates))
                    yield self._measurement(mine, other, rates)

    def solo(self) -> dict[tuple[str, int], float]:
        """Return the iterations/s of each type and gang size that ran alone."""
        return {(job_type, gpus): rate for (job_type, gpus), rate in self._solo.items() if rate > 0}

    def rate(self, gang: _Gang) -> float:
        """Return the measured solo iterations/s, 0 where there are none."""
        return self._solo.get(gang, 0.0)

    def knows(self, job_type: str) -> bool:
        """Tell whether the type ran alone on one GPU."""
        return self.rate(_Gang(job_type, 1)) > 0

    def _ran(self, *gangs: _Gang) -> bool:
        return all(self.rate(gang) > 0 for gang in gangs)

    def _measurement(self, mine: _Gang, other: _Gang, rates: _Rates) -> Measurement:
        alone = (self._solo[mine], self._solo[other])
        return self._record(
            Measurement,
            f"{tuple(mine)}[{tuple(other)}]",
            workloads=(mine.workload, other.workload),
            slowdown=None if 0 in rates else (alone[0] / rates[0], alone[1] / rates[1]),
        )

    def _record(self, kind: type[_R], where: str, **data: object) -> _R:
        try:
            return kind.from_data({**data, "gpu_model": self._device, "source": _SOURCE})
        except InputError as error:
            raise self._broken(f"{where}.{error.path}", error.rule) from None

    def _gang(self, key: str) -> _Gang:
        found = _KEY.fullmatch(key)
        if found:
            return _Gang(found["job_type"], int(found["gpus"]))
        raise self._broken(key, "must be null or a key like \"('job type', 1)\"")

    def _row(self, key: str, row: object) -> _Row:
        return _mapping(self._source, f"{self._device}[{key}]", row)

    def _solo_rate(self, gang: _Gang, row: _Row) -> float:
        return self._number(f"{tuple(gang)}[null]", row.get("null"))

    def _pair_rates(self, mine: _Gang, key: str, value: object) -> _Rates:
        where = f"{tuple(mine)}[{key}]"
        if not isinstance(value, list) or len(value) != 2:
            raise self._broken(where, f"must be a list of two numbers, got {shown(value)}")
        return self._number(where, value[0]), self._number(where, value[1])

    def _number(self, where: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._broken(where, f"must be a number, got {shown(value)}")
        if not 0 <= value <= sys.float_info.max:
            raise self._broken(where, f"must be a finite number >= 0, got {shown(value)}")
        return float(value)

    def _broken(self, where: str, rule: str) -> InputError:
        return InputError(rule, f"{self._device}[{where}]", self._source)


def _device(source: str, device: str) -> object:
    devices = _mapping(source, "", read_data(source))
    if device in devices:
        return devices[device]
    raise InputError(f"must be one of {listed(devices)}, got {shown(device)}", "device", source)


def _mapping(source: str, where: str, value: object) -> _Row:
    if isinstance(value, dict):
        return value
    raise InputError(f"must be a mapping, got {shown(value)}", where, source)


def _jobs_at(trace: str, at_s: float, table: _Table, gangs_as_single: bool) -> list[_Job]:
    jobs = (_job_at(row, at_s, table, gangs_as_single) for row in read_tsv(trace, TRACE))
    return [job for job in jobs if job is not None]


def _job_at(row: Row, at_s: float, table: _Table, gangs_as_single: bool) -> _Job | None:
    """Return the job as of ``at_s``, None when not there yet or finished."""
    gang = _Gang(row.text("job type"), row.count("GPUs"))
    arrival_s, steps = row.number("arrival s"), row.positive("total steps")
    if not table.knows(gang.job_type):
        raise row.broken("job type", f"{gang.job_type!r} has no throughput on one GPU")
    if arrival_s > at_s:
        return None
    remaining_s = steps / _pace(row, gang, table, gangs_as_single) - (at_s - arrival_s)
    if remaining_s <= 0:
        return None
    workload = gang.job_type if gangs_as_single else gang.workload
    return {
        "id": f"job-{row.line}",
        "workload": workload,
        "workers": gang.gpus,
        "arrival_s": arrival_s,
        "remaining_s": remaining_s,
    }


def _pace(row: Row, gang: _Gang, table: _Table, gangs_as_single: bool) -> float:
    measured = table.rate(gang)
    if measured > 0:
        return measured
    if gangs_as_single:
        return table.rate(_Gang(gang.job_type, 1))
    rule = f"no throughput of {gang.job_type!r} on {gang.gpus} GPUs was measured"
    raise row.broken("GPUs", f"{rule}; gangs_as_single takes that of one GPU")


def _stem(path: str | None) -> str:
    return Path(path or "").name.split(".")[0]
