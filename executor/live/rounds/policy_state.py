"""Make the state that policies see, whose workloads are kinds, from beliefs about workloads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dovetail.executor.live.beliefs import ORIGINS, SEEN, WITHOUT_BOUND, BeliefTable, Source
from dovetail.executor.live.job_beliefs import JobBeliefs
from dovetail.executor.live.rounds.sharing_classes import Layout, SharingClass
from dovetail.formulations.arrays import Floats
from dovetail.instances._record import IDLE, Idle
from dovetail.instances.instance import Instance, Workload
from dovetail.instances.slowdowns.entry import SlowdownEntry
from dovetail.instances.slowdowns.shares import share_code
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.predictors.unmeasured import may_share
from dovetail.solver.policies.state import State

_STRONGEST_FIRST: Final = (None, "measured", "model", "estimate")


@dataclass(frozen=True)
class KindState:
    """The parts of a state that stay the same until devices, kinds or beliefs change.

    Attributes
    ----------
    kinds : tuple of SharingClass
        The workloads of the state.
    beliefs : JobBeliefs
        Profiles, and the rules for sharing devices.
    table : BeliefTable
        Beliefs about pairs of these workloads.
    allowed : mapping of (SharingClass, str) to collection of int
        The shares that jobs of a kind may have on a device model.
    """

    kinds: tuple[SharingClass, ...]
    beliefs: JobBeliefs
    table: BeliefTable
    allowed: Mapping[tuple[SharingClass, str], Collection[int | Idle]]

    def state(self, layout: Layout) -> State:
        """Return the state of a pool without jobs.

        Devices that take no jobs are on nodes that are down. Kinds that may not share at any caps
        are clashes, so that no policy puts them together.
        """
        whole, down = layout.cluster(self.beliefs.cluster)
        view = Instance(name="live", cluster=whole, workloads=self._workloads(), jobs=())
        models = tuple(dict.fromkeys(place.gpu.model for place in view.places.values()))
        struck = self._struck(models)
        state = State(view, self._of_kinds(view, models, self.table, struck))
        state.prior = self._of_kinds(view, models, self.table.prior, struck)
        state.capped_sets = self.beliefs.cluster.caps_first
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
            known = None if kind.alone else self.beliefs.workload(kind.workload)
            label = kind.label(known.memory_mib if known else 0.0)
            if label in found:
                label = f"{label} (user {kind.uid})"
            made = known or Workload(memory_mib=0.0)
            behind = "blocks" if kind.isolation == "best-effort" else None
            found[label] = made.replace(memory_mib=kind.need_mib, isolation=behind)
        return found

    def _of_kinds(
        self,
        view: Instance,
        models: tuple[str, ...],
        table: SlowdownTable,
        struck: NDArray[np.bool_],
    ) -> SlowdownTable:
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
                allowed = all(
                    share is None or share in self.allowed[self.kinds[k], model]
                    for k, share in zip(chosen, entry.shares, strict=True)
                )
                apart = any(self._apart[both] for both in combinations(chosen, 2))
                if allowed and not apart and members not in done:
                    done.add(members)
                    named = tuple(labels[k] for k in chosen)
                    mode = self.beliefs.cluster.sharing
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
        caps = self.table.caps
        allowed = [[{None, *self.allowed[kind, model]} for kind in self.kinds] for model in models]
        may = np.array(
            [
                [share in shares for shares in of_model]
                for of_model in allowed
                for pair in caps
                for share in pair
            ],
            dtype=np.bool_,
        ).reshape(len(models), len(caps), 2, len(self.kinds))
        mine, theirs = may[:, :, 0, :, np.newaxis], may[:, :, 1, np.newaxis, :]
        return ~(mine & theirs & ~self._apart & self._isolates) | self._in_doubt(models)

    @cached_property
    def _same_user(self) -> NDArray[np.bool_]:
        uids = np.array([kind.uid for kind in self.kinds])
        return np.asarray(uids[:, np.newaxis] == uids)

    @cached_property
    def _apart(self) -> NDArray[np.bool_]:
        """The pairs of kinds whose jobs may never share a device, or no longer."""
        never = [self.beliefs.pool.sharing(same) is not None for same in (False, True)]
        apart = np.where(self._same_user, never[True], never[False])
        of_job = {kind.job: k for k, kind in enumerate(self.kinds) if kind.job}
        for both in self.beliefs.machine.apart:
            if of_job.keys() >= {*both}:
                a, b = (of_job[job] for job in both)
                apart[a, b] = apart[b, a] = True
        return apart

    @cached_property
    def _isolates(self) -> NDArray[np.bool_]:
        """By caps, the pairs of kinds of which one may run in the idle time of the other.

        True at caps without isolation.
        """
        roles = np.array([kind.isolation for kind in self.kinds], dtype=str)
        found = np.ones((len(self.table.caps), len(roles), len(roles)), dtype=np.bool_)
        for k, caps in enumerate(self.table.caps):
            if IDLE in caps:
                mine, theirs = ("best-effort" if share == IDLE else "latency" for share in caps)
                both = (roles == mine)[:, np.newaxis] & (roles == theirs)
                found[k] = both & self._same_user
        return found

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
            np.asarray(self.beliefs.cluster.caps_first),
        )
        seen = np.isin(source, SEEN) | (source == Source.ISOLATED)
        return np.asarray(~(may | (seen & self._mirrored(seen))))

    def _note_measured(self, state: State) -> None:
        """Enter the measured slowdowns and their bounds into the state."""
        table = state.predicted
        source = self._expanded(table.models, self.table.source, Source.NONE)
        measured = (source == Source.MEASURED) & ~np.isnan(table.slowdown)
        for model, caps, a, b in np.argwhere(measured).tolist():
            state.seen[model, caps, a, b] = table.rows[model][caps][a][b]
            state.seen_upper[model, caps, a, b] = table.upper_rows[model][caps][a][b]
