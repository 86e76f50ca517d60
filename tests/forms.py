"""The forms of a round that solvers work on, from an instance."""

from __future__ import annotations

from dovetail.formulations.budget import UNLIMITED, Budget
from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.candidates.listing import candidate_groups
from dovetail.formulations.objectives import Objective, job_values
from dovetail.formulations.rounds import Round
from dovetail.formulations.values import JobValues
from dovetail.instances.instance import Instance


def values_of(instance: Instance, objective: Objective = "throughput") -> JobValues:
    """Return an objective with the round of an instance."""
    return job_values(Round.of(instance), objective)


def groups_of(
    instance: Instance, objective: Objective = "throughput", budget: Budget = UNLIMITED
) -> Groups:
    """Return the candidate groups of an instance."""
    return candidate_groups(values_of(instance, objective), budget)
