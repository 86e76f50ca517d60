"""Slurm's nodes and jobs, as ``scontrol show node`` and ``scontrol show job -d`` print them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from dovetail.advising.reader import Reader
from dovetail.advising.readers._slurm import held_gpus
from dovetail.advising.readers._slurm_jobs import usage_of_jobs
from dovetail.advising.usage import Omission, UsageRecords
from dovetail.instances._record import shown
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.importers._hostlist import hostnames
from dovetail.instances.importers._slurm_records import (
    NO_TYPE,
    SlurmData,
    gpu_models,
    indices_of_job,
    is_usable,
    node_facts,
    nodes_of_job,
    words_of,
)
from dovetail.instances.importers._tres import UNKNOWN
from dovetail.instances.reading.contents import read_text

_NAME: Final = re.compile(r"JobName=(.*?)(?=\s+(?:UserId|HetJobIdSet)=)")
_ON_NODES: Final = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_TEXTS: Final = {
    "JobState": "job_state",
    "Reason": "state_reason",
    "NodeList": "nodes",
    "TresPerJob": "tres_per_job",
    "TresPerNode": "tres_per_node",
    "TresPerTask": "tres_per_task",
    "ArrayTaskId": "array_task_string",
}
_NUMBERS: Final = {
    "NumNodes": "node_count",
    "NumTasks": "tasks",
    "ArrayJobId": "array_job_id",
    "HetJobId": "het_job_id",
    "HetJobOffset": "het_job_offset",
}
_TIMES: Final = {"SubmitTime": "submit_time", "StartTime": "start_time", "EndTime": "end_time"}


def _are_nodes(_name: str, start: str) -> bool:
    return start.lstrip().startswith("NodeName=") and "Arch=" in start


def _are_jobs(_name: str, start: str) -> bool:
    return re.match(r"\s*JobId=\d+ ", start) is not None


def _read_nodes(path: Path) -> UsageRecords:
    """Return the nodes with GPUs.

    Raises
    ------
    InputError
        When a node has too many GPUs or appears twice.
    """
    import pandas as pd

    source = source_name(path)
    rows: list[Mapping[str, object]] = []
    seen: set[str] = set()
    slices = without = 0
    for facts in node_facts(_text(path, "NodeName=", "scontrol show node", source)):
        try:
            models = Counter(gpu_models(facts))
        except InputError as error:
            raise error.at(source) from None
        name = facts["NodeName"]
        if name in seen:
            raise InputError(f"must have each node once, got {shown(name)} twice", "", source)
        seen.add(name)
        without += not models
        for model, count in models.items():
            if held_gpus(f"gres/gpu:{model}=1").fraction > 0:
                slices += count
                continue
            closed = _is_closed(facts.get("State", ""))
            known = None if model == NO_TYPE else model
            rows.append({"node": name, "gpu_model": known, "gpus": count, "closed": closed})
    return UsageRecords.of(
        nodes=pd.DataFrame(rows),
        left_out=[
            Omission(without, "nodes", "have no GPU"),
            Omission(slices, "instances of MIG", "Slurm does not list the GPUs that they are of"),
        ],
    )


def _text(path: Path, word: str, command: str, source: str) -> str:
    text = read_text(path)
    if word not in text:
        raise InputError(f"must be what {command} prints", "", source)
    return text


def _is_closed(state: str) -> bool:
    return not is_usable(state) or "DRAIN" in words_of(state)


def _read_jobs(path: Path) -> UsageRecords:
    """Return the running and waiting jobs with GPUs.

    Raises
    ------
    InputError
        When a number, a time or a list of nodes has another form.
    """
    source = source_name(path)
    text = _text(path, "JobId=", "scontrol show job -d", source)
    return usage_of_jobs([*_jobs(text, source)], source)


def _jobs(text: str, source: str) -> Iterator[SlurmData]:
    """Yield the jobs in the fields of ``squeue --json``."""
    for part in re.split(r"^(?=JobId=\d)", text, flags=re.MULTILINE):
        name = _NAME.search(part)
        # Free text comes last, and may look like facts.
        facts = dict(reversed(re.findall(r"(\S+?)=(\S*)", _NAME.sub("", part, count=1))))
        if "JobId" in facts:
            try:
                yield _job(part, facts, name[1] if name else "")
            except InputError as error:
                where = f"job {facts['JobId']}{error.path and f': {error.path}'}"
                raise InputError(error.rule, where, source) from None


def _job(part: str, facts: Mapping[str, str], name: str) -> SlurmData:
    listed = facts.get("TRES") or facts.get("AllocTRES") or ""
    job: dict[str, object] = {
        "job_id": facts["JobId"],
        "name": name,
        "user_name": facts.get("UserId", "").partition("(")[0],
        "tres_alloc_str": listed,
        "tres_req_str": facts.get("ReqTRES") or listed,
        "gres_detail": [
            gres for nodes, gres in _ON_NODES.findall(part) for _node in hostnames(nodes)
        ],
    }
    for key, field in _TEXTS.items():
        job[field] = "" if facts.get(key) == "(null)" else facts.get(key, "")
    for key, field in _NUMBERS.items():
        job[field] = _count(facts, key)
    for key, field in _TIMES.items():
        job[field] = _time_s(facts, key)
    nodes_of_job(job)
    indices_of_job(job)
    return job


def _count(facts: Mapping[str, str], key: str) -> int | None:
    """Return a number, the smallest of a range."""
    text = facts.get(key)
    if text is None or text in UNKNOWN:
        return None
    if not re.fullmatch(r"\d{1,9}(-\d{1,9})?", text):
        raise InputError(f"must be a whole number, got {shown(text)}", key)
    return int(text.partition("-")[0])


def _time_s(facts: Mapping[str, str], key: str) -> float | None:
    text = facts.get(key)
    if text is None or text in UNKNOWN:
        return None
    try:
        found = float(text) if text.isdecimal() else _since_1970_s(text)
    except ValueError:
        rule = f"must be a time like 2026-08-11T14:36:24, got {shown(text)}"
        raise InputError(rule, key) from None
    return found


def _since_1970_s(text: str) -> float:
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


NODES: Final = Reader("Slurm's nodes by scontrol show node", _are_nodes, _read_nodes)
JOBS: Final = Reader("Slurm's jobs by scontrol show job -d", _are_jobs, _read_jobs)
