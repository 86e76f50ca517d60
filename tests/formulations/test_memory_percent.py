"""Memory in per cent of a GPU, against written-out arithmetic."""

from __future__ import annotations

import pytest

from dovetail.instances.builder import InstanceBuilder
from dovetail.instances.checking.checker import check
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Assignment, Plan
from dovetail.solver.explaining.explanations import explain
from dovetail.solver.rounds import solve


def lab(**rules: object) -> InstanceBuilder:
    """Return a cluster of one GPU that offers 10,000 MiB, and workloads."""
    made = Instance.build("lab", reserve_mib=500, per_process_mib=300, **rules)
    made.add_node("n", gpus=1, model="A", memory_mib=10_500)
    made.add_workload("half", memory_percent=50)
    made.add_workload("most", memory_percent=50.01)
    made.add_workload("fits", 4700)
    made.add_workload("tight", 4701)
    for k, one in enumerate(names := ["half", "most", "fits", "tight"]):
        for other in names[k:]:
            made.add_slowdown([one, other], [1.0, 1.0])
    return made


@pytest.mark.parametrize(
    ("one", "other", "placed"),
    [
        ("half", "half", 2),
        ("half", "most", 1),
        ("half", "fits", 2),  # 5,000 + 4,700 + 300 MiB
        ("half", "tight", 1),
    ],
)
@pytest.mark.parametrize("solver", ["auto", "cpsat", "greedy"])
def test_a_percentage_is_of_what_the_gpu_offers_with_its_process(one, other, placed, solver):
    made = lab()
    made.add_job("a", one)
    made.add_job("b", other)
    instance = made.instance()
    plan = solve(instance, solver=solver).plan
    report = check(instance, plan)
    assert (len(plan.assignments), report.violations) == (placed, ())
    both = tuple(Assignment(job=job, gpus=("n-0",), start=True) for job in "ab")
    rules = [one.rule for one in check(instance, Plan(assignments=both)).violations]
    assert rules == ([] if placed == 2 else ["memory"])


def test_each_gpu_counts_its_own_memory():
    made = lab()
    made.add_node("small", gpus=1, model="B", memory_mib=4500)
    made.add_job("a", "half")
    made.add_job("b", "most", state="running", gpus=["small-0"])
    instance = made.instance()
    report = check(instance, solve(instance).plan)
    assert report.violations == ()
    assert report.gpu_memory_mib == pytest.approx({"n-0": 500 + 5000, "small-0": 500 + 2000.4})


def test_what_is_missing_is_explained_in_per_cent():
    made = lab()
    made.add_job("a", "tight", weight=2)
    made.add_job("b", "half")
    instance = made.instance()
    plan = solve(instance).plan
    (waits,) = plan.waiting
    assert waits.reason == (
        "memory: with a on n-0 1 MiB of memory would be missing (it needs 50 % of the GPU's memory)"
    )
    first, *_ = explain(instance, plan, "b").remedies
    assert first.change.less_memory_percent == 1
    assert "1 % less of the GPU's memory" in first.text


def test_sub_batches_have_memory_of_their_own():
    made = lab()
    batch = {"size": 8, "min": 4, "fixed_mib": 1, "mib_per_sample": 1}
    times = {"step_s": {"fixed": 0.1, "per_sample": 0.1}}
    with pytest.raises(InputError) as error:
        made.add_workload("batched", memory_percent=50, batch={**batch, **times})
    assert str(error.value) == (
        "workloads.batched.memory_percent: must be absent with batch: give memory_mib"
    )
