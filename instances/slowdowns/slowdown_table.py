"""The slowdowns of pairs of workloads as arrays, for look-ups by simulations and policies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dovetail.instances._record import IDLE, AnyShare
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Cluster, Instance
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import SharingMode, SlowdownEntry
from dovetail.instances.slowdowns.isolated import BEHIND
from dovetail.instances.slowdowns.shares import CODES, share_code, share_of

Caps = tuple[AnyShare, AnyShare]
"""The shares of a job and its co-runner; None = no cap."""

UNCAPPED: Caps = (None, None)

Places = NDArray[np.intp]

Cell = tuple[int, int, int, int]
"""The place of a job beside another: model, caps, and the workloads of both."""


@dataclass(frozen=True, eq=False)
class SlowdownTable:
    """Slowdowns of every ordered pair of workloads on every GPU model.

    Attributes
    ----------
    workloads : tuple of str
        W names, the last two axes of the arrays.
    models : tuple of str
        M GPU models, the first axis.
    caps : tuple of (int or None, int or None)
        K combinations of shares, the second axis, with the mirror of each; ``(None, None)`` is the
        first.
    slowdown : (M, K, W, W) float
        Entry ``[m, k, a, b]``: the slowdown of a with b under ``caps[k]`` = (share of a, share
        of b); NaN = they may not share.
    upper : (M, K, W, W) float
        Upper confidence bounds; the slowdown itself if there is none.
    p99 : (M, K, W, W) float
        Growth of the tail latency; NaN if unknown.
    power_w : (M, K, W, W) float
        Power of the shared GPU; NaN if unknown.
    sets : tuple of SlowdownEntry
        Entries of three and more workloads; other sets follow from their pairs
        (``instances.sets``).
    seen : (M, K, W, W) bool, optional
        Cells whose figures were measured on jobs that have run together; default: none.
    prior : SlowdownTable, optional
        The table without what was measured; None: it is this one.
    """

    workloads: tuple[str, ...]
    models: tuple[str, ...]
    caps: tuple[Caps, ...]
    slowdown: NDArray[np.float64]
    upper: NDArray[np.float64]
    p99: NDArray[np.float64]
    power_w: NDArray[np.float64]
    sets: tuple[SlowdownEntry, ...] = field(default=(), kw_only=True)
    seen: NDArray[np.bool_] | None = field(default=None, kw_only=True)
    prior: SlowdownTable | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, instance: Instance) -> SlowdownTable:
        """Return the table of an instance's entries on the GPU models of its cluster.

        Entries of a GPU model override those for all models. Pairs without caps that no entry names
        have the slowdown that the cluster's owner declares (``Cluster.assumed``), if any.

        Raises
        ------
        InputError
            When a GPU is shared in another way than the cluster says: a table has one mode.
        """
        _require_one_mode(instance.cluster)
        models = tuple(dict.fromkeys(place.gpu.model for place in instance.places.values()))
        known, workloads = instance.slowdowns, tuple(instance.workloads)
        sets = tuple(known.sets.values())
        table = cls.unknown(workloads, models, caps_in(known), sets)
        rows, cells = table.cells(known, instance.cluster.sharing)
        slowdown, upper = known.slowdown[rows], known.upper[rows]
        table.slowdown[cells] = slowdown
        table.upper[cells] = np.where(np.isnan(upper), slowdown, upper)
        table.p99[cells] = known.p99[rows]
        table.power_w[cells] = known.power_w[rows, np.newaxis]
        declared = instance.cluster.assumed
        if declared is not None and declared.pair is not None:
            unnamed = np.ones(table.slowdown.shape, dtype=np.bool_)
            unnamed[cells] = False
            unnamed[:, 1:] = False  # caps
            table.slowdown[unnamed] = table.upper[unnamed] = declared.pair
        return table

    @classmethod
    def unknown(
        cls,
        workloads: Sequence[str],
        models: Sequence[str],
        caps: Sequence[Caps],
        sets: Sequence[SlowdownEntry] = (),
    ) -> SlowdownTable:
        """Return a table in which nothing is known of any pair."""
        axes = tuple(workloads), tuple(models), tuple(caps)
        shape = (len(models), len(caps), len(workloads), len(workloads))
        return cls(*axes, *(np.full(shape, np.nan) for _ in range(4)), sets=tuple(sets))

    def cells(
        self, known: Slowdowns, sharing: SharingMode
    ) -> tuple[Places, tuple[Places, Places, Places, Places]]:
        """Return the rows that are on these axes, and the cells of both workloads of each.

        A row for all GPU models is on each model that has none of its own for the same pair.

        Returns
        -------
        rows : (n,) int
            Rows of ``known``, each once for every model.
        cells : four arrays (n, 2) int
            The index of each axis.
        """
        of_model = [np.flatnonzero(known.holds_on(model, sharing)) for model in self.models]
        model = np.repeat(np.arange(len(of_model)), [len(rows) for rows in of_model])
        rows = np.concatenate([*of_model, np.zeros(0, dtype=np.intp)])
        place = np.array([self.place.get(name, -1) for name in known.names], dtype=np.intp)
        split = np.full((CODES, CODES), -1, dtype=np.intp)
        for caps, k in self.caps_place.items():
            split[share_code(caps[0]), share_code(caps[1])] = k
        own, share = place[known.workload[rows]], known.share[rows]
        caps_of_each = split[share, share[:, ::-1]]
        on = ((own >= 0) & (caps_of_each >= 0)).all(axis=1)
        own = own[on]
        both = np.repeat(model[on, np.newaxis], 2, axis=1)
        return rows[on], (both, caps_of_each[on], own, own[:, ::-1])

    def learning(self) -> Self:
        """Return a table that starts with these figures and that ``see`` enters others into."""
        seen = np.zeros(self.slowdown.shape, np.bool_) if self.seen is None else self.seen.copy()
        slowdown, upper = self.slowdown.copy(), self.upper.copy()
        return replace(self, slowdown=slowdown, upper=upper, seen=seen, prior=self.prior or self)

    def see(self, cell: Cell, slowdown: float, upper: float) -> bool:
        """Enter what was measured into a table of ``learning``; return whether it is the first."""
        assert self.seen is not None
        model, caps, own, other = cell
        first = not self.seen[cell]
        self.seen[cell] = True
        self.slowdown[cell], self.upper[cell] = slowdown, upper
        for name, value in (("rows", slowdown), ("upper_rows", upper)):
            if name in self.__dict__:  # the lists were made before
                getattr(self, name)[model][caps][own][other] = value
        return first

    def renumbered(
        self,
        names: Sequence[str],
        workloads: Sequence[int],
        models: Sequence[str],
        sets: Sequence[SlowdownEntry],
    ) -> Self:
        """Return the table with other workloads and some of its models.

        Parameters
        ----------
        names : sequence of str
            The names of the new workloads.
        workloads : sequence of int
            The number here of each, -1 for one of which nothing is known.
        models : sequence of str
            The models.
        sets : sequence of SlowdownEntry
            The sets of the new workloads.
        """
        on = np.array([self.models.index(model) for model in models], dtype=np.intp)
        at = np.array(workloads, dtype=np.intp)
        block = on[:, None, None, None], np.arange(len(self.caps))[:, None, None], at[:, None], at

        def taken(values: NDArray[Any]) -> NDArray[Any]:
            nothing = math.nan if values.dtype == np.float64 else 0
            edge = ((0, 0), (0, 0), (0, 1), (0, 1))
            return np.pad(values, edge, constant_values=nothing)[block]

        changed: dict[str, Any] = {name: taken(values) for name, values in self._of_cells().items()}
        changed |= {"workloads": tuple(names), "models": tuple(models), "sets": tuple(sets)}
        prior = self.prior and self.prior.renumbered(names, workloads, models, ())
        return replace(self, **changed, prior=prior)

    def without(self, cells: NDArray[np.bool_]) -> Self:
        """Return the table in which workloads may not share at these cells."""
        changed: dict[str, Any] = {
            name: np.where(cells, math.nan, values)
            for name, values in self._of_cells().items()
            if values.dtype == np.float64
        }
        return replace(self, **changed, prior=self.prior and self.prior.without(cells))

    def isolated(self, pairs: NDArray[np.bool_]) -> Self:
        """Return the table in which pairs of intercepted jobs are isolated without being asked to.

        A best-effort job that is intercepted from its start gives way to every intercepted
        latency-critical job on its GPU. So without caps both are as slow as with the share
        ``idle``, where that is known. What they are where only the latency-critical one has a cap,
        is not known: there they may not share.

        Parameters
        ----------
        pairs : (W, W) bool
            ``[a, b]``: whether b gives way to a.
        """
        changed: dict[str, Any] = {name: each.copy() for name, each in self._of_cells().items()}
        backwards, places = pairs.T, self.caps_place
        if BEHIND in places:
            ahead, behind = places[BEHIND], places[BEHIND[::-1]]
            known = ~np.isnan(self.slowdown[:, ahead] + self.turned(self.slowdown)[:, ahead])
            for values in changed.values():
                values[:, 0] = np.where(pairs & known, values[:, ahead], values[:, 0])
                turned = backwards & known.swapaxes(1, 2)
                values[:, 0] = np.where(turned, values[:, behind], values[:, 0])
        for k, (mine, theirs) in enumerate(self.caps):
            never = pairs if theirs is None else backwards
            if (mine is None) is not (theirs is None) and IDLE not in (mine, theirs):
                for values in changed.values():
                    if values.dtype == np.float64:
                        values[:, k][:, never] = math.nan
        return replace(self, **changed, prior=self.prior and self.prior.isolated(pairs))

    def _of_cells(self) -> dict[str, NDArray[Any]]:
        """Return the arrays with a value for each cell, by the names of their fields."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: each for name, each in found.items() if isinstance(each, np.ndarray)}

    def turned(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values of all cells from the co-runner's point of view."""
        return values[:, self.mirror].swapaxes(2, 3)

    @cached_property
    def mirror(self) -> list[int]:
        """The index of each combination of shares, as the co-runner sees it."""
        return [self.caps_place[theirs, mine] for mine, theirs in self.caps]

    @property
    def origins(self) -> NDArray[np.int_] | None:
        """The origin of each cell as a position in ``SOURCES``, -1 if not given; None: of none."""
        return None

    @property
    def confidences(self) -> NDArray[np.float64] | None:
        """The confidence of both upper bounds of each pair, NaN if not given; None: of none."""
        return None

    @cached_property
    def place(self) -> dict[str, int]:
        """The index of each workload."""
        return {name: k for k, name in enumerate(self.workloads)}

    @cached_property
    def caps_place(self) -> dict[Caps, int]:
        """The index of each combination of shares."""
        return {caps: k for k, caps in enumerate(self.caps)}

    @cached_property
    def rows(self) -> list[list[list[list[float]]]]:
        """``slowdown`` as nested lists, in which looking up a number is several times faster."""
        rows: list[list[list[list[float]]]] = self.slowdown.tolist()
        return rows

    @cached_property
    def upper_rows(self) -> list[list[list[list[float]]]]:
        """``upper`` as nested lists."""
        rows: list[list[list[list[float]]]] = self.upper.tolist()
        return rows


def caps_in(known: Slowdowns) -> tuple[Caps, ...]:
    """Return the shares of all pairs with the mirror of each; ``(None, None)`` is the first."""
    mine, theirs = known.share.astype(np.int64).T
    both = np.stack([mine * CODES + theirs, theirs * CODES + mine], axis=1).ravel()
    first = np.sort(np.unique(both, return_index=True)[1])
    codes = (divmod(code, CODES) for code in both[first].tolist())
    found = ((share_of(x), share_of(y)) for x, y in codes)
    return tuple(dict.fromkeys([UNCAPPED, *found]))


def _require_one_mode(cluster: Cluster) -> None:
    """Refuse a cluster with a GPU that is shared in another way than the cluster says."""
    for n, node in enumerate(cluster.nodes):
        for g, gpu in enumerate((node.gpu,) if node.gpu else node.gpus or ()):
            if cluster.sharing_on(gpu) != cluster.sharing:
                where = "gpu" if node.gpu else f"gpus[{g}]"
                rule = "must be the cluster's sharing in simulations and policies"
                rule = f"{rule}, {cluster.sharing}, got {gpu.sharing}"
                raise InputError(rule, f"cluster.nodes[{n}].{where}.sharing")
