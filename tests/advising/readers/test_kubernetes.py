"""Objects of Kubernetes as usage: requests of every scheduler, states, groups and nodes."""

from __future__ import annotations

import gzip
import io
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dovetail.advising.reader import read_usage
from dovetail.advising.usage import UsageRecords
from dovetail.instances.errors import InputError

Data = dict[str, Any]


def pod(
    name: str,
    limits: Data | None = None,
    *,
    namespace: str = "ml",
    annotations: Data | None = None,
    labels: Data | None = None,
    owner: tuple[str, str] | None = None,
    node: str | None = None,
    phase: str | None = None,
    spec: Data | None = None,
    status: Data | None = None,
    metadata: Data | None = None,
) -> Data:
    """Return a pod as kubectl prints it."""
    owners = [{"kind": owner[0], "name": owner[1], "controller": True}] if owner else []
    started = {"startTime": "2026-11-01T10:00:05Z"} if node else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "creationTimestamp": "2026-11-01T10:00:00Z",
            "annotations": annotations or {},
            "labels": labels or {},
            "ownerReferences": owners,
            **(metadata or {}),
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": limits or {}}}],
            **({"nodeName": node} if node else {}),
            **(spec or {}),
        },
        "status": {
            "phase": phase or ("Running" if node else "Pending"),
            **started,
            **(status or {}),
        },
    }


def node(name: str, labels: Data | None = None, capacity: Data | None = None, **more: Data) -> Data:
    """Return a node as kubectl prints it."""
    own = {f"nvidia.com/gpu.{key}": value for key, value in (labels or {}).items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": own, **more.pop("metadata", {})},
        "spec": more.pop("spec", {}),
        "status": {"capacity": {"cpu": "64", **(capacity or {})}, **more.pop("status", {})},
    }


def read(tmp_path: Path, *objects: Data) -> UsageRecords:
    """Read objects from a list in JSON."""
    file = tmp_path / "pods.json"
    file.write_text(json.dumps({"apiVersion": "v1", "items": objects, "kind": "List"}))
    return read_usage(str(file))


def row(usage: UsageRecords, job: str) -> Data:
    """Return what is known of a job."""
    (found,) = usage.jobs[usage.jobs["job"] == job].to_dict("records")
    return {key: value for key, value in found.items() if value is not None and value == value}


A100 = {"product": "NVIDIA-A100-SXM4-80GB", "memory": "81920", "count": "8"}
EIGHT = {"nvidia.com/gpu": "8"}


def test_whole_gpus_on_a_node(tmp_path: Path) -> None:
    usage = read(
        tmp_path, pod("train", {"nvidia.com/gpu": "4"}, node="n1"), node("n1", A100, EIGHT)
    )
    assert row(usage, "ml/train") == {
        "job": "ml/train",
        "user": "ml",
        "name": "train",
        "gpu_model": "NVIDIA-A100-SXM4-80GB",
        "node": "n1",
        "state": "running",
        "placement": "n1/,n1/,n1/,n1/",
        "gpus": 4.0,
        "workers_together": 4.0,
        "card_mib": 81920.0,
        "submit_s": 1793527200.0,
        "start_s": 1793527205.0,
        "service": False,
    }
    (row_of_node,) = usage.nodes.to_dict("records")
    assert row_of_node == {
        "node": "n1",
        "gpu_model": "NVIDIA-A100-SXM4-80GB",
        "gpus": 8.0,
        "card_mib": 81920.0,
        "rack": None,
        "sharing": None,
        "closed": False,
    }


def test_init_containers_and_sidecars_count_as_kubernetes_counts_them(tmp_path: Path) -> None:
    def container(gpus: int, **more: str) -> Data:
        return {"resources": {"requests": {"nvidia.com/gpu": gpus}}, **more}

    sidecar = container(1, restartPolicy="Always")
    specs: dict[str, Data] = {
        "sum": {"containers": [container(1), container(2)]},
        "init": {"containers": [container(1)], "initContainers": [container(4), container(2)]},
        "sidecar": {"containers": [container(2)], "initContainers": [sidecar]},
        "before": {"containers": [container(1)], "initContainers": [sidecar, container(3)]},
        "after": {"containers": [container(1)], "initContainers": [container(3), sidecar]},
    }
    usage = read(tmp_path, *(pod(name, spec=spec) for name, spec in specs.items()))
    gpus = dict(zip(usage.jobs["job"], usage.jobs["gpus"], strict=True))
    assert gpus == {"ml/sum": 3, "ml/init": 4, "ml/sidecar": 3, "ml/before": 4, "ml/after": 3}


@pytest.mark.parametrize(
    ("annotations", "found"),
    [
        ({"gpu-fraction": "0.5"}, {"gpus": 1.0, "fraction": 0.5}),
        ({"gpu-memory": "4000"}, {"gpus": 1.0, "memory_request_mib": 4000.0}),
        (
            {"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"},
            {"gpus": 2.0, "fraction": 0.25, "workers_together": 2.0},
        ),
    ],
)
def test_parts_of_gpus_of_kai(tmp_path: Path, annotations: Data, found: Data) -> None:
    usage = read(
        tmp_path, pod("a", annotations=annotations, spec={"schedulerName": "kai-scheduler"})
    )
    assert row(usage, "ml/a").items() >= found.items()


def test_annotations_of_kai_mean_nothing_to_another_scheduler(tmp_path: Path) -> None:
    usage = read(
        tmp_path,
        pod("a", annotations={"gpu-fraction": "0.5"}, spec={"schedulerName": "default-scheduler"}),
    )
    assert usage.jobs.empty
    assert [str(each) for each in usage.left_out] == ["pods (1): ask for no GPU"]


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        (
            {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30},
            {"gpus": 2.0, "memory_request_mib": 3000.0, "sm_share": 0.3},
        ),
        ({"nvidia.com/gpumem": "3k"}, {"gpus": 1.0, "memory_request_mib": 3000.0}),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 25}, {"fraction": 0.25}),
        ({"volcano.sh/gpu-memory": "1024"}, {"gpus": 1.0, "memory_request_mib": 1024.0}),
        ({"volcano.sh/gpu-number": "2"}, {"gpus": 2.0}),
        (
            {
                "volcano.sh/vgpu-number": 2,
                "volcano.sh/vgpu-memory": 4096,
                "volcano.sh/vgpu-cores": 50,
            },
            {"gpus": 2.0, "memory_request_mib": 4096.0, "sm_share": 0.5},
        ),
        (
            {"nvidia.com/mig-1g.10gb": 1},
            {"gpus": 1.0, "gpu_model": "NVIDIA MIG-1G.10GB", "fraction": 1 / 7},
        ),
    ],
)
def test_parts_of_gpus_of_hami_volcano_and_mig(tmp_path: Path, limits: Data, found: Data) -> None:
    assert row(read(tmp_path, pod("a", limits)), "ml/a").items() >= found.items()


def test_devices_that_schedulers_have_assigned(tmp_path: Path) -> None:
    hami = {"hami.io/vgpu-devices-allocated": "GPU-aa,NVIDIA,3000,30:GPU-bb,NVIDIA,3000,30:;"}
    volcano = {"volcano.sh/gpu-index": "0"}
    usage = read(
        tmp_path,
        pod("h", {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000}, annotations=hami, node="n1"),
        pod("v", {"volcano.sh/gpu-memory": 1024}, annotations=volcano, node="n2"),
        pod(
            "k",
            annotations={"gpu-fraction": "0.5"},
            labels={"runai-gpu-group": "g-1"},
            node="n3",
        ),
        pod(
            "gpu-reservation-n3-x",
            {"nvidia.com/gpu": 1},
            namespace="kai-resource-reservation",
            labels={"runai-gpu-group": "g-1"},
            annotations={"run.ai/reserve_for_gpu_index": "GPU-cc"},
            node="n3",
        ),
    )
    placed = dict(zip(usage.jobs["job"], usage.jobs["placement"], strict=True))
    assert placed == {"ml/h": "n1/GPU-aa,n1/GPU-bb", "ml/v": "n2/0", "ml/k": "n3/GPU-cc"}
    assert [str(each) for each in usage.left_out] == [
        "pods (1): hold GPUs for pods that share them (KAI)"
    ]


def test_replicas_of_time_slicing_count_as_parts_and_cards_once(tmp_path: Path) -> None:
    labels = {
        "product": "Tesla-T4-SHARED",
        "memory": "15360",
        "replicas": "4",
        "sharing-strategy": "time-slicing",
    }
    usage = read(tmp_path, pod("a", {"nvidia.com/gpu": 1}, node="n1"), node("n1", labels, EIGHT))
    assert row(usage, "ml/a").items() >= {"fraction": 0.25, "gpu_model": "Tesla-T4"}.items()
    assert usage.nodes["gpus"].tolist() == [2.0]
    assert usage.notes == (
        "Replicas of GPUs are used by 1 pod: each counts as an equal part, but under time-slicing "
        "it limits neither memory nor SMs.",
    )


def test_instances_of_mig_called_gpus_are_parts_too(tmp_path: Path) -> None:
    labels = {"product": "NVIDIA-A100-SXM4-80GB-MIG-3g.40gb", "memory": "40192"}
    single = node("n1", labels, {"nvidia.com/gpu": 2})
    usage = read(tmp_path, pod("a", {"nvidia.com/gpu": 1}, node="n1"), single)
    assert row(usage, "ml/a")["fraction"] == 3 / 7
    assert usage.notes == (
        "Instances of MIG, which count as the parts of a GPU that their names say, are used by 1 "
        "pod.",
    )


def test_instances_of_mig_are_parts_and_gpus_of_their_own_model(tmp_path: Path) -> None:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        "nvidia.com/gpu.memory": "81920",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig-1g.10gb.memory": "9728",
        "nvidia.com/mig-1g.10gb.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
    }
    mixed = node("n1", None, {"nvidia.com/gpu": 6, "nvidia.com/mig-1g.10gb": 14})
    mixed["metadata"]["labels"] = labels
    usage = read(tmp_path, pod("a", {"nvidia.com/mig-1g.10gb": 1}, node="n1"), mixed)
    assert (
        row(usage, "ml/a").items()
        >= {
            "gpu_model": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
            "card_mib": 9728.0,
            "fraction": 1 / 7,
        }.items()
    )
    assert usage.nodes[["gpu_model", "gpus", "card_mib"]].to_numpy().tolist() == [
        ["NVIDIA-A100-SXM4-80GB", 6.0, 81920.0],
        ["NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", 14.0, 9728.0],
    ]


@pytest.mark.parametrize(
    ("name", "register"),
    [
        (
            "hami.io/node-nvidia-register",
            '[{"id":"GPU-a","count":10,"devmem":24576,"type":"NVIDIA L4","health":true},'
            '{"id":"GPU-b","count":10,"devmem":24576,"type":"NVIDIA L4","health":false}]',
        ),
        (
            "hami.io/node-nvidia-register",
            "GPU-a,10,24576,100,NVIDIA L4,0,true:GPU-b,10,24576,100,NVIDIA L4,0,false:",
        ),
        ("volcano.sh/node-vgpu-register", "GPU-a,10,24576,NVIDIA L4,true:"),
    ],
)
def test_cards_that_device_plugins_register(tmp_path: Path, name: str, register: str) -> None:
    registered = node(
        "n1", None, {"nvidia.com/gpu": 20}, metadata={"annotations": {name: register}}
    )
    usage = read(tmp_path, registered)
    assert usage.nodes[["gpu_model", "gpus", "card_mib"]].to_numpy().tolist() == [
        ["NVIDIA L4", 1.0, 24576.0]
    ]


def test_cards_of_volcanos_device_plugin(tmp_path: Path) -> None:
    capacity = {"volcano.sh/gpu-number": "2", "volcano.sh/gpu-memory": "49152"}
    usage = read(tmp_path, node("n1", None, capacity))
    assert usage.nodes[["gpus", "card_mib"]].to_numpy().tolist() == [[2.0, 24576.0]]


def test_states_reasons_and_pods_that_never_ran(tmp_path: Path) -> None:
    gpu = {"nvidia.com/gpu": 1}
    unschedulable = {
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
            }
        ]
    }
    done = {
        "containerStatuses": [{"state": {"terminated": {"finishedAt": "2026-11-01T11:00:00Z"}}}]
    }
    deleted = {"deletionTimestamp": "2026-11-01T10:30:00Z"}
    usage = read(
        tmp_path,
        pod("waits", gpu, status=unschedulable),
        pod("starts", gpu, node="n1", phase="Pending"),
        pod("lost", gpu, node="n1", phase="Unknown"),
        pod("leaves", gpu, node="n1", metadata=deleted),
        pod("done", gpu, node="n1", phase="Succeeded", status=done),
        pod("failed", gpu, node="n1", phase="Failed"),
        pod("gone", gpu, metadata=deleted),
        pod("evicted", gpu, phase="Failed"),
    )
    assert dict(zip(usage.jobs["job"], usage.jobs["state"], strict=True)) == {
        "ml/waits": "waiting",
        "ml/starts": "running",
        "ml/lost": "running",
        "ml/leaves": "running",
        "ml/done": "ended",
        "ml/failed": "ended",
    }
    assert row(usage, "ml/waits")["reason"] == (
        "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    )
    assert row(usage, "ml/done")["end_s"] - row(usage, "ml/done")["start_s"] == 3595.0
    assert [str(each) for each in usage.left_out] == [
        "pods (2): ended or are deleted before they had a GPU"
    ]


def test_kinds_of_work_users_and_services(tmp_path: Path) -> None:
    gpu = {"nvidia.com/gpu": 1}
    ports = {
        "containers": [{"ports": [{"containerPort": 80}], "resources": {"limits": gpu}}],
    }
    hashed = {"pod-template-hash": "7d4b9"}
    usage = read(
        tmp_path,
        pod("web-7d4b9-x", owner=("ReplicaSet", "web-7d4b9"), labels=hashed, spec=ports),
        pod("batch-7d4b9-y", gpu, owner=("ReplicaSet", "batch-7d4b9"), labels=hashed),
        pod("night-29391840-z", gpu, owner=("Job", "night-29391840")),
        pod("nb-0", owner=("StatefulSet", "nb"), labels={"notebook-name": "nb"}, spec=ports),
        pod("jupyter-eve", gpu, annotations={"hub.jupyter.org/username": "eve"}),
        pod("ks-1", gpu, labels={"serving.kserve.io/inferenceservice": "llm"}),
        pod("ls-1", gpu, labels={"koordinator.sh/qosClass": "LS"}),
        pod("w-1", gpu, labels={"ray.io/cluster": "c-1", "ray.io/originated-from-cr-name": "c"}),
    )
    jobs = usage.jobs
    assert jobs[["name", "user", "service"]].to_numpy().tolist() == [
        ["web", "ml", True],
        ["batch", "ml", False],
        ["night", "ml", False],
        ["nb", "ml", False],
        ["jupyter-eve", "eve", False],
        ["llm", "ml", True],
        ["ls-1", "ml", True],
        ["c", "ml", False],
    ]


def podgroup(name: str, least: int) -> Data:
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"minMember": least},
    }


def test_pods_of_a_group_are_one_job(tmp_path: Path) -> None:
    member = {"scheduling.k8s.io/group-name": "ddp"}
    eight = {"nvidia.com/gpu": 8}
    usage = read(
        tmp_path,
        pod("ddp-master-0", eight, annotations=member, owner=("PyTorchJob", "ddp")),
        pod("ddp-worker-0", eight, annotations=member, owner=("PyTorchJob", "ddp")),
    )
    assert (
        row(usage, "ml/ddp").items()
        >= {
            "gpus": 16.0,
            "workers_together": 8.0,
            "state": "waiting",
        }.items()
    )


def test_pods_of_one_state_of_a_group_are_a_job_and_extra_ones_wait_alone(tmp_path: Path) -> None:
    gpu = {"nvidia.com/gpu": 1}
    a, b = {"pod-group-name": "a"}, {"pod-group-name": "b"}
    usage = read(
        tmp_path,
        podgroup("a", 2),
        podgroup("b", 1),
        *(pod(f"a-{k}", gpu, annotations=a, node="n1") for k in range(2)),
        *(pod(f"a-{k}", gpu, annotations=a) for k in range(2, 4)),
        *(pod(f"b-{k}", gpu, annotations=b) for k in range(2)),
    )
    jobs = dict(zip(usage.jobs["job"], usage.jobs["gpus"], strict=True))
    assert jobs == {"ml/a": 2.0, "ml/a-2": 1.0, "ml/a-3": 1.0, "ml/b-0": 1.0, "ml/b-1": 1.0}


def test_a_group_that_lost_members_waits_as_a_whole(tmp_path: Path) -> None:
    gpu, a = {"nvidia.com/gpu": 1}, {"pod-group-name": "a"}
    usage = read(
        tmp_path,
        podgroup("a", 4),
        *(pod(f"a-{k}", gpu, annotations=a, node="n1") for k in range(2)),
        *(pod(f"a-{k}", gpu, annotations=a) for k in range(2, 4)),
    )
    assert usage.jobs[["job", "state", "gpus"]].to_numpy().tolist() == [
        ["ml/a", "running", 2.0],
        ["ml/a (waiting group)", "waiting", 2.0],
    ]


def test_replicas_of_a_deployment_are_no_gang(tmp_path: Path) -> None:
    gpu, group = {"nvidia.com/gpu": 1}, {"scheduling.k8s.io/group-name": "podgroup-1"}
    usage = read(
        tmp_path,
        *(pod(f"w-{k}", gpu, annotations=group, owner=("ReplicaSet", "w")) for k in range(3)),
    )
    assert usage.jobs["job"].tolist() == ["ml/w-0", "ml/w-1", "ml/w-2"]


def test_pods_with_unequal_numbers_of_gpus_in_a_group(tmp_path: Path) -> None:
    group = {"pod-group-name": "a"}
    usage = read(
        tmp_path,
        pod("a-0", {"nvidia.com/gpu": 4}, annotations=group),
        pod("a-1", {"nvidia.com/gpu": 8}, annotations=group),
    )
    assert row(usage, "ml/a").items() >= {"gpus": 12.0, "workers_together": 4.0}.items()
    assert usage.notes == (
        "In 1 group of pods, the pods have different numbers of GPUs: for what must be on one "
        "node, their greatest common divisor counts.",
    )


def template(gpus: int) -> Data:
    return {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus}}}]}}


def controller(kind: str, name: str, spec: Data, **more: Data) -> Data:
    api = {"kind": kind, "apiVersion": more.pop("api", "x/v1")}
    return {**api, "metadata": {"name": name, "namespace": "ml"}, "spec": spec, **more}


@pytest.mark.parametrize(
    ("kind", "spec", "jobs"),
    [
        (
            "PyTorchJob",
            {
                "runPolicy": {"suspend": True},
                "pytorchReplicaSpecs": {
                    "Master": {"replicas": 1, "template": template(8)},
                    "Worker": {"replicas": 3, "template": template(8)},
                },
            },
            [["ml/x", 32.0, 8.0, "PyTorchJob is suspended"]],
        ),
        (
            "RayJob",
            {
                "rayClusterSpec": {
                    "headGroupSpec": {"template": template(0)},
                    "workerGroupSpecs": [{"replicas": 2, "template": template(4)}],
                }
            },
            [["ml/x", 8.0, 4.0, None]],
        ),
        (
            "LeaderWorkerSet",
            {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template(8)}},
            [["ml/x-0", 16.0, 8.0, None], ["ml/x-1", 16.0, 8.0, None]],
        ),
        (
            "JobSet",
            {
                "replicatedJobs": [
                    {
                        "replicas": 2,
                        "template": {"spec": {"parallelism": 2, "template": template(1)}},
                    }
                ]
            },
            [["ml/x", 4.0, 1.0, None]],
        ),
        (
            "Job",
            {"parallelism": 2, "suspend": True, "template": template(1)},
            [["ml/x-0", 1.0, 1.0, "Job is suspended"], ["ml/x-1", 1.0, 1.0, "Job is suspended"]],
        ),
        ("Deployment", {"replicas": 1, "template": template(2)}, [["ml/x-0", 2.0, 2.0, None]]),
    ],
)
def test_jobs_without_pods_wait(tmp_path: Path, kind: str, spec: Data, jobs: list[Any]) -> None:
    found = read(tmp_path, controller(kind, "x", spec)).jobs
    assert found[["job", "gpus", "workers_together", "reason"]].to_numpy().tolist() == jobs
    assert set(found["state"]) == {"waiting"}
    assert set(found["name"]) == {"x"}


def test_jobs_with_pods_or_an_end_do_not_wait_again(tmp_path: Path) -> None:
    spec = {"parallelism": 1, "template": template(1)}
    usage = read(
        tmp_path,
        pod("a-1", {"nvidia.com/gpu": 1}, owner=("Job", "a"), node="n1"),
        controller("Job", "a", spec),
        controller(
            "Job", "b", spec, status={"conditions": [{"type": "Complete", "status": "True"}]}
        ),
    )
    assert usage.jobs["job"].tolist() == ["ml/a-1"]


def test_a_job_of_volcano_is_a_gang(tmp_path: Path) -> None:
    spec = {"tasks": [{"replicas": 2, "template": template(1)}]}
    found = read(tmp_path, controller("Job", "v", spec, api="batch.volcano.sh/v1alpha1")).jobs
    assert found[["job", "gpus"]].to_numpy().tolist() == [["ml/v", 2.0]]


def test_claims_of_devices(tmp_path: Path) -> None:
    request = {"exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}
    claim = controller(
        "ResourceClaimTemplate", "two", {"spec": {"devices": {"requests": [request]}}}
    )
    usage = read(
        tmp_path,
        claim,
        pod("a", spec={"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "two"}]}),
        pod("b", spec={"resourceClaims": [{"name": "g", "resourceClaimName": "elsewhere"}]}),
    )
    assert usage.jobs[["job", "gpus"]].to_numpy().tolist() == [["ml/a", 2.0]]
    assert [str(each) for each in usage.left_out] == [
        "pods (1): ask for GPUs by resources that are not read (claims of devices that the file "
        "does not hold)"
    ]


def test_cordoned_and_tainted_nodes(tmp_path: Path) -> None:
    down = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
    taints = {"taints": [{"key": "team", "effect": "NoSchedule"}]}
    usual = {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}
    usage = read(
        tmp_path,
        node("n1", A100, EIGHT, spec={"unschedulable": True}),
        node("n2", A100, EIGHT, status=down),
        node("n3", A100, EIGHT, spec=taints),
        node("n4", A100, EIGHT, spec=usual),
        node("cpu"),
    )
    assert usage.nodes["closed"].tolist() == [True, True, False, False]
    assert usage.notes == (
        "No pod may start on 2 nodes with GPUs, cordoned or not ready.",
        "Taints keep pods off 1 node with GPUs: which pods tolerate them was not read.",
    )


YAML = """\
apiVersion: v1
items:
- apiVersion: v1
  kind: Pod
  metadata:
    annotations:
      gpu-fraction: "0.5"
      kubectl.kubernetes.io/last-applied-configuration: |
        {"apiVersion":"v1","kind":"Pod"}
    creationTimestamp: "2026-11-01T10:00:00Z"
    name: a
    namespace: team
  spec:
    containers:
    - image: registry.example.com/train:1
      name: main
      resources: {}
    schedulerName: kai-scheduler
  status:
    phase: Pending
kind: List
metadata:
  resourceVersion: ""
"""
DOCUMENTS = """\
---
apiVersion: v1
kind: Pod
metadata: {name: a, annotations: {gpu-memory: "4000"}}
spec: {schedulerName: kai-scheduler, containers: [{name: c}]}
---
---
apiVersion: v1
kind: Pod
metadata: {name: b}
spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""


LONG = """\
apiVersion: v1
items:
- apiVersion: v1
  kind: Pod
  metadata:
    annotations:
      note: "first
        env:
          second"
    managedFields:
    - manager: kubectl
      fieldsV1:
        f:metadata: {}
    name: a
    namespace: ml
  spec:
    containers:
    - args:
      - |
        cat <<END
        resources:
          limits:
            nvidia.com/gpu: 7
        END

      env:
      - name: GPUS
        value: "8"
      name: c
      resources:
        limits:
          nvidia.com/gpu: "1"
    - env:
      - name: A
        value: |
          nodeName: n9
      name: d
      resources:
        limits: {nvidia.com/gpu: "2"}
    nodeName: n1
    volumes:
    - name: v
  status:
    phase: Running
kind: List
"""


@pytest.mark.parametrize("note", ['"first\n        env:\n          second"', "other"])
def test_what_is_never_read_makes_no_difference(tmp_path: Path, note: str) -> None:
    """A line of the first note looks like a key below which nothing is read."""
    text = LONG.replace('"first\n        env:\n          second"', note)
    file = tmp_path / "long.yaml"
    file.write_text(text)
    assert (
        row(read_usage(str(file)), "ml/a").items()
        >= {
            "gpus": 3.0,
            "node": "n1",
            "placement": "n1/,n1/,n1/",
        }.items()
    )


def test_a_fault_is_reported_at_its_line(tmp_path: Path) -> None:
    file = tmp_path / "long.yaml"
    broken = LONG.replace("    phase: Running", "   phase: [")
    file.write_text(broken)
    with pytest.raises(InputError) as error:
        read_usage(str(file))
    where = f"line {broken.count(chr(10)) + 1}, column 1"
    assert str(error.value) == (
        f"{file}: is not valid YAML at {where}: did not find expected ',' or ']'"
    )


def snapshot(content: bytes, name: str = "snapshot.json") -> bytes:
    """Return a ZIP file as KAI's plugin writes it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return out.getvalue()


def raw_objects() -> bytes:
    bare = [pod("a", {"nvidia.com/gpu": 1}), node("n1", A100, EIGHT)]
    for each in bare:
        del each["apiVersion"], each["kind"]
    raw = {"pods": [bare[0]], "nodes": [bare[1]], "podGroups": None, "queues": []}
    return json.dumps({"config": {}, "schedulerParams": {}, "rawObjects": raw}).encode()


def files() -> dict[str, bytes]:
    """Return the forms of files, by name."""
    return {
        "list.yaml": YAML.encode(),
        "list.yaml.gz": gzip.compress(YAML.encode()),
        "documents.yaml": DOCUMENTS.encode(),
        "list.json": json.dumps(
            {"apiVersion": "v1", "items": [pod("a", {"nvidia.com/gpu": 1})], "kind": "PodList"},
            indent=4,
        ).encode(),
        "snapshot.zip": snapshot(raw_objects()),
        "snapshot.gzip": snapshot(raw_objects()),
        "snapshot.json": raw_objects(),
    }


@pytest.mark.parametrize("name", list(files()))
def test_forms_of_files(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(files()[name])
    usage = read_usage(str(file))
    assert len(usage.jobs) == (2 if name.startswith("documents") else 1)
    assert len(usage.nodes) == (1 if name.startswith("snapshot") else 0)


LIMIT = "items[0].spec.containers[0].resources.limits['nvidia.com/gpu']"
BROKEN = [
    (
        pod("a", {"nvidia.com/gpu": "many"}),
        f"{LIMIT}: must be a number >= 0, got 'many'",
    ),
    (
        pod("a", {"nvidia.com/gpu": "1500m"}),
        f"{LIMIT}: must be a whole number from 0 to 1000000, got '1500m'",
    ),
    (
        pod("a", annotations={"gpu-fraction": "1.5"}),
        "items[0].metadata.annotations.gpu-fraction: must be a number from 0 to 1, got '1.5'",
    ),
    (
        pod("a", annotations={"gpu-fraction": "0.5", "gpu-memory": "10"}),
        "items[0].metadata.annotations.gpu-fraction: must not be given beside "
        "gpu-memory, got '0.5'",
    ),
    (pod("a", spec={"containers": 3}), "items[0].spec.containers: must be a list, got 3"),
    ({"kind": "Pod", "spec": {}}, "items[0].metadata.name: must have a name"),
    (
        pod("a", {"nvidia.com/gpu": 1}, metadata={"creationTimestamp": "yesterday"}),
        "items[0].metadata.creationTimestamp: must be a time such as 2026-11-29T08:30:00Z, got "
        "'yesterday'",
    ),
    (
        node("n", None, EIGHT, metadata={"annotations": {"hami.io/node-nvidia-register": "[3]"}}),
        "items[0].metadata.annotations['hami.io/node-nvidia-register']: must be a register of "
        "GPUs, got '[3]'",
    ),
    (
        controller("Job", "j", {"parallelism": 200000, "template": template(1)}),
        "items[0].spec: must ask for at most 100000 pods together with others",
    ),
]


@pytest.mark.parametrize(("item", "message"), BROKEN)
def test_broken_objects(tmp_path: Path, item: Data, message: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, item)
    assert str(error.value) == f"{tmp_path / 'pods.json'}: {message}"


def test_a_pod_twice(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, pod("a"), pod("a"))
    rule = "items[1].metadata.name: must differ from that of every other Pod, got 'a' twice"
    assert str(error.value) == f"{tmp_path / 'pods.json'}: {rule}"


def test_what_is_no_object(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    for text, message in (
        ("apiVersion: v1\n", "must have a kind (a Kubernetes object or a list of them)"),
        ("apiVersion: v1\n---\n3\n", "must have a kind (a Kubernetes object or a list of them)"),
        (
            "kind: Pod\napiVersion: v1\nmetadata: {name: a}\n---\n3\n",
            "document 2: must be a mapping, got 3",
        ),
        (
            "apiVersion: v1\nkind: [\n",
            "is not valid YAML at line 3, column 1: did not find expected node content",
        ),
    ):
        file.write_text(text)
        with pytest.raises(InputError) as error:
            read_usage(str(file))
        assert str(error.value) == f"{file}: {message}"


def test_zip_bombs_and_other_archives_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.zip"
    file.write_bytes(snapshot(b" " * (513 * 2**20)))
    assert file.stat().st_size < 2**20
    with pytest.raises(InputError, match="must hold at most 512 MiB, got more"):
        read_usage(str(file))
    file.write_bytes(snapshot(b"{}", "other.json"))
    with pytest.raises(InputError, match=r"with snapshot\.json, got one without"):
        read_usage(str(file), "kubernetes")


def test_no_damage_causes_another_error(tmp_path: Path) -> None:
    chance = random.Random(0)
    file = tmp_path / "damaged"
    errors = []
    for content in files().values():
        for _ in range(40):
            file.write_bytes(_damaged(content, chance))
            try:
                read_usage(str(file), "kubernetes")
            except InputError as error:
                errors.append(str(error))
    assert errors
    assert not [error for error in errors if "\n" in error]


def _damaged(content: bytes, chance: random.Random) -> bytes:
    data = bytearray(content)
    match chance.randrange(4):
        case 0:
            return bytes(data[: chance.randrange(len(data))])
        case 1:
            for _ in range(3):
                data[chance.randrange(len(data))] = chance.randrange(256)
        case 2:
            lines = content.split(b"\n")
            lines.pop(chance.randrange(len(lines)))
            return b"\n".join(lines)
        case _:
            for word in (b'"1"', b"a", b"{}", b"4000"):
                if chance.random() < 0.5:
                    data = data.replace(word, chance.choice([b"[]", b"null", b"-1", b"{}"]))
    return bytes(data)
