"""What would have to be different for a waiting job to start, as records."""

from __future__ import annotations

from pydantic import Field

from dovetail.instances._record import (
    Count,
    FrozenDict,
    FrozenMapping,
    Name,
    NonNegative,
    Number,
    Record,
    Text,
)
from dovetail.instances.instance import Instance, Node, SlowdownEntry, Workload
from dovetail.instances.plan import Assignment


class Change(Record):
    """What would have to be different; at its default, nothing.

    Attributes
    ----------
    gsla : mapping of str to float
        Larger gSLAs, by job.
    less_memory_mib : float
        So much less memory for a worker of the job's workload (of ``memory_mib`` and
        ``fixed_mib``).
    batch_min : int, optional
        A smaller ``batch.min`` of the job's workload.
    measured : tuple of SlowdownEntry
        Slowdowns that would have to be known, at their best.
    without : tuple of str
        Jobs that would have to end, or to wait.
    more_gpus : Node, optional
        GPUs that the cluster would need besides.
    """

    gsla: FrozenMapping[Name, Number] = Field({})
    less_memory_mib: NonNegative = 0.0
    batch_min: Count | None = None
    measured: tuple[SlowdownEntry, ...] = ()
    without: tuple[Name, ...] = ()
    more_gpus: Node | None = None

    def applied(self, instance: Instance, job: str) -> Instance:
        """Return the instance as it would have to be for ``job`` to start."""
        parts: dict[str, object] = {
            "jobs": tuple(
                each.replace(gsla=self.gsla[each.id]) if each.id in self.gsla else each
                for each in instance.jobs
                if each.id not in self.without
            )
        }
        if self.less_memory_mib or self.batch_min is not None:
            name = instance.jobs_by_id[job].workload
            smaller = {name: self._smaller(instance.workloads[name])}
            parts["workloads"] = FrozenDict({**instance.workloads, **smaller})
        if self.more_gpus is not None:
            nodes = (*instance.cluster.nodes, self.more_gpus)
            parts["cluster"] = instance.cluster.replace(nodes=nodes)
        changed = instance.altered(**parts)
        if not self.measured:
            return changed
        return changed.replace(slowdowns=(*instance.slowdowns, *self.measured))

    def _smaller(self, workload: Workload) -> Workload:
        memory = max(0.0, workload.memory_mib - self.less_memory_mib)
        batch = workload.batch
        if batch is not None:
            fixed = max(0.0, batch.fixed_mib - self.less_memory_mib)
            batch = batch.replace(fixed_mib=fixed, min=self.batch_min or batch.min)
        return workload.replace(memory_mib=memory, batch=batch)


class Remedy(Record):
    """One way to let a waiting job start.

    Attributes
    ----------
    text : str
        The remedy in one line.
    change : Change
        What would have to be different.
    assignments : tuple of Assignment
        Where the job would then start, and the assignments that change with it; the rest of
        the plan stays.
    """

    text: Text
    change: Change
    assignments: tuple[Assignment, ...]
