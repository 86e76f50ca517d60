"""Records of use from jobs as ``squeue --json`` prints them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from dovetail.advising.readers._slurm import (
    NO_GPU,
    HeldGpus,
    held_gpus,
    state_of,
    tasks_of,
    workers_per_node,
)
from dovetail.advising.usage import Omission, UsageRecords
from dovetail.instances.errors import InputError
from dovetail.instances.importers._hostlist import MOST_NAMES
from dovetail.instances.importers._slurm_records import (
    TIMES,
    SlurmData,
    gpus_asked,
    indices_of_job,
    nodes_of_job,
    number_of_job,
    state_of_job,
)
from dovetail.instances.importers._tres import gpus_in

_LISTED: Final = {
    "waiting": ("tres_req_str", "tres_alloc_str"),
    "running": ("tres_alloc_str",),
    "ended": ("tres_alloc_str",),
}
"""Fields with lists of resources by state; squeue prints as allocated what waiting jobs ask for."""

_NO_REASON: Final = ("", "None", "none")


class _GivenGpus(NamedTuple):
    """The GPUs of a job, and how many on each node, NaN if unequal or unknown."""

    held: HeldGpus
    on_each_node: float


def usage_of_jobs(jobs: Sequence[SlurmData], source: str) -> UsageRecords:
    """Return the jobs with GPUs as usage: what they have, or what waiting ones ask for.

    Raises
    ------
    InputError
        When two have the same id.
    """
    import pandas as pd

    rows: dict[str, Mapping[str, object]] = {}
    without = unlisted = 0
    left = MOST_NAMES
    for job in jobs:
        state = state_of(state_of_job(job))
        given = _given(job, state)
        if not given.held.gpus:
            without += 1
            continue
        name = _name(job)
        tasks = tasks_of(name, left)
        if tasks is None:
            unlisted += 1
        elif len(tasks) > 1:
            left -= len(tasks)
        row = _row(job, state, given)
        for task in tasks or (name,):
            if task in rows:
                raise InputError(f"must have each job once, got {task} twice", "", source)
            rows[task] = {"job": task, **row}
    notes = (
        f"waiting arrays whose tasks are not all listed, which count as one job each: {unlisted:,}."
    )
    return UsageRecords.of(
        pd.DataFrame([*rows.values()]),
        left_out=[Omission(without, "jobs", NO_GPU)],
        notes=[notes] if unlisted else [],
    )


def _given(job: SlurmData, state: str) -> _GivenGpus:
    detail = [_per_node(str(each)) for each in job.get("gres_detail") or []]
    nodes = int(number_of_job(job, "node_count") or 0)
    if state != "waiting" and any(detail):
        held = held_gpus(",".join(filter(None, detail)))
        counts = {sum(count for _, count in gpus_in(each)) for each in detail}
        return _GivenGpus(held, counts.pop() if len(counts) == 1 and held.gpus > 1 else np.nan)
    for key in _LISTED[state]:
        held = held_gpus(str(job.get(key) or ""))
        if held.gpus:
            return _GivenGpus(held, workers_per_node(held.gpus, nodes or held.nodes))
    asked = ",".join(str(job.get(key) or "") for key in TIMES)
    held = held_gpus(asked)._replace(gpus=gpus_asked(job))
    each = sum(count for _, count in gpus_in(str(job.get("tres_per_node") or "")))
    return _GivenGpus(held, each if each and held.gpus > 1 else np.nan)


def _per_node(detail: str) -> str:
    """Return the GPUs of a node without their indices."""
    return re.sub(r"\([^()]*\)", "", detail)


def _row(job: SlurmData, state: str, given: _GivenGpus) -> Mapping[str, object]:
    held = given.held
    placed = indices_of_job(job) if state == "running" else []
    nodes = nodes_of_job(job) if state != "waiting" else ()
    reason = str(job.get("state_reason") or "")
    return {
        "user": job.get("user_name") or None,
        "name": job.get("name") or None,
        "gpu_model": held.gpu_model,
        "node": ",".join(nodes) or None,
        "state": state,
        "reason": reason if state == "waiting" and reason not in _NO_REASON else None,
        "placement": ",".join(f"{node}/{gpu}" for node, gpu in placed) or None,
        "gpus": held.gpus,
        "fraction": held.fraction,
        "workers_per_node": given.on_each_node,
        "memory_request_mib": held.memory_mib,
        "submit_s": number_of_job(job, "submit_time") or np.nan,
        "start_s": number_of_job(job, "start_time") or np.nan if state != "waiting" else np.nan,
        "end_s": number_of_job(job, "end_time") or np.nan if state == "ended" else np.nan,
    }


def _name(job: SlurmData) -> str:
    array, task = number_of_job(job, "array_job_id"), number_of_job(job, "array_task_id")
    together, offset = number_of_job(job, "het_job_id"), number_of_job(job, "het_job_offset")
    if array and task is not None:
        return f"{array:.0f}_{task:.0f}"
    if array and job.get("array_task_string"):
        return f"{array:.0f}_[{job['array_task_string']}]"
    if together:
        return f"{together:.0f}+{offset or 0:.0f}"
    return str(job["job_id"])
