"""Binpack: as few nodes in use as memory allows."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.greedy_pairs import start_in_turn, waiting_groups
from dovetail.solver.policies.policy import NOTHING, Decision
from dovetail.solver.policies.rooms import Rooms, by_node
from dovetail.solver.policies.state import Job, State


@dataclass(frozen=True)
class Binpack:
    """Each job goes to the node whose memory is fullest and still holds it.

    Source: a baseline of Co-scheML (Cluster Computing 2021, sections 2.3 and 6.1.3), which looks
    at the largest use of memory only. Jobs are taken in the order of arrival; one that fits
    nowhere is passed over, as by Kubernetes, into which the paper builds it. On a node the GPU
    whose memory is fullest is taken first.

    The paper's jobs need one GPU. A gang goes to the fullest node that holds all of it, else to
    several nodes in that order; its workers share GPU by GPU.
    """

    def decide(self, state: State) -> Decision:
        """Start every waiting job that fits, packed as densely as memory allows."""
        if not state.pending:
            return NOTHING
        draft = Draft(state)
        rooms = Rooms(draft)
        if not rooms:
            return NOTHING

        def fullest(job: Job) -> list[int] | None:
            gpus = [gpu for alike in rooms.open_to(job) for gpu in alike]
            if len(gpus) < job.workers:
                return None
            return by_node(draft, job, gpus, lambda node: -_fullness(draft, node), free)

        def free(gpu: int) -> float:
            return -_used_mib(draft, gpu) / state.machines.memory_mib[gpu]

        start_in_turn(waiting_groups(state), rooms, fullest)
        return draft.decision()


def _fullness(draft: Draft, node: int) -> float:
    """Return the part of a node's GPU memory that is in use."""
    machines = draft.state.machines
    gpus = machines.node_gpus[node]
    used = sum([_used_mib(draft, gpu) for gpu in gpus])
    return used / sum([machines.memory_mib[gpu] for gpu in gpus])


def _used_mib(draft: Draft, gpu: int) -> float:
    return sum([draft.state.needs_mib(job) for job in draft.residents(gpu)])
