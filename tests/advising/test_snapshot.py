"""An instance of a snapshot: what could start now, and why the rest waits, worked out by hand."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dovetail.advising.reader import read_usage
from dovetail.advising.snapshot import Snapshot, instance_of, on_new_nodes
from dovetail.advising.usage import UsageRecords
from dovetail.cli.main import main
from dovetail.instances.checking.checker import check
from dovetail.instances.errors import InputError
from dovetail.instances.plan import Plan
from dovetail.solver.explaining.explanations import explain
from dovetail.solver.rounds import solve
from tests.advising.readers.test_kubernetes import node, pod

L4 = {"product": "NVIDIA-L4", "memory": "24576"}
HALF = {"gpu-fraction": "0.5"}
GROUP = {"runai-gpu-group": "g-1"}


def snapshot(tmp_path: Path, *objects: dict[str, Any], **options: Any) -> Snapshot:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return instance_of(read_usage(str(file)), **options)


def gpus(count: int, labels: Mapping[str, str] = L4, name: str = "n1") -> dict[str, Any]:
    return node(name, dict(labels), {"nvidia.com/gpu": count})


def planned(made: Snapshot) -> Plan:
    plan = solve(made.instance).plan
    assert plan is not None
    return plan


def started(plan: Plan) -> set[str]:
    return {row.job for row in plan.assignments if row.start}


def why(made: Snapshot, plan: Plan, job: str) -> str:
    return explain(made.instance, plan, job).reason


def test_four_halves_on_one_card_of_kai(tmp_path):
    """24,576 MiB hold two halves of 12,288 MiB: two of four pods run, as in KAI's own queue."""
    pods = [pod(f"p{k}", annotations=HALF) for k in range(4)]
    made = snapshot(tmp_path, gpus(1), *pods, assumed=1.0)
    plan = planned(made)
    assert len(started(plan)) == 2
    assert check(made.instance, plan).valid
    (waiting, _) = sorted({row.job for row in plan.waiting})
    assert why(made, plan, waiting).startswith("capacity: the GPUs that suit it are full")


def test_two_more_halves_wait_for_those_that_run(tmp_path):
    running = [pod(f"p{k}", annotations=HALF, labels=GROUP, node="n1") for k in range(2)]
    waiting = [pod(f"p{k}", annotations=HALF) for k in range(2, 4)]
    made = snapshot(tmp_path, gpus(1), *running, *waiting, assumed=1.0)
    assert [job.gpus for job in made.instance.jobs if job.running] == [("n1-0",), ("n1-0",)]
    plan = planned(made)
    assert started(plan) == set()
    assert "such as n1-0 with ml/p0, ml/p1" in why(made, plan, "ml/p3")


def test_nothing_shares_without_an_assumption(tmp_path):
    pods = [pod(f"p{k}", annotations=HALF) for k in range(2)]
    made = snapshot(tmp_path, gpus(1), *pods)
    plan = planned(made)
    assert len(started(plan)) == 1
    (waits,) = plan.waiting
    assert waits.reason.startswith("unknown: no known slowdown lets it share a GPU")


def test_the_last_card_of_volcano(tmp_path):
    """Seven cards are full; the last one has 24,576 MiB, which hold two pods of 12,288 MiB."""
    seven = pod("seven", {"volcano.sh/gpu-number": 7}, node="n1")
    three = [pod(f"r{k}", {"volcano.sh/gpu-memory": 12288}) for k in range(3)]
    capacity = {"volcano.sh/gpu-number": 8, "volcano.sh/gpu-memory": 8 * 24576}
    made = snapshot(tmp_path, node("n1", None, capacity), seven, *three, assumed=1.0)
    plan = planned(made)
    assert len(started(plan)) == 2
    (waits,) = plan.waiting
    assert "the GPUs that suit it are full" in why(made, plan, waits.job)


def eights(*free: int) -> list[dict[str, Any]]:
    """Return a gang of two pods with 8 GPUs each, and nodes of 8 with as many free."""
    group = {"scheduling.k8s.io/group-name": "ddp"}
    found = [pod(f"ddp-{k}", {"nvidia.com/gpu": 8}, annotations=group) for k in range(2)]
    for k, some in enumerate(free):
        found.append(gpus(8, name=f"n{k}"))
        if some < 8:
            found.append(pod(f"busy-{k}", {"nvidia.com/gpu": 8 - some}, node=f"n{k}"))
    return found


def test_two_pods_of_eight_gpus_wait_for_two_whole_nodes(tmp_path):
    """7 + 7 + 8 free GPUs are enough for 16 workers, but only one node has room for a pod of 8."""
    made = snapshot(tmp_path, *eights(7, 7, 8))
    plan = planned(made)
    assert started(plan) == set()
    assert why(made, plan, "ml/ddp") == (
        "nodes: it needs 2 times 8 free GPUs on one node; n2 has 8, n0 and n1 7"
    )
    assert started(planned(snapshot(tmp_path, *eights(7, 8, 8)))) == {"ml/ddp"}


def test_whole_gpus_are_not_shared_under_an_assumption(tmp_path):
    pods = [pod("whole", {"nvidia.com/gpu": 1}), pod("half", annotations=HALF)]
    made = snapshot(tmp_path, gpus(1), *pods, assumed=1.0)
    assert len(started(planned(made))) == 1
    assert len(started(planned(snapshot(tmp_path, gpus(2), *pods, assumed=1.0)))) == 2


def test_running_jobs_get_the_gpus_that_records_name_or_leave_free(tmp_path):
    """Index 1 is named; the whole GPU goes to 0, the halves of two groups to 2 and 3."""
    index = {"volcano.sh/gpu-index": "1"}
    made = snapshot(
        tmp_path,
        gpus(4),
        pod("half-a", annotations=HALF, labels={"runai-gpu-group": "a"}, node="n1"),
        pod("half-b", annotations=HALF, labels={"runai-gpu-group": "b"}, node="n1"),
        pod("half-c", annotations=HALF, labels={"runai-gpu-group": "a"}, node="n1"),
        pod("whole", {"nvidia.com/gpu": 1}, node="n1"),
        pod("by-index", {"volcano.sh/gpu-number": 1}, annotations=index, node="n1"),
    )
    held = {job.id: job.gpus for job in made.instance.jobs}
    assert held["ml/half-a"] == held["ml/half-c"] != held["ml/half-b"]
    assert len({*held.values()}) == 4
    assert held["ml/by-index"] == ("n1-1",)
    assert made.notes == ("jobs on GPUs that were chosen, as the records name nodes only: 1",)


def test_running_jobs_of_random_clusters_stay_on_their_nodes_and_whole_gpus_are_theirs():
    """Jobs are put on GPUs that are then forgotten for two in three of them."""
    for seed in range(40):
        chance = random.Random(seed)
        free = {(node, at): 4 for node in ("n1", "n2") for at in range(3)}
        rows = []
        for k in range(10):
            quarters = chance.choice([1, 2, 4])
            places = [place for place, left in free.items() if left >= quarters]
            if not places:
                continue
            node_name, at = chance.choice(places)
            free[node_name, at] -= quarters
            name = f"GPU-{at}" if chance.random() < 1 / 3 else ""
            fraction = None if quarters == 4 else quarters / 4
            rows.append((f"j{k}", "running", node_name, f"{node_name}/{name}", 1.0, fraction))
        columns = ["job", "state", "node", "placement", "gpus", "fraction"]
        jobs = pd.DataFrame(rows, columns=columns)
        nodes = pd.DataFrame({"node": ["n1", "n2"], "gpus": 3.0, "card_mib": 1000.0})
        made = instance_of(UsageRecords.of(jobs, nodes))
        held = {job.id: job.gpus[0] for job in made.instance.jobs}
        for job, _, node_name, _, _, fraction in rows:
            if job in held:
                assert held[job].startswith(f"{node_name}-"), seed
                others = [other for other, gpu in held.items() if gpu == held[job] and other != job]
                assert fraction is not None or not others, seed
        placed = dict(zip(jobs["job"], jobs["fraction"].fillna(1.0), strict=True))
        used = Counter()
        for job, gpu in held.items():
            used[gpu] += placed[job]
        assert max(used.values()) <= 1.0, seed
        missing = [note for note in made.notes if note.startswith("running jobs for which")]
        assert len(held) == len(rows) or missing, seed


def test_parts_without_a_name_go_together(tmp_path):
    """Quarters of 6,144 MiB: four fill a card, the fifth begins another."""
    quarter = {"gpu-fraction": "0.25"}
    pods = [pod(f"q{k}", annotations=quarter, node="n1") for k in range(5)]
    made = snapshot(tmp_path, gpus(2), *pods)
    assert [job.gpus for job in made.instance.jobs] == [("n1-0",)] * 4 + [("n1-1",)]


def test_what_is_left_out_is_counted(tmp_path):
    gpu = {"nvidia.com/gpu": 1}
    closed = gpus(2, name="n2")
    closed["spec"] = {"unschedulable": True}
    both = {"scheduling.k8s.io/group-name": "both"}
    made = snapshot(
        tmp_path,
        gpus(2),
        closed,
        node("n3", L4, {"nvidia.com/mig-1g.10gb": 7}),
        pod("elsewhere", gpu, node="n9"),
        pod("closed", gpu, node="n2"),
        pod("mig", {"nvidia.com/mig-1g.10gb": 1}),
        pod("other", gpu, spec={"nodeSelector": {"nvidia.com/gpu.product": "H100"}}),
        pod("both-1", gpu, annotations=both, node="n1"),
        pod("both-2", gpu, annotations=both, node="n2"),
        pod("done", gpu, node="n1", phase="Succeeded"),
        pod("much", {"nvidia.com/gpu": 2}, node="n1"),
    )
    assert {job.id: job.gpus for job in made.instance.jobs} == {"ml/both": ("n1-0",)}
    assert set(made.notes) == {
        "GPUs of nodes on which no job may start: 2",
        "GPUs that are instances of MIG: 7",
        "jobs on instances of MIG: 1",
        "jobs that have ended: 1",
        "running jobs on nodes that are not listed: 1",
        "waiting jobs that ask for another GPU model: 1",
        "running jobs for which their nodes have too few GPUs: 1",
        "jobs on GPUs that were chosen, as the records name nodes only: 1",
    }


def test_a_part_of_unequal_cards_is_one_of_the_largest(tmp_path):
    a100 = {"product": "A100", "memory": "40960"}
    nodes = [gpus(1), gpus(1, a100, "n2")]
    made = snapshot(tmp_path, *nodes, pod("a", annotations=HALF), assumed=1.0)
    assert [each.memory_mib for each in made.instance.workloads.values()] == [20480.0]
    only = snapshot(tmp_path, *nodes, pod("a", annotations=HALF), model="NVIDIA-L4")
    assert [each.memory_mib for each in only.instance.workloads.values()] == [12288.0]


def test_jobs_of_other_records_are_on_their_nodes():
    jobs = pd.DataFrame(
        {"job": ["a", "b"], "state": "running", "node": ["n1,n2", None], "gpus": [4.0, 1.0]}
    )
    nodes = pd.DataFrame(
        {"node": ["n1", "n2"], "gpu_model": "A100", "gpus": 4.0, "card_mib": [None, None]}
    )
    usage = UsageRecords.of(jobs, nodes)
    made = instance_of(usage, card_mib={"A100": 40960.0})
    assert [job.gpus for job in made.instance.jobs] == [("n1-0", "n1-1", "n2-0", "n2-1")]
    assert "running jobs whose nodes the records do not name: 1" in made.notes
    with pytest.raises(InputError) as error:
        instance_of(usage)
    assert str(error.value) == (
        "GPUs of model A100: the memory of these GPUs is not in the records: give it "
        "(--gpu-memory A100=MIB)"
    )


def test_records_without_nodes_are_refused(tmp_path):
    with pytest.raises(InputError) as error:
        snapshot(tmp_path, pod("a", {"nvidia.com/gpu": 1}))
    assert str(error.value) == (
        "must list nodes with GPUs on which jobs may start, got none (--gpus N takes others)"
    )


def test_jobs_on_gpus_that_the_records_do_not_have():
    """Five GPUs in nodes of two: a pod of two GPUs never fits on the last node."""
    jobs = pd.DataFrame(
        {
            "job": ["a", "b", "c", "half", "done"],
            "state": ["running", "running", "waiting", "running", "ended"],
            "gpus": [2.0, 2.0, 2.0, 1.0, 1.0],
            "workers_together": [2.0, 2.0, 2.0, 1.0, 1.0],
            "fraction": [None, None, None, 0.5, None],
            "gpu_model": "V100",
        }
    )
    usage = on_new_nodes(UsageRecords.of(jobs), 5, 2, "L4", 24576.0)
    made = instance_of(usage, assumed=1.0)
    assert [len(each.devices) for each in made.instance.cluster.nodes] == [2, 2, 1]
    assert made.instance.workloads["memory-12288-mib"].memory_mib == 12288.0
    plan = planned(made)
    assert "half" in started(plan)
    assert len(started(plan)) == 3


def test_the_command_writes_an_instance_that_plan_reads(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    items = [gpus(1), *(pod(f"p{k}", annotations=HALF) for k in range(3)), pod("cpu")]
    Path("cluster.json").write_text(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    )
    written = ["import", "usage", "cluster.json", "--assume-slowdown", "1", "-o", "cluster.yaml"]
    assert main(written) == 0
    assert capsys.readouterr() == (
        "snapshot: 3 jobs, 1 GPU, 1 workload, 0 slowdowns -> cluster.yaml\n",
        "dovetail: pods (1): ask for no GPU\n",
    )
    assert main(["plan", "cluster.yaml", "-o", "plan.yaml"]) == 0
    assert main(["explain", "cluster.yaml", "plan.yaml"]) == 0
    assert "capacity: the GPUs that suit it are full" in capsys.readouterr().out
    capsys.readouterr()
    for options, message in (
        (("--assume-slowdown", "0.5"), "cluster.json: cluster.assumed.pair: must be >= 1, got 0.5"),
        (("--gpus", "8"), "--gpus: needs one --gpu-memory MODEL=MIB, got none"),
        (
            ("--gpu-model", "H100"),
            "cluster.json: must list nodes with GPUs of model 'H100' on which jobs may start, got "
            "none (--gpus N takes others)",
        ),
    ):
        assert main(["import", "usage", "cluster.json", *options, "-o", "-"]) == 2
        assert capsys.readouterr().err == f"dovetail: {message}\n"
    eight = ("--gpus", "8", "--gpu-memory", "T4=16384")
    assert main(["import", "usage", "cluster.json", *eight, "-o", "eight.yaml"]) == 0
    assert "3 jobs, 8 GPUs" in capsys.readouterr().out


KAI_MODE = "kai.scheduler/gpu-compute-sharing-mode"
MPS = {**HALF, KAI_MODE: "sm-sharing"}
TURNS = {**HALF, KAI_MODE: "time-slicing"}


def test_gpus_are_shared_as_their_nodes_and_the_pods_on_them_say(tmp_path):
    mps = {**L4, "sharing-strategy": "mps"}
    held = pod("a", annotations=MPS, labels=GROUP, node="n2")
    made = snapshot(tmp_path, gpus(1, mps), gpus(2, name="n2"), held, assumed=1.0)
    ways = {gpu: place.gpu.sharing for gpu, place in made.instance.places.items()}
    assert made.instance.cluster.sharing == "time_sliced"
    assert ways == {"n1-0": "mps", "n2-0": "mps", "n2-1": None}
    assert "GPUs that count as time-sliced, as no record says otherwise: 1" in made.notes


def test_free_gpus_are_shared_as_all_pods_ask(tmp_path):
    pods = [pod(f"p{k}", annotations=MPS) for k in range(2)]
    made = snapshot(tmp_path, gpus(1), *pods, assumed=1.0)
    assert made.instance.cluster.sharing == "mps"
    assert len(started(planned(made))) == 2


def test_pods_of_kai_share_only_with_those_of_their_mode(tmp_path):
    """Either half may have the other GPU to itself, and joins the pod of its own mode."""
    held = pod("a", annotations=MPS, labels=GROUP, node="n1")
    asking = [pod("b", annotations=MPS), pod("c", annotations=TURNS), pod("d", annotations=TURNS)]
    made = snapshot(tmp_path, gpus(2), held, *asking, assumed=1.0)
    assert [job.sharing for job in made.instance.jobs] == ["mps", "mps", *["time_sliced"] * 2]
    plan = planned(made)
    assert {row.job: row.gpus for row in plan.assignments} == {
        "ml/a": ("n1-0",),
        "ml/b": ("n1-0",),
        "ml/c": ("n1-1",),
        "ml/d": ("n1-1",),
    }
    one = snapshot(tmp_path, gpus(1), held, asking[1], assumed=1.0)
    assert why(one, planned(one), "ml/c") == (
        "sharing: it needs a GPU shared by time slicing or one to itself, and n1-0 is shared by MPS"
    )


def test_running_pods_of_two_modes_are_placed_apart_where_nothing_names_their_gpus(tmp_path):
    pods = [pod("a", annotations=MPS, node="n1"), pod("b", annotations=TURNS, node="n1")]
    made = snapshot(tmp_path, gpus(2), *pods, assumed=1.0)
    assert {job.gpus for job in made.instance.jobs} == {("n1-0",), ("n1-1",)}


def test_pods_that_share_in_two_ways_by_the_records_stay_where_they_are(tmp_path):
    pods = [pod(k, annotations=a, labels=GROUP, node="n1") for k, a in (("a", MPS), ("b", TURNS))]
    made = snapshot(tmp_path, gpus(1), *pods, assumed=1.0)
    assert [(job.gpus, job.sharing) for job in made.instance.jobs] == [
        (("n1-0",), None),
        (("n1-0",), "time_sliced"),
    ]
    assert "running jobs that share a GPU in another way than they ask for: 1" in made.notes


@pytest.mark.parametrize(
    ("mode", "sharing"), [("mps", "mps"), ("hami-core", "time_sliced"), ("mig", None)]
)
def test_hami_registers_how_a_node_shares_its_gpus(tmp_path, mode, sharing):
    card = {"id": "GPU-1", "devmem": 24576, "type": "NVIDIA-L4", "health": True, "mode": mode}
    register = {"annotations": {"hami.io/node-nvidia-register": json.dumps([card])}}
    of_hami = node("n1", {}, {"nvidia.com/gpu": 10}, metadata=register)
    made = snapshot(tmp_path, of_hami, pod("a", annotations=HALF))
    (place,) = made.instance.places.values()
    assert place.gpu.sharing == sharing
