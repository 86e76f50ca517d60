"""Large tables of measured pairs, read as columns.

Only what is usual is read so: a table of pairs that were each measured once, with nothing in doubt.
Anything else, and whatever breaks a rule, is left to `read_pairs`, which says what is wrong and
where.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from statistics import harmonic_mean
from typing import Any, BinaryIO, Final

import numpy as np
from pydantic import ValidationError

from dovetail.instances._record import IDLE
from dovetail.instances.datasets.records import Measurement
from dovetail.instances.errors import InputError
from dovetail.instances.reading.plausible import require_slowdowns
from dovetail.instances.reading.raw_files import MOST_BYTES, FilePath, opened
from dovetail.instances.reading.tables import MOST_ROWS
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import MODES, SOURCES
from dovetail.instances.slowdowns.gathering import fits
from dovetail.instances.slowdowns.shares import BEST_EFFORT, CODES, NO_CAP

_AT_ONCE: Final = 8192
_ENDS: Final = ("workload_1", "workload_2")
_SLOWDOWNS: Final = ("slowdown_1", "slowdown_2")
_SHARES: Final = ("share_1", "share_2")
_LETTERS: Final = ((1, "a"), (2, "b"))
_NOTES: Final = ("driver", "library", "source", "date")
_REQUIRED: Final = (*_ENDS, *_SLOWDOWNS, "gpu_model")
_KNOWN: Final = frozenset((*_REQUIRED, *_SHARES, *_NOTES, "mode", "status", "power_w"))
_SHARE_CODES: Final[dict[str, int]] = {
    "": NO_CAP,
    str(IDLE): BEST_EFFORT,
    **{str(cap): cap for cap in range(1, 101)},
}
_MODE_CODES: Final[dict[str, int]] = {
    "": 0,
    "shared": 0,
    **{str(mode): k for k, mode in enumerate(MODES)},
}
_SECOND_NAMES: Final = {
    **{"job_a": "workload_1", "job_b": "workload_2", "device": "gpu_model"},
    **{f"{name}_{end}": f"{name}_{k}" for name in ("share", "slowdown") for k, end in _LETTERS},
}
_LEAST: Final = 0.5
_MOST: Final = 20.0


class _OddTableError(Exception):
    """The table is to be read row by row."""


def plain_pairs(path: FilePath) -> Slowdowns | None:
    """Return the pairs of a table with commas (``.csv``, ``.csv.gz``), or None if it is unusual.

    Both workloads of a pair are in order; names come in order of first appearance.
    """
    try:
        with opened(path) as file:
            return _PairReader().read(file)
    except (_OddTableError, ValidationError, ValueError, KeyError, csv.Error, InputError):
        return None


class _PairReader:
    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._models: dict[str, int] = {}
        self._noted: set[tuple[str, str]] = set()
        self._parts: list[dict[str, Any]] = []

    def read(self, file: BinaryIO) -> Slowdowns:
        with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
            self._take(csv.reader(text), file)
        if not self._parts:
            raise _OddTableError
        return self._whole()

    def _take(self, rows: Iterator[list[str]], file: BinaryIO) -> None:
        header = [_SECOND_NAMES.get(name.strip(), name.strip()) for name in next(rows, [])]
        if len(set(header)) < len(header) or not set(_REQUIRED) <= set(header) <= _KNOWN:
            raise _OddTableError
        for part in _chunks(rows, file):
            self._parts.append(self._part(dict(zip(header, zip(*part, strict=True), strict=True))))

    def _part(self, cells: dict[str, Sequence[str]]) -> dict[str, Any]:
        if not {cell.strip().lower() for cell in set(cells.get("status", ()))} <= {"", "ok"}:
            raise _OddTableError
        for name in _NOTES:
            self._note(name, set(cells.get(name, ())))
        size = len(cells["gpu_model"])
        workload = self._numbered(self._names, _both(cells, _ENDS)).reshape(-1, 2)
        part: dict[str, Any] = {
            "workload": workload,
            "model": self._numbered(self._models, cells["gpu_model"]),
            "slowdown": _floats(_both(cells, _SLOWDOWNS)).reshape(-1, 2),
            "share": np.zeros((size, 2), dtype=np.int16),
            "mode": np.zeros(size, dtype=np.int8),
            "power_w": np.full(size, np.nan),
        }
        for k, name in enumerate(_SHARES):
            if name in cells:
                part["share"][:, k] = [_SHARE_CODES[cell] for cell in cells[name]]
        if "mode" in cells:
            part["mode"][:] = [_MODE_CODES[cell] for cell in cells["mode"]]
        if "power_w" in cells:
            given = [k for k, cell in enumerate(cells["power_w"]) if cell]
            part["power_w"][given] = _floats([cells["power_w"][k] for k in given])
        if not fits(part).all():
            raise _OddTableError
        return part

    def _note(self, name: str, values: set[str]) -> None:
        """Refuse a text that a measurement could not have; the texts are not needed."""
        for value in values - {""}:
            if (name, value) not in self._noted:
                checked = {"workloads": ("a", "b"), "gpu_model": "a", "slowdown": None}
                Measurement.model_validate({**checked, name: value.strip()})
                self._noted.add((name, value))

    @staticmethod
    def _numbered(numbers: dict[str, int], cells: Sequence[str]) -> Any:  # noqa: ANN401 (an array)
        for cell in dict.fromkeys(cells):
            name = cell.strip()
            if name not in numbers:
                checked = {"workloads": (name, name), "gpu_model": name, "slowdown": None}
                Measurement.model_validate(checked)
                numbers[name] = len(numbers)
            if cell != name:
                raise _OddTableError
        return np.array([numbers[cell] for cell in cells], dtype=np.int32)

    def _whole(self) -> Slowdowns:
        made = {
            name: np.concatenate([part.pop(name) for part in self._parts])
            for name in tuple(self._parts[0])
        }
        slowdown = made["slowdown"]
        require_slowdowns(slowdown, "", "")
        doubtful = 2 * np.count_nonzero(slowdown < 1) > slowdown.size
        if (
            doubtful
            or not ((slowdown >= _LEAST) & (slowdown <= _MOST)).all()
            or len({name.casefold() for name in self._names}) < len(self._names)
        ):
            raise _OddTableError
        rank = np.argsort(np.argsort(np.array([*self._names], dtype=object)))
        member = rank[made["workload"]] * CODES + made["share"]
        turned = np.flatnonzero(member[:, 0] > member[:, 1])
        for name in ("workload", "share", "slowdown"):
            made[name][turned] = made[name][turned][:, ::-1]
        twins = np.flatnonzero(member[:, 0] == member[:, 1])
        # The mean of both copies, as for rows that are read one by one.
        for row in twins.tolist():
            slowdown[row] = harmonic_mean(slowdown[row].tolist())
        source = SOURCES.index("measured")
        found = Slowdowns.of_pairs([*self._names], models=[*self._models], source=source, **made)
        if found.repeated() is not None:
            raise _OddTableError
        return found


def _chunks(rows: Iterator[list[str]], file: BinaryIO) -> Iterator[list[list[str]]]:
    count = 0
    while part := list(islice(rows, _AT_ONCE)):
        count += len(part)
        if count >= MOST_ROWS or file.tell() > MOST_BYTES:
            raise _OddTableError
        yield part


def _both(cells: dict[str, Sequence[str]], names: tuple[str, str]) -> list[str]:
    return list(chain.from_iterable(zip(cells[names[0]], cells[names[1]], strict=True)))


def _floats(cells: Sequence[str]) -> Any:  # noqa: ANN401 (an array)
    together = "".join(cells)
    # Spellings that only Python accepts are no numbers.
    if "_" in together or not together.isascii():
        raise _OddTableError
    found = np.array([*map(float, cells)], dtype=np.float64)
    if np.isnan(found).any():
        raise _OddTableError
    return found
