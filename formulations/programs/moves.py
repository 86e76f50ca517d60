"""The second matching of a round: between running processes and chosen groups.

A choice counts how many GPUs of a class each group gets, and equal jobs may take each other's place
in it. Which job goes where is then decided so that as few processes as possible start or move,
after Tesserae (arXiv 2508.04953).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from dovetail.formulations.arrays import Ints
from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.programs.placement import place
from dovetail.formulations.rounds import Resident, Round


class _Process(NamedTuple):
    """A process, which stays on a GPU if an equal one is wanted there; ``job`` is its kind."""

    job: Hashable
    sub_batch: int
    share: int
    worth: float


class _Content(NamedTuple):
    """The processes on a GPU of a class, and its node; -1 if any node will do."""

    gpu_class: int
    node: int
    processes: tuple[_Process, ...]


def fewest_moves(
    groups: Groups, counts: Ints, before: Round, kinds: Sequence[Hashable]
) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Return which job goes where so that the fewest processes start or move.

    The result is the group on each GPU in use, and the job that takes the place of each chosen job.

    A process stays if its job runs on the same GPU at the same share and sub-batch; all other
    processes of placed jobs start or move. Their number is the least over all ways to give the
    counted groups GPUs of their classes and to let jobs of one worker and one kind, including
    waiting jobs, take each other's place. Each process of a gang counts; among the best ways, one
    is taken in which most processes of gangs stay. Last, without proof, gangs are put on few nodes:
    a gang that keeps part of its GPUs keeps those on the nodes where it has most, and ``place``
    packs the rest.

    Parameters
    ----------
    groups : Groups
        The candidate groups of the round with its running jobs pending.
    counts : (n,) int
        How often each group is taken.
    before : Round
        The same round with its running jobs in place.
    kinds : sequence
        The kind of each job; jobs of one kind may take each other's place.
    """
    mover = _Mover(groups, counts, before, kinds)
    settled = mover.settled()
    return place(groups, counts, settled), mover.exchanged(settled)


def _most_kept(
    wanted: Mapping[_Content, Sequence[int]], held: Mapping[_Content, Sequence[int]]
) -> Iterator[tuple[int, int]]:
    """Yield the GPUs on which processes stay, each with the group that it gets.

    The total worth of the kept processes is maximal. This is a transportation problem from the
    wanted contents, with their groups, to the contents of the GPUs; its vertices are integral, so
    the simplex method solves it exactly. Of GPUs with equal contents the first are taken.
    """
    with_process: dict[tuple[int, _Process], list[int]] = defaultdict(list)
    nodes = [there.node for there in held]
    for sink, there in enumerate(held):
        for process in set(there.processes):
            with_process[there.gpu_class, process].append(sink)
    ways = [
        (source, sink)
        for source, (where, node, processes) in enumerate(wanted)
        for sink in sorted({k for each in processes for k in with_process.get((where, each), ())})
        if node in (-1, nodes[sink])
    ]
    if not ways:
        return
    items = [iter(same) for same in wanted.values()]
    gpus = [iter(same) for same in held.values()]
    for (source, sink), times in zip(ways, _flows(ways, wanted, held), strict=True):
        for _ in range(times):
            yield next(gpus[sink]), next(items[source])


def _flows(
    ways: Sequence[tuple[int, int]],
    wanted: Mapping[_Content, Sequence[int]],
    held: Mapping[_Content, Sequence[int]],
) -> list[int]:
    """Return the flow on each way from a source to a sink."""
    asked = [Counter(there.processes) for there in wanted]
    running = [Counter(there.processes) for there in held]
    kept = [sum(p.worth for p in (asked[a] & running[b]).elements()) for a, b in ways]
    rows = np.add(ways, (0, len(wanted))).T.ravel()
    columns = np.tile(np.arange(len(ways)), 2)
    room = [len(same) for same in (*wanted.values(), *held.values())]
    sources, sinks = [*wanted], [*held]
    for where, spare in _spare(wanted, held).items():
        into = [k for k, way in enumerate(ways) if _passes(way, sources, sinks, where)]
        rows, columns = np.append(rows, [len(room)] * len(into)), np.append(columns, into)
        room.append(spare)
    matrix = csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(room), len(ways)))
    # The import takes a quarter of a second, and most rounds move nothing.
    from scipy.optimize import LinearConstraint, milp

    whole = np.full(len(ways), int(len(room) > len(wanted) + len(held)))
    limits = LinearConstraint(matrix, ub=np.array(room))
    found = milp(-np.array(kept), constraints=limits, integrality=whole)
    return [round(times) for times in np.asarray(found.x, dtype=np.float64).tolist()]


def _spare(
    wanted: Mapping[_Content, Sequence[int]], held: Mapping[_Content, Sequence[int]]
) -> Mapping[tuple[int, int], int]:
    """Return, by class and node, how many GPUs may get groups that could be on any node."""
    asked: Counter[tuple[int, int]] = Counter()
    there: Counter[tuple[int, int]] = Counter()
    for content, groups in wanted.items():
        asked[content.gpu_class, content.node] += len(groups)
    for content, gpus in held.items():
        there[content.gpu_class, content.node] += len(gpus)
    return {place: there[place] - number for place, number in asked.items() if place[1] >= 0}


def _passes(
    way: tuple[int, int],
    wanted: Sequence[_Content],
    held: Sequence[_Content],
    place: tuple[int, int],
) -> bool:
    """Return whether a way brings a group that could be on any node to a GPU of a node."""
    source, sink = wanted[way[0]], held[way[1]]
    return source.node < 0 and (sink.gpu_class, sink.node) == place


class _Mover:
    """The processes of a choice, and the running processes."""

    def __init__(
        self, groups: Groups, counts: Ints, before: Round, kinds: Sequence[Hashable]
    ) -> None:
        self._groups = groups
        self._counts = counts
        self._before = before
        self._kind = [
            (kind, number if workers > 1 else None)
            for number, (kind, workers) in enumerate(zip(kinds, before.jobs.workers, strict=True))
        ]
        # All gangs together are worth less than one more process.
        workers = before.jobs.workers
        self._worth = (1 + (workers > 1) / (1 + workers.sum())).tolist()

    def settled(self) -> Mapping[int, int]:
        """Return the group on each GPU on which a process stays."""
        wanted: dict[_Content, list[int]] = defaultdict(list)
        for group in np.flatnonzero(self._counts).tolist():
            where, on = int(self._groups.gpu_class[group]), int(self._groups.node[group])
            content = tuple(map(self._chosen, self._groups.members(group)))
            wanted[_Content(where, on, content)] += [group] * self._counts[group]
        held: dict[_Content, list[int]] = defaultdict(list)
        node, by_node = self._before.machines.node, any(where.node >= 0 for where in wanted)
        for number, gpus in enumerate(self._groups.round.classes.gpus):
            for gpu in gpus:
                there = tuple(map(self._running, self._before.residents(gpu)))
                held[_Content(number, node[gpu] if by_node else -1, there)].append(gpu)
        for alike in held.values():
            on_node = Counter(node[gpu] for gpu in alike)
            alike.sort(key=lambda gpu: -on_node[node[gpu]])
        return dict(_most_kept(wanted, held))

    def exchanged(self, settled: Mapping[int, int]) -> Mapping[int, int]:
        """Return the job that takes the place of each chosen job: running jobs first."""
        found = self._staying(settled)
        placed = self._groups.job[self._counts[self._groups.group_of_member] > 0]
        moving: dict[Hashable, list[int]] = defaultdict(list)
        for job in np.setdiff1d(placed, list(found)).tolist():
            moving[self._kind[job]].append(job)
        alike: dict[Hashable, list[int]] = defaultdict(list)
        for job in sorted(set(range(len(self._kind))).difference(found.values())):
            alike[self._kind[job]].append(job)
        for kind, chosen in moving.items():
            running = self._before.jobs.running
            order = sorted(alike[kind], key=lambda job: (not running[job], job not in chosen))
            takers = set(order[: len(chosen)])
            own = takers.intersection(chosen)
            found |= {job: job for job in own}
            found |= zip(sorted({*chosen} - own), sorted(takers - own), strict=True)
        return found

    def _staying(self, settled: Mapping[int, int]) -> dict[int, int]:
        """Return, for each chosen job whose place has a staying process, the job of the process."""
        found: dict[int, int] = {}
        for gpu, group in settled.items():
            there: dict[_Process, list[int]] = defaultdict(list)
            for resident in self._before.residents(gpu):
                there[self._running(resident)].append(resident.job)
            for member in self._groups.members(group):
                if same := there[self._chosen(member)]:
                    found[int(self._groups.job[member])] = same.pop(0)
        return found

    def _chosen(self, member: int) -> _Process:
        variants, variant = self._groups.variants, self._groups.variant[member]
        job, sub_batch = int(variants.job[variant]), int(variants.sub_batch[variant])
        return self._process(job, sub_batch, int(self._groups.share[member]))

    def _running(self, resident: Resident) -> _Process:
        sub_batch = int(self._before.variants.sub_batch[resident.variant])
        return self._process(resident.job, sub_batch, resident.share)

    def _process(self, job: int, sub_batch: int, share: int) -> _Process:
        return _Process(self._kind[job], sub_batch, share, self._worth[job])
