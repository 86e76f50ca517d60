"""Large tables of measured pairs, read as columns.

Only what is usual is read so: a table of pairs that were each measured once, with nothing in doubt.
Anything else, and whatever breaks a rule, is left to `read_pairs`, which says what is wrong and
where.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import harmonic_mean
from typing import Any, BinaryIO, Final

import numpy as np
from pydantic import ValidationError

from dovetail.instances._record import IDLE
from dovetail.instances.datasets.records import Measurement
from dovetail.instances.errors import InputError
from dovetail.instances.importers._cells import (
    Cells,
    FloatArray,
    IntArray,
    OddBytesError,
    OddTableError,
    both,
    byte_parts,
    parquet_parts,
    row_parts,
)
from dovetail.instances.reading.contents import MOST_BYTES, FilePath, opened
from dovetail.instances.reading.tables import MOST_ROWS
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import MODES, SOURCES
from dovetail.instances.slowdowns.gathering import fits, require_slowdowns
from dovetail.instances.slowdowns.shares import BEST_EFFORT, CODES, NO_CAP

_ENDS: Final = ("workload_1", "workload_2")
_SLOWDOWNS: Final = ("slowdown_1", "slowdown_2")
_SHARES: Final = ("share_1", "share_2")
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
_LEAST: Final = 0.5
_MOST: Final = 20.0


def plain_pairs(path: FilePath) -> Slowdowns | None:
    """Return the pairs of a table (``.csv``, ``.csv.gz``, ``.parquet``), or None if it is unusual.

    Both workloads of a pair are in order; names come in order of first appearance.
    """
    try:
        if Path(path).suffix == ".parquet":
            return _PairReader().read(parquet_parts(Path(path)))
        with opened(path) as file:
            try:
                return _PairReader().read(_within_limit(file, byte_parts(file)))
            except OddBytesError:
                file.seek(0)
                return _PairReader().read(_within_limit(file, row_parts(file)))
    except (OddTableError, ValidationError, ValueError, KeyError, csv.Error, InputError):
        return None


def _within_limit(file: BinaryIO, parts: Iterable[dict[str, Cells]]) -> Iterator[dict[str, Cells]]:
    for part in parts:
        if file.tell() > MOST_BYTES:
            raise OddTableError
        yield part


class _PairReader:
    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._models: dict[str, int] = {}
        self._noted: set[tuple[str, str]] = set()
        self._parts: list[dict[str, Any]] = []

    def read(self, parts: Iterable[dict[str, Cells]]) -> Slowdowns:
        count = 0
        for cells in parts:
            if not self._parts and not set(_REQUIRED) <= cells.keys() <= _KNOWN:
                raise OddTableError
            self._parts.append(self._part(cells))
            count += len(self._parts[-1]["workload"])
            if count >= MOST_ROWS:
                raise OddTableError
        if not self._parts:
            raise OddTableError
        return self._whole()

    def _part(self, cells: Mapping[str, Cells]) -> dict[str, Any]:
        texts = {name: set(column.texts) for name, column in cells.items()}
        if not {cell.strip().lower() for cell in texts.get("status", ())} <= {"", "ok"}:
            raise OddTableError
        for name in _NOTES:
            self._note(name, texts.get(name, set()))
        model = self._numbered(self._models, cells["gpu_model"])
        size = len(model)
        part: dict[str, Any] = {
            "workload": self._numbered(self._names, both(cells, _ENDS)).reshape(-1, 2),
            "model": model,
            "slowdown": _floats(both(cells, _SLOWDOWNS)).reshape(-1, 2),
            "share": np.zeros((size, 2), dtype=np.int16),
            "mode": np.zeros(size, dtype=np.int8),
            "power_w": np.full(size, np.nan),
        }
        for k, name in enumerate(_SHARES):
            if name in cells:
                part["share"][:, k] = _codes(cells[name], _SHARE_CODES)
        if "mode" in cells:
            part["mode"][:] = _codes(cells["mode"], _MODE_CODES)
        if "power_w" in cells:
            part["power_w"][:] = _floats(cells["power_w"], empty=True)
        if not fits(part).all():
            raise OddTableError
        return part

    def _note(self, name: str, values: set[str]) -> None:
        """Refuse a text that a measurement could not have; the texts are not needed."""
        for value in values - {""}:
            if (name, value) not in self._noted:
                checked = {"workloads": ("a", "b"), "gpu_model": "a", "slowdown": None}
                Measurement.model_validate({**checked, name: value.strip()})
                self._noted.add((name, value))

    @staticmethod
    def _numbered(numbers: dict[str, int], cells: Cells) -> Any:  # noqa: ANN401 (an array)
        for cell in cells.texts:
            name = cell.strip()
            if name not in numbers:
                checked = {"workloads": (name, name), "gpu_model": name, "slowdown": None}
                Measurement.model_validate(checked)
                numbers[name] = len(numbers)
            if cell != name:
                raise OddTableError
        return _codes(cells, numbers)

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
            raise OddTableError
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
            raise OddTableError
        return found


def _codes(cells: Cells, codes: Mapping[str, int]) -> IntArray:
    return np.array([codes[text] for text in cells.texts], dtype=np.int32)[cells.code]


def _floats(cells: Cells, *, empty: bool = False) -> FloatArray:
    """Return the numbers in cells, NaN for empty ones if there may be any."""
    together = "".join(cells.texts)
    # Spellings that only Python accepts are no numbers.
    if "_" in together or not together.isascii():
        raise OddTableError
    given = [float(text) for text in cells.texts if text or not empty]
    if any(map(math.isnan, given)):
        raise OddTableError
    numbers = iter(given)
    each = [next(numbers) if text or not empty else math.nan for text in cells.texts]
    return np.array(each, dtype=np.float64)[cells.code]
