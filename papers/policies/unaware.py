"""GPU sharing without awareness of interference, like Kubernetes plugins for shared GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from dovetail.papers.policies.open_gpus import OpenGpus, by_node
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.queues import Queue, by_arrival
from dovetail.solver.policies.state import Job, State


@dataclass(frozen=True)
class Unaware:
    """Jobs in the order of arrival share GPUs with any residents.

    Source: "GPU sharing" of TensorShare (FGCS 2026, section 4.1): jobs are selected one after the
    other, and the next of the queue joins a job that runs alone. Placement is the default of
    Kubernetes, least allocated: the node with the largest fraction of free places, and on it the
    GPUs with the fewest jobs. The first job that fits nowhere blocks later ones. A GPU's memory is
    respected, as by the plugins.

    Gangs of any sizes share, GPU by GPU: for Kubernetes every worker is a separate container. All
    workers start together, however, on the least allocated node that holds the whole gang if there
    is one (the paper keeps a job on one machine).
    """

    _queue: Queue = field(init=False, repr=False, default_factory=partial(Queue, by_arrival))

    def decide(self, state: State) -> Decision:
        """Start jobs from the head of the queue until one does not fit."""
        if not state.pending:
            return NOTHING
        draft = Draft(state)
        start_spread(draft, self._queue.jobs(state))
        return draft.decision()


def start_spread(
    draft: Draft, jobs: Iterable[Job], may_join: Callable[[Job, int], bool] | None = None
) -> None:
    """Start jobs in order, each on the least allocated GPUs, up to the first that fits nowhere.

    ``may_join`` returns whether a job may use a GPU that has room for it; None = always.
    """
    open_gpus = OpenGpus(draft)
    if not open_gpus:
        return
    for job in jobs:
        gpus = [gpu for alike in open_gpus.open_to(job) for gpu in alike]
        if may_join is not None:
            gpus = [gpu for gpu in gpus if may_join(job, gpu)]
        chosen = _least_allocated(draft, job, gpus)
        if chosen is None:
            return
        open_gpus.start(job, chosen)


def _least_allocated(draft: Draft, job: Job, gpus: list[int]) -> list[int] | None:
    nodes = draft.state.machines.node_gpus

    def allocated(node: int) -> float:
        return sum([len(draft.residents(gpu)) for gpu in nodes[node]]) / len(nodes[node])

    return by_node(draft, job, gpus, allocated, lambda gpu: len(draft.residents(gpu)))
