"""Castor: shortest job first, sharing where it shortens the mean completion of the pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.formulations.values import SHORTER_BY, mean_completion
from dovetail.solver.policies.policy import Decision
from dovetail.solver.policies.shortest_first import (
    Host,
    Offers,
    Pairs,
    Queue,
    fits,
    joining_mode,
    share_shortest_first,
)
from dovetail.solver.policies.state import State


@dataclass(frozen=True)
class Castor:
    """SJF-BSBF: smallest job first with best sharing benefit first.

    Source: Castor (2025), section 5: Algorithm 1 for the queue and the GPUs (``shortest_first``),
    Algorithm 2 for the sub-batch of the joining job, theorem 1 for whether sharing now ends the
    pair earlier on average than one after the other. Running jobs are never stopped and keep
    their batch; at most two jobs share a GPU; gSLAs of batch jobs play no part.

    The theorem looks at a pair; a gang joins hosts each of which passes it by itself, as in
    Algorithm 1. Seconds are those on the host's GPU model. A sub-batch lengthens a job to its
    end, beyond the shared part; a job that waits is reckoned at full batch.

    Attributes
    ----------
    sub_batch : bool
        Whether a joining job may accumulate gradients over smaller batches to fit; False is the
        paper without batch size scaling.
    """

    sub_batch: bool = True

    def decide(self, state: State) -> Decision:
        """Start the shortest jobs, on idle GPUs or beside whom it pays."""
        return share_shortest_first(state, self._offers)

    def _offers(self, state: State, queue: Queue, hosts: Sequence[Host]) -> Offers:
        pairs = Pairs.of(state, queue, hosts)
        held = [[state.modes[host.job.workload][host.mode].stretch] for host in hosts]
        host_stretch = np.array(held, dtype=np.float64)
        left_s = (pairs.joining_left_s, pairs.hosting_left_s)
        one_by_one = pairs.hosting_left_s * host_stretch + pairs.joining_left_s / 2
        score = np.full(one_by_one.shape, np.inf)
        mode = np.zeros(one_by_one.shape, dtype=np.int64)
        for k in range(max(map(len, state.modes)) if self.sub_batch else 1):
            need, stretch = joining_mode(state, queue, k)
            alone = (stretch, host_stretch)
            shared = (pairs.joining * stretch, pairs.hosting * host_stretch)
            at_once = mean_completion(shared, alone, left_s)
            pays = (at_once < one_by_one * (1 - SHORTER_BY)) & fits(need, hosts)
            better = pays & (stretch <= pairs.most_stretch) & (at_once < score)
            score[better], mode[better] = at_once[better], k
        return Offers(score, mode)
