"""Co-scheML: the waiting and the running job with the least predicted interference together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from dovetail.instances.slowdown_table import UNCAPPED
from dovetail.solver.policies.greedy_pairs import pair_up
from dovetail.solver.policies.policy import Decision
from dovetail.solver.policies.state import Job, State


@dataclass(frozen=True)
class CoScheML:
    """Use idle GPUs first, then pair by the least interference, the sum of both slowdowns.

    Source: Co-scheML (Cluster Computing 2021, eq. 1 and Algorithm 1). Interference comes from the
    profile repository, that is from pairs that were measured while they ran, and from the
    prediction where a pair was never seen. A job is joined by one other at most. Pairs that would
    run out of memory, or of which nothing is predicted, are not made; no pair is too bad
    otherwise. The paper's jobs need one GPU; gangs: see ``pair_up``.
    """

    def decide(self, state: State) -> Decision:
        """Start jobs on idle GPUs, then beside lone ones, the least interference first."""
        return pair_up(state, partial(_interference, state))


def _interference(state: State, job: Job, residents: Sequence[Job], gpu: int) -> float:
    if not residents:
        return 0.0
    if len(residents) > 1:
        return math.inf
    model, other = state.machines.model[gpu], residents[0]
    both = _slowdown(state, model, job.workload, other.workload)
    both += _slowdown(state, model, other.workload, job.workload)
    return math.inf if math.isnan(both) else both


def _slowdown(state: State, model: int, workload: int, other: int) -> float:
    caps = state.predicted.caps_place[UNCAPPED]
    seen = state.seen.get((model, caps, workload, other))
    return state.predicted.rows[model][caps][workload][other] if seen is None else seen
