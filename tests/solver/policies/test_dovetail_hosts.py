"""Dovetail's own policy on nodes with scarce host resources, in checked simulations."""

from __future__ import annotations

import pytest

from benchmarks.hosts import world as busy_world
from dovetail.executor.simulation import Options
from dovetail.executor.simulation.metrics import summary
from dovetail.instances.instance import Instance
from dovetail.instances.traces.draws import with_gslas, with_workloads
from dovetail.instances.traces.generated import synthetic
from dovetail.solver.policies import policy_named
from tests.executor.simulation.worlds import finishes, run, trace


def world(cores=8.0, nodes=2, gpus=2, **needs) -> Instance:
    gpu = {"model": "V100", "memory_mib": 16000.0}
    needs = needs or {"heavy": 6.0, "light": 1.0}
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "hosts",
            "cluster": {
                "nodes": [
                    {"id": f"n{k}", "host": {"cpu_cores": cores}, "gpu_count": gpus, "gpu": gpu}
                    for k in range(nodes)
                ]
            },
            "workloads": {
                name: {"memory_mib": 9000.0, "host": {"cpu_cores": cores}}
                for name, cores in needs.items()
            },
            "jobs": [],
        }
    )


def nodes_of(history) -> list[set[int]]:
    return [{gpu // 2 for gpu in stay.gpus} for stay in sorted(history.stays)]


def test_what_slows_each_other_is_kept_apart():
    # Two that need 6 of 8 cores slow each other by 1.5 on one node, and not at all on two.
    jobs = trace((0, 1, 1000, "heavy"), (0, 1, 1000, "light"), (0, 1, 1000, "heavy"))
    known = run(jobs, world(), policy_named("dovetail"))
    assert finishes(known) == [1000.0, 1000.0, 1000.0]
    blind = run(jobs, world(nodes=1, gpus=3), policy_named("dovetail"), Options(hosts_known=False))
    assert finishes(blind) == [1625.0, 1625.0, 1625.0]


def test_a_job_starts_beyond_what_is_left_where_that_is_worth_it():
    # Of 8 cores, 5 + 5 slow both by 1.25, which is better than one after the other; 6 + 6 is not.
    jobs = trace((0, 1, 900, "some"), (0, 1, 900, "some"))
    history = run(jobs, world(nodes=1, some=5.0), policy_named("dovetail"))
    assert finishes(history) == [pytest.approx(1125, abs=2), pytest.approx(1125, abs=2)]
    jobs = trace((0, 1, 900, "heavy"), (0, 1, 900, "heavy"))
    assert sorted(finishes(run(jobs, world(nodes=1), policy_named("dovetail")))) == [900.0, 1800.0]


def test_a_job_waits_where_it_would_break_the_gsla_of_one_that_it_slows():
    jobs = trace((0, 1, 900, "heavy", 1.2), (0, 1, 900, "heavy"))
    history = run(jobs, world(nodes=1), policy_named("dovetail"))
    assert sorted(finishes(history)) == [900.0, 1800.0]


def test_a_job_alone_is_not_slowed_by_its_own_workers():
    jobs = trace((0, 2, 600, "heavy"))
    assert finishes(run(jobs, world(nodes=1), policy_named("dovetail"))) == [600.0]


def test_an_overdue_job_is_served_though_its_host_is_busy():
    # The gang asks for all cores of the node; light jobs keep coming.
    patient = policy_named("dovetail:patience_s=100,patience_stretch=0")
    many = [(k * 50, 1, 200, "light") for k in range(40)]
    jobs = trace((0, 1, 300, "heavy"), (1, 2, 50, "heavy"), *many)
    history = run(jobs, world(nodes=1), patient)
    assert history.outcomes[1].first_start_s <= 800


def test_the_other_gpus_of_a_reserved_node_drain():
    patient = policy_named("dovetail:patience_s=100,patience_stretch=0")
    jobs = trace((0, 1, 1000, "heavy", 1.1), (1, 1, 50, "heavy", 1.1), (20, 1, 60, "light"))
    history = run(jobs, world(nodes=1, gpus=3), patient)
    assert finishes(history)[1] <= 1050.0 + 2


def test_gangs_and_pairs_in_a_busy_world_keep_their_gslas():
    where = busy_world(seed=3)
    drawn = with_workloads(synthetic(40, 3, 32, 1.5, largest=4), tuple(where.workloads), 3)
    jobs = with_gslas(drawn, "uniform:1:2", 3)
    history = run(jobs, where, policy_named("dovetail"))
    assert summary(history, jobs)["violation_rate"] == 0
