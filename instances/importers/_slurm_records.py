"""Nodes and jobs as Slurm's commands print them.

Source: ``squeue --json`` (22.05 and later; in 23.x numbers became objects and states became lists)
and ``scontrol show node``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dovetail.instances._record import shown
from dovetail.instances.errors import InputError
from dovetail.instances.importers._hostlist import MOST_NAMES, hostnames
from dovetail.instances.importers._tres import gpus_in
from dovetail.instances.reading.contents import parse_json

_UNUSABLE: Final = {
    *("DOWN", "FAIL", "FUTURE", "MAINT", "MAINTENANCE", "NOT_RESPONDING", "POWERED_DOWN"),
    *("UNKNOWN",),
}
_DETAIL = re.compile(r"gpu:(?:(?P<model>[^:]+):)?(?P<count>\d+)\(IDX:(?P<index>[\d,-]*)\)")
TIMES: Final = {"tres_per_job": "", "tres_per_node": "node_count", "tres_per_task": "tasks"}
"""The fields with which a job asks for GPUs, and the field with the number of units."""

NO_TYPE: Final = "gpu"
_MOST_GPUS: Final = 1_000
"""The most GPUs of a node: a few characters can mean any number."""

_MOST_NUMBER: Final = 1e15
PAST: Final = ("submit_time", "last_sched_evaluation")
"""Times; the newest one is used as the current time."""

_NUMBERS: Final = (
    *(*PAST, "start_time", "end_time", "time_limit"),
    *filter(None, TIMES.values()),
    *("tasks_per_node", "max_nodes"),
)
"""Fields of jobs that are numbers, or mappings of 23.x with one."""

SlurmData = Mapping[str, Any]
"""A job as ``squeue --json`` has it."""


# Nodes.


def node_facts(text: str) -> Iterator[Mapping[str, str]]:
    """Yield what ``scontrol show node`` says of each node."""
    for part in re.split(r"^(?=NodeName=)", text, flags=re.MULTILINE):
        # Free text (Comment, Reason) comes last, and may look like facts.
        facts = dict(reversed(re.findall(r"(\w+)=(\S*)", part)))
        if "NodeName" in facts:
            yield facts


def gpu_models(facts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the type of each GPU of a node, ``gpu`` for GPUs without one.

    Raises
    ------
    InputError
        When there are more than a node can have.
    """
    gpus = [*gpus_in(re.sub(r"\([^()]*\)", "", facts.get("Gres", "")))]
    if sum(count for _, count in gpus) > _MOST_GPUS:
        raise InputError(f"must be at most {_MOST_GPUS} GPUs", f"node {facts['NodeName']}: Gres")
    return tuple(model or NO_TYPE for model, count in gpus for _ in range(count))


def is_usable(state: str) -> bool:
    """Return whether a node in this state runs jobs."""
    words = words_of(state)
    drained = "DRAIN" in words and not {"ALLOCATED", "MIXED"} & words
    return not (drained or "*" in state or _UNUSABLE & words)


def words_of(state: str) -> set[str]:
    """Return the words of a node's state like ``IDLE+DRAIN``."""
    return {*re.split(r"\W+", state)}


# Jobs.


def squeue_jobs(text: str, source: str) -> Sequence[SlurmData]:
    """Return the jobs that ``squeue --json`` prints.

    Raises
    ------
    InputError
        When it is something else, or a field that is used has another form.
    """
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


def _broken(job: SlurmData) -> Iterator[tuple[str, str]]:
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
    for key, look in (("nodes", nodes_of_job), ("gres_detail", indices_of_job)):
        try:
            look(job)
        except InputError as error:
            yield key, error.rule


def state_of_job(job: SlurmData) -> str:
    """Return the first of a job's states, the base of all others."""
    state = job.get("job_state")
    return str(state[0] if isinstance(state, list) and state else state)


def states_of_job(job: SlurmData) -> set[str]:
    """Return all states of a job."""
    return {str(one) for one in _list(job.get("job_state"))}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def number_of_job(job: SlurmData, key: str) -> float | None:
    """Return a number in either form; None if not set or infinite."""
    value = job.get(key)
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    return float(value) if isinstance(value, int | float) and value >= 0 else None


def gpus_of_job(job: SlurmData) -> int:
    """Return the total number of GPUs that a job has or asks for."""
    return len(indices_of_job(job)) if state_of_job(job) == "RUNNING" else gpus_asked(job)


def gpus_asked(job: SlurmData) -> int:
    """Return the total number of GPUs that a job asked for."""
    asked = _asked(job)
    if asked is None:
        return 0
    times = TIMES[asked[0]]
    return int(asked[1] * (number_of_job(job, times) or 1 if times else 1))


def _asked(job: SlurmData) -> tuple[str, int] | None:
    """Return the field with which a job asked for GPUs, and its number; None if it did not."""
    for key in TIMES:
        each = sum(count for _, count in gpus_in(str(job.get(key) or "")))
        if each:
            return key, each
    return None


def node_rule_of_job(job: SlurmData) -> dict[str, int]:
    """Return the rule on how many GPUs a waiting job has on a node, as fields of an instance."""
    gpus, asked = gpus_asked(job), _asked(job)
    if gpus < 2 or asked is None:
        return {}
    field, each = asked
    if field == "tres_per_node":
        return {"workers_per_node": each}
    if number_of_job(job, "max_nodes") == 1:
        return {"workers_per_node": gpus}
    if field == "tres_per_job":
        return {}
    on_node = int(each * (number_of_job(job, "tasks_per_node") or 0))
    if on_node and on_node * (number_of_job(job, "node_count") or 0) == gpus:
        return {"workers_per_node": on_node}
    return {"workers_together": each} if each > 1 else {}


def nodes_of_job(job: SlurmData) -> tuple[str, ...]:
    """Return the nodes of a job.

    Raises
    ------
    InputError
        When it names too many.
    """
    return hostnames(str(job.get("nodes", "")))


def indices_of_job(job: SlurmData) -> list[tuple[str, int]]:
    """Return the node and the index of each GPU of a running job.

    Raises
    ------
    InputError
        When indices have another form, or are too many.
    """
    found = []
    for node, detail in zip(nodes_of_job(job), job.get("gres_detail") or [], strict=False):
        for gpus in _DETAIL.finditer(str(detail)):
            indices = hostnames(f"[{gpus['index']}]" if gpus["index"] else "")
            if not all(re.fullmatch("[0-9]{1,9}", index) for index in indices):
                raise InputError("must have indices like 0-3,5")
            found += [(node, int(index)) for index in indices]
            if len(found) > MOST_NAMES:
                raise InputError(f"must name at most {MOST_NAMES} GPUs")
    return found
