"""Policies: ``decide(state) -> Decision``, Dovetail's own and the baselines for comparison."""

from dovetail.formulations.rounds import Machines
from dovetail.solver.policies.policy import Decision, Policy, RoundProof, Start, objective_of
from dovetail.solver.policies.registry import (
    POLICIES,
    class_named,
    policy_class,
    policy_label,
    policy_named,
    policy_names,
)
from dovetail.solver.policies.state import Job, State

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
    "objective_of",
    "policy_class",
    "policy_label",
    "policy_named",
    "policy_names",
]
