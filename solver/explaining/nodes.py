"""Which GPUs of which nodes suit a job whose workers stay together on nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dovetail.instances._record import listed
from dovetail.instances.instance import Job

_MOST_NAMED = 3
"""The number of different counts of GPUs up to which a text names the nodes of each."""


class GpuAtSite(NamedTuple):
    """A GPU, with the key of a job there, its node and its site."""

    key: float
    node: int
    gpu: int
    site: int


def whole_groups(job: Job, gpus: Iterable[GpuAtSite]) -> Sequence[GpuAtSite]:
    """Return the best GPUs for all workers of a job in whole groups on nodes, worst last.

    The worst key is the least possible. Nothing is returned if there are too few GPUs.
    """
    on: dict[int, list[GpuAtSite]] = defaultdict(list)
    for each in sorted(gpus):
        on[each.node].append(each)
    groups = [group for there in on.values() for group in _groups_of(job, there)]
    groups.sort(key=lambda group: group[-1].key)
    taken = groups[: job.workers // job.together]
    if len(taken) * job.together < job.workers:
        return []
    return sorted(each for group in taken for each in group)


def _groups_of(job: Job, there: Sequence[GpuAtSite]) -> Iterable[Sequence[GpuAtSite]]:
    """Yield the groups of GPUs of one node, the best first."""
    for first in range(0, groups_on(job, len(there)) * job.together, job.together):
        yield there[first : first + job.together]


def groups_on(job: Job, gpus: int) -> int:
    """Return how many groups of workers a node can have on this many GPUs."""
    number = gpus // job.together
    return number if job.workers_per_node is None else min(number, 1)


def keeps_groups(job: Job, nodes: Iterable[int]) -> bool:
    """Return whether workers on these nodes are whole groups."""
    on = Counter(nodes).values()
    return all(groups_on(job, number) * job.together == number for number in on)


def enough_groups(job: Job, names: Mapping[str, int]) -> bool:
    """Return whether nodes with these GPUs have whole groups for all workers of a job."""
    groups = sum(groups_on(job, number) for number in names.values())
    return groups * job.together >= job.workers


def lacks_text(job: Job, names: Mapping[str, int], such: str = "") -> str:
    """Return what a job needs on nodes, and how many GPUs the nodes have for it.

    Parameters
    ----------
    job : Job
        The job.
    names : mapping of str to int
        The GPUs that it could have on each node.
    such : str
        What these GPUs are, before the word: "free " or "available ".
    """
    number, size = job.workers // job.together, job.together
    gpus = f"{size} {such}GPU{'s' * (size > 1)}"
    needs = f"{number} times {gpus} on one node"
    if number == 1:
        needs = f"a node with {gpus}"
    elif job.workers_per_node is not None:
        needs = f"{number} nodes with {gpus} each"
    return f"it needs {needs}; {_counted(names)}"


def _counted(names: Mapping[str, int]) -> str:
    """Return how many GPUs the nodes have: "n2 has 8, n0 and n1 7"."""
    alike: dict[int, list[str]] = defaultdict(list)
    for name, number in names.items():
        alike[number].append(name)
    found: list[str] = []
    for number in sorted(alike, reverse=True)[:_MOST_NAMED]:
        has = "" if found else " has" if len(alike[number]) == 1 else " have"
        nodes = alike[number]
        who = " and ".join(nodes) if len(nodes) == 2 else listed(nodes, 3)
        found.append(f"{who}{has} {number or 'none'}")
    more = len(alike) - _MOST_NAMED
    return ", ".join(found) + (f", {more} more have fewer" if more > 0 else "")
