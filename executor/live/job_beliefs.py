"""Beliefs about the live jobs on a pool's devices; all parts of the service read them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import permutations, product
from typing import Final, Literal

from dovetail.executor.jobs import events
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import JobSpec, Run
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import HOLDING, JobState
from dovetail.executor.live.beliefs import WHOLE, Belief, Beliefs, BeliefTable
from dovetail.executor.live.devices import Devices
from dovetail.executor.pools.pool import NodePool
from dovetail.instances._record import IDLE, Idle
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import SoloProfile
from dovetail.instances.instance import Cluster, Workload
from dovetail.instances.slowdowns.shares import caps_of, full_splits, share_total
from dovetail.instances.slowdowns.slowdown_table import UNCAPPED, Caps

_LONGEST_NAME: Final = 160


def workload_name(spec: JobSpec) -> str:
    """Return the name of a job's workload in the repository: ``OWNER/WORKLOAD``.

    The same name of two users is two workloads. A name that is too long ends in a digest.
    """
    name = f"{spec.owner.name}/{spec.workload}"
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9]}~{sha256(name.encode()).hexdigest()[:8]}"


class JobBeliefs:
    """Profiles and slowdowns of jobs, and the shares that they may have.

    The observation replaces ``of_workloads``, and a round makes ``table`` of it.

    Parameters
    ----------
    machine : StateMachine
        Jobs and devices; only read.
    pool : NodePool
        Says which jobs may share a device, and at which shares a library computes correctly.
    devices : Devices
        The pool's devices that the service knows.

    Attributes
    ----------
    of_workloads : Beliefs
        The newest beliefs about workloads; there are none at first.
    table : BeliefTable
        Beliefs about all pairs of the workloads in the present round.
    """

    def __init__(self, machine: StateMachine, pool: NodePool, devices: Devices) -> None:
        self.machine = machine
        self.pool = pool
        self.devices = devices
        self.of_workloads = Beliefs(DataSet(name="none"))
        self.table = self.tabulate({})

    @property
    def cluster(self) -> Cluster:
        """The pool's devices, and the rules for sharing them."""
        return self.devices.cluster

    @property
    def models(self) -> tuple[str, ...]:
        """The models of the pool's devices."""
        return self.devices.model_names

    def neighbours(self, gpus: Collection[str]) -> set[str]:
        """Return the other devices on the nodes of these devices."""
        nodes = [{gpu.id for gpu in node.devices} for node in self.cluster.nodes]
        return set().union(*(there for there in nodes if not there.isdisjoint(gpus))) - {*gpus}

    def tabulate(self, sizes: Mapping[str, int]) -> BeliefTable:
        """Make ``table`` from the present beliefs, and return it.

        Parameters
        ----------
        sizes : mapping of str to int
            The number of workers of the largest job of each workload. Workloads without a profile
            are left out.
        """
        known = [name for name in sizes if self.workload(name) is not None]
        caps = _useful_caps(self.cluster, self.of_workloads.measured_caps)
        assumed = self.cluster.assumed
        declared = None if assumed is None else assumed.pair
        table = self.of_workloads.table(
            known, self.models, caps, sizes, self.cluster.sharing, declared
        )
        self.table = table.after(self.machine.broken)
        return self.table

    # One job.

    def workload(self, name: str) -> Workload | None:
        """Return a workload as profiled on the pool's device models; None if it is not profiled."""
        return self.of_workloads.workload(name, self.models)

    def alone(self, spec: JobSpec, model: str) -> SoloProfile | None:
        """Return the newest profile of a job's workload, alone and uncapped, for its gang size."""
        return self.of_workloads.alone.get((workload_name(spec), model, spec.workers))

    def described(self, spec: JobSpec, model: str) -> SoloProfile | None:
        """Return the newest profile of a job's workload, alone and uncapped, even without a rate.

        It may be one of another gang size.
        """
        return self.of_workloads.data.uncapped(workload_name(spec), model)

    def allowed(self, spec: JobSpec, model: str) -> Collection[int | Idle]:
        """Return the shares of a device model that a job may have with its workload's library."""
        shares = set(caps_of(self.cluster.shares))
        if shares:
            shares.intersection_update(self.pool.allowed(self.machine.library(spec), model))
        behind = spec.isolation and spec.priority == "batch" and IDLE in self.cluster.shares
        return {*shares, IDLE} if behind else shares

    def isolation(self, live: LiveJob) -> Literal["", "latency", "best-effort"]:
        """Return the role that a job can have in an isolated pair; empty if none.

        A running job has a role only if it was started with it.
        """
        running = live.run if live.state in HOLDING else None
        if live.spec.isolation is None or live.unisolated or IDLE not in self.cluster.shares:
            return ""
        if running is not None and not running.isolated:
            return ""
        return "latency" if live.spec.priority == "latency" else "best-effort"

    def known(self, specs: Iterable[JobSpec], at_s: float) -> list[AnyEvent]:
        """Return an event for each workload with a profile that the journal does not know yet."""
        models = self.devices.offered_models
        keys = {spec.key for spec in specs if any(self.alone(spec, model) for model in models)}
        new = sorted(keys - self.machine.profiled)
        return [events.WorkloadKnown(at_s=at_s, uid=uid, workload=name) for uid, name in new]

    def newly_known(self, at_s: float) -> list[AnyEvent]:
        """Return an event for each workload of waiting jobs that now has a profile."""
        waiting = (
            job.spec
            for job in self.machine.queued.values()
            if job.state is JobState.SUBMITTED and not job.alone_only
        )
        return self.known({spec.key: spec for spec in waiting}.values(), at_s)

    # Jobs that share a device.

    def pair(self, live: LiveJob, other: LiveJob, caps: Caps, model: str) -> Belief | None:
        """Return the belief about a job beside another at given shares; None if unknown."""
        names = workload_name(live.spec), workload_name(other.spec)
        return self.table.belief(model, caps, *names)

    def belief(self, job: str, other: str, gpu: str) -> Belief | None:
        """Return the belief about a job that shares a device with another; None if unknown.

        Parameters
        ----------
        job, other : str
            Ids of jobs that hold the device.
        gpu : str
            Id of the device.
        """
        live, their = self.machine.jobs[job], self.machine.jobs[other]
        mine, theirs = (each.run and each.run.share_on(gpu) for each in (live, their))
        return self.pair(live, their, (mine or None, theirs or None), self.devices.models[gpu])

    def predicted(self, runs: Sequence[Run], gpu: str) -> tuple[Belief, ...]:
        """Return the belief about each of two runs on a device; empty if nothing is known."""
        if len(runs) != 2:
            return ()
        first, second = (run.job for run in runs)
        found = [self.belief(*pair, gpu) for pair in ((first, second), (second, first))]
        known = tuple(one for one in found if one and math.isfinite(one.slowdown))
        return known if len(known) == len(found) else ()

    def upper(self, job: str, residents: Mapping[str, Sequence[LiveJob]]) -> float | None:
        """Return the bound on a running job's slowdown with its present co-runners.

        None if it runs alone, or if there is no bound for one of them.
        """
        live = self.machine.jobs[job]
        found = [
            self.belief(job, other.id, seat.gpu)
            for seat in (live.run.seats if live.run is not None else ())
            for other in residents[seat.gpu]
            if other is not live
        ]
        bounds = [one.upper for one in found if one and one.bounded and not math.isnan(one.upper)]
        return max(bounds) if bounds and len(bounds) == len(found) else None


def _useful_caps(rules: Cluster, measured: Collection[Caps]) -> tuple[Caps, ...]:
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
