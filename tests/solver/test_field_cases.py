"""Situations that users of other schedulers have reported, small: what a plan says to them."""

from __future__ import annotations

import pytest

from dovetail.instances.checking.checker import check
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Assignment
from dovetail.solver.rounds import solve


def round_of(*nodes, workloads, jobs, slowdowns=(), **cluster):
    """Return an instance; ``nodes`` are (id, number of GPUs, model, MiB)."""
    made = [
        {"id": name, "gpu_count": count, "gpu": {"model": model, "memory_mib": mib}}
        for name, count, model, mib in nodes
    ]
    return {
        "format": "dovetail-instance/1",
        "name": "case",
        "cluster": {"nodes": made, **cluster},
        "workloads": workloads,
        "jobs": [{"id": name, **job} for name, job in jobs.items()],
        "slowdowns": list(slowdowns),
    }


def planned(data, solver="auto"):
    """Return where each job runs by the proven plan, and why the others wait."""
    instance = Instance.from_data(data)
    result = solve(instance, solver=solver)
    assert result.status == "optimal"
    assert not check(instance, result.plan).violations
    runs = {one.job: one.gpus for one in result.plan.assignments}
    return runs, {one.job: one.reason for one in result.plan.waiting}


def test_the_last_card_takes_two_halves_and_not_three():
    # volcano-sh/volcano 3616: seven GPUs are full; three pods of half a card got one.
    taken = [f"n1-{k}" for k in range(7)]
    runs, waits = planned(
        round_of(
            ("n1", 8, "L4", 24576),
            workloads={"full": {"memory_mib": 24576}, "half": {"memory_mib": 12288}},
            slowdowns=[{"pair": ["half", "half"], "slowdown": [1.1, 1.1]}],
            jobs={
                "seven": {"workload": "full", "workers": 7, "state": "running", "gpus": taken},
                **{f"r{k}": {"workload": "half"} for k in range(3)},
            },
        )
    )
    assert [gpus for job, gpus in runs.items() if job != "seven"] == [("n1-7",)] * 2
    assert len(waits) == 1


def test_fractions_of_one_card_are_never_more_than_the_card():
    # NVIDIA/KAI-Scheduler 2153: four pods of half a GPU were placed on one card.
    runs, _ = planned(
        round_of(
            ("n1", 2, "L4", 24576),
            workloads={"half": {"memory_mib": 12288}},
            slowdowns=[{"pair": ["half", "half"], "slowdown": [1.1, 1.1]}],
            jobs={f"p{k}": {"workload": "half"} for k in range(4)},
        )
    )
    assert sorted(runs.values()) == [("n1-0",), ("n1-0",), ("n1-1",), ("n1-1",)]


UNEQUAL = [("n1", 7, "A800", 81920), ("n2", 1, "A800", 81251)]


@pytest.mark.parametrize(("need_mib", "starts"), [(81920, False), (81251, True)])
def test_a_whole_card_is_what_the_smallest_card_has(need_mib, starts):
    # volcano-sh/volcano 4713: one card reports less memory, and a job for all eight never starts.
    runs, waits = planned(
        round_of(
            *UNEQUAL,
            workloads={"train": {"memory_mib": need_mib}},
            jobs={"whole": {"workload": "train", "workers": 8}},
        )
    )
    assert ("whole" in runs) == starts
    assert starts or "81,920 MiB" in waits["whole"]


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (
            {"memory_mib": "100%"},
            ".memory_mib: must be a number (MiB; memory_percent takes a percentage), got '100%'",
        ),
        (
            {"gpu_memory_utilization": 0.75},
            ".gpu_memory_utilization: unknown field: give memory_percent, of the memory that a "
            "GPU offers (0.5 is 50)",
        ),
        ({}, ": must have either memory_mib or memory_percent, got neither"),
        (
            {"memory_mib": 1, "memory_percent": 1},
            ": must have either memory_mib or memory_percent, got both",
        ),
        ({"memory_percent": 101}, ".memory_percent: must be <= 100, got 101"),
    ],
)
def test_parts_of_a_card_are_refused_with_what_to_do(workload, message):
    data = round_of(*UNEQUAL, workloads={"train": workload}, jobs={"a": {"workload": "train"}})
    with pytest.raises(InputError) as error:
        Instance.from_data(data)
    assert str(error.value) == f"workloads.train{message}"


def test_a_hundred_per_cent_fits_every_card():
    runs, _ = planned(
        round_of(
            *UNEQUAL,
            workloads={"train": {"memory_percent": 100}},
            jobs={"whole": {"workload": "train", "workers": 8}},
        )
    )
    assert len(runs["whole"]) == 8


@pytest.mark.parametrize(("gsla", "starts"), [(2.0, False), (2.5, True)])
def test_two_servers_share_a_card_if_both_tails_keep_their_limits(gsla, starts):
    # vllm-project/vllm 10533, 14376: 75 % and 20 % of one A100, and both have a promise.
    served = {"priority": "latency"}
    runs, _ = planned(
        round_of(
            ("n1", 1, "A100", 81050),
            per_process_mib=600,
            workloads={"72b": {"memory_mib": 60787}, "14b": {"memory_mib": 16210}},
            slowdowns=[{"pair": ["72b", "14b"], "slowdown": [1.2, 1.6], "p99": [1.4, 2.1]}],
            jobs={
                "big": {"workload": "72b", **served, "gsla": 1.5, "state": "running",
                        "gpus": ["n1-0"]},
                "small": {"workload": "14b", **served, "gsla": gsla},
            },
        )
    )  # fmt: skip
    assert ("small" in runs) == starts


def test_jobs_that_gain_nothing_together_run_one_by_one():
    # NVIDIA/nvidia-docker 911, pytorch/pytorch 14531: two trainings, each at half speed.
    runs, waits = planned(
        round_of(
            ("n1", 1, "1080Ti", 11264),
            workloads={"mnist": {"memory_mib": 1500}},
            slowdowns=[{"pair": ["mnist", "mnist"], "slowdown": [2.0, 2.0]}],
            jobs={"a": {"workload": "mnist"}, "b": {"workload": "mnist"}},
        )
    )
    assert len(runs) == 1
    (reason,) = waits.values()
    assert "throughput would not rise" in reason


TORCHJOB = {
    "workloads": {"one": {"memory_mib": 10000}, "ddp": {"memory_mib": 30000}},
    "busy": {"workload": "one", "state": "running"},
}


def test_pods_of_whole_nodes_wait_for_whole_nodes():
    # kubernetes-sigs/kueue 1476: two pods of 8 GPUs were admitted where 7, 7 and 8 are free.
    busy = TORCHJOB["busy"]
    data = round_of(
        *((f"n{k}", 1, "8xA100", 8 * 40960) for k in range(3)),
        workloads={name: {"memory_mib": 8 * 30000} for name in ("one", "ddp")},
        jobs={
            "j1": {**busy, "gpus": ["n0-0"]},
            "j2": {**busy, "gpus": ["n1-0"]},
            "torchjob": {"workload": "ddp", "workers": 2},
        },
    )
    _, waits = planned(data)
    assert set(waits) == {"torchjob"}
    data["jobs"].pop(0)
    runs, _ = planned(data)
    assert set(runs["torchjob"]) == {"n0-0", "n2-0"}


@pytest.mark.parametrize("rule", ["workers_per_node", "workers_together"])
@pytest.mark.parametrize("solver", ["auto", "cpsat", "highs", "greedy", "exclusive", "random"])
def test_eight_workers_on_each_node_wait_for_whole_nodes(rule, solver):
    # kubernetes-sigs/kueue 1476 by GPUs: 22 are free, but only one node has 8 of them.
    nodes = [(f"n{k}", gpus, "A100", 40960) for k, gpus in enumerate((7, 7, 8))]
    job = {"workload": "ddp", "workers": 16, rule: 8}
    workloads = {"ddp": {"memory_mib": 30000}}
    data = round_of(*nodes, workloads=workloads, jobs={"torchjob": job})
    needs = {"workers_per_node": "2 nodes with 8 GPUs each"}.get(rule, "2 times 8 GPUs on one node")
    waits = f"nodes: it needs {needs}; n2 has 8, n0 and n1 7"
    assert planned(data, solver=solver)[1] == {"torchjob": waits}
    data = round_of(*nodes, ("n3", 8, "A100", 40960), workloads=workloads, jobs={"torchjob": job})
    runs, _ = planned(data, solver=solver)
    assert set(runs["torchjob"]) == {f"n{n}-{k}" for n in (2, 3) for k in range(8)}


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("ntasks_per_node", "give workers_per_node: the workers on each node that the job uses"),
        ("nnodes", "give workers_per_node: workers divided by the number of nodes"),
        (
            "nproc_per_node",
            "give workers_per_node, or workers_together if several such groups may share a node",
        ),
    ],
)
def test_other_words_for_workers_by_node_are_refused_with_the_field_to_use(field, hint):
    job = {"workload": "ddp", "workers": 16, field: 8}
    data = round_of(
        ("n1", 8, "A100", 40960), workloads=TORCHJOB["workloads"], jobs={"torchjob": job}
    )
    with pytest.raises(InputError) as error:
        Instance.from_data(data)
    assert str(error.value) == f"jobs[0].{field}: unknown field: {hint}"


OLD_AND_NEW = [
    ("a", "GTX980", 4096, 1),
    ("b", "GTX1080", 8192, 2),
    ("c", "TITANX", 12288, None),
]
TOGETHER = [{"pair": ["exp"] * 2, "slowdown": [1.1] * 2}] + [
    {"set": ["exp"] * size, "slowdown": [slowdown] * size}
    for size, slowdown in ((3, 1.2), (4, 1.3))
]


def limited(**jobs):
    data = round_of(
        workloads={"exp": {"memory_mib": 1500}}, jobs=jobs, slowdowns=TOGETHER, max_jobs_per_gpu=4
    )
    data["cluster"]["nodes"] = [
        {
            "id": name,
            "gpu_count": 1,
            "gpu": {"model": model, "memory_mib": mib, **({"max_jobs": most} if most else {})},
        }
        for name, model, mib, most in OLD_AND_NEW
    ]
    return data


def test_each_gpu_model_has_its_own_number_of_jobs():
    # studioml/studio 112: one job on a GTX 980, two on a 1080, four on a TITAN X.
    runs, waits = planned(limited(**{f"x{k}": {"workload": "exp"} for k in range(8)}))
    on = [gpus[0] for gpus in runs.values()]
    assert {gpu: on.count(gpu) for gpu in on} == {"a-0": 1, "b-0": 2, "c-0": 4}
    (reason,) = waits.values()
    assert reason.startswith("capacity: the GPUs that suit it are full")


def test_running_jobs_above_the_limit_of_their_gpu_are_refused():
    held = {"workload": "exp", "state": "running", "gpus": ["a-0"]}
    with pytest.raises(InputError) as error:
        Instance.from_data(limited(x=held, y=held))
    assert str(error.value) == "jobs[1].gpus[0]: 'a-0' may hold at most 1 jobs, got more"


def test_gpus_of_one_model_have_one_limit():
    data = limited(x={"workload": "exp"})
    data["cluster"]["nodes"][1]["gpu"]["model"] = "GTX980"
    with pytest.raises(InputError) as error:
        Instance.from_data(data)
    assert str(error.value) == (
        "cluster.nodes[1].gpu.max_jobs: must be the same on all GPUs of model 'GTX980' (1), got 2"
    )


def test_the_checker_counts_the_jobs_of_a_limited_gpu():
    instance = Instance.from_data(limited(x={"workload": "exp"}, y={"workload": "exp"}))
    both = [Assignment(job=job, gpus=("a-0",), share=(None,), start=True) for job in "xy"]
    plan = solve(instance).plan.replace(assignments=tuple(both), waiting=())
    rules = [(one.rule, one.where) for one in check(instance, plan).violations]
    assert ("capacity", "GPU a-0") in rules


@pytest.mark.parametrize("solver", ["greedy", "cpsat", "milp"])
def test_every_solver_keeps_the_limits(solver):
    instance = Instance.from_data(limited(**{f"x{k}": {"workload": "exp"} for k in range(8)}))
    result = solve(instance, solver=solver)
    assert not check(instance, result.plan).violations
    assert sum(one.start for one in result.plan.assignments) == 7
