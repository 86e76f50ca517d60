"""Starting the jobs of a plan by hand: environment variables for each rank."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from dovetail.executor.mps.processes import DEVICES, PERCENTAGE
from dovetail.instances._record import IDLE, listed
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan, Stop
from dovetail.instances.slowdowns.entry import SharingMode

_TIME_SLICED: Final = "time_sliced"
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Fa-f-]+")
_STOPS = """\
# Stop the jobs named in "stop first", on all nodes, before anything starts.
"""
_HEAD = """\
# Each line is a process of a job that starts: put its command between variables and comment.
# Devices are numbered as in the instance, which must be in the order of nvidia-smi.
export CUDA_DEVICE_ORDER=PCI_BUS_ID"""
_TURNS = """\
# The jobs take turns on a GPU (sharing: time_sliced): no MPS daemon may run on {where}.
"""


@dataclass(frozen=True)
class Rank:
    """One process of a job that starts.

    Attributes
    ----------
    job, node, gpu : str
        The job, and the node and GPU of the process.
    rank, workers : int
        Number of the process, from 0, and how many the job has.
    sub_batch : int or None
        The sub-batch at which the plan lets the job run.
    environment : dict of str to str
        Environment variables that the process needs.
    """

    job: str
    node: str
    gpu: str
    rank: int
    workers: int
    sub_batch: int | None
    environment: Mapping[str, str]

    def to_data(self) -> dict[str, Any]:
        """Return the rank as plain data."""
        return asdict(self)


def ranks(instance: Instance, plan: Plan) -> Iterator[Rank]:
    """Yield every process of the jobs that a plan starts or moves.

    A GPU whose id is a UUID is named by it, others by their position in their node.

    Raises
    ------
    UnsupportedError
        When a job starts at the share ``idle``, which no variable of MPS sets.
    """
    numbers = {
        gpu.id: gpu.id if _UUID.fullmatch(gpu.id) else str(k)
        for node in instance.cluster.nodes
        for k, gpu in enumerate(node.devices)
    }
    jobs = instance.jobs_by_id
    for row in plan.assignments:
        if not plan.starts(row, jobs[row.job].running):
            continue
        for rank, (gpu, share) in enumerate(zip(row.gpus, row.shares, strict=True)):
            if share == IDLE:
                rule = "the share idle needs isolation, which variables of MPS cannot give"
                raise UnsupportedError(f"{row.job} on {gpu}: {rule}")
            environment = {DEVICES: numbers[gpu]}
            if share is not None:
                environment[PERCENTAGE] = str(share)
            node, workers = instance.places[gpu].node, len(row.gpus)
            yield Rank(row.job, node, gpu, rank, workers, row.sub_batch, environment)


def shell_lines(instance: Instance, stops: Iterable[Stop], found: Iterable[Rank]) -> Iterator[str]:
    """Yield lines for a shell, node by node: the jobs to stop there, then the ranks to start."""
    leaving: dict[str, list[str]] = defaultdict(list)
    for stop in stops:
        for gpu in stop.gpus:
            leaving[instance.places[gpu].node].append(f"# stop first: {stop.job} on {gpu}")
    starting: dict[str, list[Rank]] = defaultdict(list)
    for rank in found:
        starting[rank.node].append(rank)
    sharing = _sharing(instance)
    everywhere = set(sharing.values()) == {_TIME_SLICED}
    turns = _TURNS.format(where="the nodes") if everywhere else ""
    yield turns + (_STOPS if leaving else "") + _HEAD
    for node in sorted({*leaving, *starting}):
        yield f"\n# on {node}"
        if not everywhere and (where := _without_mps(instance, node, sharing)):
            yield _TURNS.format(where=where).rstrip()
        yield from leaving[node]
        for rank in starting[node]:
            variables = " ".join(f"{name}={value}" for name, value in rank.environment.items())
            yield f"{variables}  # {_text(rank)}"


def _sharing(instance: Instance) -> Mapping[str, SharingMode]:
    """Return how jobs share each GPU."""
    return {gpu: instance.cluster.sharing_on(place.gpu) for gpu, place in instance.places.items()}


def _without_mps(instance: Instance, node: str, sharing: Mapping[str, SharingMode]) -> str:
    """Return the GPUs of a node on which jobs take turns in words; empty if there are none."""
    gpus = [gpu for gpu, place in instance.places.items() if place.node == node]
    turns = [gpu for gpu in gpus if sharing[gpu] == _TIME_SLICED]
    return "this node" if turns == gpus else listed(turns)


def _text(rank: Rank) -> str:
    parts = [f"command of {rank.job}: on {rank.gpu}"]
    if rank.workers > 1:
        parts.append(f"rank {rank.rank} of {rank.workers}")
    if rank.sub_batch is not None:
        parts.append(f"sub-batch {rank.sub_batch}")
    return ", ".join(parts)
