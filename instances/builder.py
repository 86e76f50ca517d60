"""A builder of instances, for callers from Python."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Annotated, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import FailFast, TypeAdapter, ValidationError

from dovetail.instances._fitting import JobChecks, NodeChecks, check_entry, unknown_workload
from dovetail.instances._record import (
    FrozenDict,
    Name,
    Positive,
    Record,
    Slowdown,
    as_input_error,
    field_path,
    input_error,
    joined_path,
    rule_broken,
)
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance, Job, Node, Place, SlowdownEntry, Workload
from dovetail.instances.reading.plausible import require_slowdowns
from dovetail.instances.slowdowns.shares import share_code

Names = Collection[str] | Collection[int] | NDArray[np.int64] | NDArray[np.str_]
"""Workloads: their names, or their positions in the order in which they were added."""

_R = TypeVar("_R", bound=Record)

_SHARES: Final = 128
"""More than the number of shares, so that a workload and its share fit in one number."""

_SLOWDOWNS: Final = TypeAdapter(Annotated[list[Slowdown], FailFast()])
_POWERS: Final = TypeAdapter(Annotated[list[Positive], FailFast()])


class _Named(Record):
    name: Name


class _PairColumns(NamedTuple):
    """Checked slowdowns of pairs, as columns.

    Attributes
    ----------
    names : (n, 2) int
        Positions of the workloads.
    slowdown, upper, p99 : (n, 2) float
        Figures of each workload; None if there are none.
    share : (n, 2) int
        Share of each workload, 0 = none.
    power_w : (n,) float
        Power of the shared GPU, or None.
    others : mapping
        The fields that all rows have in common.
    """

    names: NDArray[np.int64]
    slowdown: NDArray[np.float64]
    share: NDArray[np.int64] | None
    upper: NDArray[np.float64] | None
    p99: NDArray[np.float64] | None
    power_w: NDArray[np.float64] | None
    others: Mapping[str, object]

    def rows(self, names: Sequence[str], part: slice = slice(None)) -> Iterator[dict[str, object]]:
        """Yield the fields of each entry."""
        columns: dict[str, Iterator[object]] = {
            "pair": ((names[a], names[b]) for a, b in self.names[part].tolist()),
            "slowdown": map(tuple, self.slowdown[part].tolist()),
        }
        if self.share is not None:
            given = self.share[part].tolist()
            columns["share"] = ((a or None, b or None) for a, b in given)
        for field in ("upper", "p99"):
            values = getattr(self, field)
            if values is not None:
                columns[field] = map(tuple, values[part].tolist())
        if self.power_w is not None:
            columns["power_w"] = iter(self.power_w[part].tolist())
        columns |= {field: repeat(value) for field, value in self.others.items()}
        return (
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=False)
        )

    def entries(self, names: Sequence[str]) -> Iterator[SlowdownEntry]:
        """Yield the records.

        Everything is already checked, and Pydantic would take three times as long.
        """
        usual = {name: field.default for name, field in SlowdownEntry.model_fields.items()}
        usual |= {"pair": None, "slowdown": None}
        given = {"pair", "slowdown", *self.others}
        given |= {f for f in ("share", "upper", "p99", "power_w") if getattr(self, f) is not None}
        put = object.__setattr__
        for row in self.rows(names):
            entry = SlowdownEntry.__new__(SlowdownEntry)
            put(entry, "__dict__", usual | row)
            put(entry, "__pydantic_fields_set__", given)
            put(entry, "__pydantic_extra__", None)
            put(entry, "__pydantic_private__", None)
            yield entry


class InstanceBuilder:
    """An instance under construction: nodes, workloads, jobs and slowdowns are added one by one.

    It is made by ``Instance.build``. Each call checks its arguments against everything added
    before, at a cost independent of its size; a call that raises adds nothing. ``dovetail.solve``
    accepts the builder like an instance.

    Examples
    --------
    >>> from dovetail import Instance, solve
    >>> lab = Instance.build("two on one", reserve_mib=500)
    >>> lab.add_node("n0", 1, "V100", 16160)
    >>> lab.add_workload("resnet", 5000)
    >>> lab.add_workload("bert", 8000)
    >>> lab.add_job("a", "resnet", gsla=1.5)
    >>> lab.add_job("b", "bert")
    >>> lab.add_slowdown(["resnet", "bert"], [1.25, 1.6])
    >>> solve(lab).status
    'optimal'
    """

    def __init__(self, name: str, **rules: object) -> None:
        data = {"name": name, "cluster": {**rules, "nodes": []}, "workloads": {}, "jobs": []}
        empty = Instance.from_data(data)
        self._name, self._cluster = empty.name, empty.cluster
        self._nodes: list[Node] = []
        self._places: dict[str, Place] = {}
        self._most_jobs: dict[str, int] = {}
        self._workloads: dict[str, Workload] = {}
        self._names: list[str] = []
        self._positions: dict[str, int] = {}
        self._jobs: list[Job] = []
        self._slowdowns: list[SlowdownEntry | _PairColumns] = []
        self._entries = 0
        self._known: dict[str | None, set[object]] = {}
        self._node_checks = NodeChecks()
        self._job_checks = JobChecks(self._workloads, self._places, self._most_jobs)

    def __repr__(self) -> str:
        sizes = (
            (len(self._jobs), "jobs"),
            (len(self._places), "GPUs"),
            (self._entries, "slowdowns"),
        )
        listed = ", ".join(f"{size:,} {what}" for size, what in sizes)
        return f"<InstanceBuilder {self._name!r}: {listed}>"

    def add_node(
        self,
        id: str,
        gpus: int | Sequence[str],
        model: str,
        memory_mib: float,
        *,
        sms: int | None = None,
        max_jobs: int | None = None,
        rack: str | None = None,
        host: Mapping[str, float] | None = None,
    ) -> None:
        """Add a machine with GPUs of one model.

        Parameters
        ----------
        id : str
            Its name.
        gpus : int or sequence of str
            The number of GPUs, which are then named ``<id>-0`` and so on; or their names.
        model : str
            The GPU model, such as ``A100``.
        memory_mib : float
            Memory of each in MiB.
        sms, max_jobs : int, optional
            SMs of each, and the most jobs on it if less than the cluster's.
        rack : str, optional
            The rack of the machine.
        host : mapping of str to float, optional
            Resources in addition to GPUs (``HostResources``).

        Raises
        ------
        InputError
            When a value breaks a rule, or a name is taken.
        """
        kind = {"model": model, "memory_mib": memory_mib, "sms": sms, "max_jobs": max_jobs}
        of_node: dict[str, object] = {"gpu_count": gpus, "gpu": kind}
        if isinstance(gpus, Sequence) and not isinstance(gpus, str):
            of_node = {"gpus": [{"id": gpu, **kind} for gpu in gpus]}
        path = f"nodes[{len(self._nodes)}]"
        node = _record(Node, {"id": id, "rack": rack, "host": host, **of_node}, path)
        with as_input_error():
            self._node_checks.add(node, path)
        self._nodes.append(node)
        self._places.update((place.gpu.id, place) for place in node.places)
        self._most_jobs.update((gpu.model, self._cluster.most_on(gpu)) for gpu in node.devices)

    def add_workload(self, name: str, memory_mib: float, **fields: object) -> None:
        """Add a workload, which jobs run.

        Parameters
        ----------
        name : str
            The name that jobs and slowdowns refer to.
        memory_mib : float
            Memory of one worker in MiB.
        **fields
            Other fields of `Workload`: ``throughput``, ``metrics``, ``batch``, ...

        Raises
        ------
        InputError
            When a value breaks a rule, or the name is taken.
        """
        name = _record(_Named, {"name": name}, "workloads").name
        path = field_path("workloads", name)
        if name in self._workloads:
            raise InputError("workload names must differ, got this one twice", path)
        workload = _record(Workload, {"memory_mib": memory_mib, **fields}, path)
        self._positions[name] = len(self._names)
        self._names.append(name)
        self._workloads[name] = workload

    def add_job(self, id: str, workload: str, **fields: object) -> None:
        """Add a job, which waits unless ``state="running"`` and ``gpus`` say otherwise.

        Parameters
        ----------
        id : str
            Its name.
        workload : str
            The workload that it runs; must have been added before.
        **fields
            Other fields of `Job`: ``workers``, ``gsla``, ``weight``, ...

        Raises
        ------
        InputError
            When a value breaks a rule, the name is taken, the workload is unknown, or the GPUs of
            the running job cannot hold it.
        """
        path = f"jobs[{len(self._jobs)}]"
        job = _record(Job, {"id": id, "workload": workload, **fields}, path)
        with as_input_error():
            self._job_checks.add(job, path)
        self._jobs.append(job)

    def add_slowdown(
        self,
        workloads: Sequence[str],
        slowdown: Sequence[float] | NDArray[np.float64] | None,
        **fields: object,
    ) -> None:
        """Add the slowdowns of two workloads that share a GPU, or of three and more.

        Parameters
        ----------
        workloads : sequence of str
            The workloads that share; must have been added before.
        slowdown : sequence of float, or None
            Iteration time together / alone of each, in this order. None: they may not share.
        **fields
            Other fields of `SlowdownEntry`: ``share``, ``upper``, ``p99``, ``gpu_model``, ...;
            ``mode`` is by default the cluster's.

        Raises
        ------
        InputError
            When a value breaks a rule, a workload is unknown, or the same workloads at these
            shares and GPU model were added before.
        """
        path = f"slowdowns[{self._entries}]"
        who = "set" if len(workloads) > 2 else "pair"
        shared = {"mode": self._cluster.sharing, **fields}
        data = {who: list(workloads), "slowdown": slowdown, **shared}
        entry = _record(SlowdownEntry, data, path)
        with as_input_error():
            check_entry(entry, self._workloads, self._cluster.sharing, path)
            self._remember(entry, path)
        self._slowdowns.append(entry)
        self._entries += 1

    def add_slowdowns(
        self,
        first: Names,
        second: Names,
        slowdown: ArrayLike,
        *,
        share: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        p99: ArrayLike | None = None,
        power_w: ArrayLike | None = None,
        gpu_model: str | None = None,
        source: str | None = None,
        confidence: float | None = None,
    ) -> None:
        """Add the slowdowns of many pairs under the cluster's sharing, from columns.

        Parameters
        ----------
        first, second : n str or int
            Names of the workloads, or their positions in the order in which they were added.
        slowdown : array_like of float, shape (n, 2)
            Iteration time together / alone, of the first and of the second. Leave out unknown
            pairs; for pairs that may not share, see `add_slowdown`.
        share : array_like of int, shape (n, 2) or (2,), optional
            Percentage of the SMs that each may use; 0 means no limit.
        upper, p99 : array_like of float, shape (n, 2), optional
            Upper bounds of the slowdowns, and growth of the tail latencies.
        power_w : array_like of float, shape (n,), optional
            Power of the shared GPU in watts.
        gpu_model : str, optional
            The only GPU model that they hold on.
        source : str, optional
            Their origin: ``measured``, ``model`` or ``estimate``.
        confidence : float, optional
            The confidence of the upper bounds, between 0 and 1.

        Raises
        ------
        InputError
            With the row and the value that breaks a rule; also when half of the slowdowns are
            speeds or percentages, or a pair at these shares and GPU model was added before.
        """
        one, other = self._found("first", first), self._found("second", second)
        count = len(one)
        if len(other) != count:
            raise InputError(f"must have as many workloads as first, {count}", "second")
        given = {"gpu_model": gpu_model, "source": source, "confidence": confidence}
        pairs = _PairColumns(
            np.stack([one, other], axis=-1),
            _floats("slowdown", slowdown, (count, 2), _SLOWDOWNS),
            None if share is None else _shares(share, count),
            None if upper is None else _floats("upper", upper, (count, 2), _SLOWDOWNS),
            None if p99 is None else _floats("p99", p99, (count, 2), _SLOWDOWNS),
            None if power_w is None else _floats("power_w", power_w, (count,), _POWERS),
            {
                "mode": self._cluster.sharing,
                **{name: value for name, value in given.items() if value is not None},
            },
        )
        if count == 0:
            return
        self._check_rows(pairs)
        require_slowdowns(pairs.slowdown.ravel().tolist(), "slowdown", "")
        self._remember_all(pairs)
        self._slowdowns.append(pairs)
        self._entries += count

    def instance(self) -> Instance:
        """Return the instance with everything added so far; more may be added afterwards."""
        return Instance.model_construct(
            name=self._name,
            cluster=self._cluster.model_copy(update={"nodes": tuple(self._nodes)}),
            workloads=FrozenDict(self._workloads),
            jobs=tuple(self._jobs),
            slowdowns=tuple(
                entry
                for part in self._slowdowns
                for entry in (
                    part.entries(self._names) if isinstance(part, _PairColumns) else (part,)
                )
            ),
        )

    def _found(self, field: str, names: Names) -> NDArray[np.int64]:
        """Return the positions of workloads."""
        try:
            given = np.asarray(names)
        except ValueError:
            raise InputError("must be a list of workloads", field) from None
        if given.ndim != 1:
            raise InputError(f"must be a list of workloads, got shape {given.shape}", field)
        if given.dtype.kind in "iu":
            outside = np.flatnonzero((given < 0) | (given >= len(self._workloads)))
            if len(outside):
                k = int(outside[0])
                rule = f"must be a position from 0 to {len(self._workloads) - 1}, got {given[k]}"
                raise InputError(rule, f"{field}[{k}]")
            return given.astype(np.int64)
        listed = given.tolist()
        found = [self._positions.get(name, -1) if isinstance(name, str) else -1 for name in listed]
        if -1 in found:
            k = found.index(-1)
            raise InputError(unknown_workload(listed[k], self._workloads), f"{field}[{k}]")
        return np.array(found, dtype=np.int64)

    def _check_rows(self, pairs: _PairColumns) -> None:
        """Refuse invalid rows; a record is built for each suspicious row, to report its error."""
        names, share = pairs.names, pairs.share
        twin = (names[:, 0] == names[:, 1]) & (share is None or share[:, 0] == share[:, 1])
        odd = np.zeros(len(names), dtype=bool)
        odd[0] = True  # for the fields that all rows have in common
        for values in (pairs.slowdown, pairs.upper, pairs.p99):
            if values is not None:
                odd |= twin & (values[:, 0] != values[:, 1])
        if pairs.upper is not None:
            odd |= (pairs.upper < pairs.slowdown).any(axis=1)
        if share is not None:
            odd[np.unique(share, return_index=True)[1] // 2] = True
        for k in np.flatnonzero(odd).tolist():
            (row,) = pairs.rows(self._names, slice(k, k + 1))
            _record(SlowdownEntry, row, f"pairs[{k}]")

    def _remember(self, entry: SlowdownEntry, path: str) -> None:
        members = zip(entry.workloads, entry.shares, strict=True)
        codes = sorted(
            self._positions[name] * _SHARES + share_code(share) for name, share in members
        )
        key = _code(*codes) if entry.pair else tuple(codes)
        known = self._known.setdefault(entry.gpu_model, set())
        if key in known:
            raise rule_broken(path, _repeated(entry.workloads))
        known.add(key)

    def _remember_all(self, pairs: _PairColumns) -> None:
        members = np.sort(pairs.names * _SHARES + (0 if pairs.share is None else pairs.share))
        codes = _code(members[:, 0], members[:, 1])
        model = pairs.others.get("gpu_model")
        known = self._known.setdefault(model if isinstance(model, str) else None, set())
        first = np.unique(codes, return_index=True)[1]
        new = codes.tolist()
        if len(first) < len(codes) or not known.isdisjoint(new):
            again = np.ones(len(codes), dtype=bool)
            again[first] = False
            k = next(k for k, code in enumerate(new) if again[k] or code in known)
            names = [self._names[at] for at in pairs.names[k].tolist()]
            raise InputError(_repeated(names), f"pairs[{k}]")
        known.update(new)


def _code(first: NDArray[np.int64] | int, second: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Return one number for the two members of a pair."""
    return first << 31 | second  # type: ignore[return-value]


def _repeated(names: Sequence[str]) -> str:
    return f"({', '.join(names)}) at these shares and model was already given"


def _record(kind: type[_R], data: object, path: str) -> _R:
    """Return a record of a call's arguments; errors name the part of the instance."""
    try:
        return kind.from_data(_plain(data))
    except InputError as error:
        raise InputError(error.rule, joined_path(path, error.path)) from None


def _plain(data: object) -> object:
    """Return data with Python's numbers and lists instead of NumPy's."""
    if isinstance(data, np.generic | np.ndarray):
        return data.tolist()
    if isinstance(data, Mapping):
        return {key: _plain(value) for key, value in data.items()}
    return [_plain(value) for value in data] if isinstance(data, list | tuple) else data


def _floats(
    field: str, values: ArrayLike, shape: tuple[int, ...], rule: TypeAdapter[list[float]]
) -> NDArray[np.float64]:
    """Return a column of numbers, each checked by a rule."""
    try:
        found = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"must be numbers of shape {shape}", field) from None
    if found.shape != shape:
        raise InputError(f"must have shape {shape}, got {found.shape}", field)
    try:
        rule.validate_python(found.ravel().tolist())
    except ValidationError as error:
        (first,) = error.errors(include_url=False)
        place = np.unravel_index(int(first["loc"][0]), shape)
        at = ", ".join(str(axis) for axis in place)
        wrong = input_error(Record, [{**first, "loc": ()}])
        raise InputError(wrong.rule, f"{field}[{at}]") from None
    return found


def _shares(values: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return a column of shares, whose values are checked by records."""
    found = np.asarray(values)
    if found.dtype.kind not in "iu":
        raise InputError("must be whole numbers, 0 for no limit", "share")
    if found.shape not in ((2,), (count, 2)):
        raise InputError(f"must have shape (2,) or ({count}, 2), got {found.shape}", "share")
    return np.broadcast_to(found.astype(np.int64), (count, 2))
