"""How many servers each model needs, and the fewest GPUs for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dovetail.advising.serving.load_curves import (
    BISECTIONS,
    MOST_DILATION,
    LoadCurve,
    curve_of,
)
from dovetail.advising.serving.scenario import LOADS, Serving, ServingGpu
from dovetail.advising.serving.shared import (
    SERVER_CASES,
    ServerLevel,
    SharedSplit,
    shared_splits,
    start_order,
)
from dovetail.advising.sharing import RESERVE_MIB
from dovetail.formulations.budget import Budget, OutOfTimeError
from dovetail.instances._record import field_path
from dovetail.instances.builder import InstanceBuilder
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.instance import Instance
from dovetail.solver.rounds import solve
from dovetail.toolkit.wording import gib

_MOST_SERVERS: Final = 2_000
_MOST_ROUNDS: Final = 100
_MOST_WORK: Final = 10_000
"""Sets of servers that are compared in all rounds together, after the first."""

_PART: Final = 0.5
"""Of the time left, for the numbers of servers above the least."""

_CLOSE: Final = 1 - 1e-9


class ServerSeat(NamedTuple):
    """A server on a GPU.

    Attributes
    ----------
    name : str
        The model, with a number if it has several servers: ``chat#2``.
    level : ServerLevel
        What it serves.
    share : int
        Its SMs in per cent; 100 alone.
    latencies : dict of str to float
        Its 99th percentiles in milliseconds.
    measured : bool
        Whether they were measured as they are here.
    """

    name: str
    level: ServerLevel
    share: int
    latencies: dict[str, float]
    measured: bool


@dataclass(frozen=True, eq=False)
class Fleet:
    """Servers on GPUs.

    Attributes
    ----------
    gpus : tuple of tuple of ServerSeat
        The servers on each GPU in the order in which to start them; shared GPUs first.
    instance : Instance
        The round that was solved.
    optimal : bool
        Whether no fewer GPUs are possible for these numbers of servers, proven.
    complete : bool
        Whether no fewer are possible for any numbers of servers either, proven.
    """

    gpus: tuple[tuple[ServerSeat, ...], ...]
    instance: Instance
    optimal: bool
    complete: bool

    @property
    def servers(self) -> int:
        """How many servers there are."""
        return sum(map(len, self.gpus))


@dataclass(frozen=True, eq=False)
class ServingPlan:
    """The fewest GPUs of a model for what is to be served.

    Attributes
    ----------
    gpu : ServingGpu
        The GPU model.
    alone : int
        The GPUs that are needed if each server has one.
    fleets : mapping of str to Fleet
        The plan in each of ``SERVER_CASES``.
    obstacles : tuple of SharedSplit
        Pairs of models that fit on a GPU together and may not share it in the case low, each at the
        best split, nearest to its promises first.
    """

    gpu: ServingGpu
    alone: int
    fleets: Mapping[str, Fleet]
    obstacles: tuple[SharedSplit, ...]


def plans_for(
    serving: Serving, budget: Budget, tell: Callable[[str], None] = lambda _text: None
) -> tuple[tuple[ServingPlan, ...], tuple[str, ...]]:
    """Return a plan for each GPU model that can serve all models, and why others cannot.

    Raises
    ------
    InputError
        When no GPU model can: the reason of the first.
    OutOfTimeError
        When the budget is spent before there is any plan.
    """
    plans, reasons = [], []
    for g, gpu in enumerate(serving.gpus):
        tell(f"planning on {gpu.model}")
        try:
            plans.append(_Planner(serving, gpu, budget).plan())
        except InputError as error:
            if len(serving.gpus) == 1:
                raise
            reasons.append((g, error))
    if not plans:
        raise reasons[0][1]
    return tuple(plans), tuple(f"{serving.gpus[g].model}: {error}" for g, error in reasons)


class _Planner:
    """Plans on one GPU model."""

    def __init__(self, serving: Serving, gpu: ServingGpu, budget: Budget) -> None:
        self._serving, self._gpu, self._budget = serving, gpu, budget
        self._levels: dict[tuple[str, int], ServerLevel] = {}
        self._curves = {name: self._curve(name) for name in serving.models}
        self._least = {name: self._least_servers(name) for name in serving.models}
        self._equal = {name: self._told_apart_by(name) for name in serving.models}

    def plan(self) -> ServingPlan:
        """Return the plan."""
        alone = sum(self._least.values())
        if alone > _MOST_SERVERS:
            raise UnsupportedError(f"at most {_MOST_SERVERS:,} servers are planned, got {alone:,}")
        fleets = {case: self._fleet(case) for case in SERVER_CASES}
        return ServingPlan(self._gpu, alone, fleets, self._obstacles())

    def _curve(self, name: str) -> LoadCurve:
        curve = curve_of(self._serving, name, self._gpu.model)
        path = field_path("models", name)
        if curve is None:
            raise InputError(f"must have a run on {self._gpu.model}", f"{path}.runs")
        model, card = self._serving.models[name], self._gpu.card_mib
        needs = model.needs_mib(card) + model.startup_mib + RESERVE_MIB
        if needs > card:
            field = "gpu_memory_utilization" if model.memory_mib is None else "memory_mib"
            rule = f"does not fit on {self._gpu.model}: {gib(needs)} GiB with the reserve"
            raise InputError(f"{rule}, of {gib(card)} GiB", f"{path}.{field}")
        return curve

    def _told_apart_by(self, name: str) -> str:
        """Return a text that is the same for models whose servers nothing tells apart."""
        model = self._serving.models[name].model_copy(update={"serve": None, "like": None})
        return self._serving.kind(name) + model.model_dump_json()

    def _least_servers(self, name: str) -> int:
        """Return the fewest servers of a model that keep their promises alone."""
        kind, load = self._serving.models[name].load
        curve, promised = self._curves[name], self._serving.models[name].p99_ms
        for tail, most in promised.items():
            best = curve.latency(tail, float(curve.loads[0]))
            if best > most:
                rule = f"cannot be kept on {self._gpu.model}: at the least measured load, the p99"
                path = f"{field_path('models', name)}.p99_ms.{tail}"
                raise InputError(f"{rule} is {best:g} ms, got {most:g}", path)
        low, high = float(curve.loads[0]), float(curve.loads[-1])
        if curve.keeps(high, promised):
            low = high
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if curve.keeps(middle, promised) else (low, middle)
        if kind == LOADS[0]:
            return max(1, math.ceil(load / low * _CLOSE))
        return max(1, math.ceil(load / math.floor(low / _CLOSE)))

    def _level(self, name: str, servers: int) -> ServerLevel:
        key = name, servers
        if key not in self._levels:
            model, curve = self._serving.models[name], self._curves[name]
            kind, total = model.load
            load = total / servers if kind == LOADS[0] else float(math.ceil(total / servers))
            promise = min(curve.promise(load * _CLOSE, model.p99_ms), MOST_DILATION)
            needs = model.needs_mib(self._gpu.card_mib)
            self._levels[key] = ServerLevel(
                name, servers, load, max(1.0, promise), needs, model.startup_mib, curve, model
            )
        return self._levels[key]

    def _fleet(self, case: str) -> Fleet:
        """Return the fewest GPUs over all numbers of servers that may need fewer."""
        most = self._serving.max_servers_per_gpu
        try:
            splits = self._splits(self._least, case, self._budget)
        except OutOfTimeError:
            splits = []
        best = self._round(self._least, splits, self._budget)
        if not splits and self._budget.left_s <= 0:
            return Fleet(best.gpus, best.instance, False, False)
        budget = self._budget.part(_PART)
        optimal, complete = best.optimal, True
        rounds = work = 0
        for more in self._increases():
            servers = sum(more.values())
            if servers > most * (len(best.gpus) - 1):
                break
            work += 1
            if work > _MOST_WORK or rounds == _MOST_ROUNDS:
                complete = False
                break
            if not self._worth_trying(more):
                continue
            try:
                splits = self._splits(more, case, budget)
                work += len(splits) + servers
                if self._bound(more, splits) >= len(best.gpus):
                    continue
                rounds += 1
                found = self._round(more, splits, budget)
            except OutOfTimeError:
                complete = False
                break
            complete &= found.optimal
            if len(found.gpus) < len(best.gpus):
                best, optimal = found, found.optimal
        return Fleet(best.gpus, best.instance, optimal, complete and optimal)

    def _increases(self) -> Iterator[dict[str, int]]:
        """Yield numbers of servers above the least, by how many more there are in all."""
        names = list(self._least)
        room = [self._room(name) for name in names]
        for extra in range(1, _MOST_SERVERS):
            for chosen in _choices(room, extra):
                more = dict(self._least)
                for k in chosen:
                    more[names[k]] += 1
                yield more

    def _room(self, name: str) -> int:
        """Return how many servers a model may have more: no more in all than it has clients."""
        kind, load = self._serving.models[name].load
        if kind == LOADS[0]:
            return _MOST_SERVERS
        return max(0, math.floor(load) - self._least[name])

    def _worth_trying(self, more: Mapping[str, int]) -> bool:
        """Return whether no equal model has had these numbers."""
        of_equals: dict[str, int] = {}
        for name, count in more.items():
            equal = self._equal[name]
            if count > of_equals.get(equal, count):
                return False
            of_equals[equal] = count
        return True

    def _bound(self, servers: Mapping[str, int], splits: Sequence[SharedSplit]) -> int:
        """Return a number of GPUs below which no plan can be."""
        able = {name for split in splits if split.kept for name in split.names}
        shared = sum(servers[name] for name in able)
        return sum(servers.values()) - shared + -(-shared // self._serving.max_servers_per_gpu)

    def _splits(self, servers: Mapping[str, int], case: str, budget: Budget) -> list[SharedSplit]:
        levels = [self._level(name, count) for name, count in servers.items()]
        gpu = self._gpu
        return list(shared_splits(self._serving, gpu.model, gpu.card_mib, levels, case, budget))

    def _round(
        self, servers: Mapping[str, int], splits: Sequence[SharedSplit], budget: Budget
    ) -> Fleet:
        """Solve the round of these servers, each a job with its own promise."""
        kept = {split.names: split for split in splits if split.kept}
        instance = self._instance(servers, kept)
        result = solve(instance, "fewest", time_limit=budget, explain=False)
        on: dict[str, list[str]] = {}
        for row in result.plan.assignments:
            on.setdefault(row.gpus[0], []).append(row.job)
        owner = {job.id: job.workload for job in instance.jobs}
        placed = {job for jobs in on.values() for job in jobs}
        # When time is up, what has no place yet gets a GPU to itself: there is one for each.
        alone = [[job] for job in owner if job not in placed]
        made = [self._seated(jobs, owner, servers, kept) for jobs in (*on.values(), *alone)]
        made.sort(key=lambda seats: (-len(seats), [seat.name for seat in seats]))
        return Fleet(tuple(made), instance, result.status == "optimal" and not alone, False)

    def _instance(
        self, servers: Mapping[str, int], kept: Mapping[tuple[str, ...], SharedSplit]
    ) -> Instance:
        shares = sorted({share for split in kept.values() for share in split.shares})
        lab = InstanceBuilder(
            self._serving.name,
            max_jobs_per_gpu=self._serving.max_servers_per_gpu,
            shares=shares,
            reserve_mib=RESERVE_MIB,
        )
        lab.add_node("gpu", sum(servers.values()), self._gpu.model, self._gpu.card_mib)
        for name, count in servers.items():
            level = self._level(name, count)
            lab.add_workload(name, level.memory_mib)
            for k in range(count):
                server = name if count == 1 else f"{name}#{k + 1}"
                lab.add_job(server, name, gsla=level.promise, priority="latency")
        _add_splits(lab, list(kept.values()))
        return lab.instance()

    def _seated(
        self,
        jobs: Sequence[str],
        owner: Mapping[str, str],
        servers: Mapping[str, int],
        kept: Mapping[tuple[str, ...], SharedSplit],
    ) -> tuple[ServerSeat, ...]:
        """Return the servers on a GPU with their latencies, in the order of starting."""
        place = {name: k for k, name in enumerate(servers)}
        chosen = sorted(jobs, key=lambda job: (place[owner[job]], job))
        levels = [self._level(owner[job], servers[owner[job]]) for job in chosen]
        if len(chosen) == 1:
            (level,) = levels
            alone = level.latencies(1.0)
            return (ServerSeat(chosen[0], level, 100, alone, True),)
        split = kept[tuple(level.name for level in levels)]
        made = [
            ServerSeat(job, level, share, latencies, split.measured_ms is not None)
            for job, level, share, latencies in zip(
                chosen, levels, split.shares, split.latencies, strict=True
            )
        ]
        return tuple(made[k] for k in start_order(levels))

    def _obstacles(self) -> tuple[SharedSplit, ...]:
        try:
            splits = self._splits(self._least, "low", self._budget)
        except OutOfTimeError:
            return ()
        found = (split for split in splits if len(split.levels) == 2 and not split.kept)
        return tuple(sorted(found, key=lambda split: (split.used, split.names)))


def _choices(room: Sequence[int], extra: int, first: int = 0) -> Iterator[tuple[int, ...]]:
    """Yield the ways to choose positions from the first on, none more often than it has room."""
    if not extra:
        yield ()
    for k in range(first, len(room)) if extra else ():
        if sum(room[k:]) < extra:
            return
        if room[k]:
            left = [*room[:k], room[k] - 1, *room[k + 1 :]]
            for rest in _choices(left, extra - 1, k):
                yield (k, *rest)


def _add_splits(lab: InstanceBuilder, splits: Sequence[SharedSplit]) -> None:
    """Add the slowdowns of sets of servers; those of pairs, which may be many, as columns."""
    for source in ("measured", "estimate"):
        of = [
            split for split in splits if (split.measured_ms is not None) == (source == "measured")
        ]
        pairs = [split for split in of if len(split.levels) == 2]
        if pairs:
            slowdown = [split.slowdown for split in pairs]
            names = [split.names for split in pairs]
            lab.add_slowdowns(
                [first for first, _ in names],
                [second for _, second in names],
                slowdown,
                share=[split.shares for split in pairs],
                p99=slowdown,
                source=source,
            )
        for split in of:
            if len(split.levels) > 2:
                lab.add_slowdown(
                    split.names,
                    split.slowdown,
                    p99=split.slowdown,
                    share=split.shares,
                    source=source,
                )
