"""Records: defaults, derived values, replacement, and rules across fields."""

from __future__ import annotations

import pickle
from copy import deepcopy

import pytest
from pydantic import ValidationError

from dovetail.instances.errors import InputError
from dovetail.instances.instance import Batch, Gpu, Instance, Job, jobs_of
from dovetail.instances.plan import Assignment, Plan
from dovetail.instances.slowdowns.entry import SlowdownEntry
from tests.data import EXAMPLE, EXAMPLE_PLAN, example, example_data, example_plan, small


def test_example_keeps_what_the_file_says():
    assert Instance.from_data(EXAMPLE).to_data() == EXAMPLE | {
        # Fields at their default are not written.
        "cluster": {
            key: value
            for key, value in EXAMPLE["cluster"].items()
            if key not in ("max_jobs_per_gpu", "share_sum", "gang_sharing")
        },
        "workloads": EXAMPLE["workloads"]
        | {
            "resnet": EXAMPLE["workloads"]["resnet"]
            | {"batch": _without(EXAMPLE["workloads"]["resnet"]["batch"], "overlap")}
        },
        "jobs": [_without(EXAMPLE["jobs"][0], "workers", "arrival_s"), EXAMPLE["jobs"][1]],
    }


def _without(data, *names):
    return {key: value for key, value in data.items() if key not in names}


def test_example_plan_keeps_what_the_file_says():
    assert Plan.from_data(EXAMPLE_PLAN).to_data() == _without(EXAMPLE_PLAN, "preempt")


def test_defaults_of_the_format():
    data = {
        "name": "n",
        "cluster": {"nodes": []},
        "workloads": {"w": {"memory_mib": 1}},
        "jobs": [{"id": "j", "workload": "w"}],
    }
    instance = Instance.from_data(data)
    cluster, job = instance.cluster, instance.jobs[0]
    assert cluster.max_jobs_per_gpu == 2
    assert cluster.shares == ()
    assert cluster.share_sum == 100
    assert cluster.start_capped is False
    assert cluster.gang_sharing == "partial"
    assert (cluster.reserve_mib, cluster.per_process_mib) == (0, 0)
    assert (job.workers, job.weight, job.gsla, job.state) == (1, 1, None, "pending")
    assert (job.gpus, job.sub_batch, job.priority) == (None, None, "batch")
    assert instance.slowdowns == ()


MAPPINGS = {
    "workloads": lambda instance: instance.workloads,
    "throughput": lambda instance: instance.workloads["resnet"].throughput,
    "speed, by default": lambda instance: instance.workloads["gpt"].speed,
    "places": lambda instance: instance.places,
    "jobs_by_id": lambda instance: instance.jobs_by_id,
}


@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
def test_a_mapping_of_a_record_cannot_be_changed(mapping):
    instance = example()
    kept = dict(mapping(instance))
    with pytest.raises(TypeError, match="cannot be changed"):
        mapping(instance)["new"] = 1
    for change in ("clear", "popitem", "update", "setdefault", "pop"):
        with pytest.raises(TypeError, match="cannot be changed"):
            getattr(mapping(instance), change)()
    assert mapping(instance) == kept


def test_a_record_is_pickled_and_copied_with_its_mappings():
    instance = example()
    for other in (pickle.loads(pickle.dumps(instance)), deepcopy(instance)):
        assert other == instance
        with pytest.raises(TypeError, match="cannot be changed"):
            other.workloads["new"] = other.workloads["bert"]


def test_a_record_cannot_be_edited():
    with pytest.raises(ValidationError, match="frozen"):
        example().name = "other"


def test_shorthand_of_a_node_names_its_gpus():
    node = example().cluster.nodes[1]
    assert [gpu.id for gpu in node.devices] == ["n1-0", "n1-1", "n1-2", "n1-3"]
    assert node.devices[0] == Gpu(id="n1-0", model="V100", memory_mib=16160)


def test_places_give_node_and_rack_of_each_gpu():
    places = example().places
    assert list(places) == ["n0-0", "n0-1", "n1-0", "n1-1", "n1-2", "n1-3"]
    assert (places["n0-1"].node, places["n0-1"].rack) == ("n0", "r0")
    assert (places["n1-3"].node, places["n1-3"].rack) == ("n1", None)
    assert places["n0-1"].gpu.model == "K80"


def test_jobs_by_id_and_by_state():
    instance = example()
    assert instance.jobs_by_id["j2"] is instance.jobs[1]
    assert [job.id for job in jobs_of(instance, "pending")] == ["j1"]
    assert [job.id for job in jobs_of(instance, "running")] == ["j2"]


def test_throughput_takes_shares_as_texts_and_as_numbers():
    data = example_data()
    data["workloads"]["resnet"]["throughput"] = {100: 310.0, "50": 201.0}
    assert Instance.from_data(data).workloads["resnet"].throughput == {100: 310.0, 50: 201.0}


def test_replace_gives_a_checked_copy():
    instance = example()
    renamed = instance.replace(name="other")
    assert (instance.name, renamed.name) == ("example", "other")
    assert renamed.jobs == instance.jobs


def test_replace_does_not_keep_what_was_derived_before():
    instance = example()
    assert "j1" in instance.jobs_by_id
    assert list(instance.replace(jobs=instance.jobs[1:]).jobs_by_id) == ["j2"]


def test_replace_checks_what_must_fit_together():
    instance = example()
    with pytest.raises(InputError) as caught:
        instance.replace(jobs=(instance.jobs[0], instance.jobs[0]))
    assert str(caught.value) == "jobs[1].id: job ids must differ, got 'j1' twice"


def test_replace_refuses_a_field_that_does_not_exist():
    with pytest.raises(InputError) as caught:
        example().replace(job=())
    assert str(caught.value) == "job: unknown field, did you mean jobs?"


def test_preempted_makes_running_jobs_pending_and_keeps_the_rest():
    instance = example()
    preempted = instance.preempted()
    before, after = instance.jobs[1], preempted.jobs[1]
    assert (after.state, after.gpus, after.share, after.sub_batch) == ("pending", None, None, None)
    assert (after.id, after.workers, after.workload) == (before.id, before.workers, before.workload)
    assert preempted.jobs[0] == instance.jobs[0]
    assert instance.jobs[1].running
    assert not after.running


def test_shares_are_written_out():
    assert Job(id="j", workload="w", workers=2).shares == (None, None)
    assert example().jobs[1].shares == (50, None)
    assert SlowdownEntry(pair=("a", "b"), slowdown=(1, 1)).shares == (None, None)
    assert Assignment(job="j", gpus=("g", "h")).shares == (None, None)
    assert example_plan().assignments[0].shares == (50, None)


def test_key_of_an_entry_is_the_same_mirrored():
    one = SlowdownEntry(pair=("a", "b"), share=(60, None), slowdown=(1, 2))
    other = SlowdownEntry(pair=("b", "a"), share=(None, 60), slowdown=(2, 1))
    assert one.key == other.key


@pytest.mark.parametrize(
    "change",
    [{"gpu_model": "V100"}, {"share": (40, None)}, {"share": (None, 60)}, {"pair": ("a", "c")}],
)
def test_key_of_an_entry_differs_by_model_share_and_workload(change):
    entry = SlowdownEntry(pair=("a", "b"), share=(60, None), slowdown=(1, 2))
    assert entry.replace(**change).key != entry.key


def test_members_of_a_set_are_listed_in_the_order_of_the_file():
    assert example().slowdowns[2].workloads == ("resnet", "bert", "gpt")


@pytest.mark.parametrize(
    ("sub_batch", "allowed"),
    [(64, True), (32, True), (16, True), (8, True), (4, False), (48, False), (128, False)],
)
def test_sub_batches_are_halves_down_to_the_least(sub_batch, allowed):
    batch = Batch.from_data(EXAMPLE["workloads"]["resnet"]["batch"])
    assert batch.allows(sub_batch) is allowed


def test_sub_batches_of_an_odd_size_are_whole():
    batch = Batch.from_data(EXAMPLE["workloads"]["resnet"]["batch"]).replace(size=48, min=1)
    assert [b for b in range(1, 49) if batch.allows(b)] == [3, 6, 12, 24, 48]


def test_slowdowns_below_one_are_kept():
    entry = {"pair": ["a", "b"], "slowdown": [0.97, 1.2]}
    assert small(slowdowns=[entry]).slowdowns[0].slowdown == (0.97, 1.2)


def test_a_pair_may_be_known_for_each_model_and_for_all():
    entry = {"pair": ["a", "b"], "slowdown": [1, 1]}
    entries = [entry, entry | {"gpu_model": "V100"}, entry | {"gpu_model": "K80"}]
    assert len(small(slowdowns=entries).slowdowns) == 3


def test_a_workload_with_itself_may_differ_where_the_shares_do():
    entry = {"pair": ["a", "a"], "share": [60, 40], "slowdown": [1.1, 1.7]}
    assert small(slowdowns=[entry]).slowdowns[0].slowdown == (1.1, 1.7)


def test_as_many_running_jobs_as_a_gpu_may_hold():
    jobs = [{"id": name, "state": "running", "gpus": ["g-0"]} for name in ("x", "y", "z")]
    assert len(small(jobs, max_jobs_per_gpu=3).jobs) == 3


def test_an_instance_without_jobs_or_gpus_is_one():
    assert small(gpus=1).jobs == ()
    assert (
        Instance.from_data(
            {"name": "n", "cluster": {"nodes": []}, "workloads": {}, "jobs": []}
        ).places
        == {}
    )


def test_a_plan_from_elsewhere_needs_assignments_only():
    plan = Plan.from_data({"assignments": [{"job": "j", "gpus": ["g"]}]})
    assert (plan.objective, plan.status, plan.waiting) == (None, None, ())
