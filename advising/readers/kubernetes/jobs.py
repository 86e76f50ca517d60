"""Jobs from pods: the pods of a group are one job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from dovetail.advising.readers.kubernetes.pods import GpuPod

JOB_COLUMNS: Final = (
    *("job", "user", "name", "gpu_model", "node", "state", "reason", "placement", "sharing"),
    *("gpus", "fraction", "sm_share", "workers_together", "card_mib", "memory_request_mib"),
    *("submit_s", "start_s", "end_s", "service"),
)

_STATES: Final = ("running", "waiting", "ended")
"""The order in which the pods of one group get its name."""


def jobs_of(pods: Sequence[GpuPod], least: Mapping[str, int]) -> Iterator[tuple[str, list[GpuPod]]]:
    """Yield the id and the pods of each job.

    Pods of a group are one job if they start together: the group's record asks for two or more, or
    it has none and the pods' owner is of a kind whose pods work together. Pods of one group in
    different states are different jobs. Those that wait beside enough running ones wait alone.

    Parameters
    ----------
    pods : sequence of GpuPod
        The pods.
    least : mapping of str to int
        How many pods of a group must start together, of the groups with a record.
    """
    together: dict[tuple[str, str], list[GpuPod]] = {}
    for pod in pods:
        group = pod.work.group
        if group is not None and (least[group] > 1 if group in least else not pod.work.alone):
            together.setdefault((group, pod.state), []).append(pod)
    grouped: dict[int, str] = {}
    for state in _STATES:
        for (group, found), members in together.items():
            running = len(together.get((group, "running"), ()))
            extra = found == "waiting" and running >= least.get(group, math.inf)
            if found == state and len(members) > 1 and not extra:
                grouped |= dict.fromkeys(map(id, members), group)
    yield from _named(pods, grouped, together)


def _named(
    pods: Sequence[GpuPod],
    grouped: Mapping[int, str],
    together: Mapping[tuple[str, str], list[GpuPod]],
) -> Iterator[tuple[str, list[GpuPod]]]:
    """Yield single pods by their own name, and each group once; no name is given twice."""
    names = {pod.key for pod in pods if id(pod) not in grouped}
    done = set()
    for pod in pods:
        group = grouped.get(id(pod))
        if group is None:
            yield pod.key, [pod]
        elif (group, pod.state) not in done:
            done.add((group, pod.state))
            name = group if group not in names else f"{group} ({pod.state} group)"
            names.add(name)
            yield name, together[group, pod.state]


def job_row(name: str, pods: Sequence[GpuPod]) -> tuple[object, ...]:
    """Return the values of a job in the order of ``JOB_COLUMNS``."""
    first = pods[0]
    return (
        name,
        first.work.user,
        first.work.name,
        _only(pod.model for pod in pods),
        ",".join(dict.fromkeys(pod.node for pod in pods if pod.node)) or None,
        first.state,
        next((pod.reason for pod in pods if pod.reason), None),
        _placement(pods),
        _only(pod.request.sharing for pod in pods),
        sum(pod.request.gpus for pod in pods),
        _most(pod.request.fraction for pod in pods),
        _largest(pod.request.sm_share for pod in pods),
        math.gcd(*(pod.request.gpus for pod in pods)),
        _least(pod.card_mib for pod in pods),
        _most(pod.request.memory_mib for pod in pods),
        _least(pod.submit_s for pod in pods),
        _least(pod.start_s for pod in pods),
        _most(pod.end_s for pod in pods),
        any(pod.work.service for pod in pods),
    )


def is_uneven(pods: Sequence[GpuPod]) -> bool:
    """Return whether the pods of a job have different numbers of GPUs."""
    return len({pod.request.gpus for pod in pods}) > 1


def _placement(pods: Sequence[GpuPod]) -> str | None:
    """Return the GPUs that running pods hold."""
    if pods[0].state != "running":
        return None
    return ",".join(f"{pod.node}/{device}" for pod in pods for device in pod.devices)


def _only(texts: Iterable[str | None]) -> str | None:
    found = set(texts)
    return found.pop() if len(found) == 1 else None


def _most(numbers: Iterable[float]) -> float:
    """Return the largest number, NaN if one is unknown."""
    found = list(numbers)
    return math.nan if any(map(math.isnan, found)) else max(found)


def _largest(numbers: Iterable[float]) -> float:
    return max((each for each in numbers if not math.isnan(each)), default=math.nan)


def _least(numbers: Iterable[float]) -> float:
    return min((each for each in numbers if not math.isnan(each)), default=math.nan)
