"""Categories of jobs, and the state that policies see, whose workloads are categories.

A policy's ``State`` knows only workloads. Jobs are therefore sorted into categories (`Category`):
jobs of one user's workload that need equal memory, and jobs that run alone, of any workload. The
latter have no slowdowns, so they get no co-runners.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations, product
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.executor.jobs.live_jobs import DeviceState, LiveJob
from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.live.beliefs import SEEN, WITHOUT_BOUND, BeliefTable, Source
from dovetail.executor.live.job_beliefs import JobBeliefs
from dovetail.executor.second_opinion import instance_of
from dovetail.instances._record import IDLE, Idle
from dovetail.instances.instance import Cluster, Instance, Node, Workload
from dovetail.instances.slowdowns.entry import SlowdownEntry
from dovetail.instances.slowdowns.shares import share_code
from dovetail.predictors.unmeasured import may_share
from dovetail.solver.policies.state import State


class Category(NamedTuple):
    """The class of a job; for policies, jobs of one category differ only in their own figures.

    Attributes
    ----------
    uid : int
        The owner of the jobs; -1 for jobs that run alone.
    workload : str
        The name in the repository; empty for jobs that run alone.
    need_mib, need_percent : float
        Memory of one worker: in MiB, or if it has one, in per cent of what a device offers.
    job : str
        Id of the only job of this category, if that is separated from another job; otherwise empty.
    isolation : {"", "latency", "best-effort"}
        Whether other jobs may run in the idle time of its jobs, or its jobs in theirs.
    promised : bool
        Whether its jobs have a gSLA, so that estimates without a bound do not suffice.
    service : str
        The service of which its jobs are replicas, of which no two share a device; otherwise empty.
    """

    uid: int
    workload: str
    need_mib: float
    need_percent: float = 0.0
    job: str = ""
    isolation: Literal["", "latency", "best-effort"] = ""
    promised: bool = False
    service: str = ""

    @property
    def alone(self) -> bool:
        """Whether its jobs get no co-runners."""
        return not self.workload

    def label(self, usual_mib: float) -> str:
        """Return its name in an instance; ``usual_mib`` is the learned memory of the workload."""
        if self.alone:
            return f"alone ({self.need_mib:.15g} MiB)" if self.need_mib else "alone"
        special = [name for name in (self.job, self.service) if name]
        if self.promised:
            special.append("gSLA")
        if self.isolation:
            special.append(f"isolated, {self.isolation}")
        if self.need_percent:
            special.append(f"{self.need_percent:.15g} %")
        elif self.need_mib != usual_mib:
            special.append(f"{self.need_mib:.15g} MiB")
        return f"{self.workload} ({', '.join(special)})" if special else self.workload


ALONE: Final = Category(-1, "", 0.0)
"""The category of jobs that run alone and fit on every device."""


class Layout(NamedTuple):
    """Which devices take jobs, and which jobs are not in the state.

    Attributes
    ----------
    troubled : frozenset of str
        Devices that take no job: sick, drained, not in the journal, or held by a hidden job.
    closed : frozenset of str
        Jobs that hold such a device; no job may join them on any device.
    hidden : frozenset of str
        Jobs on a device that the pool no longer has, and jobs that share devices with them.
    """

    troubled: frozenset[str]
    closed: frozenset[str]
    hidden: frozenset[str]

    @classmethod
    def of(
        cls, known: Mapping[str, DeviceState], gpus: Iterable[str], jobs: Iterable[LiveJob]
    ) -> Layout:
        """Return the layout of a pool's devices with the jobs that hold some of them.

        ``known`` are the devices of the state machine.
        """
        there = set(gpus)
        held = {job.id: job.devices for job in jobs if job.devices}
        hidden: set[str] = set()
        out: set[str] = set()
        while more := {
            name
            for name, devices in held.items()
            if name not in hidden and (not devices <= there or devices & out)
        }:
            hidden |= more
            out |= {gpu for name in more for gpu in held[name]}
        troubled = {gpu for gpu in there if gpu in out or gpu not in known or known[gpu].trouble}
        closed = {name for name, devices in held.items() if devices & troubled}
        return cls(frozenset(troubled), frozenset(closed), frozenset(hidden))

    def cluster(self, whole: Cluster) -> tuple[Cluster, frozenset[int]]:
        """Return the cluster with troubled devices on separate nodes, and the numbers of these."""
        nodes: list[Node] = []
        down: set[int] = set()
        for node in whole.nodes:
            for troubled in (False, True):
                devices = tuple(
                    gpu for gpu in node.devices if (gpu.id in self.troubled) == troubled
                )
                if not devices:
                    continue
                if troubled:
                    down.add(len(nodes))
                name = f"{node.id} (closed)" if troubled else node.id
                nodes.append(Node(id=name, rack=node.rack, host=node.host, gpus=devices))
        return whole.replace(nodes=tuple(nodes)), frozenset(down)


class CategoryState:
    """The state that policies see in a round, for these categories of jobs and without its jobs.

    Devices that take no jobs are on nodes that are down. Categories that may not share at any caps
    are clashes, so that no policy puts them together.

    Parameters
    ----------
    beliefs : JobBeliefs
        Profiles, slowdowns, and the rules for sharing devices.
    specs : mapping of Category to JobSpec
        The categories, which are the workloads of the state, each with one of its jobs.
    sizes : mapping of str to int
        The number of workers of the largest job of each workload.
    layout : Layout
        The devices that take jobs.

    Attributes
    ----------
    categories : tuple of Category
        The categories in the order of the state's workloads.
    place, gpu_place : mapping
        The number of each category, and of each device by its id, in the state.
    state : State
        The state.
    """

    def __init__(
        self,
        beliefs: JobBeliefs,
        specs: Mapping[Category, JobSpec],
        sizes: Mapping[str, int],
        layout: Layout,
    ) -> None:
        self._beliefs, self._specs = beliefs, specs
        self._table = beliefs.tabulate(sizes)
        self._allowed = self._shares()
        self.categories = tuple(specs)
        self.place = {category: k for k, category in enumerate(self.categories)}
        self.layout = layout
        self.state = self._state()
        self.gpu_place = {gpu: k for k, gpu in enumerate(self.state.machines.gpu_ids)}

    def serves(self, categories: Iterable[Category]) -> bool:
        """Return whether the state has these, and all may still have their shares."""
        return (
            all(category in self.place for category in categories)
            and self._allowed == self._shares()
        )

    def _shares(self) -> dict[tuple[Category, str], Collection[int | Idle]]:
        """Return the shares that jobs of each category may have on each model."""
        return {
            (category, model): set() if category.alone else self._beliefs.allowed(spec, model)
            for category, spec in self._specs.items()
            for model in self._beliefs.models
        }

    def _state(self) -> State:
        whole, down = self.layout.cluster(self._beliefs.cluster)
        view = Instance(name="live", cluster=whole, workloads=self._workloads(), jobs=())
        table = self._of_categories(view)
        state = State(view, replace(table, seen=table.measured))
        state.capped_sets = self._beliefs.cluster.caps_first
        state.down |= down
        for node in down:
            state.idle_count[node] = 0
        never = np.argwhere(np.isnan(state.predicted.slowdown).all(axis=1)).tolist()
        state.clashes.update((model, a, b) for model, a, b in never)
        return state

    def instance(self) -> Instance:
        """Return the state as an instance, with its jobs and all beliefs.

        Devices that take no jobs and hold none are left out.
        """
        alone = [k for k, category in enumerate(self.categories) if category.alone]
        cluster, troubled = self._beliefs.cluster, self.layout.troubled
        return instance_of(self.state, cluster, troubled, alone)

    def _workloads(self) -> dict[str, Workload]:
        found: dict[str, Workload] = {}
        for category in self.categories:
            known = None if category.alone else self._beliefs.workload(category.workload)
            label = category.label((known and known.memory_mib) or 0.0)
            if label in found:
                label = f"{label} (user {category.uid})"
            made = known or Workload(memory_mib=0.0)
            percent = category.need_percent or None
            found[label] = made.replace(
                memory_mib=category.need_mib if percent is None else None,
                memory_percent=percent,
                isolation="blocks" if category.isolation == "best-effort" else None,
            )
        return found

    def _of_categories(self, view: Instance) -> BeliefTable:
        """Return the beliefs about categories as far as these may share."""
        labels, of_workload = tuple(view.workloads), self._table.place
        self._models = tuple(dict.fromkeys(place.gpu.model for place in view.places.values()))
        at = [of_workload.get(category.workload, -1) for category in self.categories]
        sets = self._sets(labels, self._table.sets)
        table = self._table.renumbered(labels, at, self._models, tuple(sets))
        if not self._table.workloads:
            return table
        table = table.isolated(self._behind)
        return table.without(self._struck() | self._in_doubt(table))

    def _sets(
        self, labels: Sequence[str], sets: Sequence[SlowdownEntry]
    ) -> Iterator[SlowdownEntry]:
        """Yield the entries of sets for the categories of their workloads that may share.

        ``labels`` are the names of the categories.
        """
        of: dict[str, list[int]] = defaultdict(list)
        for k, category in enumerate(self.categories):
            of[category.workload].append(k)
        for entry in sets:
            model = entry.gpu_model
            if model is None or model not in self._models:
                continue
            done = set[tuple[tuple[int, int], ...]]()
            for chosen in product(*(of[name] for name in entry.workloads)):
                members = tuple(sorted(zip(chosen, map(share_code, entry.shares), strict=True)))
                allowed = all(
                    share in {*self._unshared, *self._allowed[self.categories[k], model]}
                    for k, share in zip(chosen, entry.shares, strict=True)
                )
                apart = any(self._apart[both] for both in combinations(chosen, 2))
                if allowed and not apart and members not in done:
                    done.add(members)
                    named = tuple(labels[k] for k in chosen)
                    mode = self._beliefs.cluster.sharing
                    yield entry.model_copy(update={"set": named, "mode": mode})

    def _struck(self) -> NDArray[np.bool_]:
        """Return the cells of categories that may not have their shares, or not share."""
        caps = self._table.caps
        allowed = [
            [{*self._unshared, *self._allowed[category, model]} for category in self.categories]
            for model in self._models
        ]
        may = np.array(
            [
                [share in shares for shares in of_model]
                for of_model in allowed
                for pair in caps
                for share in pair
            ],
            dtype=np.bool_,
        ).reshape(len(self._models), len(caps), 2, len(self.categories))
        mine, theirs = may[:, :, 0, :, np.newaxis], may[:, :, 1, np.newaxis, :]
        return np.asarray(~(mine & theirs & ~self._apart & self._isolates))

    @property
    def _unshared(self) -> tuple[None, ...]:
        """No cap, if jobs may run so beside others."""
        return () if self._beliefs.pool.reserves else (None,)

    @cached_property
    def _same_user(self) -> NDArray[np.bool_]:
        uids = np.array([category.uid for category in self.categories])
        return np.asarray(uids[:, np.newaxis] == uids)

    @cached_property
    def _apart(self) -> NDArray[np.bool_]:
        """The pairs of categories whose jobs may never share a device, or no longer."""
        never = [self._beliefs.pool.sharing(same) is not None for same in (False, True)]
        apart = np.where(self._same_user, never[True], never[False])
        services = np.array([category.service for category in self.categories], dtype=str)
        apart |= (services != "") & (services[:, np.newaxis] == services)
        of_job = {category.job: k for k, category in enumerate(self.categories) if category.job}
        for both in self._beliefs.machine.apart:
            if of_job.keys() >= {*both}:
                a, b = (of_job[job] for job in both)
                apart[a, b] = apart[b, a] = True
        return apart

    @cached_property
    def _isolates(self) -> NDArray[np.bool_]:
        """By caps, the pairs of categories of which one may run in the idle time of the other.

        True at caps without isolation.
        """
        behind = self._behind
        found = np.ones((len(self._table.caps), *behind.shape), dtype=np.bool_)
        for k, caps in enumerate(self._table.caps):
            if IDLE in caps:
                found[k] = behind.T if caps[0] == IDLE else behind
        return found

    @cached_property
    def _behind(self) -> NDArray[np.bool_]:
        """``[a, b]``: whether jobs of category b give way to those of category a."""
        roles = np.array([category.isolation for category in self.categories], dtype=str)
        both = np.logical_and.outer(roles == "latency", roles == "best-effort")
        return np.asarray(both & self._same_user)

    def _in_doubt(self, table: BeliefTable) -> NDArray[np.bool_]:
        """Return the cells of pairs that never ran so and may not (``predictors.unmeasured``)."""
        source = table.source
        bounds = np.where(np.isin(source, WITHOUT_BOUND), np.nan, table.upper)
        promised = np.array([category.promised for category in self.categories], dtype=np.bool_)
        capped = np.array([None not in caps for caps in self._table.caps], dtype=np.bool_)
        may = may_share(
            np.stack([bounds, table.turned(bounds)], axis=-1),
            promised[:, np.newaxis] | promised,
            capped[:, np.newaxis, np.newaxis],
            np.asarray(self._beliefs.cluster.caps_first),
        )
        seen = np.isin(source, (*SEEN, Source.ISOLATED, Source.DECLARED))
        return np.asarray(~(may | (seen & table.turned(seen))))
