"""The throughputs published with Gavel (OSDI 2020), and the columns of its job traces.

Source: the repository ``stanford-futuredata/gavel``, ``simulation_throughputs.json``:
``{device: {"('job type', gpus)": {"null": solo it/s, "('other', gpus)": [mine, theirs]}}}``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

from dovetail.instances._record import Record, listed, shown
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.errors import InputError
from dovetail.instances.files import read_data

TRACE = ("job type", "command", "steps flag", "data flag", "total steps", "arrival s", "GPUs")


_KEY = re.compile(r"""\((['"])(?P<job_type>.+)\1, (?P<gpus>[1-9][0-9]{0,5})\)""")


_BATCH = re.compile(r"(?P<family>.+) \(batch size (?P<size>[1-9][0-9]{0,5})\)")


_SOURCE = "Gavel"


_COPIED = "_unconsolidated"


_Row = Mapping[str, object]


_Rates = tuple[float, float]


_R = TypeVar("_R", bound=Record)


class Gang(NamedTuple):
    """A row or column of the published table: a job type on a number of GPUs."""

    job_type: str
    gpus: int

    @property
    def workload(self) -> str:
        """Its workload in an instance."""
        return self.job_type if self.gpus == 1 else f"{self.job_type} x{self.gpus}"


def gpu_models(source: str) -> tuple[str, ...]:
    """Return the devices of the throughput file, except ``NAME_unconsolidated``.

    Raises
    ------
    InputError
        When the file cannot be read.
    """
    return _own(_mapping(source, "", read_data(source)))


def all_throughputs(source: str) -> list[Throughputs]:
    """Return the devices' parts of the throughput file, except ``NAME_unconsolidated``.

    Raises
    ------
    InputError
        With file and place of the first value that breaks a rule.
    """
    devices = _mapping(source, "", read_data(source))
    return [Throughputs(source, device, devices[device]) for device in _own(devices)]


def read_throughputs(source: str, device: str) -> Throughputs:
    """Return the part of the throughput file for one device.

    Raises
    ------
    InputError
        With file and place of the first value that breaks a rule.
    """
    devices = _mapping(source, "", read_data(source))
    if device not in devices:
        raise InputError(f"must be one of {listed(devices)}, got {shown(device)}", "device", source)
    return Throughputs(source, device, devices[device])


class Throughputs:
    """The part of the published file for one device."""

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

    def one_of_each(self) -> list[dict[str, object]]:
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
        seen: set[tuple[Gang, Gang, _Rates]] = set()
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

    def rate(self, gang: Gang) -> float:
        """Return the measured solo iterations/s, or 0 if there are none."""
        return self._solo.get(gang, 0.0)

    def knows(self, job_type: str) -> bool:
        """Return whether the type ran alone on one GPU."""
        return self.rate(Gang(job_type, 1)) > 0

    def _ran(self, *gangs: Gang) -> bool:
        return all(self.rate(gang) > 0 for gang in gangs)

    def _measurement(self, mine: Gang, other: Gang, rates: _Rates) -> Measurement:
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

    def _gang(self, key: str) -> Gang:
        found = _KEY.fullmatch(key)
        if found:
            return Gang(found["job_type"], int(found["gpus"]))
        raise self._broken(key, "must be null or a key like \"('job type', 1)\"")

    def _row(self, key: str, row: object) -> _Row:
        return _mapping(self._source, f"{self._device}[{key}]", row)

    def _solo_rate(self, gang: Gang, row: _Row) -> float:
        return self._number(f"{tuple(gang)}[null]", row.get("null"))

    def _pair_rates(self, mine: Gang, key: str, value: object) -> _Rates:
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


def _own(devices: _Row) -> tuple[str, ...]:
    return tuple(device for device in devices if not device.endswith(_COPIED))


def _mapping(source: str, where: str, value: object) -> _Row:
    if isinstance(value, dict):
        return value
    raise InputError(f"must be a mapping, got {shown(value)}", where, source)
