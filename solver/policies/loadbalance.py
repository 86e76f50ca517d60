"""LoadBalance: the least utilised GPUs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from dovetail.solver.policies.greedy_pairs import pair_up
from dovetail.solver.policies.policy import Decision
from dovetail.solver.policies.profiles import utilisation
from dovetail.solver.policies.state import Job, State


@dataclass(frozen=True)
class LoadBalance:
    """Pair the waiting and the running job whose GPU utilisations add up to the least.

    Source: a baseline of Co-scheML (Cluster Computing 2021, section 6.1.3): pairs by average GPU
    utilisation, the least first; idle GPUs are used first. Utilisation is that of the solo
    profile (``gpu_util``, or else ``sm_active``). Gangs: see ``pair_up``.
    """

    def decide(self, state: State) -> Decision:
        """Start jobs on idle GPUs, then beside others, the least utilised pair first."""
        return pair_up(state, partial(_load, state))


def _load(state: State, job: Job, residents: Sequence[Job], gpu: int) -> float:
    return sum([utilisation(state, other.workload) for other in (job, *residents)])
