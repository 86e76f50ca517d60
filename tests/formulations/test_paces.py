"""Gangs at discretised paces: the value of a plan at a pace, and the paces left out."""

import numpy as np
import pytest

from dovetail.formulations.candidates.listing import candidate_groups, list_groups
from dovetail.formulations.objectives import job_values
from dovetail.formulations.rounds import Round
from dovetail.instances.instance import Instance
from dovetail.solver.registry import Auto
from dovetail.solver.types import Limits

SLOWDOWNS = {"a": 1.1, "b": 1.2, "c": 1.5, "d": 3.0}


def _compiled(workers=2, remaining_s=100.0):
    """Return a waiting gang and four running jobs of increasing slowdown."""
    hosts = [
        {
            "id": name,
            "workload": name,
            "state": "running",
            "gpus": [f"n0-{k}"],
            "remaining_s": 1000.0,
        }
        for k, name in enumerate(SLOWDOWNS)
    ]
    gang = {"id": "g", "workload": "g", "workers": workers, "remaining_s": remaining_s}
    return Round.of(
        Instance.from_data(
            {
                "format": "dovetail-instance/1",
                "name": "hosts",
                "cluster": {
                    "gang_sharing": "partial",
                    "nodes": [
                        {"id": "n0", "gpu_count": 4, "gpu": {"model": "A", "memory_mib": 16000}}
                    ],
                },
                "workloads": {name: {"memory_mib": 1000} for name in ("g", *SLOWDOWNS)},
                "jobs": [*hosts, gang],
                "slowdowns": [
                    {"pair": ["g", name], "slowdown": [slowdown, 1.02]}
                    for name, slowdown in SLOWDOWNS.items()
                ],
            }
        )
    )


def _at_paces(compiled):
    """Return the pace of the gang and its own slowdown in each of its groups, by variant."""
    groups = list_groups(compiled, job_values(compiled, "completion"), at_paces=True)
    gang = np.flatnonzero(groups.job == 4)
    found = {}
    for member in gang.tolist():
        host = groups.gpu_class[groups.group_of_member[member]]
        found.setdefault(int(groups.variant[member]), []).append(
            (float(groups.slowdown[member]), tuple(SLOWDOWNS.values())[host])
        )
    return found


def test_each_pace_has_the_gpus_that_slow_the_gang_no_more():
    found = _at_paces(_compiled())
    assert all(own <= pace for rows in found.values() for pace, own in rows)
    assert all(len({pace for pace, _ in rows}) == 1 for rows in found.values())
    # One host alone has too few GPUs, so the least pace is that of the second.
    assert sorted({rows[0][0] for rows in found.values()})[0] == 1.2


def test_a_pace_has_enough_gpus_for_the_gang():
    assert all(len(rows) >= 3 for rows in _at_paces(_compiled(workers=3)).values())


def test_the_gang_starts_at_the_pace_of_its_slowest_gpu():
    compiled = _compiled()
    groups = candidate_groups(job_values(compiled, "completion"), at_paces=True)
    choice = Auto().best(groups, Limits())
    taken = np.flatnonzero((choice.counts[groups.group_of_member] > 0) & (groups.job == 4))
    assert {groups.slowdown[k] for k in taken.tolist()} == {1.2}
    # It would wait 1,000 s for two GPUs; so it starts at 120 s, and delays each host by the 2 %.
    assert choice.value == pytest.approx(choice.bound)
    assert choice.value > 0
