"""The optional fields of an instance that an objective needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dovetail.instances._record import AnyShare, field_path, listed
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance, Job, jobs_of
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.slowdowns.entry import SlowdownEntry
from dovetail.instances.slowdowns.shares import share_code


def require_fields(instance: Instance, objective: ObjectiveName) -> None:
    """Refuse an instance that lacks a field that a built-in objective needs.

    Raises
    ------
    InputError
        With the path of the first missing field.
    """
    if objective in ("jct", "completion"):
        require_remaining(instance, objective)
    elif objective == "energy":
        require_power(instance, objective)


def require_remaining(instance: Instance, objective: str) -> None:
    """Refuse an instance in which a job has no ``remaining_s``."""
    for k, job in enumerate(instance.jobs):
        if job.remaining_s is None:
            raise InputError(f"objective {objective} needs this field", f"jobs[{k}].remaining_s")


def require_power(instance: Instance, objective: str) -> None:
    """Refuse an instance in which the power of a GPU may be unknown.

    ``power_w`` is needed of every workload that a job runs and of every entry among these workloads
    with numbers for a GPU model of the cluster; jobs that already run together need such an entry.
    """
    if instance.cluster.assumed is not None:
        rule = f"objective {objective} needs the power of all jobs that share, which this lacks"
        raise InputError(rule, "cluster.assumed")
    _require_workload_power(instance, objective)
    _require_entry_power(instance, objective)
    _require_running_power(instance, objective)


def _require_workload_power(instance: Instance, objective: str) -> None:
    for job in instance.jobs:
        if instance.workloads[job.workload].power_w is None:
            path = field_path(field_path("workloads", job.workload), "power_w")
            raise InputError(f"objective {objective} needs this field", path)


def _require_entry_power(instance: Instance, objective: str) -> None:
    used = {job.workload for job in instance.jobs}
    models = {place.gpu.model for place in instance.places.values()}
    known = instance.slowdowns
    runs = np.array([name in used for name in known.names], dtype=bool)
    numbers = [-1, *(k for k, model in enumerate(known.models) if model in models)]
    lacking = np.isin(known.model, numbers) & known.may_share & np.isnan(known.power_w)
    lacking &= runs[known.workload].all(axis=1)
    sets = (k for k, entry in known.sets.items() if _lacks_power(entry, models, used))
    for k in sorted([*known.row[lacking].tolist(), *sets])[:1]:
        raise InputError(f"objective {objective} needs this field", f"slowdowns[{k}].power_w")


def _lacks_power(entry: SlowdownEntry, models: set[str], used: set[str]) -> bool:
    applies = entry.gpu_model is None or entry.gpu_model in models
    lacks = entry.slowdown is not None and entry.power_w is None
    return applies and lacks and used.issuperset(entry.workloads)


def _require_running_power(instance: Instance, objective: str) -> None:
    """Refuse running jobs on a GPU whose power the instance does not give."""
    known = instance.entries
    for gpu, jobs in _running_together(instance):
        model, mode = instance.cluster.kind_of(instance.places[gpu].gpu)
        members = tuple(sorted((job.workload, share_code(_share(job, gpu))) for job in jobs))
        entry = known.get((model, members, mode)) or known.get((None, members, mode))
        if entry is None or entry.slowdown is None:
            names = listed([job.id for job in jobs])
            needs = f"objective {objective} needs an entry with power_w for {names}"
            raise InputError(f"{needs}, which run on {gpu}", "slowdowns")


def _running_together(instance: Instance) -> Iterator[tuple[str, list[Job]]]:
    held: dict[str, list[Job]] = {}
    for job in jobs_of(instance, "running"):
        for gpu in job.gpus or ():
            held.setdefault(gpu, []).append(job)
    return ((gpu, jobs) for gpu, jobs in held.items() if len(jobs) > 1)


def _share(job: Job, gpu: str) -> AnyShare:
    return dict(zip(job.gpus or (), job.shares, strict=True))[gpu]
