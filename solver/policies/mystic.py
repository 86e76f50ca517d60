"""Mystic: the least alike together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.solver.policies.greedy_pairs import pair_up
from dovetail.solver.policies.policy import Decision
from dovetail.solver.policies.profiles import similarities
from dovetail.solver.policies.state import Job, State


@dataclass
class Mystic:
    """Pair the waiting and the running job whose metrics are least alike.

    Source: Ukidave et al., Mystic, IPDPS 2016, as the baseline of Co-scheML (Cluster Computing
    2021, sections 6.1.3 and 7.2): applications are compared by their metric vectors, and the less
    similar they are the less they are expected to interfere; idle GPUs are used first. Co-scheML
    does not name the measure; here it is the cosine of the vectors of all metrics that every
    workload has, each over its largest value, unweighted. Mystic's collaborative filtering, which
    completes a short profile, has nothing to do where profiles are complete. Beside several jobs
    the most similar one counts. Gangs: see ``pair_up``.
    """

    _alike: list[list[float]] = field(init=False, repr=False, default_factory=list)

    def decide(self, state: State) -> Decision:
        """Start jobs on idle GPUs, then beside others, the least similar pair first."""
        if not self._alike:
            self._alike = similarities(state)
        return pair_up(state, self._similarity)

    def _similarity(self, job: Job, residents: Sequence[Job], gpu: int) -> float:
        row = self._alike[job.workload]
        return max([row[other.workload] for other in residents], default=0.0)
