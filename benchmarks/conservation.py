"""Checks that a history is physically possible, from its stays alone.

Shares no code with the cluster: rates are recomputed from the periods of jobs on GPUs.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dovetail.executor.simulation.history import History, Stay
from dovetail.executor.simulation.options import Options
from dovetail.instances._record import IDLE
from dovetail.instances.checking.facts import HostLoads, JobOnGpus, iteration_s
from dovetail.instances.checking.rules import GSLA_TOLERANCE, MEMORY_TOLERANCE_MIB
from dovetail.instances.instance import Instance, Job, Workload
from dovetail.instances.slowdowns.entry import SlowdownEntry
from dovetail.instances.slowdowns.sets import set_slowdown
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.instances.traces import Trace
from dovetail.solver.policies import Machines

_RELATIVE = 1e-6
"""The rounding of work that is added up stay by stay."""


def violations(
    history: History,
    trace: Trace,
    world: Instance,
    options: Options | None = None,
    predicted: SlowdownTable | None = None,
) -> list[str]:
    """Return the rules that a finished simulation breaks, a line each.

    - every job ends exactly once, after which it is on no GPU, and never before it arrived;
    - the work it did is the work it was asked to do, and every stay did what its co-runners
      allowed;
    - no GPU holds more jobs, memory or caps at any instant than it may, no gang is on one GPU
      twice or on two models;
    - a latency-critical job with a gSLA has one co-runner, with which its ``predicted`` p99 (None =
      the true one) keeps the gSLA; if no p99 is known, the upper bound does, or the true slowdown,
      as it may have been measured before. It has more where an entry names the set, and its p99
      there does, or where all of them are at ``idle`` and that holds with each alone.
    """
    return _Check(history, trace, world, options or Options(), predicted).found


class _Check:
    def __init__(
        self,
        history: History,
        trace: Trace,
        world: Instance,
        options: Options,
        predicted: SlowdownTable | None,
    ) -> None:
        self.found: list[str] = []
        self._trace = trace
        self._world = world
        self._options = options
        self._machines = Machines(world.cluster)
        self._truth = SlowdownTable.of(world)
        self._predicted = self._truth if predicted is None else predicted
        self._stays = [stay for stay in history.stays if stay.ending != "out_of_memory"]
        self._on_gpu: dict[int, list[Stay]] = defaultdict(list)
        for stay in self._stays:
            for gpu in stay.gpus:
                self._on_gpu[gpu].append(stay)
        self._check_jobs()
        for gpu, stays in self._on_gpu.items():
            self._check_gpu(gpu, stays)
        for stay in self._stays:
            self._check_progress(stay)

    def _check_jobs(self) -> None:
        stays: dict[int, list[Stay]] = defaultdict(list)
        for stay in self._stays:
            stays[stay.job].append(stay)
        for number, job in enumerate(self._trace.jobs):
            mine = sorted(stays[number], key=lambda stay: stay.start_s)
            if [stay.ending for stay in mine].count("finished") != 1:
                self.found.append(f"{job.id}: does not end exactly once")
                continue
            if mine[-1].ending != "finished":
                self.found.append(f"{job.id}: runs after its end")
            if mine[0].start_s < job.arrival_s:
                self.found.append(f"{job.id}: starts before it arrives")
            if any(a.end_s > b.start_s for a, b in pairwise(mine)):
                self.found.append(f"{job.id}: runs twice at a time")
            done = math.fsum(stay.done_s for stay in mine)
            if not math.isclose(done, job.duration_s, rel_tol=_RELATIVE):
                self.found.append(f"{job.id}: did {done} s of work instead of {job.duration_s}")
            if any(self._odd_gang(stay, job.workers) for stay in mine):
                self.found.append(f"{job.id}: its gang is not on {job.workers} GPUs of one model")

    def _odd_gang(self, stay: Stay, workers: int) -> bool:
        models = {self._machines.model[gpu] for gpu in stay.gpus}
        return len(set(stay.gpus)) != workers or len(stay.gpus) != workers or len(models) > 1

    def _check_gpu(self, gpu: int, stays: list[Stay]) -> None:
        rules, name = self._world.cluster, self._machines.gpu_ids[gpu]
        for start, end, present in _segments(stays, -math.inf, math.inf):
            if end <= start:
                continue
            memory = sum(self._need_mib(stay, gpu) for stay in present)
            shares = [_share(stay, gpu) for stay in present]
            caps = sum(share for share in shares if share is not None and share != IDLE)
            if len(present) > rules.max_jobs_per_gpu:
                self.found.append(f"{name}: {len(present)} jobs at {start} s")
            if memory > self._machines.memory_mib[gpu] + MEMORY_TOLERANCE_MIB:
                self.found.append(f"{name}: {memory} MiB in use at {start} s")
            if caps > rules.share_sum:
                self.found.append(f"{name}: caps sum to {caps} at {start} s")
            for stay in present if len(present) > 1 else ():
                if not self._keeps_tail(gpu, stay, present):
                    job = self._trace.jobs[stay.job].id
                    self.found.append(f"{name}: {job} is over its gSLA for latency at {start} s")

    def _keeps_tail(self, gpu: int, stay: Stay, present: list[Stay]) -> bool:
        job = self._trace.jobs[stay.job]
        if job.priority != "latency" or job.gsla is None:
            return True
        most = job.gsla * (1 + GSLA_TOLERANCE) / self._mode(stay)[1]
        entry = self._entry(self._predicted.sets, gpu, present)
        if entry is not None:
            tail = entry.p99 or entry.upper or entry.slowdown
            return tail is not None and tail[self._position(entry, gpu, stay)] <= most
        others = [one for one in present if one is not stay]
        if self._by_product(gpu, present):
            return math.prod(max(1.0, self._tail(gpu, stay, each)) for each in others) <= most
        behind = all(_share(one, gpu) == IDLE for one in others)
        return (len(others) == 1 or behind) and all(
            self._tail(gpu, stay, other) <= most for other in others
        )

    def _tail(self, gpu: int, stay: Stay, other: Stay) -> float:
        model, caps = self._machines.model[gpu], (_share(stay, gpu), _share(other, gpu))
        cell = (model, self._predicted.caps_place[caps], self._place(stay), self._place(other))
        believed = self._predicted.p99[cell]
        if math.isnan(believed):
            true = self._truth.slowdown[model, self._truth.caps_place[caps], *cell[2:]]
            believed = np.fmin(self._predicted.upper[cell], true)
        return float(believed)

    def _entry(
        self, entries: Sequence[SlowdownEntry], gpu: int, sharing: Sequence[Stay]
    ) -> SlowdownEntry | None:
        """Return the entry of three jobs and more, that of the GPU's model before any other."""
        model = self._machines.models[self._machines.model[gpu]]
        members = Counter(self._member(gpu, stay) for stay in sharing)
        found = [
            entry
            for entry in entries
            if entry.gpu_model in (None, model)
            and Counter(zip(entry.workloads, entry.shares, strict=True)) == members
        ]
        return max(found, key=lambda entry: entry.gpu_model is not None, default=None)

    def _member(self, gpu: int, stay: Stay) -> tuple[str, int | None]:
        return self._trace.jobs[stay.job].workload or "", _share(stay, gpu)

    def _position(self, entry: SlowdownEntry, gpu: int, stay: Stay) -> int:
        members = zip(entry.workloads, entry.shares, strict=True)
        return list(members).index(self._member(gpu, stay))

    def _check_progress(self, stay: Stay) -> None:
        begin = min(stay.start_s + stay.delay_s, stay.end_s)
        node_gpus, gpus = self._machines.node_gpus, set(stay.gpus)
        if any(node.host for node in self._world.cluster.nodes):
            gpus.update(*(node_gpus[self._machines.node[gpu]] for gpu in stay.gpus))
        near = {id(other): other for gpu in sorted(gpus) for other in self._on_gpu[gpu]}
        near = {k: o for k, o in near.items() if o.start_s < stay.end_s and o.end_s > begin}
        done = math.fsum(
            (end - start) * self._rate(stay, present)
            for start, end, present in _segments(list(near.values()), begin, stay.end_s)
        )
        kept_all = stay.ending == "finished" or (
            stay.ending == "stopped" and self._options.saves_at_stop
        )
        slack = _RELATIVE * max(1.0, done, self._trace.jobs[stay.job].duration_s)
        if (kept_all and abs(done - stay.done_s) > slack) or stay.done_s > done + slack:
            name = self._trace.jobs[stay.job].id
            self.found.append(f"{name}: booked {stay.done_s} s of work and did {done}")

    def _rate(self, stay: Stay, present: list[Stay]) -> float:
        workload = self._workload(stay)
        model = self._machines.models[self._machines.model[stay.gpus[0]]]
        hosts = HostLoads(self._world, map(self._placed, present))
        mine, ids = self._placed(stay), self._machines.gpu_ids
        slowdown = max(
            self._slowdown(stay, gpu, present) * hosts.slowdown(mine, ids[gpu]) for gpu in stay.gpus
        )
        speed = workload.speed.get(model, 1.0)
        if len({self._machines.node[gpu] for gpu in stay.gpus}) > 1:
            speed /= self._options.across_nodes
        if len({self._machines.rack[gpu] for gpu in stay.gpus}) > 1:
            speed /= self._options.across_racks
        return speed / slowdown / self._mode(stay)[1]

    def _slowdown(self, stay: Stay, gpu: int, present: list[Stay]) -> float:
        sharing = [stay, *(o for o in present if o is not stay and gpu in o.gpus)]
        if len(sharing) == 1:
            throughput = self._workload(stay).throughput
            share = _share(stay, gpu)
            known = share is not None and share in throughput and 100 in throughput
            return throughput[100] / throughput[share] if known and share else 1.0
        entry = self._entry(self._world.slowdowns, gpu, sharing)
        if entry is not None and entry.set is not None and entry.slowdown is not None:
            return entry.slowdown[self._position(entry, gpu, stay)]
        shares = [_share(one, gpu) for one in sharing]
        if IDLE in shares and len(sharing) > 2:
            return self._at_idle(gpu, sharing, shares)
        pairs = np.ones((len(sharing), len(sharing)))
        for i, a in enumerate(sharing):
            for j, b in enumerate(sharing):
                if i != j:
                    pairs[i, j] = self._pair(gpu, a, b)
        if self._by_product(gpu, sharing):
            found = math.prod(pairs[0, 1:].tolist())
        else:
            found = float(pairs[0, 1] if len(sharing) == 2 else set_slowdown(pairs)[0])
        return float(len(sharing)) if math.isnan(found) else found

    def _by_product(self, gpu: int, sharing: Sequence[Stay]) -> bool:
        """Return whether the world declares products, for jobs without caps and their own entry."""
        declared = self._world.cluster.assumed
        free = all(_share(stay, gpu) is None for stay in sharing)
        return declared is not None and declared.sets is not None and free and len(sharing) > 2

    def _at_idle(self, gpu: int, sharing: list[Stay], shares: list[int | None]) -> float:
        """Return the slowdown of the first of some jobs of which all but one are at ``idle``."""
        behind, stay = shares.count(IDLE), sharing[0]
        if behind == len(sharing):
            return float(behind)
        (first,) = (one for one, share in zip(sharing, shares, strict=True) if share != IDLE)
        if stay is first:
            return max(self._pair(gpu, stay, other) for other in sharing[1:])
        return behind * self._pair(gpu, stay, first)

    def _pair(self, gpu: int, stay: Stay, other: Stay) -> float:
        model, caps = self._machines.model[gpu], (_share(stay, gpu), _share(other, gpu))
        cell = self._truth.caps_place[caps], self._place(stay), self._place(other)
        return float(self._truth.slowdown[model, *cell])

    def _placed(self, stay: Stay) -> JobOnGpus:
        """Return a stay as what the checker knows of a job on GPUs."""
        job = self._trace.jobs[stay.job]
        share = {self._machines.gpu_ids[gpu]: _share(stay, gpu) for gpu in stay.gpus}
        record = Job.model_construct(id=job.id, workload=job.workload, workers=job.workers)
        return JobOnGpus(record, self._workload(stay), share, None)

    def _workload(self, stay: Stay) -> Workload:
        return self._world.workloads[self._trace.jobs[stay.job].workload or ""]

    def _place(self, stay: Stay) -> int:
        return self._truth.place[self._trace.jobs[stay.job].workload or ""]

    def _need_mib(self, stay: Stay, gpu: int) -> float:
        percent = self._workload(stay).memory_percent
        if percent is None:
            return self._mode(stay)[0]
        return percent * max(0.0, self._machines.memory_mib[gpu]) / 100

    def _mode(self, stay: Stay) -> tuple[float, float]:
        """Return the memory of a worker, and what its sub-batch multiplies slowdowns with."""
        workload, overhead = self._workload(stay), self._world.cluster.per_process_mib
        batch = workload.batch
        if batch is None or not stay.mode:
            return (workload.memory_mib or 0.0) + overhead, 1.0
        size = batch.size >> stay.mode
        stretch = iteration_s(batch, size) / iteration_s(batch, batch.size)
        return batch.fixed_mib + batch.mib_per_sample * size + overhead, stretch


def _share(stay: Stay, gpu: int) -> int | None:
    return None if stay.shares is None else stay.shares[stay.gpus.index(gpu)]


def _segments(stays: list[Stay], begin: float, end: float) -> list[tuple[float, float, list[Stay]]]:
    """Return the pieces of [begin, end] between which the stays present do not change."""
    moments = {begin, end}
    for stay in stays:
        moments.update(m for m in (stay.start_s, stay.end_s) if begin < m < end)
    found = []
    present: list[Stay] = []
    waiting = sorted(stays, key=lambda stay: stay.start_s)
    place = 0
    for start, stop in pairwise(sorted(moments)):
        present = [stay for stay in present if stay.end_s > start]
        while place < len(waiting) and waiting[place].start_s <= start:
            if waiting[place].end_s > start:
                present.append(waiting[place])
            place += 1
        if present:
            found.append((start, stop, list(present)))
    return found
