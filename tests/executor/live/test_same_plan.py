"""The same jobs on the same devices make the same plan, whichever pool has the devices."""

from __future__ import annotations

import json
from functools import partial

from dovetail import solve
from dovetail.executor.jobs.journal import Journal
from dovetail.executor.live.service import Service, ServiceOptions
from dovetail.executor.pools.cpu import CpuPool
from dovetail.executor.pools.simulated import SimulatedNode
from dovetail.instances.datasets import Measurement, Repository, SoloProfile
from dovetail.instances.instance import Instance
from tests.executor.live.test_service import ME, serving, spec
from tests.executor.pools.test_cpu_pool import TWO_CORES

SLOWDOWNS = {("A", "A"): (1.9, 1.9), ("A", "B"): (1.2, 1.3), ("B", "B"): (1.6, 1.6)}
"""Synthetic slowdowns: a good packing pairs each A with a B."""

JOBS = [("A", 1, None), ("A", 1, 1.1), ("B", 1, None), ("B", 1, None), ("A", 2, None)]
"""Workload, workers and gSLA of each job."""


def simulated(directory, cluster):
    truth = Instance(name="truth", cluster=cluster, workloads={}, jobs=())
    return SimulatedNode(directory, truth)


def models(cluster):
    return {gpu.model for node in cluster.nodes for gpu in node.devices}


def learned(path, known):
    """Return a repository in which both workloads are known on some device models."""
    repository = Repository(path)
    for model in known:
        alone = {"gpu_model": model, "throughput": 9.0, "memory_mib": 64.0}
        repository.append(
            [SoloProfile(workload=f"{ME.name}/{name}", **alone) for name in "AB"],
            [
                Measurement(
                    workloads=tuple(f"{ME.name}/{name}" for name in pair),
                    gpu_model=model,
                    slowdown=slowdown,
                )
                for pair, slowdown in SLOWDOWNS.items()
            ],
        )
    return repository


def planned(directory, make):
    """Return the cluster, the service's plan and the solver's plan on a pool."""
    directory.mkdir()
    with Journal(directory) as journal:
        pool = make(directory)
        cluster = pool.cluster()
        repository = learned(directory / "repository.db", models(cluster))
        with serving(Service(journal, pool, repository, ServiceOptions(dry_run=True))) as service:
            jobs = [
                spec(workload=name, workers=workers, gsla=gsla).replace(
                    memory_mib=64.0, estimate_s=60.0
                )
                for name, workers, gsla in JOBS
            ]
            service.api.submit(jobs, ME)
            plan, instance = service.api.plan(), service.api.instance()
    return cluster, [named_by_place(plan, cluster), named_by_place(solve(instance).plan, cluster)]


def named_by_place(plan, cluster):
    """Return assignments and waiting jobs of a plan with devices named by their place."""
    text = json.dumps([plan.to_data().get(key) for key in ("assignments", "waiting")])
    devices = [gpu.id for node in cluster.nodes for gpu in node.devices]
    for k, device in enumerate(devices):
        text = text.replace(device, f"device {k}")
    return json.loads(text)


@TWO_CORES
def test_of_a_machine_and_a_simulation(tmp_path):
    cluster, local = planned(tmp_path / "local", lambda path: CpuPool(path, devices=2))
    # An A with a B on one device; on the other the A that no job may slow by more than 1.1.
    assert sorted(row["slowdown"] for row in local[0][0]) == [1.0, 1.2, 1.3]
    _, simulation = planned(tmp_path / "simulation", partial(simulated, cluster=cluster))
    assert local == simulation
