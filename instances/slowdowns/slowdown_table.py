"""The slowdowns of pairs of workloads as arrays, for look-ups by simulations and policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dovetail.instances._record import AnyShare
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.entry import SlowdownEntry

Caps = tuple[AnyShare, AnyShare]
"""The shares of a job and its co-runner; None = no cap."""

UNCAPPED: Caps = (None, None)


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
    """

    workloads: tuple[str, ...]
    models: tuple[str, ...]
    caps: tuple[Caps, ...]
    slowdown: NDArray[np.float64]
    upper: NDArray[np.float64]
    p99: NDArray[np.float64]
    power_w: NDArray[np.float64]
    sets: tuple[SlowdownEntry, ...] = field(default=(), kw_only=True)

    @classmethod
    def of(cls, instance: Instance) -> SlowdownTable:
        """Return the table of an instance's entries on the GPU models of its cluster."""
        models = tuple(dict.fromkeys(place.gpu.model for place in instance.places.values()))
        return cls.of_entries(tuple(instance.workloads), models, instance.slowdowns)

    @classmethod
    def of_entries(
        cls, workloads: tuple[str, ...], models: tuple[str, ...], entries: Sequence[SlowdownEntry]
    ) -> SlowdownTable:
        """Return the table of entries; entries of a GPU model override those for all models."""
        pairs = [entry for entry in entries if entry.pair is not None]
        shares = [(e.shares[0], e.shares[1]) for e in pairs]
        caps = tuple(dict.fromkeys([UNCAPPED, *(c for x, y in shares for c in ((x, y), (y, x)))]))
        shape = (len(models), len(caps), len(workloads), len(workloads))
        sets = tuple(entry for entry in entries if entry.set is not None)
        table = cls(workloads, models, caps, *(np.full(shape, np.nan) for _ in range(4)), sets=sets)
        for entry in sorted(pairs, key=lambda e: e.gpu_model is not None):
            table._enter(entry)
        return table

    def _enter(self, entry: SlowdownEntry) -> None:
        """Write an entry and its mirror; only while the table is built."""
        if entry.gpu_model is not None and entry.gpu_model not in self.models:
            return
        model = slice(None) if entry.gpu_model is None else self.models.index(entry.gpu_model)
        a, b = (self.place[name] for name in entry.workloads)
        x, y = entry.shares
        mine, theirs = entry.slowdown or (np.nan, np.nan)
        mine_upper, theirs_upper = entry.upper or (mine, theirs)
        there, back = self.caps_place[x, y], self.caps_place[y, x]
        self.slowdown[model, there, a, b], self.slowdown[model, back, b, a] = mine, theirs
        self.upper[model, there, a, b] = mine_upper
        self.upper[model, back, b, a] = theirs_upper
        tails = entry.p99 or (np.nan, np.nan)
        self.p99[model, there, a, b], self.p99[model, back, b, a] = tails
        power = np.nan if entry.power_w is None else entry.power_w
        self.power_w[model, there, a, b] = self.power_w[model, back, b, a] = power

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
