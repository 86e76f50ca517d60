"""The current state of a Slurm cluster: its nodes with GPUs, running and waiting jobs.

Source: ``squeue --json`` (22.05 and later; in 23.x numbers became objects and states became lists)
and ``scontrol show node``.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dovetail.instances._record import shown
from dovetail.instances.errors import InputError
from dovetail.instances.importers._hostlist import MOST_NAMES, hostnames
from dovetail.instances.importers._tres import gpus_in
from dovetail.instances.instance import Instance
from dovetail.instances.reading.contents import parse_json, read_text

_PATIENCE_S: Final = 60.0
_UNUSABLE: Final = {
    *("DOWN", "FAIL", "FUTURE", "MAINT", "MAINTENANCE", "NOT_RESPONDING", "POWERED_DOWN"),
    *("UNKNOWN",),
}
_DETAIL = re.compile(r"gpu:(?:(?P<model>[^:]+):)?(?P<count>\d+)\(IDX:(?P<index>[\d,-]*)\)")
_HOLDS: Final = {"RUNNING", "SUSPENDED", "COMPLETING", "STOPPED"}
"""States of jobs that hold GPUs."""

_WAITS_FOR_ELSE: Final = ("JobHeldUser", "JobHeldAdmin", "Dependency", "BeginTime")
_TIMES: Final = {"tres_per_job": "", "tres_per_node": "node_count", "tres_per_task": "tasks"}
"""The fields with which a job asks for GPUs, and the field with the number of units."""

_NO_TYPE: Final = "gpu"
_MOST_GPUS: Final = 1_000
"""The most GPUs of a node: a few characters can mean any number."""

_MOST_NUMBER: Final = 1e15
_PAST: Final = ("submit_time", "last_sched_evaluation")
"""Times; the newest one is used as the current time."""

_NUMBERS: Final = (
    *(*_PAST, "start_time", "end_time", "time_limit"),
    *filter(None, _TIMES.values()),
)
"""Fields of jobs that are numbers, or mappings of 23.x with one."""

_Data = Mapping[str, Any]


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

    An instance cannot require that the GPUs of a gang are on one node: waiting jobs with such a
    rule are counted. Nor can it restrict a job to certain nodes. A waiting job is therefore
    imported only if every imported node satisfies its request; ``partition`` and ``constraint``
    select a part of the cluster for which this holds.

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
    listed = _jobs(_text(jobs, "squeue", "--json"), told_jobs)
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
    now_s = max((_number(job, key) or 0 for job in listed for key in _PAST), default=0)
    begun_s = min((_number(job, "submit_time") or 0 for job in found), default=0)
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
    for part in re.split(r"^(?=NodeName=)", text, flags=re.MULTILINE):
        # Free text (Comment, Reason) comes last, and may look like facts.
        facts = dict(reversed(re.findall(r"(\w+)=(\S*)", part)))
        if "NodeName" not in facts:
            continue
        models = _models(facts)
        features = frozenset(facts.get("ActiveFeatures", "").split(","))
        if partition is not None and partition not in facts.get("Partitions", "").split(","):
            out["nodes of other partitions"] += 1
        elif constraint is not None and constraint not in features:
            out[f"nodes without {constraint}"] += 1
        elif not models:
            out["nodes without GPUs"] += 1
        elif not facts.get("State"):
            raise InputError("must not be empty", f"node {facts['NodeName']}: State")
        elif not _usable(facts["State"]):
            out["nodes that are down or drained"] += 1
        else:
            draining = "DRAIN" in _words(facts["State"])
            yield _Taken(facts["NodeName"], models, features, draining)


def _models(facts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the type of each GPU of a node."""
    gpus = [*gpus_in(re.sub(r"\([^()]*\)", "", facts.get("Gres", "")))]
    if sum(count for _, count in gpus) > _MOST_GPUS:
        raise InputError(f"must be at most {_MOST_GPUS} GPUs", f"node {facts['NodeName']}: Gres")
    return tuple(model or _NO_TYPE for model, count in gpus for _ in range(count))


def _usable(state: str) -> bool:
    words = _words(state)
    drained = "DRAIN" in words and not {"ALLOCATED", "MIXED"} & words
    return not (drained or "*" in state or _UNUSABLE & words)


def _words(state: str) -> set[str]:
    return {*re.split(r"\W+", state)}


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


def _jobs(text: str, source: str) -> Sequence[_Data]:
    try:
        parsed = parse_json(text)
    except InputError as error:
        raise InputError(f"must be what squeue --json prints: {error}", "", source) from None
    jobs = parsed.get("jobs") if isinstance(parsed, dict) else None
    if jobs is None:
        raise InputError("must be what squeue --json prints", "", source)
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        raise InputError("must be a list of jobs", "jobs", source)
    for k, job in enumerate(jobs):
        for key, rule in _broken(job):
            raise InputError(f"{rule}, got {shown(job.get(key))}", f"jobs[{k}].{key}", source)
    return jobs


def _broken(job: _Data) -> Iterator[tuple[str, str]]:
    """Yield the invalid fields and the rules that they break."""
    if not isinstance(job.get("job_id"), int):
        yield "job_id", "must be a whole number"
    if not all(isinstance(state, str) for state in _list(job.get("job_state"))):
        yield "job_state", "must be a state or a list of states"
    for key in _NUMBERS:
        value = job.get(key)
        number = value.get("number") if isinstance(value, dict) else value
        if not isinstance(number, int | float | None):
            yield key, "must be a number"
        elif (number or 0) > _MOST_NUMBER:
            yield key, f"must be <= {_MOST_NUMBER:.0e}"
    if not isinstance(job.get("gres_detail"), list | None):
        yield "gres_detail", "must be a list"
    for key, look in (("nodes", _nodes_named), ("gres_detail", _indices)):
        try:
            look(job)
        except InputError as error:
            yield key, error.rule


def _placed(
    jobs: Sequence[_Data], taken: Mapping[str, _Taken], partition: str | None, out: Counter[str]
) -> Iterator[_Data]:
    """Yield the jobs that can be imported; count the reasons for leaving out others."""
    for job in jobs:
        reason = _why_not(job, taken, partition)
        if reason:
            out[reason] += 1
        else:
            out["rules that keep GPUs of waiting jobs on one node"] += _keeps_together(job)
            yield job


def _closed(
    jobs: Sequence[_Data],
    found: Sequence[_Data],
    taken: Mapping[str, _Taken],
    out: Counter[str],
) -> set[tuple[str, int]]:
    """Return the GPUs that no job may start on: held by other jobs, or on draining nodes."""
    all_gpus = {(node.id, k) for node in taken.values() for k in range(len(node.models))}
    ours = {gpu for job in found if _state(job) == "RUNNING" for gpu in _indices(job)}
    others = {gpu for job in jobs if _HOLDS & _states(job) for gpu in _indices(job)}
    held = all_gpus & others - ours
    draining = {gpu for gpu in all_gpus - ours - held if taken[gpu[0]].draining}
    out["GPUs of jobs that are left out"] += len(held)
    out["idle GPUs of nodes that drain"] += len(draining)
    return held | draining


def _why_not(job: _Data, taken: Mapping[str, _Taken], partition: str | None) -> str:
    state = _state(job)
    if state not in ("RUNNING", "PENDING"):
        return "jobs that neither run nor wait"
    if partition is not None and partition not in str(job.get("partition", "")).split(","):
        return "jobs of other partitions"
    if not _workers(job):
        return "jobs without GPUs"
    if state == "RUNNING":
        away = [node for node in _nodes_named(job) if node not in taken]
        return "jobs that run on nodes that are not taken" if away else ""
    if job.get("state_reason") in _WAITS_FOR_ELSE:
        return "jobs that are held or wait for a time or another job"
    asked = frozenset(filter(None, re.split(r"[&,]", str(job.get("features") or ""))))
    models = {model for node in taken.values() for model in node.models}
    has_type = {model for key in _TIMES for model, _ in gpus_in(str(job.get(key) or "")) if model}
    if any(not asked <= node.features for node in taken.values()):
        return "jobs with constraints that not every node keeps"
    if has_type and models != has_type:
        return "jobs that ask for one of several GPU types"
    if job.get("required_nodes") or job.get("excluded_nodes"):
        return "jobs that ask for certain nodes"
    return ""


def _keeps_together(job: _Data) -> bool:
    """Return whether Slurm would give a waiting job several GPUs of one node."""
    if _state(job) == "RUNNING" or _workers(job) < 2:
        return False
    return _workers(job) > (_number(job, "node_count") or 1)


def _state(job: _Data) -> str:
    state = job.get("job_state")
    return str(state[0] if isinstance(state, list) and state else state)


def _states(job: _Data) -> set[str]:
    return {str(one) for one in _list(job.get("job_state"))}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _number(job: _Data, key: str) -> float | None:
    """Return a number in either form; None if not set or infinite."""
    value = job.get(key)
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    return float(value) if isinstance(value, int | float) and value >= 0 else None


def _workers(job: _Data) -> int:
    """Return the total number of GPUs that a job has or asks for."""
    if _state(job) == "RUNNING":
        return len(_indices(job))
    for key, times in _TIMES.items():
        each = sum(count for _, count in gpus_in(str(job.get(key) or "")))
        if each:
            return int(each * (_number(job, times) or 1 if times else 1))
    return 0


def _nodes_named(job: _Data) -> tuple[str, ...]:
    return hostnames(str(job.get("nodes", "")))


def _indices(job: _Data) -> list[tuple[str, int]]:
    """Return the node and the index of each GPU of a running job."""
    found = []
    for node, detail in zip(_nodes_named(job), job.get("gres_detail") or [], strict=False):
        for gpus in _DETAIL.finditer(str(detail)):
            indices = hostnames(f"[{gpus['index']}]" if gpus["index"] else "")
            if not all(re.fullmatch("[0-9]{1,9}", index) for index in indices):
                raise InputError("must have indices like 0-3,5")
            found += [(node, int(index)) for index in indices]
            if len(found) > MOST_NAMES:
                raise InputError(f"must name at most {MOST_NAMES} GPUs")
    return found


def _workload(job: _Data) -> str:
    return f"{job.get('user_name') or 'user'}/{job.get('name') or job['job_id']}"


def _job(job: _Data, now_s: float, begun_s: float) -> dict[str, object]:
    running = _state(job) == "RUNNING"
    limit_min = _number(job, "time_limit")
    end_s = _number(job, "end_time")
    made: dict[str, object] = {
        "id": str(job["job_id"]),
        "workload": _workload(job),
        "workers": _workers(job),
        "arrival_s": (_number(job, "submit_time") or begun_s) - begun_s,
    }
    if running:
        made |= {"state": "running", "gpus": [f"{node}-{k}" for node, k in _indices(job)]}
    if limit_min:
        started_s = _number(job, "start_time") or now_s
        left_s = (end_s or started_s + 60 * limit_min) - now_s if running else 60 * limit_min
        made["remaining_s"] = max(1.0, left_s)
    return made
