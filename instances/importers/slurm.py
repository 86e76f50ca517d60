"""The current state of a Slurm cluster: its nodes with GPUs, running and waiting jobs.

Source: ``squeue --json`` (22.05 and later; in 23.x numbers became objects and states became lists)
and ``scontrol show node``.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from dovetail.instances.errors import InputError
from dovetail.instances.importers._hostlist import MOST_NAMES, hostnames
from dovetail.instances.importers._slurm_records import (
    PAST,
    TIMES,
    SlurmData,
    gpu_models,
    gpus_of_job,
    indices_of_job,
    is_usable,
    node_facts,
    node_rule_of_job,
    nodes_of_job,
    number_of_job,
    squeue_jobs,
    state_of_job,
    states_of_job,
    words_of,
)
from dovetail.instances.importers._tres import gpus_in
from dovetail.instances.instance import Instance
from dovetail.instances.reading.contents import read_text

_PATIENCE_S: Final = 60.0
_HOLDS: Final = {"RUNNING", "SUSPENDED", "COMPLETING", "STOPPED"}
"""States of jobs that hold GPUs."""

_WAITS_FOR_ELSE: Final = ("JobHeldUser", "JobHeldAdmin", "Dependency", "BeginTime")


class Imported(NamedTuple):
    """An instance, and the parts of the cluster that it lacks, one line each."""

    instance: Instance
    left_out: tuple[str, ...]


class _Taken(NamedTuple):
    """An imported node: the model of each GPU by its index."""

    id: str
    models: tuple[str, ...]
    features: frozenset[str]
    draining: bool


def import_slurm(
    gpu_memory: Mapping[str, float],
    *,
    jobs: str | None = None,
    nodes: str | None = None,
    topology: str | None = None,
    partition: str | None = None,
    constraint: str | None = None,
) -> Imported:
    """Return the running and waiting jobs of a Slurm cluster as an instance.

    A job has a worker for each of its GPUs. Jobs with the same user and name have the same
    workload. Time limits are used as the remaining time, as Slurm has no better figure. Slurm does
    not know the GPU memory of jobs or their slowdowns when they share: workloads need 0 MiB and
    have no slowdowns.

    GPUs per node (``--gpus-per-node``, ``--gres``) and per task become ``workers_per_node`` and
    ``workers_together``. Other ways to keep GPUs together, such as a number of nodes for the GPUs
    of the whole job, cannot be expressed: waiting jobs with such a rule are counted. Nor can an
    instance restrict a job to certain nodes. A waiting job is therefore imported only if every
    imported node satisfies its request; ``partition`` and ``constraint`` select a part of the
    cluster for which this holds.

    Parameters
    ----------
    gpu_memory : mapping of str to float
        MiB of each GPU type (``gpu``: GPUs without a type).
    jobs, nodes, topology : str, optional
        Files with ``squeue --json``, ``scontrol show node`` and ``topology.conf``. Without the
        first two, the commands are run; without the third, nodes have no racks.
    partition : str, optional
        Take only nodes and jobs of this partition.
    constraint : str, optional
        Take only nodes with this feature.

    Raises
    ------
    InputError
        When a file or a command's output has another form, or the memory of a type is missing.
    """
    told_jobs, told_nodes = jobs or "squeue --json", nodes or "scontrol show node"
    listed = squeue_jobs(_text(jobs, "squeue", "--json"), told_jobs)
    node_text = _text(nodes, "scontrol", "show", "node")
    if "NodeName=" not in node_text:
        raise InputError("must be what scontrol show node prints", "", told_nodes)
    out: Counter[str] = Counter()
    try:
        taken = {node.id: node for node in _nodes(node_text, partition, constraint, out)}
    except InputError as error:
        raise error.at(told_nodes) from None
    if not taken:
        asked = {"--partition": partition, "--constraint": constraint}
        selected = "".join(f" ({flag} {name})" for flag, name in asked.items() if name)
        raise InputError(f"must have a node with GPUs that can be taken{selected}", "", told_nodes)
    racks = _racks(topology) if topology else {}
    found = [*_placed(listed, taken, partition, out)]
    closed = _closed(listed, found, taken, out)
    now_s = max((number_of_job(job, key) or 0 for job in listed for key in PAST), default=0)
    begun_s = min((number_of_job(job, "submit_time") or 0 for job in found), default=0)
    data = {
        "name": str(next((job.get("cluster") for job in listed if job.get("cluster")), "slurm")),
        "cluster": {
            "nodes": [
                made
                for node in taken.values()
                if (made := _node(node, closed, racks, gpu_memory, told_nodes))["gpus"]
            ]
        },
        "workloads": {_workload(job): {"memory_mib": 0.0} for job in found},
        "jobs": [_job(job, now_s, begun_s) for job in found],
    }
    instance = Instance.from_data(data, told_jobs)
    return Imported(
        instance, tuple(f"{what} ({count})" for what, count in sorted(out.items()) if count)
    )


def _text(path: str | None, *command: str) -> str:
    source = path or " ".join(command)
    try:
        if path is not None:
            return read_text(path)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, stdin=subprocess.DEVNULL
        )
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", "", source) from None
    except subprocess.TimeoutExpired:
        raise InputError(f"has not ended within {_PATIENCE_S:g} s", "", source) from None
    if done.returncode:
        raise InputError(f"failed: {done.stderr.strip()}", "", source)
    return done.stdout


# Nodes.


def _nodes(
    text: str, partition: str | None, constraint: str | None, out: Counter[str]
) -> Iterator[_Taken]:
    for facts in node_facts(text):
        models = gpu_models(facts)
        features = frozenset(facts.get("ActiveFeatures", "").split(","))
        if partition is not None and partition not in facts.get("Partitions", "").split(","):
            out["nodes of other partitions"] += 1
        elif constraint is not None and constraint not in features:
            out[f"nodes without {constraint}"] += 1
        elif not models:
            out["nodes without GPUs"] += 1
        elif not facts.get("State"):
            raise InputError("must not be empty", f"node {facts['NodeName']}: State")
        elif not is_usable(facts["State"]):
            out["nodes that are down or drained"] += 1
        else:
            draining = "DRAIN" in words_of(facts["State"])
            yield _Taken(facts["NodeName"], models, features, draining)


def _node(
    node: _Taken,
    closed: Collection[tuple[str, int]],
    racks: Mapping[str, str],
    memory: Mapping[str, float],
    source: str,
) -> dict[str, object]:
    for model in node.models:
        if model not in memory:
            rule = f"the memory of GPU type {model!r} is needed ({model}=MIB)"
            raise InputError(rule, "--gpu-memory", source)
    gpus = [
        {"id": f"{node.id}-{k}", "model": model, "memory_mib": memory[model]}
        for k, model in enumerate(node.models)
        if (node.id, k) not in closed
    ]
    rack = {"rack": racks[node.id]} if node.id in racks else {}
    return {"id": node.id, "gpus": gpus, **rack}


def _racks(path: str) -> dict[str, str]:
    """Return the leaf switch of each node."""
    found: dict[str, str] = {}
    text = _text(path)
    if "SwitchName=" not in text:
        raise InputError("must be a topology.conf: SwitchName=... Nodes=...", "", path)
    for number, line in enumerate(text.splitlines(), 1):
        facts = dict(re.findall(r"(\w+)=(\S*)", line.partition("#")[0]))
        if "SwitchName" in facts and "Nodes" in facts:
            switch: str = facts["SwitchName"]
            found |= dict.fromkeys(_nodes_of(facts["Nodes"], f"line {number}: Nodes", path), switch)
            if len(found) > MOST_NAMES:
                raise InputError(f"must name at most {MOST_NAMES} nodes", "", path)
    return found


def _nodes_of(text: str, where: str, source: str) -> tuple[str, ...]:
    try:
        return hostnames(text)
    except InputError as error:
        raise InputError(error.rule, where, source) from None


# Jobs.


def _placed(
    jobs: Sequence[SlurmData], taken: Mapping[str, _Taken], partition: str | None, out: Counter[str]
) -> Iterator[SlurmData]:
    """Yield the jobs that can be imported; count the reasons for leaving out others."""
    for job in jobs:
        reason = _why_not(job, taken, partition)
        if reason:
            out[reason] += 1
        else:
            out["rules that keep GPUs of waiting jobs on one node"] += _keeps_otherwise(job)
            yield job


def _closed(
    jobs: Sequence[SlurmData],
    found: Sequence[SlurmData],
    taken: Mapping[str, _Taken],
    out: Counter[str],
) -> set[tuple[str, int]]:
    """Return the GPUs that no job may start on: held by other jobs, or on draining nodes."""
    all_gpus = {(node.id, k) for node in taken.values() for k in range(len(node.models))}
    ours = {gpu for job in found if state_of_job(job) == "RUNNING" for gpu in indices_of_job(job)}
    others = {gpu for job in jobs if _HOLDS & states_of_job(job) for gpu in indices_of_job(job)}
    held = all_gpus & others - ours
    draining = {gpu for gpu in all_gpus - ours - held if taken[gpu[0]].draining}
    out["GPUs of jobs that are left out"] += len(held)
    out["idle GPUs of nodes that drain"] += len(draining)
    return held | draining


def _why_not(job: SlurmData, taken: Mapping[str, _Taken], partition: str | None) -> str:
    state = state_of_job(job)
    if state not in ("RUNNING", "PENDING"):
        return "jobs that neither run nor wait"
    if partition is not None and partition not in str(job.get("partition", "")).split(","):
        return "jobs of other partitions"
    if not gpus_of_job(job):
        return "jobs without GPUs"
    if state == "RUNNING":
        away = [node for node in nodes_of_job(job) if node not in taken]
        return "jobs that run on nodes that are not taken" if away else ""
    if job.get("state_reason") in _WAITS_FOR_ELSE:
        return "jobs that are held or wait for a time or another job"
    asked = frozenset(filter(None, re.split(r"[&,]", str(job.get("features") or ""))))
    models = {model for node in taken.values() for model in node.models}
    has_type = {model for key in TIMES for model, _ in gpus_in(str(job.get(key) or "")) if model}
    if any(not asked <= node.features for node in taken.values()):
        return "jobs with constraints that not every node keeps"
    if has_type and models != has_type:
        return "jobs that ask for one of several GPU types"
    if job.get("required_nodes") or job.get("excluded_nodes"):
        return "jobs that ask for certain nodes"
    return ""


def _keeps_otherwise(job: SlurmData) -> bool:
    """Return whether Slurm would give a waiting job several GPUs of one node, without a rule."""
    if state_of_job(job) == "RUNNING" or gpus_of_job(job) < 2 or node_rule_of_job(job):
        return False
    return gpus_of_job(job) > (number_of_job(job, "node_count") or 1)


def _workload(job: SlurmData) -> str:
    return f"{job.get('user_name') or 'user'}/{job.get('name') or job['job_id']}"


def _job(job: SlurmData, now_s: float, begun_s: float) -> dict[str, object]:
    running = state_of_job(job) == "RUNNING"
    limit_min = number_of_job(job, "time_limit")
    end_s = number_of_job(job, "end_time")
    made: dict[str, object] = {
        "id": str(job["job_id"]),
        "workload": _workload(job),
        "workers": gpus_of_job(job),
        "arrival_s": (number_of_job(job, "submit_time") or begun_s) - begun_s,
    }
    if running:
        made |= {"state": "running", "gpus": [f"{node}-{k}" for node, k in indices_of_job(job)]}
    else:
        made |= node_rule_of_job(job)
    if limit_min:
        started_s = number_of_job(job, "start_time") or now_s
        left_s = (end_s or started_s + 60 * limit_min) - now_s if running else 60 * limit_min
        made["remaining_s"] = max(1.0, left_s)
    return made
