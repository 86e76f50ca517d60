"""Live jobs whose workers stay together on nodes: what is refused."""

from __future__ import annotations

import os

import pytest

from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.live.requests.admission import AdmissionLimits, refuse_hopeless
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance

JOB = {"command": ["/bin/true"], "workload": "w", "cwd": "/", "workers": 16}
OWNER = {"uid": os.geteuid(), "gid": os.getegid(), "name": "ann"}


def spec(**rule):
    return JobSpec.from_data({**JOB, "owner": OWNER, **rule})


def submit(job, devices):
    refuse_hopeless(job, job.owner, devices, AdmissionLimits(), "jobs[0].")


def cluster(*sizes):
    lab = Instance.build("pool")
    for k, gpus in enumerate(sizes):
        lab.add_node(f"n{k}", gpus=gpus, model="A100", memory_mib=40960)
    return lab.instance().cluster


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            {"workers_per_node": 8},
            "workers_per_node: must let 16 workers start; the nodes hold 8 in groups of 8",
        ),
        (
            {"workers_together": 8},
            "workers_together: must let 16 workers start; the nodes hold 8 in groups of 8",
        ),
    ],
)
def test_a_gang_that_no_nodes_hold_is_refused(rule, message):
    with pytest.raises(InputError) as caught:
        submit(spec(**rule), cluster(7, 7, 8))
    assert str(caught.value).endswith(message)
    submit(spec(**rule), cluster(7, 8, 8))


def test_rules_for_nodes_divide_the_workers_and_one_is_enough():
    with pytest.raises(InputError, match=r"workers_per_node: must divide workers \(16\), got 3"):
        spec(workers_per_node=3)
    with pytest.raises(InputError, match="workers_together: must not be given with"):
        spec(workers_per_node=8, workers_together=8)
