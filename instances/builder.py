"""A builder of instances, for callers from Python."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import FailFast, TypeAdapter, ValidationError

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
from dovetail.instances.instance import (
    Instance,
    Job,
    JobChecks,
    Node,
    NodeChecks,
    Place,
    Workload,
    check_entry,
    unknown_workload,
)
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import MODES, SOURCES, SharingMode, SlowdownEntry
from dovetail.instances.slowdowns.gathering import fits, require_slowdowns
from dovetail.instances.slowdowns.shares import share_code

Names = Collection[str] | Collection[int] | NDArray[np.int64] | NDArray[np.str_]
"""Workloads: their names, or their positions in the order in which they were added."""

_R = TypeVar("_R", bound=Record)

_SHARES: Final = 128
"""More than the number of shares, so that a workload and its share fit in one number."""

_MOST_SHARE: Final = 100
"""The largest cap."""

_SLOWDOWNS: Final = TypeAdapter(Annotated[list[Slowdown], FailFast()])
_POWERS: Final = TypeAdapter(Annotated[list[Positive], FailFast()])


class _Named(Record):
    name: Name


class _PairArrays(NamedTuple):
    """Checked slowdowns of pairs, as the arguments of `Slowdowns.of_pairs`."""

    workload: NDArray[np.int64]
    models: tuple[str, ...]
    columns: Mapping[str, NDArray[Any] | float | None]


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
        self._modes: dict[SharingMode, None] = dict.fromkeys(self._cluster.modes)
        self._workloads: dict[str, Workload] = {}
        self._names: list[str] = []
        self._positions: dict[str, int] = {}
        self._jobs: list[Job] = []
        self._slowdowns: list[SlowdownEntry | _PairArrays] = []
        self._entries = 0
        self._known: dict[tuple[str | None, SharingMode], set[object]] = {}
        self._node_checks = NodeChecks()
        sharing = self._cluster.sharing
        self._job_checks = JobChecks(self._workloads, self._places, self._most_jobs, sharing)

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
        cost_per_hour: float | None = None,
        sharing: str | Sequence[str | None] | None = None,
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
        cost_per_hour : float, optional
            Cost of each in any currency, which objective ``fewest`` reads; for all GPU models or
            for none.
        sharing : {"mps", "time_sliced"}, or a sequence with one for each GPU, optional
            How jobs share each, if not as the cluster's rules say.
        rack : str, optional
            The rack of the machine.
        host : mapping of str to float, optional
            Resources in addition to GPUs (``HostResources``).

        Raises
        ------
        InputError
            When a value breaks a rule, or a name is taken.
        """
        kind = {
            "model": model,
            "memory_mib": memory_mib,
            "sms": sms,
            "max_jobs": max_jobs,
            "cost_per_hour": cost_per_hour,
        }
        path = f"nodes[{len(self._nodes)}]"
        each = sharing if sharing is not None and not isinstance(sharing, str) else None
        if each is not None and isinstance(gpus, int):
            gpus = [f"{id}-{k}" for k in range(gpus)]
        of_node: dict[str, object] = {"gpu_count": gpus, "gpu": {**kind, "sharing": sharing}}
        if isinstance(gpus, Sequence) and not isinstance(gpus, str):
            ways = [sharing] * len(gpus) if each is None else list(each)
            if len(ways) != len(gpus):
                raise InputError(f"must have {len(gpus)} items, got {len(ways)}", f"{path}.sharing")
            named = zip(gpus, ways, strict=True)
            of_node = {"gpus": [{"id": gpu, **kind, "sharing": way} for gpu, way in named]}
        node = _record(Node, {"id": id, "rack": rack, "host": host, **of_node}, path)
        with as_input_error():
            self._node_checks.add(node, path)
        self._nodes.append(node)
        self._places.update((place.gpu.id, place) for place in node.places)
        self._modes |= dict.fromkeys(map(self._cluster.sharing_on, node.devices))
        self._most_jobs.update((gpu.model, self._cluster.most_on(gpu)) for gpu in node.devices)

    def add_workload(self, name: str, memory_mib: float | None = None, **fields: object) -> None:
        """Add a workload, which jobs run.

        Parameters
        ----------
        name : str
            The name that jobs and slowdowns refer to.
        memory_mib : float, optional
            Memory of one worker in MiB; or give ``memory_percent``.
        **fields
            Other fields of `Workload`: ``memory_percent``, ``throughput``, ``batch``, ...

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
            ``mode`` is by default the cluster's ``sharing``; another is that of GPUs added before.

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
            check_entry(entry, self._workloads, tuple(self._modes), path)
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
        mode: str | None = None,
    ) -> None:
        """Add the slowdowns of many pairs, from columns.

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
        mode : {"mps", "time_sliced"}, optional
            How the jobs share the GPU; by default the cluster's ``sharing``.

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
        columns: dict[str, Any] = {
            "slowdown": _floats("slowdown", slowdown, (count, 2), _SLOWDOWNS),
            "share": None if share is None else _shares(share, count),
            "upper": None if upper is None else _floats("upper", upper, (count, 2), _SLOWDOWNS),
            "p99": None if p99 is None else _floats("p99", p99, (count, 2), _SLOWDOWNS),
            "power_w": None if power_w is None else _floats("power_w", power_w, (count,), _POWERS),
        }
        if count == 0:
            return
        workload = np.stack([one, other], axis=-1)
        given = {
            "gpu_model": gpu_model,
            "source": source,
            "confidence": confidence,
            "mode": mode,
        }
        shared = {name: value for name, value in given.items() if value is not None}
        entry = self._checked(workload, columns, {"mode": self._cluster.sharing, **shared})
        with as_input_error():
            check_entry(entry, self._workloads, tuple(self._modes), "pairs[0]")
        require_slowdowns(columns["slowdown"], "slowdown", "")
        self._remember_all(workload, columns["share"], (entry.gpu_model, entry.mode))
        columns["mode"] = MODES.index(entry.mode)
        columns["source"] = None if entry.source is None else SOURCES.index(entry.source)
        columns["confidence"] = entry.confidence
        columns["model"] = None if entry.gpu_model is None else 0
        models = () if entry.gpu_model is None else (entry.gpu_model,)
        self._slowdowns.append(_PairArrays(workload, models, columns))
        self._entries += count

    def instance(self) -> Instance:
        """Return the instance with everything added so far; more may be added afterwards."""
        return Instance.model_construct(
            name=self._name,
            cluster=self._cluster.model_copy(update={"nodes": tuple(self._nodes)}),
            workloads=FrozenDict(self._workloads),
            jobs=tuple(self._jobs),
            slowdowns=self._known_slowdowns(),
        )

    def _known_slowdowns(self) -> Slowdowns:
        names = tuple(self._names)
        parts = [Slowdowns.of((), names)]
        for pairs, group in groupby(
            self._slowdowns, key=lambda part: isinstance(part, _PairArrays)
        ):
            if pairs:
                made = (part for part in group if isinstance(part, _PairArrays))
                parts += [Slowdowns.of_pairs(names, w, m, **columns) for w, m, columns in made]
            else:
                entries = (part for part in group if isinstance(part, SlowdownEntry))
                parts.append(Slowdowns.of(entries, names))
        return Slowdowns.joined(parts)

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

    def _checked(
        self,
        workload: NDArray[np.int64],
        columns: Mapping[str, NDArray[Any] | None],
        shared: Mapping[str, object],
    ) -> SlowdownEntry:
        """Return the first entry; refuse invalid rows by building their records."""
        mode = MODES.index(shared["mode"]) if shared["mode"] in MODES else None
        odd = ~fits({"workload": workload, "mode": mode, **columns})
        share = columns["share"]
        if share is not None:
            odd |= ((share < 0) | (share > _MOST_SHARE)).any(axis=1)
        first = [
            _record(SlowdownEntry, {**self._row(workload, columns, k), **shared}, f"pairs[{k}]")
            for k in [0, *np.flatnonzero(odd).tolist()]
        ]
        return first[0]

    def _row(
        self, workload: NDArray[np.int64], columns: Mapping[str, NDArray[Any] | None], row: int
    ) -> dict[str, object]:
        """Return the fields that an entry has of its own."""
        found = {
            name: values[row].tolist() for name, values in columns.items() if values is not None
        }
        if "share" in found:
            found["share"] = [share or None for share in found["share"]]
        return {"pair": [self._names[k] for k in workload[row].tolist()], **found}

    def _remember(self, entry: SlowdownEntry, path: str) -> None:
        members = zip(entry.workloads, entry.shares, strict=True)
        codes = sorted(
            self._positions[name] * _SHARES + share_code(share) for name, share in members
        )
        key = _code(*codes) if entry.pair else tuple(codes)
        known = self._known.setdefault((entry.gpu_model, entry.mode), set())
        if key in known:
            raise rule_broken(path, _repeated(entry.workloads))
        known.add(key)

    def _remember_all(
        self,
        workload: NDArray[np.int64],
        share: NDArray[np.int64] | None,
        where: tuple[str | None, SharingMode],
    ) -> None:
        members = np.sort(workload * _SHARES + (0 if share is None else share))
        codes = _code(members[:, 0], members[:, 1])
        known = self._known.setdefault(where, set())
        first = np.unique(codes, return_index=True)[1]
        new = codes.tolist()
        if len(first) < len(codes) or not known.isdisjoint(new):
            again = np.ones(len(codes), dtype=bool)
            again[first] = False
            k = next(k for k, code in enumerate(new) if again[k] or code in known)
            names = [self._names[at] for at in workload[k].tolist()]
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
