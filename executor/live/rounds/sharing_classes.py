"""Classes of jobs and devices of live mode in the state that policies see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

from dovetail.executor.jobs.live_jobs import DeviceState, LiveJob
from dovetail.instances.instance import Cluster, Node


class SharingClass(NamedTuple):
    """The class of a job; for policies, jobs of one kind differ only in their own figures.

    Attributes
    ----------
    uid : int
        The owner of the jobs; -1 for jobs that run alone.
    workload : str
        The name in the repository; empty for jobs that run alone.
    need_mib : float
        Memory of one worker.
    job : str
        Id of the only job of this kind, if that is separated from another job; otherwise empty.
    isolation : {"", "latency", "best-effort"}
        Whether other jobs may run in the idle time of its jobs, or its jobs in theirs.
    promised : bool
        Whether its jobs have a gSLA, so that estimates without a bound do not suffice.
    """

    uid: int
    workload: str
    need_mib: float
    job: str = ""
    isolation: Literal["", "latency", "best-effort"] = ""
    promised: bool = False

    @property
    def alone(self) -> bool:
        """Whether its jobs get no co-runners."""
        return not self.workload

    def label(self, usual_mib: float) -> str:
        """Return its name in an instance; ``usual_mib`` is the learned memory of the workload."""
        if self.alone:
            return f"alone ({self.need_mib:.15g} MiB)" if self.need_mib else "alone"
        special = [self.job] if self.job else []
        if self.promised:
            special.append("gSLA")
        if self.isolation:
            special.append(f"isolated, {self.isolation}")
        if self.need_mib != usual_mib:
            special.append(f"{self.need_mib:.15g} MiB")
        return f"{self.workload} ({', '.join(special)})" if special else self.workload


ALONE: Final = SharingClass(-1, "", 0.0)
"""The kind of jobs that run alone and fit on every device."""


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
