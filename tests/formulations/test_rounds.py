"""Rounds compiled: sub-batches, classes of GPUs, and GPUs that no job may join."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.formulations.rounds import Round
from dovetail.formulations.rules import iteration_time
from dovetail.instances.instance import Batch, Instance
from dovetail.instances.slowdowns.shares import NO_CAP
from tests.data import small

SHARED = {"pair": ["a", "a"], "slowdown": [1.5, 1.5]}


def batch(**fields) -> Batch:
    data = {
        "size": 64,
        "min": 8,
        "fixed_mib": 2000,
        "mib_per_sample": 100,
        "step_s": {"fixed": 0.01, "per_sample": 0.001},
        "comm_s": 0.03,
    }
    return Batch.from_data(data | fields)


def running(name, gpus, **fields):
    return {"id": name, "state": "running", "gpus": gpus, "workers": len(gpus), **fields}


def with_batch(instance: Instance, **fields) -> Instance:
    workload = instance.workloads["a"].replace(batch=batch(**fields))
    return instance.replace(workloads={**instance.workloads, "a": workload})


def test_iteration_time_without_overlap():
    # t_comp(b) = 0.01 + 0.001 b: 0.074 at 64, 0.042 at 32, 0.026 at 16; t_comm = 0.03.
    # One step 0.074 + 0.03; two steps 0.042 + (0.042 + 0.03); four 3 x 0.026 + 0.026 + 0.03.
    assert iteration_time(batch(), 64) == pytest.approx(0.104)
    assert iteration_time(batch(), 32) == pytest.approx(0.114)
    assert iteration_time(batch(), 16) == pytest.approx(0.134)


def test_iteration_time_with_overlap():
    # t_comp(30) = 0.01 + 0.03 = 0.04, with t_comm = 0.03 under the exponent 2: 0.05, as 3-4-5.
    whole = batch(size=60, min=15, overlap=2.0)
    assert iteration_time(whole, 30) == pytest.approx(0.04 + 0.05)
    assert iteration_time(batch(size=30, min=15, overlap=2.0), 30) == pytest.approx(0.05)


def test_full_overlap_hides_the_shorter():
    # With a large exponent only the longer of 0.074 and 0.03 counts, and nothing overflows.
    assert iteration_time(batch(overlap=100.0), 64) == pytest.approx(0.074)


def test_a_pending_job_has_a_variant_for_each_sub_batch():
    instance = with_batch(small([{"id": "j"}], per_process_mib=300))
    variants = Round.of(instance).variants
    assert variants.sub_batch.tolist() == [64, 32, 16, 8]
    # At full size the workload's own 4000 MiB, below that 2000 + 100 b; 300 for the process.
    assert variants.memory_mib.tolist() == [4300, 5500, 3900, 3100]
    assert variants.slowdown_factor[:3] == pytest.approx([1, 114 / 104, 134 / 104])


def test_sub_batches_are_whole_and_not_below_the_least():
    instance = with_batch(small([{"id": "j"}]), size=48, min=5)
    assert Round.of(instance).variants.sub_batch.tolist() == [48, 24, 12, 6]
    instance = with_batch(small([{"id": "j"}]), size=12, min=1)
    assert Round.of(instance).variants.sub_batch.tolist() == [12, 6, 3]


def test_a_running_job_keeps_its_sub_batch():
    instance = with_batch(small([running("j", ["g-0"]), running("k", ["g-1"])]))
    j, k = instance.jobs
    instance = instance.replace(jobs=(j.replace(sub_batch=32), k))
    assert Round.of(instance).variants.sub_batch.tolist() == [32, 64]


def with_nodes(instance: Instance, *nodes) -> Instance:
    data = instance.to_data()
    data["cluster"]["nodes"] += nodes
    return Instance.from_data(data)


def test_gpus_form_a_class_by_model_memory_and_residents():
    instance = with_nodes(
        small([running("j", ["g-0", "g-3"])], gpus=4, reserve_mib=500),
        {"id": "h", "gpus": [{"id": "h-0", "model": "V100", "memory_mib": 8000}]},
        {"id": "i", "gpu_count": 1, "gpu": {"model": "V100", "memory_mib": 16000}},
        {"id": "k", "gpu_count": 1, "gpu": {"model": "K80", "memory_mib": 16000}},
    )
    compiled = Round.of(instance)
    classes, names = compiled.classes, compiled.machines.names
    model = [compiled.models[k] for k in classes.model]
    assert list(zip(model, classes.memory_mib, map(names, classes.gpus), strict=True)) == [
        ("V100", 15500, ("g-0", "g-3")),
        ("V100", 15500, ("g-1", "g-2", "i-0")),
        ("V100", 7500, ("h-0",)),
        ("K80", 15500, ("k-0",)),
    ]
    assert classes.residents.tolist() == [len(there) for there in classes.on] == [1, 0, 0, 0]


def test_unlike_shares_of_a_running_gang_distinguish_its_gpus():
    instance = small([running("j", ["g-0", "g-1"], share=[50, None])], shares=[50])
    assert list(Round.of(instance).classes.gpus) == [(0,), (1,)]


def closed(instance: Instance) -> list[str]:
    compiled = Round.of(instance)
    classes = compiled.classes
    shut = (gpu for k in np.flatnonzero(~classes.open) for gpu in classes.gpus[k])
    return list(compiled.machines.names(shut))


def test_free_gpus_and_those_of_running_jobs_are_open():
    assert closed(small([running("j", ["g-0"])])) == []


def test_a_gpu_is_closed_where_its_jobs_have_no_entry():
    two = [running("j", ["g-0"]), running("k", ["g-0"])]
    assert closed(small(two, [])) == ["g-0"]
    assert closed(small(two, [{**SHARED, "slowdown": None}])) == ["g-0"]
    assert closed(small(two, [SHARED], max_jobs_per_gpu=3)) == []


def test_a_gpu_is_closed_where_memory_or_shares_are_broken():
    # Twice 4000 MiB fit in 16000, with 4100 more for each process they do not.
    two = [running("j", ["g-0"], share=[70]), running("k", ["g-0"], share=[70])]
    entry = {**SHARED, "share": [70, 70]}
    assert closed(small(two, [entry], share_sum=140)) == []
    assert closed(small(two, [entry], share_sum=140, per_process_mib=4100)) == ["g-0"]
    assert closed(small(two, [entry], share_sum=139)) == ["g-0"]


def test_a_job_over_its_gsla_closes_all_its_gpus():
    # j shares g-0 at 1.5; at gSLA 1.4 its other GPU is closed too, but none of k's.
    jobs = [running("j", ["g-0", "g-1"], gsla=1.4), running("k", ["g-0", "g-2"])]
    assert closed(small(jobs, [SHARED], gpus=4)) == ["g-0", "g-1"]
    jobs[0]["gsla"] = 1.5
    assert closed(small(jobs, [SHARED], gpus=4)) == []
    assert closed(small(jobs, [{**SHARED, "upper": [1.6, 1.6]}], gpus=4)) == ["g-0", "g-1"]


def test_a_job_counts_as_alone_where_its_co_runners_have_no_entry():
    # No entry has j and k: j is too slow alone at half the SMs, so its other GPU is closed, too.
    shares = {"share": [50, None]}
    jobs = [running("j", ["g-0", "g-1"], gsla=1.4, **shares), running("k", ["g-0"], share=[50])]
    instance = small(jobs, [SHARED], shares=[50])
    throughput = instance.workloads["a"].replace(throughput={100: 300.0, 50: 200.0})
    instance = instance.replace(workloads={**instance.workloads, "a": throughput})
    assert closed(instance) == ["g-0", "g-1"]


def test_a_latency_job_is_over_its_gsla_by_its_p99():
    entry = {**SHARED, "p99": [1.2, 1.2]}
    jobs = [running("j", ["g-0"], gsla=1.3), running("k", ["g-0"])]
    assert closed(small(jobs, [entry])) == ["g-0"]
    jobs[0]["priority"] = "latency"
    assert closed(small(jobs, [entry])) == []


def test_slowdown_alone_is_that_of_the_cap():
    instance = small([{"id": "j"}], shares=[50])
    throughput = instance.workloads["a"].replace(throughput={100: 300.0, 50: 200.0})
    instance = instance.replace(workloads={**instance.workloads, "a": throughput})
    compiled = Round.of(instance)
    assert compiled.alone(0, NO_CAP) == 1
    assert compiled.alone(0, 50) == 1.5
    assert compiled.alone(0, 40) is None


def test_a_job_starts_capped_only_where_the_cluster_says_so():
    assert Round.of(small(shares=[50, 90])).shares_alone == (NO_CAP,)
    capped = small(shares=[50, 90], start_capped=True, share_sum=80)
    assert Round.of(capped).shares_alone == (NO_CAP, 50)
