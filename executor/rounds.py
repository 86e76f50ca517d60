"""The round loop of simulations and live mode: wait for events, decide, carry the decision out."""

from __future__ import annotations

import time
from typing import Protocol

from dovetail.solver.policies.policy import Decision, Policy, decided
from dovetail.solver.policies.services import services_first, services_kept, services_wait
from dovetail.solver.policies.state import State


class Pool(Protocol):
    """Where jobs run: a cluster with a clock, real or virtual."""

    @property
    def state(self) -> State:
        """The state that the policy sees."""
        ...

    def advance(self) -> bool:
        """Wait until a decision is due; return False if nothing more can happen."""
        ...

    def carry_out(self, decision: Decision, decide_s: float) -> None:
        """Stop and start jobs; the policy took ``decide_s`` seconds to decide."""
        ...


def run_rounds(pool: Pool, policy: Policy) -> None:
    """Run a pool under a policy until there is nothing left to do; services are placed first."""
    while pool.advance():
        served = services_wait(pool.state)
        if served and (first := services_first(pool.state)) is not None:
            pool.carry_out(first, 0.0)
        began = time.perf_counter()
        decision = decided(policy, pool.state)
        if served:
            decision = services_kept(pool.state, decision)
        pool.carry_out(decision, time.perf_counter() - began)
