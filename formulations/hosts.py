"""The hosts of a round: which starts they can bear, and the cost of a start beyond that.

For the model, see ``instances.hosts``. Factors of jobs that start in one round on GPUs of one node
would depend on each other, which a linear program cannot express. So a round keeps to this rule,
under which every slowdown is exact: the jobs that start on a node stay within the amount of a
resource that the running jobs leave; or one worker starts *beyond* it, alone on an idle GPU, and
then

- nothing else starts on the node that asks for the resource, or joins a job that does;
- no running gang that asks for it has GPUs on another node too.

That start is slowed by the load including its own, and so are the running jobs of the node that ask
for the resource: their loss is subtracted from the value of its group, and their gSLAs still hold.
Another job can start beyond it in the next round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dovetail.formulations.arrays import Bools, Floats, Ints
from dovetail.formulations.rules import most_bound
from dovetail.instances.hosts import FULL, RESOURCES, Hosts, host_slowdown
from dovetail.instances.instance import Node, Workload

if TYPE_CHECKING:
    from dovetail.formulations.candidates.groups import Groups
    from dovetail.formulations.rounds import Round
    from dovetail.formulations.values import JobValues

UNITS = 1e5
"""Units per whole resource in integer programs, in which parts are rounded to whole numbers."""

_ROUNDING = 50
"""Units allowed for rounding, half of what ``FULL`` allows: 100 workers may be rounded."""


class KnownHosts(NamedTuple):
    """The hosts of a cluster, and what is in use of them.

    Attributes
    ----------
    hosts : Hosts
        The needs of the workloads on each node.
    load : (nodes, resources) float, optional
        The load from running jobs, including those outside of the round; by default the load from
        the jobs in it.
    closed : collection of int
        Nodes on which no job may start beyond what the host has left.
    """

    hosts: Hosts
    load: Floats | None = None
    closed: Collection[int] = ()

    @classmethod
    def of(cls, nodes: Sequence[Node], workloads: Sequence[Workload]) -> KnownHosts | None:
        """Return the hosts of these nodes, or None if no workload asks for a known resource."""
        hosts = Hosts(nodes, workloads)
        return cls(hosts) if hosts.asked else None


class RoundHosts:
    """The demand of the n jobs of a round on the hosts of N nodes.

    Parameters
    ----------
    compiled : Round
        The round.
    on_hosts : KnownHosts
        The hosts of its nodes and workloads.

    Attributes
    ----------
    part : (N, n, R) float
        The demand of one worker of each job, as a fraction of each node's capacity for R resources.
    load : (N, R) float
        The load from running jobs.
    tight : (N,) bool
        Whether the waiting jobs could ask for more than a node has left.
    """

    def __init__(self, compiled: Round, on_hosts: KnownHosts) -> None:
        self._round = compiled
        self._closed = on_hosts.closed
        jobs, machines = compiled.jobs, compiled.machines
        nodes = np.arange(len(machines.node_ids))[:, None]
        workers = np.where(jobs.holds > 0, jobs.holds, jobs.workers)
        self.part = on_hosts.hosts.part(nodes, jobs.workload[None, :], workers[None, :])
        if on_hosts.load is None:
            self.load = np.zeros((len(nodes), len(RESOURCES)))
            for job, (gpus, _, _) in jobs.held.items():
                for gpu in gpus:
                    self.load[machines.node[gpu]] += self.part[machines.node[gpu], job]
        else:
            self.load = on_hosts.load
        room = np.array([len(held) for held in machines.node_gpus], dtype=np.int64)
        most = np.minimum(jobs.workers[None, :], room[:, None]) * ~jobs.running
        asked = (self.part * most[:, :, None]).sum(axis=1)
        self.tight = np.asarray((self.load + asked > FULL).any(axis=1))

    @cached_property
    def class_node(self) -> Ints:
        """The tight node of each class of GPUs, -1 for none."""
        node_of = self._round.machines.node
        nodes = [node_of[gpus[0]] for gpus in self._round.classes.gpus]
        return np.array([n if self.tight[n] else -1 for n in nodes], dtype=np.int64)

    @cached_property
    def slowdown(self) -> Floats:
        """How much each job is slowed on each node by the present load, (N, n)."""
        return host_slowdown(self.part, self.load[:, None, :])

    def bears(self, gpu_class: Ints, job: Ints) -> Bools:
        """Return which groups start nothing beyond what is left on their node, (k,).

        ``job``, (k, size), are their jobs.
        """
        node = self.class_node[gpu_class]
        started = self.started(gpu_class, job)
        fits = (self.load[node] + started <= FULL) | (started == 0)
        return np.asarray(fits.all(axis=1) | (node < 0))

    def started(self, gpu_class: Ints, job: Ints) -> Floats:
        """Return the load that groups add to their node, (k, R)."""
        node = self.class_node[gpu_class]
        waits = ~self._round.jobs.running[job]
        return np.asarray((self.part[node[:, None], job] * waits[:, :, None]).sum(axis=1))

    def load_with(self, groups: Groups, counts: Ints) -> Floats:
        """Return the load if each group is taken ``counts`` times, (N, R)."""
        load = self.load.copy()
        member = np.flatnonzero(~self._round.jobs.running[groups.job])
        group = groups.group_of_member[member]
        node = self.class_node[groups.gpu_class[group]]
        part = self.part[node, groups.job[member]] * ((node >= 0) * counts[group])[:, None]
        np.add.at(load, node, part)
        return load

    def beyond(self, gpu_class: Ints, job: Ints) -> Floats:
        """Return how much jobs that start alone on idle GPUs are slowed by their host, (k,)."""
        node = self.class_node[gpu_class]
        part = self.part[node, job]
        return np.where(node < 0, 1.0, host_slowdown(part, self.load[node] + part))

    def harm(self, values: JobValues, gpu_class: Ints, job: Ints) -> Floats:
        """Return the loss of running jobs from starts beyond, NaN if not allowed, (k,).

        ``job``, (k,), are the jobs that start alone on idle GPUs.
        """
        lost = np.zeros(len(job))
        node = self.class_node[gpu_class]
        for n in np.unique(node[node >= 0]).tolist():
            here = np.flatnonzero(node == n)
            part = self.part[n, job[here]]
            beyond = ((self.load[n] + part > FULL) & (part > 0)).any(axis=1)
            lost[here] = self._lost(values, n, self.load[n] + part)
            if n in self._closed:
                lost[here[beyond]] = np.nan
        return lost

    def _lost(self, values: JobValues, node: int, load: Floats) -> Floats:
        """Return the loss of the running jobs of a node at each of these loads, (k,)."""
        compiled = self._round
        jobs, machines = compiled.jobs, compiled.machines
        lost = np.zeros(len(load))
        for job in self._residents[node]:
            gpus = jobs.held[job][0]
            ratio = host_slowdown(self.part[node, job], load) / self.slowdown[node, job]
            slower = ratio > 1
            if len({machines.node[gpu] for gpu in gpus}) > 1 or len(gpus) < jobs.holds[job]:
                more = (load > FULL) & (load > self.load[node]) & (self.part[node, job] > 0)
                lost[more.any(axis=1)] = np.nan
                continue
            if not slower.any():
                continue
            model = compiled.models[machines.model[gpus[0]]]
            which = np.full(len(load), job)
            now = np.full(len(load), compiled.slowdown_now[job])
            fall = values.gain(which, now, model) - values.gain(which, now * ratio, model)
            lost += np.where(slower, fall, 0.0)
            limit = most_bound(float(jobs.gsla[job]))
            lost[slower & ~(compiled.bound_now(job) * ratio <= limit)] = np.nan
        return lost

    @cached_property
    def _residents(self) -> dict[int, list[int]]:
        """The running jobs of each node."""
        found: dict[int, list[int]] = defaultdict(list)
        node = self._round.machines.node
        for job, (gpus, _, _) in self._round.jobs.held.items():
            for n in {node[gpu] for gpu in gpus}:
                found[n].append(job)
        return found


@dataclass(frozen=True)
class HostUse:
    """How each group of a round uses the host of its node.

    Attributes
    ----------
    node : (groups,) int
        The tight node, -1 for none.
    units : (groups, R) int
        The load that it adds, in ``UNITS``; 0 if it goes beyond.
    beyond : (groups, R) bool
        Whether it starts a job beyond what is left.
    touches : (groups, R) bool
        Whether it starts a job and one of its jobs asks for the resource.
    left : (nodes, R) int
        The capacity that running jobs leave, in ``UNITS``.
    """

    node: Ints
    units: Ints
    beyond: Bools
    touches: Bools
    left: Ints

    @classmethod
    def of(cls, groups: Groups, hosts: RoundHosts) -> HostUse:
        """Return the use of these hosts by all groups."""
        node = hosts.class_node[groups.gpu_class]
        group, waits = groups.group_of_member, ~groups.round.jobs.running[groups.job]
        part = hosts.part[node[group], groups.job] * (node[group] >= 0)[:, None]
        started, asks = np.zeros((2, len(groups), part.shape[1]))
        np.add.at(started, group, part * waits[:, None])
        np.add.at(asks, group, part)
        starts = np.bincount(group, waits, len(groups)) > 0
        beyond = (started > 0) & (hosts.load[node] + started > FULL)
        units = np.rint(started * UNITS).astype(np.int64)
        left = np.floor(np.maximum(0.0, 1 - hosts.load) * UNITS).astype(np.int64) + _ROUNDING
        return cls(node, np.where(beyond, 0, units), beyond, (asks > 0) & starts[:, None], left)

    def allows(self, counts: Ints) -> bool:
        """Return whether a choice of groups keeps to the rule on every node."""
        taken = np.flatnonzero((counts > 0) & (self.node >= 0))
        node, times = self.node[taken], counts[taken, None]
        added, beyond, touching = np.zeros((3, *self.left.shape), dtype=np.int64)
        np.add.at(added, node, self.units[taken] * times)
        np.add.at(beyond, node, self.beyond[taken] * times)
        np.add.at(touching, node, self.touches[taken] * times)
        kept = (added <= self.left) | (added == 0)
        return bool((kept & ((beyond == 0) | (touching == 1))).all())
