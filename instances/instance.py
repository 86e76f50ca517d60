"""The records of a problem, ``dovetail-instance/1``.

Every record is checked when it is built: each field by its type, then the rules across fields (the
validators below, one function per rule), then the rules across parts, which are the same for an
instance that is built call by call: each check of parts remembers the earlier ones. An instance is
never edited; ``Instance.replace`` returns a new one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import (
    BeforeValidator,
    Field,
    StrictBool,
    WithJsonSchema,
    model_validator,
)

from dovetail.instances._frames import frame, html
from dovetail.instances._record import (
    IDLE,
    AnyShare,
    Count,
    FrozenDict,
    FrozenMapping,
    Name,
    NonNegative,
    Positive,
    Record,
    SeatShare,
    Share,
    Variance,
    as_input_error,
    listed,
    rule_broken,
    shown,
)
from dovetail.instances.errors import InputError, hint, require_type
from dovetail.instances.metrics import MetricName, Metrics
from dovetail.instances.slowdowns.columns import Slowdowns, SlowdownsField
from dovetail.instances.slowdowns.entry import EntryKey, GpuKind, SharingMode, SlowdownEntry
from dovetail.instances.slowdowns.shares import refuse_caps

if TYPE_CHECKING:
    from pandas import DataFrame

    from dovetail.instances.builder import InstanceBuilder
    from dovetail.instances.plan import Assignment, Plan

INSTANCE_FORMAT: Final = "dovetail-instance/1"

_MOST_GPUS: Final = 100_000
_WHOLE_NUMBER = re.compile("0|[1-9][0-9]{0,8}")


def _share_key(key: object) -> object:
    return int(key) if isinstance(key, str) and _WHOLE_NUMBER.fullmatch(key) else key


ShareKey = Annotated[
    Share,
    BeforeValidator(_share_key),
    WithJsonSchema({"type": "string", "pattern": "^([1-9][0-9]?|100)$"}),
]
"""A share as the key of a mapping; JSON has it as a text."""


class GpuModel(Record):
    """A kind of GPU, without an id: the ``gpu`` of a node's shorthand."""

    model: Name
    memory_mib: Positive
    sms: Count | None = None
    max_jobs: Annotated[Count, Field(le=48)] | None = None
    cost_per_hour: Positive | None = None
    sharing: SharingMode | None = None


class Gpu(GpuModel):
    """One GPU of a node."""

    id: Name


class HostResources(Record):
    """The resources of a node in addition to its GPUs, or the need of one worker of a workload.

    A worker's need is that at full speed: with this much, it runs as fast as alone.
    """

    cpu_cores: NonNegative | None = None
    memory_bytes_s: NonNegative | None = None
    disk_bytes_s: NonNegative | None = None
    pcie_bytes_s: NonNegative | None = None
    net_bytes_s: NonNegative | None = None


class Node(Record):
    """A machine with listed GPUs, or ``gpu_count`` equal ones named ``<id>-0`` and so on."""

    id: Name
    rack: Name | None = None
    host: HostResources | None = None
    gpus: tuple[Gpu, ...] | None = None
    gpu_count: Count | None = None
    gpu: GpuModel | None = None

    @model_validator(mode="after")
    def _host_has_something(self) -> Self:
        for name, value in self.host or ():
            if value == 0:
                raise rule_broken(f"host.{name}", "must be > 0; leave it out if unknown, got 0")
        return self

    @model_validator(mode="after")
    def _one_way_to_name_gpus(self) -> Self:
        if (self.gpus is None) == (self.gpu_count is None):
            raise rule_broken("", "must have either gpus or gpu_count with gpu")
        if (self.gpu is None) != (self.gpu_count is None):
            raise rule_broken("", "gpu_count and gpu go together")
        return self

    @cached_property
    def devices(self) -> tuple[Gpu, ...]:
        """The GPUs of the node, with the shorthand expanded."""
        if self.gpu is None or self.gpu_count is None:
            return self.gpus or ()
        kind = self.gpu.model_dump()
        return tuple(Gpu(id=f"{self.id}-{k}", **kind) for k in range(self.gpu_count))

    @property
    def places(self) -> Iterator[Place]:
        """The GPUs of the node with their node and rack."""
        return (Place(gpu, self.id, self.rack) for gpu in self.devices)


class Place(NamedTuple):
    """A GPU with its node and rack."""

    gpu: Gpu
    node: str
    rack: str | None


class NodeChecks:
    """Nodes of one cluster: ids differ, and all GPUs of a model have the same limit and cost."""

    def __init__(self) -> None:
        self._models: dict[str, GpuModel] = {}
        self._nodes: set[str] = set()
        self._gpus: set[str] = set()
        self._count = 0

    def add(self, node: Node, path: str) -> None:
        """Refuse a node that does not fit the earlier ones, else remember it."""
        if node.id in self._nodes:
            raise rule_broken(f"{path}.id", f"node ids must differ, got {shown(node.id)} twice")
        models = self._models_of(node, path)
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
        self._models |= models

    def _models_of(self, node: Node, path: str) -> dict[str, GpuModel]:
        """Return the first GPU of each model, the GPUs of a node included."""
        found = dict(self._models)
        for g, gpu in enumerate((node.gpu,) if node.gpu else node.gpus or ()):
            where = f"{path}.gpu" if node.gpu else f"{path}.gpus[{g}]"
            for other in (*islice(found.values(), 1), found.setdefault(gpu.model, gpu)):
                _refuse_unlike(gpu, other, where)
        return found


def _refuse_unlike(gpu: GpuModel, other: GpuModel, path: str) -> None:
    """Refuse a GPU that cannot be in a cluster with an earlier one."""
    if (gpu.cost_per_hour is None) != (other.cost_per_hour is None):
        rule = "must be given for all GPU models or for none: model"
        got = f"{other.model!r} has {shown(other.cost_per_hour)}, {gpu.model!r}"
        raise rule_broken(f"{path}.cost_per_hour", f"{rule} {got} {shown(gpu.cost_per_hour)}")
    for field in ("max_jobs", "cost_per_hour") if gpu.model == other.model else ():
        mine, first = getattr(gpu, field), getattr(other, field)
        if mine != first:
            rule = f"must be the same on all GPUs of model {gpu.model!r}"
            raise rule_broken(f"{path}.{field}", f"{rule} ({shown(first)}), got {shown(mine)}")


@lru_cache(maxsize=256)
def _kind(model: str, sharing: SharingMode) -> GpuKind:
    """Return a kind of GPU; equal ones are one object, as a cluster may have 100,000 GPUs."""
    return GpuKind(model, sharing)


class Assumed(Record):
    """Slowdowns that the owner of a cluster declares instead of measuring them.

    They hold for jobs without caps, and only if no entry names the combination.
    """

    pair: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1, le=1000)] | None = None
    sets: Literal["product"] | None = None

    @model_validator(mode="after")
    def _something_is_assumed(self) -> Self:
        if self.pair is None and self.sets is None:
            raise rule_broken("", "must have pair, sets or both")
        return self


class Cluster(Record):
    """The GPUs of a round and the rules for sharing them."""

    sharing: SharingMode = "mps"
    max_jobs_per_gpu: Annotated[Count, Field(le=48)] = 2
    shares: tuple[SeatShare, ...] = ()
    share_sum: Annotated[Count, Field(le=4800)] = 100
    start_capped: StrictBool = False
    uncapped: StrictBool = False
    gang_sharing: Literal["partial", "whole"] = "partial"
    reserve_mib: NonNegative = 0.0
    per_process_mib: NonNegative = 0.0
    assumed: Assumed | None = None
    nodes: tuple[Node, ...]

    @property
    def modes(self) -> tuple[SharingMode, ...]:
        """How jobs share a GPU of the cluster: its own ``sharing``, then that of other GPUs."""
        own = dict.fromkeys(gpu.sharing for gpu in self._kinds if gpu.sharing is not None)
        return tuple(dict.fromkeys((self.sharing, *own)))

    def sharing_on(self, gpu: GpuModel) -> SharingMode:
        """Return how jobs share a GPU of this kind."""
        return self.sharing if gpu.sharing is None else gpu.sharing

    def kind_of(self, gpu: GpuModel) -> GpuKind:
        """Return the model of a GPU with how jobs share it."""
        return _kind(gpu.model, self.sharing_on(gpu))

    @property
    def _kinds(self) -> Iterator[GpuModel]:
        for node in self.nodes:
            yield from (node.gpu,) if node.gpu else node.gpus or ()

    @property
    def caps_first(self) -> bool:
        """Whether jobs that never shared do so with caps, unless their bounds allow it without."""
        return self.sharing == "mps" and not self.uncapped

    def most_jobs(self) -> dict[str, int]:
        """Return the most jobs on a GPU of each model."""
        return {gpu.model: self.most_on(gpu) for gpu in self._kinds}

    def most_on(self, gpu: GpuModel) -> int:
        """Return the most jobs on a GPU of this kind."""
        own = self.max_jobs_per_gpu if gpu.max_jobs is None else gpu.max_jobs
        return min(self.max_jobs_per_gpu, own)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        _refuse_repeats("shares[{}]", self.shares, "a share may be listed once")
        if "mps" not in self.modes:
            refuse_caps(self.sharing, self.shares, "shares", "sharing")
        checks = NodeChecks()
        for n, node in enumerate(self.nodes):
            checks.add(node, f"nodes[{n}]")
        return self


class StepTime(Record):
    """Castor's eq. 1: computing a batch of b samples takes ``fixed + per_sample * b`` seconds."""

    fixed: NonNegative
    per_sample: NonNegative


class Batch(Record):
    """Memory and iteration time by batch size; its presence allows gradient accumulation."""

    size: Count
    min: Count
    fixed_mib: NonNegative
    mib_per_sample: NonNegative
    step_s: StepTime
    comm_s: NonNegative = 0.0
    overlap: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1, le=100)] = 1.0

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.min > self.size:
            raise rule_broken("min", f"must be <= size ({self.size}), got {self.min}")
        if self.step_s.fixed + self.step_s.per_sample + self.comm_s <= 0:
            raise rule_broken("step_s", "an iteration must take some time, got 0")
        return self

    def allows(self, sub_batch: int) -> bool:
        """Return whether ``sub_batch`` is size / 2^k for some k, whole, and at least ``min``."""
        steps, rest = divmod(self.size, sub_batch)
        return rest == 0 and steps & (steps - 1) == 0 and sub_batch >= self.min


class Workload(Record):
    """The program of jobs; jobs of one workload are interchangeable for prediction."""

    elsewhere = MappingProxyType(
        dict.fromkeys(
            ("gpu_memory_utilization", "memory_fraction", "gpu_fraction", "gpumem_percentage"),
            "give memory_percent, of the memory that a GPU offers (0.5 is 50)",
        )
    )

    memory_mib: NonNegative | None = None
    memory_percent: Annotated[Positive, Field(le=100)] | None = None
    host: HostResources | None = None
    family: Name | None = None
    metrics: Metrics | None = None
    metrics_by_share: FrozenMapping[ShareKey, Metrics] = Field({})
    metrics_variance: FrozenMapping[MetricName, Variance] = Field({})
    memory_mean_mib: NonNegative | None = None
    duration_s: Positive | None = None
    throughput: FrozenMapping[ShareKey, Positive] = Field({})
    power_w: Positive | None = None
    speed: FrozenMapping[Name, Positive] = Field({})
    isolation: Literal["blocks"] | None = None
    batch: Batch | None = None
    batch_size: Count | None = None
    stages_s: Annotated[tuple[NonNegative, ...], Field(min_length=2, max_length=8)] | None = None

    @model_validator(mode="after")
    def _one_memory(self) -> Self:
        if (self.memory_mib is None) == (self.memory_percent is None):
            got = "neither" if self.memory_mib is None else "both"
            raise rule_broken("", f"must have either memory_mib or memory_percent, got {got}")
        if self.memory_percent is not None and self.batch is not None:
            raise rule_broken("memory_percent", "must be absent with batch: give memory_mib")
        return self

    @model_validator(mode="after")
    def _stages_take_time(self) -> Self:
        if self.stages_s is not None and not any(self.stages_s):
            raise rule_broken("stages_s", "an iteration must take some time, got 0")
        return self

    def slowdown_alone(self, cap: int) -> float | None:
        """Return the measured slowdown of a job that has a GPU and a cap to itself, or None."""
        whole, capped = self.throughput.get(100), self.throughput.get(cap)
        return None if whole is None or capped is None else whole / capped


class Job(Record):
    """A gang of ``workers`` processes with one GPU each, started together or not at all."""

    elsewhere = MappingProxyType(
        dict.fromkeys(
            ("gpus_per_node", "tasks_per_node", "ntasks_per_node", "procs_per_node"),
            "give workers_per_node: the workers on each node that the job uses",
        )
        | dict.fromkeys(
            ("nodes", "num_nodes", "nnodes"),
            "give workers_per_node: workers divided by the number of nodes",
        )
        | dict.fromkeys(
            ("nproc_per_node", "gpus_per_pod", "gpus_per_bundle", "tensor_parallel_size"),
            "give workers_per_node, or workers_together if several such groups may share a node",
        )
    )

    id: Name
    workload: Name
    workers: Count = 1
    workers_per_node: Count | None = None
    workers_together: Count | None = None
    gsla: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1)] | None = None
    weight: NonNegative = 1.0
    arrival_s: NonNegative = 0.0
    remaining_s: Positive | None = None
    priority: Literal["batch", "latency"] = "batch"
    sharing: SharingMode | None = None
    state: Literal["pending", "running"] = "pending"
    gpus: tuple[Name, ...] | None = None
    share: tuple[SeatShare | None, ...] | None = None
    sub_batch: Count | None = None

    @model_validator(mode="after")
    def _whole_groups_on_nodes(self) -> Self:
        check_node_rule(self.workers, self.workers_per_node, self.workers_together)
        return self

    @model_validator(mode="after")
    def _placed_if_running(self) -> Self:
        if self.state == "pending":
            for name in ("gpus", "share", "sub_batch"):
                if getattr(self, name) is not None:
                    raise rule_broken(name, "only a running job has this field")
            return self
        if self.gpus is None:
            raise rule_broken("gpus", "this field is required of a running job")
        if len(self.gpus) != self.workers:
            raise rule_broken("gpus", f"must name {self.workers} GPUs, got {len(self.gpus)}")
        _refuse_repeats("gpus[{}]", self.gpus, "a gang's GPUs must differ")
        if self.share is not None and len(self.share) != self.workers:
            raise rule_broken("share", f"must have {self.workers} items, got {len(self.share)}")
        return self

    @property
    def together(self) -> int:
        """How many workers must be on a node together; 1 if each may be on any node."""
        return self.workers_per_node or self.workers_together or 1

    @property
    def by_node(self) -> bool:
        """Whether it has several workers and a rule on how many of them a node has."""
        return self.workers > 1 and (self.together > 1 or self.workers_per_node is not None)

    @property
    def running(self) -> bool:
        """Whether the job already holds GPUs."""
        return self.state == "running"

    @property
    def shares(self) -> tuple[AnyShare, ...]:
        """The share on each GPU, ``share`` written out."""
        return self.share if self.share is not None else (None,) * self.workers

    @property
    def waiting(self) -> Self:
        """The job as waiting: without the GPUs that it holds, if any."""
        fresh = {"state": "pending", "gpus": None, "share": None, "sub_batch": None}
        return self.model_copy(update=fresh) if self.running else self


def check_node_rule(workers: int, per_node: int | None, together: int | None) -> None:
    """Refuse workers per node that do not divide the workers, or both rules for nodes at once."""
    if per_node is not None and together is not None:
        rule = f"must not be given with workers_per_node ({per_node}), got {together}"
        raise rule_broken("workers_together", rule)
    for name, size in (("workers_per_node", per_node), ("workers_together", together)):
        if size is not None and workers % size:
            raise rule_broken(name, f"must divide workers ({workers}), got {size}")


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
    sharing : {"mps", "time_sliced"}
        How jobs share the GPUs that do not say.
    """

    def __init__(
        self,
        workloads: Mapping[str, Workload],
        places: Mapping[str, Place],
        most_jobs: Mapping[str, int],
        sharing: SharingMode,
    ) -> None:
        self._workloads, self._places, self._most_jobs = workloads, places, most_jobs
        self._sharing = sharing
        self._ids: set[str] = set()
        self._held: Counter[str] = Counter()
        self._unshared: dict[str, Job] = {}

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
        self._unshared.update((gpu, job) for gpu in job.gpus or () if self._is_alone(job, gpu))
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
        alone = job if self._is_alone(job, gpu) else self._unshared.get(gpu)
        if alone is not None and self._held[gpu]:
            rule = f"must hold {alone.id!r} alone, which shares a GPU only if it is {alone.sharing}"
            raise rule_broken(path, f"{rule}, got {gpu!r} with more jobs, {self._sharing_on(gpu)}")

    def _is_alone(self, job: Job, gpu: str) -> bool:
        """Return whether a job may not share a GPU in the way that GPU is shared."""
        return job.sharing not in (None, self._sharing_on(gpu))

    def _sharing_on(self, gpu: str) -> SharingMode:
        return self._places[gpu].gpu.sharing or self._sharing


def _check_sub_batch(job: Job, workload: Workload, path: str) -> None:
    batch, got = workload.batch, job.sub_batch
    if batch is None:
        rule = f"workload {job.workload!r} has no batch, got {got}"
        raise rule_broken(f"{path}.sub_batch", rule)
    if got is not None and not batch.allows(got):
        rule = f"must be {batch.size} / 2^k and >= {batch.min}, got {got}"
        raise rule_broken(f"{path}.sub_batch", rule)


def check_entry(
    entry: SlowdownEntry,
    workloads: Mapping[str, Workload],
    modes: Sequence[SharingMode],
    path: str,
) -> None:
    """Refuse slowdowns of another mode, of unknown workloads, or of one that cannot be idle."""
    if entry.mode not in modes:
        rule = f"must be the cluster's sharing, {listed(modes)}, got {entry.mode}"
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


class Instance(Record):
    """One round's problem: a cluster, the jobs, and the known slowdowns."""

    format: Literal["dovetail-instance/1"] = INSTANCE_FORMAT
    name: Name
    cluster: Cluster
    workloads: FrozenMapping[Name, Workload]
    jobs: tuple[Job, ...]
    slowdowns: SlowdownsField = Field((), validate_default=True)

    @staticmethod
    def build(name: str, **rules: object) -> InstanceBuilder:
        """Return a builder of an instance, to which nodes, workloads, jobs and slowdowns are added.

        Parameters
        ----------
        name : str
            The name of the instance.
        **rules
            Fields of `Cluster`: ``max_jobs_per_gpu``, ``shares``, ``reserve_mib``, ...

        Raises
        ------
        InputError
            When a value breaks a rule.
        """
        from dovetail.instances.builder import InstanceBuilder

        return InstanceBuilder(name, **rules)

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        """Return its size; the whole instance would fill many screens."""
        sizes = (
            (len(self.jobs), "jobs"),
            (len(self.places), "GPUs"),
            (len(self.slowdowns), "slowdowns"),
        )
        return f"<Instance {self.name!r}: {', '.join(f'{size:,} {what}' for size, what in sizes)}>"

    def to_frame(self) -> DataFrame:
        """Return a pandas data frame with a row for each job."""
        return frame(map(dict, self.jobs), Job.model_fields)

    def _repr_html_(self) -> str:
        return html(self, self.to_frame())

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._check_jobs()
        self._check_entries()
        return self

    def _check_jobs(self) -> None:
        cluster = self.cluster
        checks = JobChecks(self.workloads, self.places, cluster.most_jobs(), cluster.sharing)
        for k, job in enumerate(self.jobs):
            checks.add(job, f"jobs[{k}]")

    def _check_entries(self) -> None:
        known, modes = self.slowdowns, self.cluster.modes
        for k in known.odd(self.workloads, modes):
            check_entry(known[k], self.workloads, modes, f"slowdowns[{k}]")
        if (repeated := known.repeated()) is not None:
            k, first = repeated
            rule = f"({listed(known[k].workloads)}) at these shares and model is already in"
            raise rule_broken(f"slowdowns[{k}]", f"{rule} slowdowns[{first}]")
        self.__dict__["slowdowns"] = known.numbered(tuple(self.workloads))

    @cached_property
    def places(self) -> Mapping[str, Place]:
        """Every GPU of the cluster by its id, in the order of the file."""
        return FrozenDict(
            (place.gpu.id, place) for node in self.cluster.nodes for place in node.places
        )

    @property
    def entries(self) -> Mapping[EntryKey, SlowdownEntry]:
        """Every slowdown entry by its key, in the order of the file."""
        return self.slowdowns.by_key

    @cached_property
    def jobs_by_id(self) -> Mapping[str, Job]:
        """Every job by its id, in the order of the file."""
        return FrozenDict((job.id, job) for job in self.jobs)

    def with_jobs(self, jobs: Iterable[Job]) -> Self:
        """Return the instance with other jobs, for the next round on the same cluster.

        Cluster, workloads and slowdowns are kept; only the jobs are checked.

        Raises
        ------
        ArgumentError
            When one is not a ``Job``.
        InputError
            When the jobs do not fit each other or the instance.
        """
        jobs = tuple(jobs)
        for k, job in enumerate(jobs):
            require_type(f"jobs[{k}]", job, Job)
        return self.altered(jobs=jobs)

    def altered(self, **parts: object) -> Self:
        """Return the instance with other jobs, workloads of the same names, or another cluster.

        As in ``with_jobs``, the slowdowns, which may be tens of thousands, are not checked again.
        """
        changed = self.model_copy(update=parts)
        for part, made in (("jobs", "jobs_by_id"), ("cluster", "places")):
            if part in parts:
                changed.__dict__.pop(made, None)
        with as_input_error():
            changed._check_jobs()
        return changed

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other parts, which are not checked.

        Raises
        ------
        ArgumentError
            When other slowdowns are not several, or one is not a ``SlowdownEntry``.
        """
        if update is not None and "slowdowns" in update:
            known = update["slowdowns"]
            if not isinstance(known, Slowdowns):
                require_type("slowdowns", known, Iterable)
                for k, entry in enumerate(known := tuple(known)):
                    require_type(f"slowdowns[{k}]", entry, SlowdownEntry)
            update = {**update, "slowdowns": Slowdowns.of(known, tuple(self.workloads))}
        return super().model_copy(update=update, deep=deep)

    def preempted(self) -> Instance:
        """Return the instance with its running jobs pending again (``--preempt``).

        Jobs of priority ``latency`` keep running: a service is neither stopped nor moved.
        """
        return self.with_jobs(
            job if job.priority == "latency" else job.waiting for job in self.jobs
        )

    def after(self, plan: Plan, ended: Iterable[str] = ()) -> Self:
        """Return the instance of the next round, after a plan of this one has been carried out.

        Placed jobs run on their GPUs, with their shares and sub-batches; jobs that the plan stops
        (``preempt``) wait again. Everything else is unchanged, including ``remaining_s``.

        Parameters
        ----------
        plan : Plan
            A plan of this instance. It is not checked; see ``dovetail.check``.
        ended : iterable of str
            Ids of jobs that have ended since, which are left out.

        Raises
        ------
        InputError
            When the plan names a job that the instance does not have, a job that has ended was
            not placed, or the running jobs do not fit the cluster.
        """
        placed = {row.job: row for row in plan.assignments}
        self._require_jobs("assignments", placed)
        gone = tuple(ended)
        self._require_jobs("ended", gone)
        for name in gone:
            if name not in placed:
                raise InputError(f"must be placed by the plan, got {name!r}, which waits", "ended")
        left_out = set(gone)
        following = (
            _after(job, placed.get(job.id), plan) for job in self.jobs if job.id not in left_out
        )
        return self.with_jobs(following)

    def _require_jobs(self, path: str, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.jobs_by_id:
                rule = f"must be jobs of {self.name!r}, got {shown(name)}"
                raise InputError(rule + hint(name, self.jobs_by_id), path)


def _after(job: Job, row: Assignment | None, plan: Plan) -> Job:
    """Return a job as it is after a plan with this row for it was carried out."""
    if row is None:
        return job.waiting
    if not plan.starts(row, job.running):
        return job
    share = row.share if row.share and any(row.share) else None
    return job.replace(state="running", gpus=row.gpus, share=share, sub_batch=row.sub_batch)


def _refuse_repeats(path: str, values: tuple[object, ...] | list[str], rule: str) -> None:
    """Raise at the second position of a repeated value; ``path`` has ``{}`` for its index."""
    seen: set[object] = set()
    for k, value in enumerate(values):
        if value in seen:
            raise rule_broken(path.format(k), f"{rule}, got {shown(value)} twice")
        seen.add(value)


def jobs_of(instance: Instance, state: Literal["pending", "running"]) -> Iterator[Job]:
    """Yield the jobs in the given state, in the order of the file."""
    return (job for job in instance.jobs if job.state == state)
