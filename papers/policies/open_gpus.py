"""GPUs with room for one more job, grouped by residents so that equal ones are evaluated once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nsmallest

from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import in_groups
from dovetail.solver.policies.state import Job

Kind = tuple[float, ...]
Cost = Callable[[Job, Sequence[Job], int], float]
"""The cost of a job with the given residents of a GPU; infinite = not allowed."""


class OpenGpus:
    """The GPUs of a draft with a free place.

    Gangs may share partially: their workers are placed GPU by GPU, with different co-runners if
    necessary, all on one GPU model, and in whole groups if workers stay together on nodes.

    Parameters
    ----------
    draft : Draft
        The draft; all further starts must go through ``start``.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._kinds: dict[Kind, list[int]] = {}
        self._fits: dict[tuple[int, float, Kind], bool] = {}
        for gpu in range(len(draft.state.machines)):
            self._add(gpu)

    def __bool__(self) -> bool:
        return any(self._kinds.values())

    def open_to(self, job: Job) -> Iterator[list[int]]:
        """Yield the GPUs that a job may join, equal ones together."""
        for kind, gpus in self._kinds.items():
            free = gpus
            if self._draft.state.reserved:
                free = [gpu for gpu in gpus if not self._draft.is_kept(gpu, job)]
            if not free:
                continue
            place = job.workload, job.tail_limit, kind
            if place not in self._fits:
                self._fits[place] = self._draft.has_room(free[0], job)
            if self._fits[place]:
                yield free

    def cheapest(self, job: Job, cost: Cost) -> tuple[float, list[int]] | None:
        """Return the cheapest GPUs for a whole gang, and the cost of the most expensive of them.

        Between two models of the same cost, the one on which the job is faster is chosen. ``cost``
        may depend on the residents' workloads, not on their identity.
        """
        state = self._draft.state
        priced: dict[int, list[tuple[float, int, list[int]]]] = defaultdict(list)
        for gpus in self.open_to(job):
            price = cost(job, self._draft.residents(gpus[0]), gpus[0])
            if price < math.inf:
                priced[state.machines.model[gpus[0]]].append((price, gpus[0], gpus))
        offers = []
        for model, kinds in priced.items():
            chosen = self._first(job, sorted(kinds))
            if chosen is not None:
                offers.append((chosen[0], -state.speed[model][job.workload], model, chosen[1]))
        best = min(offers, default=None)
        return None if best is None else (best[0], best[3])

    def _first(
        self, job: Job, kinds: Sequence[tuple[float, int, list[int]]]
    ) -> tuple[float, list[int]] | None:
        """Return the first GPUs of kinds sorted by price, and the highest price among them."""
        if not job.by_node:
            return _first(kinds, job.workers)
        priced: dict[int, tuple[float, int]] = {}
        for price, _, gpus in kinds:
            priced |= {gpu: (price, gpu) for gpu in gpus}
        # The dearest price decides: the least at which the GPUs up to it are enough.
        node = self._draft.state.machines.node
        for most in sorted({price for price, _, _ in kinds}):
            usable = [gpu for gpu, (price, _) in priced.items() if price <= most]
            taken = in_groups(job, on_nodes(node, usable, lambda gpu: priced[gpu][0]), job.workers)
            if taken is not None:
                return most, taken
        return None

    def start(self, job: Job, gpus: Sequence[int]) -> None:
        """Start a job and update the places."""
        for gpu in gpus:
            self._kinds[self._kind(gpu)].remove(gpu)
        self._draft.start(job, gpus)
        for gpu in gpus:
            self._add(gpu)

    def _add(self, gpu: int) -> None:
        machines = self._draft.state.machines
        if machines.node[gpu] in self._draft.state.down:
            return
        if len(self._draft.residents(gpu)) < machines.most_jobs[gpu]:
            self._kinds.setdefault(self._kind(gpu), []).append(gpu)

    def _kind(self, gpu: int) -> Kind:
        machines = self._draft.state.machines
        residents = [
            x
            for job in self._draft.residents(gpu)
            for x in (job.workload, job.mode, job.tail_limit)
        ]
        return machines.model[gpu], machines.memory_mib[gpu], *residents


def by_node(
    draft: Draft,
    job: Job,
    gpus: Sequence[int],
    node_cost: Callable[[int], float],
    gpu_cost: Callable[[int], float],
) -> list[int] | None:
    """Return GPUs for a whole gang, on the cheapest node that holds all of it.

    If none does, several nodes are used, the cheapest first. On a node, the cheapest GPUs are
    used.
    """
    machines = draft.state.machines
    if job.by_node:
        models = sorted({machines.model[gpu] for gpu in gpus})
        of_model = ([gpu for gpu in gpus if machines.model[gpu] == model] for model in models)
        usable = (on_nodes(machines.node, each, gpu_cost) for each in of_model)
        found = (_ranked_groups(job, each, node_cost) for each in usable)
        return next((taken for taken in found if taken is not None), None)
    places: dict[tuple[int, int], list[int]] = defaultdict(list)
    for gpu in gpus:
        places[machines.model[gpu], machines.node[gpu]].append(gpu)
    costs = {node: node_cost(node) for _, node in places}
    ranked = sorted(places, key=lambda place: (costs[place[1]], place[1]))
    for place in ranked:
        if len(places[place]) >= job.workers:
            return _cheap(places[place], job.workers, gpu_cost)
    for model in sorted({model for model, _ in places}):
        wide = [
            gpu
            for place in ranked
            if place[0] == model
            for gpu in _cheap(places[place], job.workers, gpu_cost)
        ]
        if len(wide) >= job.workers:
            return wide[: job.workers]
    return None


def on_nodes(
    node: Sequence[int], gpus: Sequence[int], cost: Callable[[int], float]
) -> dict[int, list[int]]:
    """Return the GPUs of each node, the cheapest first."""
    found: dict[int, list[int]] = defaultdict(list)
    for gpu in sorted(gpus, key=lambda gpu: (cost(gpu), gpu)):
        found[node[gpu]].append(gpu)
    return found


def _ranked_groups(
    job: Job, usable: Mapping[int, list[int]], node_cost: Callable[[int], float]
) -> list[int] | None:
    """Return GPUs of the cheapest node that holds a job in whole groups, or of several."""
    ranked = sorted(usable, key=lambda node: (node_cost(node), node))
    for node in ranked:
        if (taken := in_groups(job, {node: usable[node]}, job.workers)) is not None:
            return taken
    for most in range(2, len(ranked) + 1):
        some = {node: usable[node] for node in ranked[:most]}
        if (taken := in_groups(job, some, job.workers)) is not None:
            return taken
    return None


def _first(
    kinds: Sequence[tuple[float, int, list[int]]], workers: int
) -> tuple[float, list[int]] | None:
    """Return the first GPUs of kinds sorted by price, and the highest price among them."""
    taken: list[int] = []
    for price, _, gpus in kinds:
        taken += gpus[: workers - len(taken)]
        if len(taken) == workers:
            return price, taken
    return None


def _cheap(gpus: Sequence[int], count: int, cost: Callable[[int], float]) -> list[int]:
    return nsmallest(count, gpus, key=lambda gpu: (cost(gpu), gpu))
