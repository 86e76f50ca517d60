"""The one round loop: wait until something happens, let the policy decide, carry it out."""

from __future__ import annotations

import time
from typing import Protocol

from dovetail.solver.policies import Decision, Policy, State
from dovetail.solver.policies.policy import decided


class Pool(Protocol):
    """Where jobs run: a cluster with a clock, real or virtual."""

    @property
    def state(self) -> State:
        """What the policy sees."""
        ...

    def advance(self) -> bool:
        """Wait until a decision is called for; False once nothing will ever happen again."""
        ...

    def carry_out(self, decision: Decision, decide_s: float) -> None:
        """Stop and start jobs as decided in ``decide_s`` seconds of the policy's own time."""
        ...


def run_rounds(pool: Pool, policy: Policy) -> None:
    """Let a policy run a pool until there is nothing left to do."""
    while pool.advance():
        began = time.perf_counter()
        decision = decided(policy, pool.state)
        pool.carry_out(decision, time.perf_counter() - began)
