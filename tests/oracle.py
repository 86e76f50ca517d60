"""The optimum of a small round by enumeration, written from the definitions alone.

It shares no code with the solver and none with the checker, so that three readings of the
formats meet in the tests; only the forecast and the prices of ``completion`` are the solver's.
Pending jobs are placed one after another, on every set of GPUs that differs (GPUs of one model,
size and mechanism of sharing that hold the same jobs are the same, on one node where that has a
host) and at every
sub-batch; shares are chosen last, per GPU, as every objective only gains when a slowdown falls.
Weights are added as the decimals that they are written as, so that the lightest job counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import combinations, permutations, product
from math import inf, isclose, prod
from statistics import pstdev
from typing import NamedTuple

from dovetail.formulations.completion import Forecast, forecast
from dovetail.formulations.rounds import Round
from dovetail.instances._record import IDLE
from dovetail.instances.instance import Batch, Instance, Job
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.plan import Assignment, Plan, Waiting
from dovetail.instances.slowdowns.entry import SlowdownEntry

Members = tuple[tuple[str, int | None], ...]
Where = tuple[str, str]
"""A GPU model and the mechanism by which jobs share a GPU."""
Spans = tuple[int, int, int]
OwnGain = Callable[[Job, float, float], float]
"""What a job gains at a slowdown and a speed, its weight included."""

TWO_STAGE = ("slowdown", "sensitivity", "energy", "fewest")
MINIMISED = ("slowdown", "sensitivity", "fewest")


@dataclass(frozen=True)
class Optimum:
    """The best value, the weight placed with it, and a plan that has both.

    ``value`` is that of the second stage where the objective has two. ``spans`` are the fewest
    nodes, then racks, then GPUs of a plan of that value, where they were asked for.
    """

    value: float
    placed_weight: float
    plan: Plan
    spans: Spans | None = None


class Unit(NamedTuple):
    """A job on a GPU: its index and its sub-batch (0 where it has none)."""

    job: int
    sub_batch: int


class Known(NamedTuple):
    """The figures of an entry, in the order of the workloads it is asked for."""

    slowdowns: tuple[float, ...]
    bounds: tuple[float, ...]
    p99: tuple[float, ...] | None
    power_w: float


class Option(NamedTuple):
    """One way to share a GPU: a share and a slowdown for each unit, and the power drawn."""

    shares: tuple[int | None, ...]
    slowdowns: tuple[float, ...]
    power_w: float


def optimum(
    instance: Instance,
    objective: ObjectiveName = "throughput",
    own: OwnGain | None = None,
    spans: bool = False,
) -> Optimum:
    """Return the best plan of a round; about eight jobs on four GPUs are quick.

    Parameters
    ----------
    instance : Instance
        The round.
    objective : str
        Its rules count, and its gains without ``own``.
    own : callable, optional
        Gains in place of those of ``throughput``.
    spans : bool
        Also go through all GPUs that are the same for the value, for the fewest nodes.
    """
    return _Search(instance, objective, own, spans).run()


def judged(
    instance: Instance,
    plan: Plan,
    objective: ObjectiveName = "throughput",
    own: OwnGain | None = None,
) -> float | None:
    """Return what a plan is worth, None where it breaks a rule; it lists running jobs rightly."""
    return _Search(instance, objective, own).judged(plan)


@dataclass
class _Search:
    instance: Instance
    objective: ObjectiveName
    own: OwnGain | None = None
    spans: bool = False
    held: dict[str, list[Unit]] = field(default_factory=dict)
    load: dict[tuple[str, str], float] = field(default_factory=dict)
    options: dict[object, list[Option]] = field(default_factory=dict)
    declared: dict[tuple[Where, Members], Known | None] = field(default_factory=dict)
    best: tuple[Fraction | float, float] = (-inf, -inf)
    best_plan: Plan | None = None
    fewest: Spans | None = None

    def run(self) -> Optimum:
        self._begin()
        running = [k for k, job in enumerate(self.jobs) if job.running]
        hope = sum(self.hopes[k] for k in running)
        self._place(0, sum((self.weights[k] for k in running), Fraction()), hope)
        assert self.best_plan is not None
        weight, score = self.best
        value, placed = score, self._weight_of(self.best_plan)
        if self.objective in TWO_STAGE:
            value, placed = -score if self.objective in MINIMISED else score, float(weight)
        return Optimum(value, placed, self.best_plan, self.fewest)

    def _begin(self) -> None:
        self.held = {gpu: [] for gpu in self.instance.places}
        for k, job in enumerate(self.instance.jobs):
            for gpu in job.gpus or ():
                self.held[gpu].append(Unit(k, job.sub_batch or self.full(job)))
        self.before = {gpu: tuple(units) for gpu, units in self.held.items()}
        self.load_before = self._loads()
        self.over: set[int] = set()
        self.closed = set(self._closed_gpus())

    def judged(self, plan: Plan) -> float | None:
        self._begin()
        index = {job.id: k for k, job in enumerate(self.jobs)}
        share: dict[tuple[str, int], int | None] = {}
        for row in plan.assignments:
            k = index[row.job]
            if self.jobs[k].running:
                continue
            sub_batch = row.sub_batch or self.full(self.jobs[k])
            models = {self.instance.places[gpu].gpu.model for gpu in row.gpus}
            if len(set(row.gpus)) != self.jobs[k].workers or len(models) != 1:
                return None
            if not self.keeps_together(self.jobs[k], row.gpus):
                return None
            if sub_batch not in self.sub_batches(self.jobs[k]):
                return None
            for gpu, each in zip(row.gpus, row.shares, strict=True):
                self.held[gpu].append(Unit(k, sub_batch))
                share[gpu, k] = each
        joined = [gpu for gpu, units in self.held.items() if tuple(units) != self.before[gpu]]
        if any(not self.fits(gpu, self.held[gpu]) or gpu in self.closed for gpu in joined):
            return None
        if not self._may_finish():
            return None
        chosen: dict[str, Option] = {}
        for gpu, units in self.held.items():
            asked = tuple(share.get((gpu, unit.job), self._held_share(unit, gpu)) for unit in units)
            ways = [w for w in self.every_way(gpu) if gpu not in joined or w.shares == asked]
            if not ways:
                return None
            if units:
                chosen[gpu] = ways[0]
        score = self._score(chosen)
        return -score if self.objective in MINIMISED else score

    def _held_share(self, unit: Unit, gpu: str) -> int | None:
        job = self.jobs[unit.job]
        return dict(zip(job.gpus or (), job.shares, strict=True)).get(gpu) if job.running else None

    # -- the instance -------------------------------------------------------------------

    @property
    def jobs(self) -> tuple[Job, ...]:
        return self.instance.jobs

    @cached_property
    def weights(self) -> list[Fraction]:
        return [Fraction(repr(job.weight)) for job in self.jobs]

    def full(self, job: Job) -> int:
        batch = self.instance.workloads[job.workload].batch
        return batch.size if batch else 0

    def sub_batches(self, job: Job) -> list[int]:
        batch = self.instance.workloads[job.workload].batch
        if batch is None:
            return [0]
        halvings = [batch.size]
        while halvings[-1] % 2 == 0 and halvings[-1] // 2 >= batch.min:
            halvings.append(halvings[-1] // 2)
        return halvings

    def memory(self, unit: Unit, gpu: str) -> float:
        job = self.jobs[unit.job]
        workload = self.instance.workloads[job.workload]
        if workload.memory_mib is None:
            size = self.instance.places[gpu].gpu.memory_mib
            offered = max(size - self.instance.cluster.reserve_mib, 0)
            return offered * (workload.memory_percent or 0) / 100
        own = workload.memory_mib
        if workload.batch and unit.sub_batch != workload.batch.size:
            own = workload.batch.fixed_mib + workload.batch.mib_per_sample * unit.sub_batch
        return own + self.instance.cluster.per_process_mib

    def factor(self, unit: Unit) -> float:
        batch = self.instance.workloads[self.jobs[unit.job].workload].batch
        return seconds(batch, unit.sub_batch) / seconds(batch, batch.size) if batch else 1.0

    def where(self, gpu: str) -> Where:
        """Return the model of a GPU and how jobs share it."""
        here = self.instance.places[gpu].gpu
        return here.model, here.sharing or self.instance.cluster.sharing

    @cached_property
    def entries(self) -> Mapping[tuple[str | None, str, Members], Known | None]:
        """Every combination in every order; None where it may not share."""
        known: dict[tuple[str | None, str, Members], Known | None] = {}
        for entry in self.instance.slowdowns:
            for order in permutations(range(len(entry.workloads))):
                members = tuple((entry.workloads[k], entry.shares[k]) for k in order)
                known[entry.gpu_model, entry.mode, members] = _ordered(entry, order)
        return known

    # -- one GPU ------------------------------------------------------------------------

    def fits(self, gpu: str, units: list[Unit]) -> bool:
        cluster = self.instance.cluster
        used = cluster.reserve_mib + sum(self.memory(unit, gpu) for unit in units)
        size = self.instance.places[gpu].gpu.memory_mib
        return len(units) <= self.most(gpu) and used <= size + 1e-6

    def most(self, gpu: str) -> int:
        """Return how many jobs a GPU takes."""
        most, own = self.instance.cluster.max_jobs_per_gpu, self.instance.places[gpu].gpu.max_jobs
        return most if own is None or own > most else own

    def ways(self, gpu: str) -> list[Option]:
        """Return every way that counts to give shares to the units on a GPU."""
        found = self.every_way(gpu)
        # Once the other job has ended the share matters alone, so no option rules out another.
        if self.objective == "completion" or tuple(self.held[gpu]) == self.before[gpu]:
            return found
        return _undominated(iter(found))

    def every_way(self, gpu: str) -> list[Option]:
        """Return every way to give shares to the units on a GPU, under the load of the hosts."""
        units = tuple(self.held[gpu])
        factors = tuple(self.host_factor(unit.job, gpu, self.load) for unit in units)
        if units == self.before[gpu]:
            return self._running_options(gpu, units) if units else [Option((), (), 0.0)]
        key = gpu, units, factors
        if key not in self.options:
            self.options[key] = list(self._ways(gpu, units, factors))
        return self.options[key]

    def _ways(
        self, gpu: str, units: tuple[Unit, ...], factors: tuple[float, ...]
    ) -> Iterator[Option]:
        _, mechanism = self.where(gpu)
        needs = {self.jobs[unit.job].sharing for unit in units} - {None}
        if len(units) > 1 and needs - {mechanism}:
            return
        listed = self.instance.cluster.shares
        free: list[int | None] = [None, *(s for s in listed if mechanism == "mps" or s == IDLE)]
        choices = [
            [dict(zip(job.gpus or (), job.shares, strict=True))[gpu]] if job.running else free
            for job in (self.jobs[unit.job] for unit in units)
        ]
        for shares in product(*choices):
            caps = [share for share in shares if share not in (None, IDLE)]
            if sum(caps) > self.instance.cluster.share_sum:
                continue
            effects = self._effects(gpu, units, shares)
            if effects is None:
                continue
            slow, bound = (_times(figures, factors) for figures in effects[:2])
            power = effects[2]
            held_to = [self.jobs[unit.job].gsla or inf for unit in units]
            if any(b > g * (1 + 1e-9) for b, g in zip(bound, held_to, strict=True)):
                continue
            if self.objective == "jct" and not self._earlier(units, slow):
                continue
            if self.objective == "completion" and self._too_late(gpu, units, shares, slow):
                continue
            yield Option(shares, slow, power)

    def _effects(
        self, gpu: str, units: tuple[Unit, ...], shares: tuple[int | None, ...]
    ) -> tuple[tuple[float, ...], tuple[float, ...], float] | None:
        factors = [self.factor(unit) for unit in units]
        if len(units) == 1:
            alone = self._alone(units[0], shares[0])
            if alone is None:
                return None
            power = self.instance.workloads[self.jobs[units[0].job].workload].power_w or 0.0
            return (alone * factors[0],), (alone * factors[0],), power
        jobs = [self.jobs[unit.job] for unit in units]
        names = tuple((job.workload, share) for job, share in zip(jobs, shares, strict=True))
        where = self.where(gpu)
        entry = self._known(where, names)
        if entry is None:
            return None
        worst = [self._worst(where, names, jobs, k) for k in range(len(jobs))]
        return (
            tuple(s * f for s, f in zip(entry.slowdowns, factors, strict=True)),
            tuple(b * f for b, f in zip(worst, factors, strict=True)),
            entry.power_w,
        )

    def _known(self, where: Where, names: Members) -> Known | None:
        for key in ((*where, names), (None, where[1], names)):
            if key in self.entries:
                return self.entries[key]
        if (where, names) not in self.declared:
            self.declared[where, names] = self._declared(where, names)
        return self.declared[where, names]

    def _declared(self, where: Where, names: Members) -> Known | None:
        """Return what the owner declares of jobs without an entry."""
        rule = self.instance.cluster.assumed
        if rule is None or any(share is not None for _, share in names):
            return None
        if len(names) == 2:
            each = rule.pair
            return None if each is None else Known((each, each), (each, each), None, 0.0)
        if rule.sets is None or self._in_part_forbidden(where, names):
            return None
        slow, bounds, late = [], [], []
        for k, me in enumerate(names):
            pairs = [self._known(where, (me, other)) for other in names[:k] + names[k + 1 :]]
            slow.append(prod(pair.slowdowns[0] if pair else inf for pair in pairs))
            bounds.append(prod(max(1.0, pair.bounds[0]) if pair else inf for pair in pairs))
            tails = [(pair.p99 or pair.bounds)[0] if pair else inf for pair in pairs]
            late.append(prod(max(1.0, tail) for tail in tails))
        return None if inf in slow else Known(tuple(slow), tuple(bounds), tuple(late), 0.0)

    def _in_part_forbidden(self, where: Where, names: Members) -> bool:
        """Return whether an entry says of some of these jobs that they may not share."""
        for size in range(3, len(names)):
            for some in combinations(names, size):
                keys = ((*where, some), (None, where[1], some))
                at = next((key for key in keys if key in self.entries), None)
                if at is not None and self.entries[at] is None:
                    return True
        return False

    def _worst(self, where: Where, names: Members, jobs: list[Job], k: int) -> float:
        """Return the largest figure of a job, whichever of the others have ended."""
        workload, share = self.instance.workloads[jobs[k].workload], names[k][1]
        known = 100 in workload.throughput and share in workload.throughput
        worst = workload.throughput[100] / workload.throughput[share or 100] if known else 1.0
        others = [i for i in range(len(jobs)) if i != k]
        for size in range(1, len(jobs)):
            for left in combinations(others, size):
                entry = self._known(where, tuple(names[i] for i in (k, *left)))
                if entry is not None:
                    late = jobs[k].priority == "latency" and entry.p99 is not None
                    worst = max(worst, entry.p99[0] if late else entry.bounds[0])
        return worst

    def _alone(self, unit: Unit, share: int | None) -> float | None:
        job = self.jobs[unit.job]
        if share is None:
            return 1.0
        if share == IDLE:
            isolated = self.instance.workloads[job.workload].isolation == "blocks"
            allowed = job.running or (self.instance.cluster.start_capped and isolated)
            return 1.0 if allowed else None
        throughput = self.instance.workloads[job.workload].throughput
        if 100 in throughput and share in throughput:
            allowed = job.running or self.instance.cluster.start_capped
            return throughput[100] / throughput[share] if allowed else None
        return 1.0 if job.running else None

    def _running_options(self, gpu: str, units: tuple[Unit, ...]) -> list[Option]:
        """Return the way in which running jobs go on; none if a host slows one too much."""
        slow, bound, power = self._running_effects(gpu, units, self.load)
        for unit, figure in zip(units, bound, strict=True):
            slower = self.host_factor(unit.job, gpu, self.load)
            slower /= self.host_factor(unit.job, gpu, self.load_before)
            if slower > 1 and figure > (self.jobs[unit.job].gsla or inf) * (1 + 1e-9):
                return []
        return [Option((), slow, power)]

    def _running_effects(
        self, gpu: str, units: tuple[Unit, ...], load: Mapping[tuple[str, str], float]
    ) -> tuple[tuple[float, ...], tuple[float, ...], float]:
        factors = tuple(self.host_factor(unit.job, gpu, load) for unit in units)
        effects = self._effects(gpu, units, tuple(self._held_share(u, gpu) for u in units))
        if effects is None:
            alone = tuple(
                (self._alone(unit, self._held_share(unit, gpu)) or 1.0) * self.factor(unit)
                for unit in units
            )
            effects = alone, alone, 0.0
        return _times(effects[0], factors), _times(effects[1], factors), effects[2]

    def _closed_gpus(self) -> Iterator[str]:
        """Yield the GPUs that no job may join: no entry, or a job over its gSLA."""
        for gpu, units in self.before.items():
            if not units:
                continue
            if self._effects(gpu, units, tuple(self._held_share(u, gpu) for u in units)) is None:
                yield gpu
            _, bound, _ = self._running_effects(gpu, units, self.load_before)
            limits = [self.jobs[unit.job].gsla or inf for unit in units]
            self.over |= {
                u.job for u, b, g in zip(units, bound, limits, strict=True) if b > g * (1 + 1e-9)
            }
        for k in self.over:
            yield from self.jobs[k].gpus or ()

    # -- hosts ----------------------------------------------------------------------------

    @cached_property
    def has(self) -> Mapping[str, Mapping[str, float]]:
        """What the host of each node is known to have."""
        nodes = self.instance.cluster.nodes
        return {node.id: node.host.to_data() for node in nodes if node.host and node.devices}

    def parts(self, k: int, node: str) -> Mapping[str, float]:
        """Return what a worker of a job asks for, as parts of what a node has."""
        if node not in self.has:
            return {}
        job = self.jobs[k]
        workload = self.instance.workloads[job.workload]
        needs = workload.host.to_data() if workload.host else {}
        metrics = workload.metrics.to_data() if workload.metrics else {}
        for name, short in (("pcie_bytes_s", "pcie"), ("net_bytes_s", "net")):
            both = [metrics.get(f"{short}_{way}_bytes_s") or 0.0 for way in ("rx", "tx")]
            needs.setdefault(name, max(both))
        here = sum(place.node == node for place in self.instance.places.values())
        most = 1 / min(job.workers, here)
        asked = {name: needs.get(name, 0.0) / has for name, has in self.has[node].items()}
        return {name: min(part, most) for name, part in asked.items() if part > 0}

    def _loads(self, starting: bool = False) -> dict[tuple[str, str], float]:
        """Return the load of each resource of each node, by starting jobs alone if asked."""
        load: dict[tuple[str, str], float] = {}
        for gpu, units in self.held.items() if self.has else ():
            node = self.instance.places[gpu].node
            for unit in units:
                if starting and self.jobs[unit.job].running:
                    continue
                for name, part in self.parts(unit.job, node).items():
                    load[node, name] = load.get((node, name), 0.0) + part
        return load

    def host_factor(self, k: int, gpu: str, load: Mapping[tuple[str, str], float]) -> float:
        """Return how much the host slows a job on a GPU under a load."""
        if not load:
            return 1.0
        node = self.instance.places[gpu].node
        loads = [load.get((node, name), 0.0) for name in self.parts(k, node)]
        return max((each for each in loads if each > 1.001), default=1.0)

    def _host_rule(self) -> bool:
        """Tell whether starts stay within what running jobs leave, or one goes beyond alone."""
        starting = self._loads(starting=True)
        return all(
            self._may_be_beyond(node, name)
            for (node, name), part in starting.items()
            if part > 0 and self.load[node, name] > 1.001
        )

    def _may_be_beyond(self, node: str, name: str) -> bool:
        here = [gpu for gpu, place in self.instance.places.items() if place.node == node]

        def asks(unit: Unit) -> bool:
            return name in self.parts(unit.job, node)

        joined = [gpu for gpu in here if tuple(self.held[gpu]) != self.before[gpu]]
        touched = [gpu for gpu in joined if any(map(asks, self.held[gpu]))]
        if len(touched) != 1 or len(self.held[touched[0]]) != 1:
            return False
        gangs = [
            set(job.gpus or ())
            for k, job in enumerate(self.jobs)
            if job.running and name in self.parts(k, node)
        ]
        return all(not gpus & set(here) or gpus <= set(here) for gpus in gangs)

    def _slower_over_gsla(self) -> bool:
        """Tell whether a host slows a running job further that is over its gSLA already."""
        return any(
            self.host_factor(k, gpu, self.load) > self.host_factor(k, gpu, self.load_before)
            for k in self.over
            for gpu in self.jobs[k].gpus or ()
        )

    def _earlier(self, units: tuple[Unit, ...], slow: tuple[float, ...]) -> bool:
        """Tell whether sharing is earlier on average than one after the other."""
        if len(units) != 2:
            return len(units) < 2
        jobs = [self.jobs[unit.job] for unit in units]
        (a, b), (rest_a, rest_b) = slow, [job.remaining_s or 0.0 for job in jobs]
        own_a, own_b = map(self.factor, units)
        if a * rest_a < b * rest_b:
            a, b, rest_a, rest_b, own_a = b, a, rest_b, rest_a, own_b
        shared = (b * rest_b + b * rest_b + own_a * (rest_a - b * rest_b / a)) / 2
        times = [
            (job.remaining_s or 0.0) * (self.factor(unit) if job.running else 1)
            for job, unit in zip(jobs, units, strict=True)
        ]
        running = [job.running for job in jobs]
        first = times[running.index(True)] if any(running) else min(times)
        return shared < (first + sum(times)) / 2 * (1 - 1e-9)

    # -- the search ---------------------------------------------------------------------

    def _place(self, k: int, weight: Fraction, hope: float) -> None:
        if k == len(self.jobs):
            self._finish(weight)
            return
        if self._hopeless(k, weight, hope):
            return
        if not self.jobs[k].running:
            for gpus in self._gpu_sets(k):
                for sub_batch in self.sub_batches(self.jobs[k]):
                    self._start(k, gpus, sub_batch, weight, hope)
        self._place(k + 1, weight, hope)

    def _start(
        self, k: int, gpus: tuple[str, ...], sub_batch: int, weight: Fraction, hope: float
    ) -> None:
        for gpu in gpus:
            self.held[gpu].append(Unit(k, sub_batch))
        if all(self._may_stay(gpu) for gpu in gpus):
            self._place(k + 1, weight + self.weights[k], hope + self.hopes[k])
        for gpu in gpus:
            self.held[gpu].pop()

    def _may_stay(self, gpu: str) -> bool:
        """Tell whether the units on a GPU can be part of a plan, more of them coming."""
        units = self.held[gpu]
        if not self.fits(gpu, units) or gpu in self.closed:
            return False
        return len(units) < self.most(gpu) or bool(self.ways(gpu))

    def _hopeless(self, k: int, weight: Fraction, hope: float) -> bool:
        """Tell whether even placing every job left over at its best falls short."""
        rest = [i for i in range(k, len(self.jobs)) if not self.jobs[i].running]
        if self.objective in TWO_STAGE:
            return weight + sum(self.weights[i] for i in rest) < self.best[0]
        least = self.best[1] - 1e-9 * abs(self.best[1])
        return hope + sum(self.hopes[i] for i in rest) < least

    @cached_property
    def hopes(self) -> list[float]:
        """The most that each job can add to the score."""
        models = {place.gpu.model for place in self.instance.places.values()}
        if self.objective == "completion":
            return [
                max(
                    0.0,
                    *(self._seconds_saved(k, self._least(job) * self._left(k, m)) for m in models),
                )
                for k, job in enumerate(self.jobs)
            ]
        if self.own is not None:
            return [
                max(0.0, *(self.own(job, self._least(job), self._speed(k, m)) for m in models))
                for k, job in enumerate(self.jobs)
            ]
        return [
            job.weight * max(self._gain(k, self._least(job), model) for model in models)
            for k, job in enumerate(self.jobs)
        ]

    def _least(self, job: Job) -> float:
        """Return the least slowdown that any known figure lets the job have."""
        workload = self.instance.workloads[job.workload]
        full = workload.throughput.get(100, inf)
        alone = [full / capped for capped in workload.throughput.values()]
        partners = [
            entry.slowdowns[0]
            for (_, _, members), entry in self.entries.items()
            if entry and members[0][0] == job.workload
        ]
        least = min([1.0, *alone, *partners])
        # Of a set without an entry it may be a product of one for each co-runner.
        several = self.instance.cluster.assumed is not None and partners
        return min(least, min(partners) ** (len(self.jobs) - 1)) if several else least

    def _gpu_sets(self, k: int) -> Iterator[tuple[str, ...]]:
        """Yield every set of GPUs for a job that differs from those before it."""
        seen: set[tuple[object, ...]] = set()
        for gpus in combinations(self.held, self.jobs[k].workers):
            models = {self.instance.places[gpu].gpu.model for gpu in gpus}
            kind = gpus if self.spans else tuple(sorted(map(self._kind, gpus), key=repr))
            if len(models) != 1 or not self.keeps_together(self.jobs[k], gpus):
                continue
            if kind not in seen:
                seen.add(kind)
                yield gpus

    @cached_property
    def nodes_matter(self) -> bool:
        return any(job.workers_per_node or job.workers_together for job in self.jobs)

    def keeps_together(self, job: Job, gpus: tuple[str, ...]) -> bool:
        """Tell whether the workers of a job on these GPUs are together on nodes as it asks."""
        nodes = [self.instance.places[gpu].node for gpu in gpus]
        if job.workers_per_node is not None:
            return {nodes.count(node) for node in nodes} == {job.workers_per_node}
        return all(nodes.count(node) % (job.workers_together or 1) == 0 for node in nodes)

    def _kind(self, gpu: str) -> tuple[object, ...]:
        running = gpu if self.before[gpu] else ""
        place = self.instance.places[gpu]
        node = place.node if self.has or self.nodes_matter else ""
        return *self.where(gpu), place.gpu.memory_mib, node, running, tuple(self.held[gpu])

    def _may_finish(self) -> bool:
        """Tell whether all is placed by the rules that concern several GPUs; sets the load."""
        if self.instance.cluster.gang_sharing == "whole" and not self._whole():
            return False
        self.load = self._loads()
        return not self.has or (self._host_rule() and not self._slower_over_gsla())

    def _finish(self, weight: Fraction) -> None:
        if self._may_finish():
            self._choose_shares(weight)
        self.load = {}

    def _choose_shares(self, weight: Fraction) -> None:
        used = [gpu for gpu, units in self.held.items() if units]
        for ways in product(*(self.ways(gpu) for gpu in used)):
            options = dict(zip(used, ways, strict=True))
            score = self._score(options)
            rank = (weight if self.objective in TWO_STAGE else 0.0, score)
            if self.spans:
                self._note_spans(rank)
            if rank > self.best:
                self.best = rank
                self.best_plan = self._plan(options)

    def _note_spans(self, rank: tuple[Fraction | float, float]) -> None:
        """Keep the fewest nodes of plans of the best value: equal but for rounding."""
        equal = rank[0] == self.best[0] and isclose(rank[1], self.best[1], rel_tol=1e-12)
        if rank > self.best and not equal:
            self.fewest = None
        if rank > self.best or equal:
            spans = self._spans()
            self.fewest = min(spans, self.fewest or spans)

    def _spans(self) -> Spans:
        nodes, racks = set(), set()
        for gpu, units in self.held.items():
            place = self.instance.places[gpu]
            nodes |= {(unit.job, place.node) for unit in units}
            racks |= {(unit.job, place.rack) for unit in units}
        return len(nodes), len(racks), sum(map(bool, self.held.values()))

    def _whole(self) -> bool:
        on: dict[int, set[str]] = {}
        for gpu, units in self.held.items():
            for unit in units:
                on.setdefault(unit.job, set()).add(gpu)
        return all(
            on[a.job] == on[b.job]
            for units in self.held.values()
            for a, b in combinations(units, 2)
            if not (self.jobs[a.job].running and self.jobs[b.job].running)
        )

    def _score(self, options: Mapping[str, Option]) -> float:
        slow: dict[int, float] = {}
        model: dict[int, str] = {}
        for gpu, option in options.items():
            for unit, value in zip(self.held[gpu], option.slowdowns, strict=True):
                slow[unit.job] = max(value, slow.get(unit.job, 0.0))
                model[unit.job] = self.instance.places[gpu].gpu.model
        if self.objective == "completion":
            return self._saved(options)
        if self.objective == "fewest":
            places = self.instance.places
            return -sum(places[gpu].gpu.cost_per_hour or 1.0 for gpu in options)
        if self.own is not None:
            speeds = [self._speed(k, model[k]) for k in slow]
            return sum(
                self.own(self.jobs[k], slow[k], v) for k, v in zip(slow, speeds, strict=True)
            )
        total = sum(self.jobs[k].weight * self._gain(k, slow[k], model[k]) for k in slow)
        if self.objective == "energy":
            return total / sum(option.power_w for option in options.values()) if slow else 0.0
        return total

    def _gain(self, k: int, slowdown: float, model: str) -> float:
        """Return a job's contribution to the score at weight 1; more is better."""
        job = self.jobs[k]
        rate = self._speed(k, model) / slowdown
        if self.objective == "jct":
            return rate / (job.remaining_s or 1.0)
        if self.objective == "energy":
            return rate * job.workers
        if self.objective == "slowdown":
            return -slowdown
        if self.objective == "sensitivity":
            return -slowdown / self.sensitivity[k]
        return rate

    def _speed(self, k: int, model: str) -> float:
        return self.instance.workloads[self.jobs[k].workload].speed.get(model, 1.0)

    # -- completion ---------------------------------------------------------------------

    @cached_property
    def forecast(self) -> tuple[Forecast, dict[int, float]]:
        """Return the forecast, and when each pending job would start if it waits."""
        found = forecast(Round.of(self.instance))
        pending = [k for k, job in enumerate(self.jobs) if not job.running]
        return found, dict(zip(pending, found.start_s.tolist(), strict=True))

    def _price(self, since_s: float, until_s: float) -> float:
        prices = self.forecast[0].prices
        return float(prices.until(until_s) - prices.until(since_s))

    def _left(self, k: int, model: str) -> float:
        job = self.jobs[k]
        return (job.remaining_s or 0.0) / self.instance.workloads[job.workload].speed.get(
            model, 1.0
        )

    def _seconds_saved(self, k: int, end: float) -> float:
        job = self.jobs[k]
        if job.running:
            return job.weight * (self._due[k] - end) - job.workers * self._price(self._due[k], end)
        start = self.forecast[1][k]
        models = {place.gpu.model for place in self.instance.places.values()}
        waited = start + min(self._left(k, model) for model in models)
        return job.weight * (waited - end) + job.workers * self._price(start, waited)

    @cached_property
    def _due(self) -> dict[int, float]:
        """When each running job ends if no job joins it."""
        due: dict[int, float] = {}
        for gpu, units in self.before.items():
            slow = self._running_effects(gpu, units, self.load_before)[0] if units else ()
            for unit, slowdown in zip(units, slow, strict=True):
                left = self._left(unit.job, self.instance.places[gpu].gpu.model)
                due[unit.job] = max(due.get(unit.job, 0.0), slowdown * left)
        return due

    def _ends(
        self,
        gpu: str,
        units: tuple[Unit, ...],
        shares: tuple[int | None, ...],
        slow: tuple[float, ...],
    ) -> list[float]:
        """Return when the units on a GPU end: of two, one is alone once the other has ended."""
        model = self.instance.places[gpu].gpu.model
        left = [self._left(unit.job, model) for unit in units]
        shared = [s * seconds for s, seconds in zip(slow, left, strict=True)]
        if len(units) != 2 or units == self.before[gpu]:
            return shared
        short, long = sorted((0, 1), key=lambda i: shared[i])
        unit, job = units[long], self.jobs[units[long].job]
        done = shared[short] / slow[long]
        alone = self._alone_later(unit, shares[long]) * (left[long] - done)
        kind = self._kind_before(gpu)
        alike = sum(self._kind_before(other) == kind for other in self.held)
        if job.running or job.workers <= alike:
            shared[long] = min(shared[long], shared[short] + alone)
        return shared

    def _kind_before(self, gpu: str) -> tuple[object, ...]:
        kind = self.instance.places[gpu].gpu
        jobs = [self.jobs[unit.job] for unit in self.before[gpu]]
        shares = [dict(zip(job.gpus or (), job.shares, strict=True))[gpu] for job in jobs]
        return kind.model, kind.memory_mib, self.before[gpu], shares

    def _alone_later(self, unit: Unit, share: int | None) -> float:
        throughput = self.instance.workloads[self.jobs[unit.job].workload].throughput
        known = share is not None and share in throughput and 100 in throughput
        return self.factor(unit) * (throughput[100] / throughput[share or 100] if known else 1.0)

    def _too_late(
        self,
        gpu: str,
        units: tuple[Unit, ...],
        shares: tuple[int | None, ...],
        slow: tuple[float, ...],
    ) -> bool:
        """Tell whether some that share would end after all that the forecast knows of."""
        last = self.forecast[0].last_s * (1 + 1e-9)
        return len(units) > 1 and max(self._ends(gpu, units, shares, slow)) > last

    def _saved(self, options: Mapping[str, Option]) -> float:
        gain: dict[int, float] = {}
        cost = 0.0
        for gpu, option in options.items():
            units = tuple(self.held[gpu])
            ends = self._ends(gpu, units, option.shares, option.slowdowns)
            for unit, end in zip(units, ends, strict=True):
                saved = self._seconds_saved(unit.job, end)
                gain[unit.job] = min(saved, gain.get(unit.job, inf))
            stay = [e for unit, e in zip(units, ends, strict=True) if self.jobs[unit.job].running]
            idle_s = min(max(ends), self.forecast[0].claimed_s)
            cost += self._price(max(stay) if stay else idle_s, max(ends))
        return sum(gain.values()) - cost

    @cached_property
    def sensitivity(self) -> list[float]:
        found = []
        for k, job in enumerate(self.jobs):
            others = [other.workload for i, other in enumerate(self.jobs) if i != k]
            lows = [self._lowest(job.workload, other) for other in others]
            known = [low for low in lows if low < inf]
            found.append(max(0.01, pstdev(known)) if len(known) > 1 else 1.0)
        return found

    def _lowest(self, own: str, other: str) -> float:
        low = inf
        for where in set(map(self.where, self.instance.places)):
            for (named, mechanism, names), entry in self.entries.items():
                holds = named == where[0] or (named is None and (*where, names) not in self.entries)
                counts = holds and mechanism == where[1]
                if counts and entry and tuple(name for name, _ in names) == (own, other):
                    low = min(low, entry.slowdowns[0])
            declared = self._known(where, ((own, None), (other, None)))
            low = min(low, declared.slowdowns[0]) if declared else low
        return low

    def _weight_of(self, plan: Plan) -> float:
        return sum(self.instance.jobs_by_id[a.job].weight for a in plan.assignments)

    def _plan(self, options: Mapping[str, Option]) -> Plan:
        placed: dict[int, Assignment] = {}
        for gpu, option in options.items():
            for i, unit in enumerate(self.held[gpu]):
                job, row = self.jobs[unit.job], placed.get(unit.job)
                if job.running:
                    gpus, shares = job.gpus or (), job.shares
                else:
                    gpus = (*(row.gpus if row else ()), gpu)
                    shares = (*(row.shares if row else ()), option.shares[i])
                placed[unit.job] = Assignment(
                    job=job.id,
                    gpus=gpus,
                    share=shares,
                    sub_batch=unit.sub_batch or None,
                    start=not job.running,
                )
        waiting = [job.id for k, job in enumerate(self.jobs) if k not in placed]
        return Plan(
            instance=self.instance.name,
            assignments=tuple(placed[k] for k in sorted(placed)),
            waiting=tuple(Waiting(job=name) for name in waiting),
        )


def seconds(batch: Batch, sub_batch: int) -> float:
    """Return the iteration time with gradients accumulated over sub-batches (Castor, eq. 3)."""
    steps = batch.size // sub_batch
    compute = batch.step_s.fixed + batch.step_s.per_sample * (batch.size / steps)
    delta = batch.overlap
    norm: float = (compute**delta + batch.comm_s**delta) ** (1 / delta)
    return (steps - 1) * compute + norm


def _times(figures: tuple[float, ...], factors: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(figure * factor for figure, factor in zip(figures, factors, strict=True))


def _ordered(entry: SlowdownEntry, order: tuple[int, ...]) -> Known | None:
    if entry.slowdown is None:
        return None
    return Known(
        tuple(entry.slowdown[k] for k in order),
        tuple((entry.upper or entry.slowdown)[k] for k in order),
        tuple(entry.p99[k] for k in order) if entry.p99 else None,
        entry.power_w or 0.0,
    )


def _undominated(options: Iterator[Option]) -> list[Option]:
    """Keep the options that no other one beats in every slowdown and in power."""
    kept: dict[tuple[float, ...], Option] = {}
    for option in options:
        kept.setdefault((*option.slowdowns, option.power_w), option)
    return [
        option
        for figures, option in kept.items()
        if not any(
            other != figures and all(a <= b for a, b in zip(other, figures, strict=True))
            for other in kept
        )
    ]
