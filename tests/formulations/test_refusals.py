"""Refusals of a waiting job agree with the groups that plans choose from."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dovetail.formulations.candidates.listing import list_groups
from dovetail.formulations.candidates.refusals import NONE_DISPLACED, Refusal, Refusals
from dovetail.formulations.candidates.sites import sites_of
from dovetail.formulations.values import JobValues
from dovetail.instances.objectives import OBJECTIVES, ObjectiveName
from tests.forms import values_of
from tests.strategies import Shape, random_instance

Group = tuple[int, frozenset[tuple[int, int]]]
"""A class of GPUs, and the variants with their shares."""


def listed(values: JobValues, job: int) -> set[Group]:
    """Return the groups of one pending job and all residents, without any other job."""
    groups = list_groups(values.round, values)
    found = set()
    for group in range(len(groups)):
        members = groups.members(group)
        jobs = groups.job[members.start : members.stop].tolist()
        pending = [k for k in jobs if not groups.round.jobs.running[k]]
        residents = groups.round.classes.residents[groups.gpu_class[group]]
        if pending == [job] and len(jobs) == residents + 1:
            seats = ((int(groups.variant[m]), int(groups.share[m])) for m in members)
            found.add((int(groups.gpu_class[group]), frozenset(seats)))
    return found


def possible(values: JobValues, job: int) -> set[Group]:
    """Return the groups with running jobs that are not refused to a job."""
    refusals = Refusals(values.round, values, sites_of(values.round, ()))
    each = refusals.candidates(job)
    free = (refusals.keys(job) < Refusal.TAKEN) & (each.displaced == NONE_DISPLACED)
    found = set()
    for row in np.flatnonzero(free):
        group = refusals.groups_of(job, np.array([row]))
        seats = zip(group.variant[0].tolist(), group.share[0].tolist(), strict=True)
        found.add((int(group.gpu_class[0]), frozenset(seats)))
    return found


@given(st.randoms(use_true_random=False), st.sampled_from(OBJECTIVES))
def test_nothing_refuses_a_group_that_plans_choose_from(draw: Random, objective: ObjectiveName):
    """Dominated groups are in no list, and are not refused either."""
    values = values_of(random_instance(draw, Shape(jobs=6, gpus=4)), objective)
    for job in np.flatnonzero(~values.round.jobs.running).tolist():
        offered, free = listed(values, job), possible(values, job)
        assert offered <= free
        assert {gpu_class for gpu_class, _ in free} == {gpu_class for gpu_class, _ in offered}
