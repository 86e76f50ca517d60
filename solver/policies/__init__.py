"""Policies: ``decide(state) -> Decision``, Dovetail's own and every baseline of the field."""

from dovetail.solver.policies.policy import Decision, Policy, RoundProof, Start
from dovetail.solver.policies.registry import (
    POLICIES,
    class_named,
    policy_class,
    policy_label,
    policy_named,
)
from dovetail.solver.policies.state import Job, Machines, State

__all__ = [
    "POLICIES",
    "Decision",
    "Job",
    "Machines",
    "Policy",
    "RoundProof",
    "Start",
    "State",
    "class_named",
    "policy_class",
    "policy_label",
    "policy_named",
]
