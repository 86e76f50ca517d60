"""A policy whose failures have no other effect than idle devices."""

from __future__ import annotations

import logging
from typing import Final

from dovetail.solver.policies.policy import NOTHING, Decision, Policy, Start, decided
from dovetail.solver.policies.registry import policy_named
from dovetail.solver.policies.services import services_first
from dovetail.solver.policies.state import State

AGAIN_S: Final = 60.0
"""Seconds after which a policy that failed is asked again, unless something happens earlier."""

_LOG: Final = logging.getLogger("dovetail.live")


class GuardedPolicy:
    """A policy by name; a decision that fails changes nothing.

    Policies remember data by GPU and workload of one state object. When the state is replaced by
    another object, the policy is replaced too.

    Parameters
    ----------
    name : str
        Name and options, as in ``policy_named``.

    Attributes
    ----------
    trouble : str
        Why the last decision failed; empty if it did not.

    Raises
    ------
    UnsupportedError
        If there is no such policy.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.trouble = ""
        self._policy = policy_named(name)
        self._state: State | None = None

    def decide(self, state: State) -> Decision:
        """Return the policy's decision."""
        if state is not self._state:
            self._policy, self._state = policy_named(self.name), state
        try:
            decision = asked(self._policy, state)
        except Exception as error:
            _LOG.exception("the policy failed")
            self.trouble = f"the policy failed: {error}"
            return NOTHING._replace(wake_s=state.now + AGAIN_S, reserved=state.reserved)
        self.trouble = ""
        return decision

    def starts(self, state: State) -> tuple[Start, ...]:
        """Return the starts of a new policy of this name on devices that are not reserved.

        Starts for which the policy would stop jobs are left out.
        """
        try:
            decision = services_first(state) or asked(policy_named(self.name), state)
        except Exception:
            # It will fail again when it decides, and that is reported.
            return ()
        taken = state.reserved_gpus.union(*(job.gpus for job in decision.stops))
        starts = (start for start in decision.starts if start.job not in decision.stops)
        return tuple(start for start in starts if taken.isdisjoint(start.gpus))


def asked(policy: Policy, state: State) -> Decision:
    """Return a policy's decision; nothing if the pool has no devices yet."""
    return decided(policy, state) if len(state.machines) else NOTHING
