"""Shortest job first with first-fit sharing: Castor without its judgement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
class SjfFfs:
    """Share with the first that fits whenever idle GPUs are too few.

    Source: baseline 7 of Castor (2025), section 9.1, which says that it colocates greedily when
    idle resources do not suffice and differs from Castor in not asking whether that pays. So it
    is Algorithm 1 with every pair that fits in place of theorem 1, in the order of the cluster's
    GPUs. A job joins at the largest batch whose memory fits. A pair of which nothing is
    predicted may not share, as everywhere in Dovetail.
    """

    def decide(self, state: State) -> Decision:
        """Start the shortest jobs, on idle GPUs or beside the first that have room."""
        return share_shortest_first(state, _first_fit)


def _first_fit(state: State, queue: Queue, hosts: Sequence[Host]) -> Offers:
    pairs = Pairs.of(state, queue, hosts)
    known = ~np.isnan(pairs.joining + pairs.hosting)
    order = np.array([float(host.gpus[0]) for host in hosts])[:, None]
    score = np.full(known.shape, np.inf)
    mode = np.zeros(known.shape, dtype=np.int64)
    for k in range(max(map(len, state.modes))):
        need, stretch = joining_mode(state, queue, k)
        kept = fits(need, hosts) & (stretch <= pairs.most_stretch)
        first = known & kept & (score == np.inf)
        score[first], mode[first] = np.broadcast_to(order, score.shape)[first], k
    return Offers(score, mode)
