"""A policy whose faults cost idle devices, and nothing else."""

from __future__ import annotations

import logging
from typing import Final

from dovetail.solver.policies import Decision, Policy, Start, State, policy_named
from dovetail.solver.policies.policy import NOTHING, decided

AGAIN_S: Final = 60.0
"""Seconds after which a policy that failed is asked again, if nothing happens before."""

_LOG: Final = logging.getLogger("dovetail.live")


class GuardedPolicy:
    """A policy by name, whose faults leave everything as it is until it is asked again.

    What policies remember by GPU and workload is of one state: with another one a fresh policy
    decides.

    Parameters
    ----------
    name : str
        Name and options, as in ``policy_named``.
    troubles : dict
        Where its faults are told, under ``policy``.

    Raises
    ------
    UnsupportedError
        When there is no such policy.
    """

    def __init__(self, name: str, troubles: dict[str, str]) -> None:
        self.name = name
        self._policy = policy_named(name)
        self._state: State | None = None
        self._troubles = troubles

    def decide(self, state: State) -> Decision:
        """Return what the policy decides."""
        if state is not self._state:
            self._policy, self._state = policy_named(self.name), state
        try:
            decision = asked(self._policy, state)
        except Exception as error:
            _LOG.exception("the policy failed")
            self._troubles["policy"] = f"the policy failed: {error}"
            return NOTHING._replace(wake_s=state.now + AGAIN_S, reserved=state.reserved)
        self._troubles.pop("policy", None)
        return decision

    def starts(self, state: State) -> tuple[Start, ...]:
        """Return what a fresh policy of its name would start on devices that are not reserved.

        Nothing where that would stop others first.
        """
        try:
            decision = asked(policy_named(self.name), state)
        except Exception:
            # It fails again when it decides, and is told then.
            return ()
        starts = (s for s in decision.starts if state.reserved_gpus.isdisjoint(s.gpus))
        return () if decision.stops else tuple(starts)


def asked(policy: Policy, state: State) -> Decision:
    """Return what a policy decides; nothing while the pool has no devices at all yet."""
    return decided(policy, state) if len(state.machines) else NOTHING
