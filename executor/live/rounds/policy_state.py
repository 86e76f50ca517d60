"""Make the state that policies see, whose workloads are kinds, from beliefs about workloads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dovetail.executor.live.observation.beliefs import (
    ORIGINS,
    SEEN,
    WHOLE,
    WITHOUT_BOUND,
    BeliefTable,
    Source,
)
from dovetail.executor.live.rounds.sharing_classes import Layout, SharingClass
from dovetail.formulations.arrays import Floats
from dovetail.instances._record import IDLE, Idle
from dovetail.instances.instance import Cluster, Instance, Workload
from dovetail.instances.slowdowns.entry import SlowdownEntry
from dovetail.instances.slowdowns.shares import caps_of, full_splits, share_code, share_total
from dovetail.instances.slowdowns.slowdown_table import UNCAPPED, Caps, SlowdownTable
from dovetail.predictors.unmeasured import may_share
from dovetail.solver.policies.state import State

_STRONGEST_FIRST: Final = (None, "measured", "model", "estimate")


def useful_caps(rules: Cluster, measured: Collection[Caps]) -> tuple[Caps, ...]:
    """Return the caps that two jobs may have, including the mirror of each.

    Both jobs uncapped, one of them, two caps that sum to the largest allowed sum or to the whole
    device, all measured caps, and one job at ``idle``; for three and more jobs, the caps of two of
    them (``instances.shares.full_splits``).
    """
    caps = caps_of(rules.shares)
    of_sets = {
        pair
        for jobs in range(3, rules.max_jobs_per_gpu + 1)
        for split in full_splits(caps, jobs, rules.share_sum)
        for pair in permutations(split, 2)
    }
    found = [UNCAPPED]
    if IDLE in rules.shares:
        found += [(None, IDLE), (IDLE, None)]
    for x, y in product((None, *caps), repeat=2):
        both = share_total((x, y))
        full = x is None or y is None or both in (rules.share_sum, WHOLE)
        useful = full or (x, y) in measured or (y, x) in measured or (x, y) in of_sets
        if useful and both <= rules.share_sum and (x, y) != UNCAPPED:
            found.append((x, y))
    return tuple(found)


@dataclass(frozen=True)
class KindState:
    """The parts of a state that stay the same until devices, kinds or beliefs change.

    Attributes
    ----------
    kinds : tuple of SharingClass
        The workloads of the state.
    table : BeliefTable
        Beliefs about their workloads.
    profile : callable
        Returns the profiled workload of a name, or None.
    apart : mapping of bool to bool
        Whether jobs of two users (False) or of one user (True) may never share a device.
    separated : collection of (str, str)
        Jobs that may no longer share a device.
    allowed : mapping of (SharingClass, str) to collection of int
        The shares that jobs of a kind may have on a device model.
    rules : Cluster
        The pool's rules for sharing devices.
    """

    kinds: tuple[SharingClass, ...]
    table: BeliefTable
    profile: Callable[[str], Workload | None]
    apart: Mapping[bool, bool]
    separated: Collection[tuple[str, str]]
    allowed: Mapping[tuple[SharingClass, str], Collection[int | Idle]]
    rules: Cluster

    def state(self, cluster: Cluster, layout: Layout) -> State:
        """Return the state of a pool without jobs.

        Devices that take no jobs are on nodes that are down. Kinds that may not share at any caps
        are clashes, so that no policy puts them together.
        """
        whole, down = layout.cluster(cluster)
        view = Instance(name="live", cluster=whole, workloads=self._workloads(), jobs=())
        models = tuple(dict.fromkeys(place.gpu.model for place in view.places.values()))
        state = State(view, self._of_kinds(view, models, self.table))
        state.prior = self._of_kinds(view, models, self.table.prior)
        state.capped_sets = self.rules.caps_first
        state.down |= down
        for node in down:
            state.idle_count[node] = 0
        self._note_measured(state)
        never = np.argwhere(np.isnan(state.predicted.slowdown).all(axis=1)).tolist()
        state.clashes.update((model, a, b) for model, a, b in never)
        return state

    def origins(self, models: Sequence[str]) -> NDArray[Any]:
        """Return the sources of the beliefs about all pairs of kinds as named in a plan, or None.

        Shape (models, caps, kinds, kinds); a pair has the weaker source of both directions.
        """
        rank = np.zeros(len(Source), dtype=np.int64)
        for source, origin in ORIGINS.items():
            rank[source] = _STRONGEST_FIRST.index(origin)
        of_one = rank[self._expanded(models, self.table.source, Source.NONE)]
        names: NDArray[Any] = np.array(_STRONGEST_FIRST, dtype=object)
        return np.asarray(names[np.maximum(of_one, self._mirrored(of_one))])

    def _mirrored(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values of kinds, by caps, from the co-runner's point of view."""
        caps = self.table.caps_place
        turned = [caps[theirs, mine] for mine, theirs in self.table.caps]
        return values[:, turned].transpose(0, 1, 3, 2)

    def _workloads(self) -> dict[str, Workload]:
        found: dict[str, Workload] = {}
        for kind in self.kinds:
            known = None if kind.alone else self.profile(kind.workload)
            label = kind.label(known.memory_mib if known else 0.0)
            if label in found:
                label = f"{label} (user {kind.uid})"
            made = known or Workload(memory_mib=0.0)
            behind = "blocks" if kind.isolation == "best-effort" else None
            found[label] = made.replace(memory_mib=kind.need_mib, isolation=behind)
        return found

    def _of_kinds(
        self, view: Instance, models: tuple[str, ...], table: SlowdownTable
    ) -> SlowdownTable:
        struck = self._struck(models)

        def expanded(values: Floats) -> Floats:
            return np.where(struck, np.nan, self._expanded(models, values, np.nan))

        return SlowdownTable(
            workloads=tuple(view.workloads),
            models=models,
            caps=table.caps,
            slowdown=expanded(table.slowdown),
            upper=expanded(table.upper),
            p99=expanded(table.p99),
            power_w=expanded(table.power_w),
            sets=tuple(self._sets(tuple(view.workloads), models, table.sets)),
        )

    def _sets(
        self, labels: Sequence[str], models: Collection[str], sets: Sequence[SlowdownEntry]
    ) -> Iterator[SlowdownEntry]:
        """Yield the entries of sets of workloads for the kinds of these, as far as they may share.

        ``labels`` are the names of the kinds.
        """
        of: dict[str, list[int]] = defaultdict(list)
        for k, kind in enumerate(self.kinds):
            of[kind.workload].append(k)
        for entry in sets:
            model = entry.gpu_model
            if model is None or model not in models:
                continue
            done = set[tuple[tuple[int, int], ...]]()
            for chosen in product(*(of[name] for name in entry.workloads)):
                members = tuple(sorted(zip(chosen, map(share_code, entry.shares), strict=True)))
                kinds = [self.kinds[k] for k in chosen]
                allowed = all(
                    share is None or share in self.allowed[kind, model]
                    for kind, share in zip(kinds, entry.shares, strict=True)
                )
                apart = any(self._keep_apart(*both) for both in combinations(kinds, 2))
                if allowed and not apart and members not in done:
                    done.add(members)
                    named, mode = tuple(labels[k] for k in chosen), self.rules.sharing
                    yield entry.model_copy(update={"set": named, "mode": mode})

    def _expanded(
        self, models: Sequence[str], values: NDArray[Any], nothing: float
    ) -> NDArray[Any]:
        """Return values of the table by kinds; ``nothing`` for kinds that it does not have."""
        padded = np.pad(values, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=nothing)
        there = [self.table.place.get(kind.workload, -1) for kind in self.kinds]
        on = [self.table.models.index(model) for model in models]
        return padded[np.ix_(on, range(len(self.table.caps)), there, there)]

    def _struck(self, models: Sequence[str]) -> NDArray[np.bool_]:
        """Return the cells where a kind may not have its share, or may not share with the other."""
        count = len(self.kinds)
        struck = np.zeros((len(models), len(self.table.caps), count, count), dtype=np.bool_)
        for m, model in enumerate(models):
            may = [{None, *self.allowed[kind, model]} for kind in self.kinds]
            for k, (mine, theirs) in enumerate(self.table.caps):
                struck[m, k, [mine not in shares for shares in may], :] = True
                struck[m, k, :, [theirs not in shares for shares in may]] = True
        isolated = [(k, caps) for k, caps in enumerate(self.table.caps) if IDLE in caps]
        for (a, one), (b, other) in product(enumerate(self.kinds), repeat=2):
            struck[:, :, a, b] |= self._keep_apart(one, other)
            for k, caps in isolated:
                struck[:, k, a, b] |= not _isolates(caps, one, other)
        return struck | self._in_doubt(models)

    def _in_doubt(self, models: Sequence[str]) -> NDArray[np.bool_]:
        """Return the cells of pairs that never ran so and may not (``predictors.unmeasured``)."""
        source = self._expanded(models, self.table.source, Source.NONE)
        upper = self._expanded(models, self.table.upper, np.nan)
        bounds = np.where(np.isin(source, WITHOUT_BOUND), np.nan, upper)
        promised = np.array([kind.promised for kind in self.kinds], dtype=np.bool_)
        capped = np.array([None not in caps for caps in self.table.caps], dtype=np.bool_)
        may = may_share(
            np.stack([bounds, self._mirrored(bounds)], axis=-1),
            promised[:, np.newaxis] | promised,
            capped[:, np.newaxis, np.newaxis],
            np.asarray(self.rules.caps_first),
        )
        seen = np.isin(source, SEEN) | (source == Source.ISOLATED)
        return np.asarray(~(may | (seen & self._mirrored(seen))))

    def _keep_apart(self, one: SharingClass, other: SharingClass) -> bool:
        jobs = (one.job, other.job)
        separated = jobs in self.separated or jobs[::-1] in self.separated
        return separated or self.apart[one.uid == other.uid]

    def _note_measured(self, state: State) -> None:
        """Enter the measured slowdowns and their bounds into the state."""
        table = state.predicted
        source = self._expanded(table.models, self.table.source, Source.NONE)
        measured = (source == Source.MEASURED) & ~np.isnan(table.slowdown)
        for model, caps, a, b in np.argwhere(measured).tolist():
            state.seen[model, caps, a, b] = table.rows[model][caps][a][b]
            state.seen_upper[model, caps, a, b] = table.upper_rows[model][caps][a][b]


def _isolates(caps: Caps, *kinds: SharingClass) -> bool:
    """Return whether one kind may run in the idle time of another of the same user."""
    parts = tuple("best-effort" if share == IDLE else "latency" for share in caps)
    return parts == tuple(kind.isolation for kind in kinds) and len({k.uid for k in kinds}) == 1
