"""A finished run on disk: a folder with its metrics and its tables."""

from __future__ import annotations

import csv
import gzip
import io
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dovetail.executor.simulation.history import History
from dovetail.executor.simulation.metrics import (
    METRICS,
    Table,
    job_table,
    series_table,
    stay_table,
    summary,
)
from dovetail.instances._record import shown
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import read_data
from dovetail.instances.plugins import require_package
from dovetail.instances.reading.contents import read_bytes
from dovetail.instances.reading.json_text import json_text
from dovetail.instances.traces.trace import Trace

RUN_FORMAT: Final = "dovetail-run/1"
_SUMMARY_FILE = "summary.json"
_KINDS: Final[Mapping[str, Mapping[str, type]]] = MappingProxyType(
    {
        "jobs": {
            "job": str,
            "tenant": str,
            "workload": str,
            "priority": str,
            "workers": int,
            "interruptions": int,
            "starts": int,
        },
        "series": {},
        "stays": {
            "stay": int,
            "job": int,
            "gpu": int,
            "best_effort": bool,
            "mode": int,
            "ending": str,
        },
    }
)
"""Types of the columns that are not floats."""


@dataclass(frozen=True, eq=False)
class RunResult:
    """A simulation of a trace under a policy.

    Attributes
    ----------
    policy : str
        Name of the policy with its options.
    seed : int
        Seed of everything random in the run.
    summary : dict of str to float
        See `metrics.summary`.
    jobs, series, stays : dict of str to array
        See `metrics.job_table`, ``series_table`` and ``stay_table``.
    fingerprint : str
        Digest of everything that determines the results; empty if unknown.
    """

    policy: str
    seed: int
    summary: dict[str, float]
    jobs: Table
    series: Table
    stays: Table
    fingerprint: str = ""

    @classmethod
    def of(
        cls, policy: str, seed: int, history: History, trace: Trace, fingerprint: str = ""
    ) -> RunResult:
        """Return the result of a finished simulation."""
        return cls(
            policy,
            seed,
            summary(history, trace),
            job_table(history, trace),
            series_table(history),
            stay_table(history),
            fingerprint,
        )

    def write(self, folder: str | Path) -> None:
        """Write the run as a folder, completely or not at all; replace an earlier run there.

        The folder has ``summary.json``, and ``jobs``, ``series`` and ``stays`` as Parquet if
        pyarrow is installed, otherwise as gzipped CSV.

        Raises
        ------
        InputError
            If it cannot be written, or the folder holds anything but a run.
        """
        target, unfinished = Path(folder), _unfinished(folder)
        prepare(target)
        try:
            unfinished.mkdir()
            self._write_files(unfinished)
            shutil.rmtree(target, ignore_errors=True)
            unfinished.rename(target)
        except OSError as error:
            raise _unwritten(folder, error) from None
        finally:
            remove_unfinished(folder)

    @classmethod
    def read(cls, folder: str | Path, tables: bool = True) -> RunResult:
        """Read a run that `write` wrote; if ``tables`` is False, leave the tables empty.

        Raises
        ------
        InputError
            If it cannot be read or is not a run.
        """
        place = Path(folder)
        policy, seed, metrics, fingerprint = _read_summary(place)
        jobs, series, stays = (_read_table(place, name) if tables else {} for name in _KINDS)
        return cls(policy, seed, metrics, jobs, series, stays, fingerprint)

    def _write_files(self, folder: Path) -> None:
        about = {
            "format": RUN_FORMAT,
            "policy": self.policy,
            "seed": self.seed,
            "fingerprint": self.fingerprint,
            "metrics": {name: _finite(value) for name, value in self.summary.items()},
        }
        (folder / _SUMMARY_FILE).write_text(json_text(about))
        for name in _KINDS:
            _write_table(getattr(self, name), folder / name)


def _read_summary(folder: Path) -> tuple[str, int, dict[str, float], str]:
    """Return policy, seed, metrics and fingerprint."""
    file = folder / _SUMMARY_FILE
    data = read_data(file)
    if not isinstance(data, dict) or data.get("format") != RUN_FORMAT:
        raise InputError(f"must be {RUN_FORMAT!r}", "format", source_name(file))
    metrics, policy, seed = (data.get(name) for name in ("metrics", "policy", "seed"))
    if not (isinstance(metrics, dict) and isinstance(policy, str) and isinstance(seed, int)):
        raise InputError("must have policy, seed and metrics", "", source_name(file))
    values = {name: _number(metrics.get(name)) for name in METRICS}
    return policy, seed, values, str(data.get("fingerprint", ""))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def prepare(folder: str | Path) -> None:
    """Check that a run can be written to this folder.

    Raises
    ------
    InputError
        If it cannot, or the folder holds anything but a run.
    """
    target = Path(folder)
    if target.exists() and not (target / _SUMMARY_FILE).is_file():
        held = not target.is_dir() or any(target.iterdir())
        if held:
            rule = "holds something other than a run: name a new folder"
            raise InputError(rule, "", source_name(target))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder)
        _unfinished(folder).mkdir()
        _unfinished(folder).rmdir()
    except OSError as error:
        raise _unwritten(folder, error) from None


def remove_unfinished(folder: str | Path) -> None:
    """Remove the remains of an interrupted `RunResult.write`."""
    shutil.rmtree(_unfinished(folder), ignore_errors=True)


def _unfinished(folder: str | Path) -> Path:
    return Path(folder).with_name(f".{Path(folder).name}.unfinished")


def _unwritten(folder: str | Path, error: OSError) -> InputError:
    reason = (error.strerror or str(error)).lower()
    return InputError(f"cannot be written: {reason}", "", source_name(folder))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _write_table(table: Table, path: Path) -> None:
    if find_spec("pyarrow"):
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(table), path.with_suffix(".parquet"), compression="zstd")
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(_cells(column) for column in table.values()), strict=True))
    path.with_suffix(".csv.gz").write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def _cells(column: NDArray[Any]) -> Sequence[object]:
    """Return a column for CSV, NaN as an empty cell."""
    values: list[object] = column.tolist()
    if column.dtype.kind != "f":
        return values
    return ["" if empty else value for value, empty in zip(values, np.isnan(column), strict=True)]


def _read_table(folder: Path, name: str) -> Table:
    packed = folder / f"{name}.parquet"
    if packed.is_file():
        return _read_parquet(packed)
    return _read_csv(folder / f"{name}.csv.gz", name)


def _read_parquet(file: Path) -> Table:
    require_package("pyarrow", "parquet", source_name(file))
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(file)
    except (OSError, pyarrow.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"cannot be read: {reason}", "", source_name(file)) from None
    return {name: _typed(table[name].to_numpy(zero_copy_only=False)) for name in table.column_names}


def _typed(column: NDArray[Any]) -> NDArray[Any]:
    return column.astype(np.str_) if column.dtype.kind == "O" else column


def _read_csv(file: Path, name: str) -> Table:
    try:
        head, *rows = csv.reader(io.StringIO(read_bytes(file).decode()))
        columns = zip(*rows, strict=True) if rows else ([] for _ in head)
        return {
            column: _parsed(cells, _KINDS[name].get(column, float))
            for column, cells in zip(head, columns, strict=True)
        }
    except ValueError as error:
        raise InputError(f"must be the table of a run: {error}", "", source_name(file)) from None


def _parsed(cells: Sequence[str], kind: type) -> NDArray[Any]:
    if kind is float:
        return np.array([float(cell or "nan") for cell in cells], dtype=np.float64)
    if kind is bool:
        return np.array([_truth(cell) for cell in cells], dtype=np.bool_)
    return np.array([kind(cell) for cell in cells], dtype=np.str_ if kind is str else np.int64)


def _truth(cell: str) -> bool:
    if cell not in ("True", "False"):
        raise ValueError(f"must be True or False, got {shown(cell)}")
    return cell == "True"
