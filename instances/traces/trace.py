"""The records of a trace: jobs that arrive over time, one by one and as columns."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.instances._record import ONE_LINE, SEEN_IN_NAMES, shown
from dovetail.instances.errors import InputError

PRIORITIES: Final = ("batch", "latency")
_MOST_S: Final = 1e11
"""Three thousand years: double precision loses the seconds of far larger times."""

_MOST_WORKERS: Final = 1_000_000
_NAME: Final = re.compile(ONE_LINE)
_SEEN: Final = re.compile(f"{SEEN_IN_NAMES}*")
"""A text without blanks, of which every part that is not empty is a name."""

Texts = NDArray[np.object_]
"""A column of texts; None where there is none."""

NODE_RULES: Final = ("workers_per_node", "workers_together")
"""The fields with a rule on how many workers a node has."""

_Given = ArrayLike | Sequence[str | None]


def missing(column: Texts) -> NDArray[np.bool_]:
    """Return the rows in which a column has no text."""
    return np.array([text is None for text in column.tolist()], dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace.

    Attributes
    ----------
    id : str
        Its unique name. Names (this, ``workload`` and ``tenant``) are one line of printable
        characters, not all blank.
    arrival_s : float
        Seconds from the beginning of the trace, >= 0.
    workers : int
        GPUs it asks for, >= 1.
    duration_s : float
        Seconds it runs alone on a GPU of speed 1, > 0.
    workload : str or None
        Its workload; None if the trace does not give it.
    gsla : float or None
        The largest slowdown its owner accepts, >= 1.
    weight : float
        Its weight, >= 0.
    priority : str
        ``batch`` or ``latency``.
    tenant : str or None
        Its owner: the user, or the virtual cluster.
    workers_per_node, workers_together : int or None
        How many of its workers each node has, or a multiple of how many, as in an instance; None
        for any number.
    """

    id: str
    arrival_s: float
    workers: int
    duration_s: float
    workload: str | None = None
    gsla: float | None = None
    weight: float = 1.0
    priority: Literal["batch", "latency"] = "batch"
    tenant: str | None = None
    workers_per_node: int | None = None
    workers_together: int | None = None

    @property
    def together(self) -> int:
        """How many workers must be on a node together; 1 if each may be on any node."""
        return self.workers_per_node or self.workers_together or 1

    def broken_rule(self) -> tuple[str, str] | None:
        """Return the field that breaks a rule and the rule; None if all is well."""
        for field, name in (("id", self.id), ("workload", self.workload), ("tenant", self.tenant)):
            if name is not None and not _NAME.fullmatch(name):
                return field, f"must be one line of printable characters, got {shown(name)}"
        if not (math.isfinite(self.arrival_s) and self.arrival_s >= 0):
            return "arrival_s", f"must be a finite number >= 0, got {self.arrival_s}"
        for field, seconds in (("arrival_s", self.arrival_s), ("duration_s", self.duration_s)):
            if math.isfinite(seconds) and seconds > _MOST_S:
                return field, f"must be <= {_MOST_S:g} s, got {seconds} (milliseconds?)"
        if self.workers < 1:
            return "workers", f"must be >= 1, got {self.workers}"
        if self.workers > _MOST_WORKERS:
            return "workers", f"must be <= {_MOST_WORKERS}, got {shown(self.workers)}"
        if not (math.isfinite(self.duration_s) and self.duration_s > 0):
            return "duration_s", f"must be a finite number > 0, got {self.duration_s}"
        if self.gsla is not None and not (math.isfinite(self.gsla) and self.gsla >= 1):
            return "gsla", f"must be a finite number >= 1, got {self.gsla}"
        if not (math.isfinite(self.weight) and self.weight >= 0):
            return "weight", f"must be a finite number >= 0, got {self.weight}"
        if self.priority not in PRIORITIES:
            return "priority", f"must be batch or latency, got {shown(self.priority)}"
        return self._broken_node_rule()

    def _broken_node_rule(self) -> tuple[str, str] | None:
        for field in NODE_RULES:
            size = getattr(self, field)
            if size is not None and (size < 1 or self.workers % size):
                return field, f"must be >= 1 and divide workers ({self.workers}), got {size}"
        if self.workers_per_node is not None and self.workers_together is not None:
            rule = f"must not be given with workers_per_node ({self.workers_per_node})"
            return "workers_together", f"{rule}, got {self.workers_together}"
        return None


@dataclass(frozen=True, eq=False)
class JobColumns:
    """The jobs of a trace, a column for each field of ``TraceJob``.

    Attributes
    ----------
    id, workload, priority, tenant : (jobs,) object
        Texts; None where a job has none.
    arrival_s, duration_s, weight : (jobs,) float
        Numbers.
    workers : (jobs,) int
        Numbers of GPUs; in columns that are not checked yet also float, so that any number fits.
    gsla, workers_per_node, workers_together : (jobs,) float
        NaN where a job has none.
    """

    id: Texts
    arrival_s: NDArray[np.float64]
    workers: NDArray[Any]
    duration_s: NDArray[np.float64]
    workload: Texts
    gsla: NDArray[np.float64]
    weight: NDArray[np.float64]
    priority: Texts
    tenant: Texts
    workers_per_node: NDArray[np.float64]
    workers_together: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        id: ArrayLike,
        arrival_s: ArrayLike,
        workers: ArrayLike,
        duration_s: ArrayLike,
        **others: _Given,
    ) -> JobColumns:
        """Return columns; those that are not given have the default value in every row."""
        count = len(np.asarray(arrival_s))
        columns: dict[str, Any] = {
            "id": id,
            "arrival_s": arrival_s,
            "workers": np.asarray(workers),
            "duration_s": duration_s,
            "workload": np.full(count, None),
            "gsla": np.full(count, math.nan),
            "weight": np.ones(count),
            "priority": np.full(count, PRIORITIES[0], dtype=object),
            "tenant": np.full(count, None),
            **{name: np.full(count, math.nan) for name in NODE_RULES},
            **others,
        }
        kinds = dict.fromkeys(("id", "workload", "priority", "tenant"), object)
        kinds |= dict.fromkeys(("arrival_s", "duration_s", "gsla", "weight", *NODE_RULES), float)
        return cls(
            **{name: np.asarray(column, kinds.get(name)) for name, column in columns.items()}
        )

    @classmethod
    def of_jobs(cls, jobs: Sequence[TraceJob]) -> JobColumns:
        """Return the columns of jobs. A gSLA of NaN, which breaks a rule, becomes -infinity."""
        found = {
            field.name: [getattr(job, field.name) for job in jobs]
            for field in dataclasses.fields(TraceJob)
        }
        found["workers"] = [min(count, _MOST_WORKERS + 1) for count in found["workers"]]
        found["gsla"] = [
            math.nan if gsla is None else -math.inf if math.isnan(gsla) else gsla
            for gsla in found["gsla"]
        ]
        for name in NODE_RULES:
            found[name] = [math.nan if size is None else size for size in found[name]]
        return cls.of(**found)

    def __len__(self) -> int:
        return len(self.id)

    def jobs(self) -> tuple[TraceJob, ...]:
        """Return the jobs."""
        columns = {name: column.tolist() for name, column in vars(self).items()}
        columns["gsla"] = [None if math.isnan(gsla) else gsla for gsla in columns["gsla"]]
        columns["workers"] = list(map(int, columns["workers"]))
        for name in NODE_RULES:
            columns[name] = [None if math.isnan(size) else int(size) for size in columns[name]]
        return tuple(map(TraceJob, *columns.values()))

    def take(self, rows: Any) -> JobColumns:  # noqa: ANN401 (whatever indexes an array)
        """Return some of the rows."""
        return JobColumns(**{name: column[rows] for name, column in vars(self).items()})

    def may_break_a_rule(self, fields: Iterable[str] | None = None) -> NDArray[np.bool_]:
        """Return the rows for which ``TraceJob.broken_rule`` has to be asked.

        If fields are given, all others are known to break no rule.
        """
        sound = np.ones(len(self), dtype=np.bool_)
        asked = _SOUND if fields is None else set(fields).difference(NODE_RULES)
        for field in asked:
            sound &= _SOUND[field](getattr(self, field))
        if fields is None or not {"workers", *NODE_RULES}.isdisjoint(fields):
            sound &= self._keeps_node_rules()
        found: NDArray[np.bool_] = ~sound
        return found

    def _keeps_node_rules(self) -> NDArray[np.bool_]:
        """Return the rows in which at most one rule for nodes is given, and divides workers."""
        rules = [getattr(self, name) for name in NODE_RULES]
        given = ~np.isnan(rules)
        if not given.any():
            return np.ones(len(self), dtype=np.bool_)
        size = np.where(given, rules, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            whole = (size >= 1) & (self.workers % size == 0) & (size == np.floor(size))
        return np.asarray(whole.all(axis=0) & (given.sum(axis=0) < 2))


def _all_named(column: Texts) -> NDArray[np.bool_]:
    names = [name for name in column.tolist() if name is not None]
    if all(names) and _SEEN.fullmatch("".join(names)):
        return np.ones(len(column), dtype=np.bool_)
    return _all_match(column, lambda name: _NAME.fullmatch(name) is not None)


def _all_match(column: Texts, match: Callable[[str], bool]) -> NDArray[np.bool_]:
    names = column.tolist()
    broken = {name for name in {*names} if name is not None and not match(name)}
    if not broken:
        return np.ones(len(names), dtype=np.bool_)
    return np.array([name not in broken for name in names], dtype=np.bool_)


_SOUND: Final[Mapping[str, Callable[[NDArray[Any]], NDArray[np.bool_]]]] = {
    "id": _all_named,
    "arrival_s": lambda column: (column >= 0) & (column <= _MOST_S),
    "workers": lambda column: (column >= 1) & (column <= _MOST_WORKERS),
    "duration_s": lambda column: (column > 0) & (column <= _MOST_S),
    "workload": _all_named,
    "gsla": lambda column: np.isnan(column) | ((column >= 1) & (column < math.inf)),
    "weight": lambda column: (column >= 0) & (column < math.inf),
    "priority": lambda column: _all_match(column, PRIORITIES.__contains__),
    "tenant": _all_named,
}
"""The rows of each column that break no rule."""


class Trace:
    """Jobs in the order of their arrival.

    Parameters
    ----------
    name : str
        Its name in reports.
    jobs : iterable of TraceJob
        Sorted by ``arrival_s``; ids differ.
    notes : iterable of str
        Notes for readers, for example on jobs of a file that were left out.

    Attributes
    ----------
    name, notes
        As given.
    columns : JobColumns
        The jobs as columns; not to be changed in place.

    Raises
    ------
    InputError
        When a job breaks a rule, with its position in the sorted trace.
    """

    name: str
    columns: JobColumns
    notes: tuple[str, ...]

    def __init__(self, name: str, jobs: Iterable[TraceJob], notes: Iterable[str] = ()) -> None:
        given = tuple(jobs)
        self._fill(name, JobColumns.of_jobs(given), notes, given)
        self.jobs = given

    @classmethod
    def of(cls, name: str, jobs: Iterable[TraceJob], notes: Iterable[str] = ()) -> Trace:
        """Return the trace of jobs in any order; jobs that arrive together keep their order."""
        return cls(name, sorted(jobs, key=lambda job: job.arrival_s), notes)

    @classmethod
    def of_columns(cls, name: str, columns: JobColumns, notes: Iterable[str] = ()) -> Trace:
        """Return the trace of columns, like `of`."""
        made = cls.__new__(cls)
        made._fill(name, columns.take(np.argsort(columns.arrival_s, kind="stable")), notes)
        return made

    def _fill(
        self,
        name: str,
        columns: JobColumns,
        notes: Iterable[str],
        jobs: Sequence[TraceJob] | None = None,
        fields: Iterable[str] | None = None,
    ) -> None:
        self.name, self.notes = name, tuple(notes)
        self._require_rules(columns, jobs, fields)
        workers = columns.workers.astype(np.int64)
        self.columns = dataclasses.replace(columns, workers=workers)

    def _require_rules(
        self,
        columns: JobColumns,
        jobs: Sequence[TraceJob] | None,
        fields: Iterable[str] | None,
    ) -> None:
        doubtful = columns.may_break_a_rule(fields)
        doubtful[1:] |= columns.arrival_s[1:] < columns.arrival_s[:-1]
        ids = columns.id.tolist() if fields is None or "id" in fields else ()
        again = None
        if len({*ids}) < len(ids):
            first = dict(zip(reversed(ids), reversed(range(len(ids))), strict=True))
            again = next(k for k, name in enumerate(ids) if first[name] != k)
            doubtful[again] = True
        for k in np.flatnonzero(doubtful).tolist():
            job = jobs[k] if jobs is not None else columns.take([k]).jobs()[0]
            field, rule = job.broken_rule() or (
                ("id", f"ids must differ, got {job.id!r} twice")
                if k == again
                else ("arrival_s", "jobs must be in order of arrival")
            )
            raise InputError(rule, f"jobs[{k}].{field}", self.name)

    @cached_property
    def jobs(self) -> tuple[TraceJob, ...]:
        """The jobs, one by one; made when they are first asked for."""
        return self.columns.jobs()

    def __len__(self) -> int:
        return len(self.columns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        mine, theirs = (self.name, self.notes), (other.name, other.notes)
        return mine == theirs and self.jobs == other.jobs

    def __hash__(self) -> int:
        return hash((self.name, self.notes, len(self)))

    def __repr__(self) -> str:
        return f"Trace({self.name!r}, {len(self)} jobs, {self.notes!r})"

    def replace(self, jobs: Iterable[TraceJob]) -> Trace:
        """Return the trace with other jobs, and the same notes."""
        return Trace(self.name, jobs, self.notes)

    def take(self, rows: Any) -> Trace:  # noqa: ANN401 (whatever indexes an array)
        """Return the trace of some of the jobs: a mask, a slice or rising numbers."""
        made = Trace.__new__(Trace)
        made.name, made.notes, made.columns = self.name, self.notes, self.columns.take(rows)
        return made

    def altered(self, **columns: _Given) -> Trace:
        """Return the trace with other columns, whose jobs arrive in the same order."""
        made = Trace.__new__(Trace)
        kept = dict(vars(self.columns))
        made._fill(self.name, JobColumns.of(**(kept | columns)), self.notes, None, columns)
        return made

    @property
    def gpu_seconds(self) -> float:
        """The total work of the jobs: workers times duration, summed."""
        return math.fsum((self.columns.workers * self.columns.duration_s).tolist())
