"""The rules across the parts of an instance, checked one part after the other.

They are the same for an instance that is read and one that is built call by call. Each check
remembers earlier parts, so that the cost of a part does not depend on their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from dovetail.instances._record import IDLE, AnyShare, listed, rule_broken, shown

if TYPE_CHECKING:
    from dovetail.instances.instance import Job, Node, Place, Workload
    from dovetail.instances.slowdowns.entry import SharingMode, SlowdownEntry

_MOST_GPUS: Final = 100_000


class NodeChecks:
    """Nodes of one cluster: ids differ, and all GPUs of a model have the same most jobs."""

    def __init__(self) -> None:
        self._max_jobs: dict[str, int | None] = {}
        self._nodes: set[str] = set()
        self._gpus: set[str] = set()
        self._count = 0

    def add(self, node: Node, path: str) -> None:
        """Refuse a node that does not fit the earlier ones, else remember it."""
        if node.id in self._nodes:
            raise rule_broken(f"{path}.id", f"node ids must differ, got {shown(node.id)} twice")
        kinds = self._kinds(node, path)
        count = self._count + (node.gpu_count or len(node.gpus or ()))
        if count > _MOST_GPUS:
            rule = f"must have at most {_MOST_GPUS} GPUs, got {count}"
            raise rule_broken(path.rpartition("[")[0], rule)
        ids: set[str] = set()
        for g, device in enumerate(node.devices):
            if device.id in self._gpus or device.id in ids:
                where = f"{path}.gpus[{g}].id" if node.gpus else f"{path}.id"
                raise rule_broken(where, f"GPU ids must differ, got {device.id!r} twice")
            ids.add(device.id)
        self._nodes.add(node.id)
        self._gpus |= ids
        self._count = count
        self._max_jobs |= kinds

    def _kinds(self, node: Node, path: str) -> dict[str, int | None]:
        """Return the most jobs on each model, as given by the GPUs of a node."""
        found: dict[str, int | None] = {}
        for g, gpu in enumerate((node.gpu,) if node.gpu else node.gpus or ()):
            before = self._max_jobs.get(gpu.model, gpu.max_jobs)
            most = found.setdefault(gpu.model, before)
            if most != gpu.max_jobs:
                where = f"{path}.gpu" if node.gpu else f"{path}.gpus[{g}]"
                rule = f"must be the same on all GPUs of model {gpu.model!r}"
                got = f"({shown(most)}), got {shown(gpu.max_jobs)}"
                raise rule_broken(f"{where}.max_jobs", f"{rule} {got}")
        return found


class JobChecks:
    """Jobs of one round: ids differ, workloads exist, and running jobs fit on their GPUs.

    Parameters
    ----------
    workloads : mapping of str to Workload
        The workloads of the instance.
    places : mapping of str to Place
        Its GPUs.
    most_jobs : mapping of str to int
        The most jobs on a GPU of each model.
    """

    def __init__(
        self,
        workloads: Mapping[str, Workload],
        places: Mapping[str, Place],
        most_jobs: Mapping[str, int],
    ) -> None:
        self._workloads, self._places, self._most_jobs = workloads, places, most_jobs
        self._ids: set[str] = set()
        self._held: Counter[str] = Counter()

    def add(self, job: Job, path: str) -> None:
        """Refuse a job that does not fit the instance or the earlier jobs, else remember it."""
        if job.id in self._ids:
            raise rule_broken(f"{path}.id", f"job ids must differ, got {shown(job.id)} twice")
        workload = self._workloads.get(job.workload)
        if workload is None:
            raise rule_broken(f"{path}.workload", unknown_workload(job.workload, self._workloads))
        if job.sub_batch is not None:
            _check_sub_batch(job, workload, path)
        for g, gpu in enumerate(job.gpus or ()):
            self._check_place(job, gpu, f"{path}.gpus[{g}]")
        self._held.update(job.gpus or ())
        self._ids.add(job.id)

    def _check_place(self, job: Job, gpu: str, path: str) -> None:
        if gpu not in self._places:
            raise rule_broken(path, f"must be a GPU of the cluster, got {gpu!r}")
        model, first = (self._places[name].gpu.model for name in (gpu, (job.gpus or (gpu,))[0]))
        if self._held[gpu] >= self._most_jobs[model]:
            most = self._most_jobs[model]
            raise rule_broken(path, f"{gpu!r} may hold at most {most} jobs, got more")
        if model != first:
            rule = f"a gang's GPUs must be of one model ({first!r}), got {model!r}"
            raise rule_broken(path, rule)


def _check_sub_batch(job: Job, workload: Workload, path: str) -> None:
    batch, got = workload.batch, job.sub_batch
    if batch is None:
        rule = f"workload {job.workload!r} has no batch, got {got}"
        raise rule_broken(f"{path}.sub_batch", rule)
    if got is not None and not batch.allows(got):
        rule = f"must be {batch.size} / 2^k and >= {batch.min}, got {got}"
        raise rule_broken(f"{path}.sub_batch", rule)


def refuse_caps(mode: SharingMode, shares: Iterable[AnyShare], path: str, field: str) -> None:
    """Refuse a cap where jobs take turns on the whole GPU; ``field`` says that they do."""
    for k, share in enumerate(shares if mode == "time_sliced" else ()):
        if share not in (None, IDLE):
            raise rule_broken(f"{path}[{k}]", f"{field} time_sliced has no caps, got {share}")


def check_entry(
    entry: SlowdownEntry, workloads: Mapping[str, Workload], sharing: SharingMode, path: str
) -> None:
    """Refuse slowdowns of another mode, of unknown workloads, or of one that cannot be idle."""
    if entry.mode != sharing:
        rule = f"must be the cluster's sharing, {sharing}, got {entry.mode}"
        raise rule_broken(f"{path}.mode", rule)
    for w, name in enumerate(entry.workloads):
        if name not in workloads:
            field = "pair" if entry.pair else "set"
            raise rule_broken(f"{path}.{field}[{w}]", unknown_workload(name, workloads))
    for w, share in enumerate(entry.share or ()):
        name = entry.workloads[w]
        if share == IDLE and workloads[name].isolation is None:
            rule = f"idle needs isolation: blocks of workload {name!r}"
            raise rule_broken(f"{path}.share[{w}]", rule)


def unknown_workload(name: str, workloads: Mapping[str, Workload]) -> str:
    """Return the rule that an unknown workload name breaks."""
    return f"must be one of workloads ({listed(workloads)}), got {name!r}"
