"""The checker on hosts: mutual costs of jobs on one node, and permitted starts."""

from __future__ import annotations

import pytest

from dovetail.instances.checking.checker import CheckReport, check
from dovetail.instances.hosts import Hosts, host_slowdown, needs
from dovetail.instances.instance import Instance, Workload
from dovetail.instances.plan import Assignment, Plan

GPU = {"model": "A", "memory_mib": 1000}


def report(jobs, starts, host=None, needs=None, nodes=1, gpus=3) -> CheckReport:
    """Return the report on starts, by job its GPUs, on nodes of 8 cores."""
    host, needs = host or {"cpu_cores": 8}, needs or {"cpu_cores": 6}
    instance = Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "hosts",
            "cluster": {
                "nodes": [
                    {"id": f"n{k}", "host": host, "gpu_count": gpus, "gpu": GPU}
                    for k in range(nodes)
                ]
            },
            "workloads": {"a": {"memory_mib": 1, "host": needs}, "b": {"memory_mib": 1}},
            "jobs": jobs,
            "slowdowns": [{"pair": ["a", "b"], "slowdown": [1.1, 1.2]}],
        }
    )
    held = {job["id"]: job["gpus"] for job in jobs if "gpus" in job}
    rows = [
        Assignment(job=job, gpus=tuple(names), share=(None,) * len(names), start=job in starts)
        for job, names in (held | starts).items()
    ]
    return check(instance, Plan(assignments=tuple(rows)), "throughput")


def running(job, *gpus, **fields):
    held = {"state": "running", "gpus": list(gpus), "workers": len(gpus)}
    return {"id": job, "workload": "a", **held, **fields}


def test_a_start_beyond_what_is_left_slows_both():
    found = report([running("r", "n0-0"), {"id": "p", "workload": "a"}], {"p": ["n0-1"]})
    assert found.valid
    assert found.job_slowdown == {"r": 1.5, "p": 1.5}
    assert found.value == pytest.approx(4 / 3)


def test_a_job_that_asks_for_nothing_is_not_slowed():
    jobs = [running("r", "n0-0"), running("s", "n0-1"), running("t", "n0-2", workload="b")]
    assert report(jobs, {}).job_slowdown == {"r": 1.5, "s": 1.5, "t": 1.0}


def test_a_gang_alone_is_not_slowed_by_itself():
    assert report([running("r", "n0-0", "n0-1", "n0-2")], {}).job_slowdown == {"r": 1.0}


@pytest.mark.parametrize(
    ("jobs", "starts", "rule"),
    [
        (
            [{"id": "p", "workload": "a"}, {"id": "q", "workload": "a"}],
            {"p": ["n0-0"], "q": ["n0-1"]},
            "at most one job may start beyond what is left",
        ),
        (
            [running("r", "n0-0"), {"id": "p", "workload": "a"}, {"id": "q", "workload": "b"}],
            {"p": ["n0-1"], "q": ["n0-0"]},
            "at most one job may start beyond what is left",
        ),
        (
            [
                running("r", "n0-0"),
                running("s", "n0-1", workload="b"),
                {"id": "p", "workload": "a"},
            ],
            {"p": ["n0-1"]},
            "p may start alone on a GPU only",
        ),
        (
            [running("r", "n0-0", "n1-0"), {"id": "p", "workload": "a"}],
            {"p": ["n0-1"]},
            "the gang r runs there and on other nodes",
        ),
        (
            [running("r", "n0-0", gsla=1.2), {"id": "p", "workload": "a"}],
            {"p": ["n0-1"]},
            "job r: gsla: slowdown 1.5 > 1.2",
        ),
        (
            [running("r", "n0-0"), {"id": "p", "workload": "a", "gsla": 1.2}],
            {"p": ["n0-1"]},
            "job p: gsla: slowdown 1.5 > 1.2",
        ),
    ],
)
def test_starts_that_may_not_be(jobs, starts, rule):
    found = report(jobs, starts, nodes=2)
    assert not found.valid
    assert rule in " ".join(map(str, found.violations))


def test_needs_of_pcie_and_network_follow_from_the_metrics():
    metrics = {"pcie_rx_bytes_s": 3e9, "pcie_tx_bytes_s": 1e9, "net_tx_bytes_s": 2e9}
    data = {"memory_mib": 1, "metrics": metrics, "host": {"net_bytes_s": 1e9}}
    assert needs(Workload.from_data(data)) == (0, 0, 0, 3e9, 1e9)


def test_the_model_and_the_checker_agree():
    jobs = [running("r", "n0-0", "n0-1"), running("s", "n0-2")]
    has, asked = {"cpu_cores": 8, "disk_bytes_s": 1e9}, {"cpu_cores": 3, "disk_bytes_s": 5e8}
    found = report(jobs, {}, has, asked)
    data = {"id": "n0", "host": has, "gpu_count": 3, "gpu": GPU}
    node = Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "x",
            "cluster": {"nodes": [data]},
            "workloads": {"a": {"memory_mib": 1, "host": asked}},
            "jobs": [],
        }
    )
    hosts = Hosts(node.cluster.nodes, tuple(node.workloads.values()))
    gang, single = hosts.part(0, 0, 2), hosts.part(0, 0, 1)
    load = 2 * gang + single
    assert found.job_slowdown["r"] == pytest.approx(float(host_slowdown(gang, load)))
    assert found.job_slowdown["s"] == pytest.approx(1.5)
