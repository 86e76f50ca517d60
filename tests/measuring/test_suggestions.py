"""Suggestions of pairs to measure: those that improve the plan."""

import numpy as np
import pytest

from dovetail.instances.datasets import Measurement
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance
from dovetail.measuring.suggesting.suggestions import QueuedGang, SuggestionRound, suggestions
from dovetail.predictors.fitted.training import process
from tests.predictors.synthetic import GPU, synthetic


@pytest.fixture(scope="module")
def data():
    return synthetic(families=4, skipped=0.4, noise=0.05)


@pytest.fixture(scope="module")
def like(data):
    return process(data, GPU)


def measured(data):
    return {frozenset(found.workloads) for found in data.measurements}


def test_pairs_that_were_not_measured_and_are_worth_most_come_first(data, like):
    found = suggestions(data, GPU, like, SuggestionRound.of_data(data, GPU), 4)
    pairs = [frozenset(each.workloads) for each in found]
    assert 1 <= len(found) == len(set(pairs))
    assert measured(data).isdisjoint(pairs)
    assert all(0 < each.worth < 0.1 for each in found)
    assert found[0].worth == max(each.worth for each in found)
    assert all(0 < error < 0.5 for each in found for error in each.error)


def test_what_was_suggested_is_not_suggested_again_and_the_worth_falls(data, like):
    pool = SuggestionRound.of_data(data, GPU)
    first = suggestions(data, GPU, like, pool, 1)[0]
    values = tuple(value * 1.001 for value in first.slowdown)
    added = Measurement(workloads=first.workloads, gpu_model=GPU, slowdown=values)
    after = data.replace(measurements=(*data.measurements, added))
    again = suggestions(after, GPU, like, pool, 99)
    assert first.workloads not in [each.workloads for each in again]
    # As it was believed: nothing is left to gain from it.
    assert sum(each.worth for each in again) < sum(
        each.worth for each in suggestions(data, GPU, like, pool, 99)
    )


def test_only_pairs_of_the_jobs_count_and_none_where_each_has_a_gpu(data, like):
    names = sorted(data.workloads(GPU))[:4]
    jobs = tuple(QueuedGang(name) for name in names)
    found = suggestions(data, GPU, like, SuggestionRound(jobs, 2), 9)
    assert all(set(each.workloads) <= set(names) for each in found)
    assert suggestions(data, GPU, like, SuggestionRound(jobs, 4), 9) == []


def test_pairs_without_memory_or_that_failed_or_of_two_sizes_are_left_out(data, like):
    a, b, c, d = sorted(data.workloads(GPU))[:4]
    failed = Measurement(workloads=(a, b), gpu_model=GPU, slowdown=None)
    known = data.replace(measurements=(*data.measurements, failed))
    jobs = (
        QueuedGang(a),
        QueuedGang(b, memory_mib=9.0),
        QueuedGang(c, memory_mib=2.0),
        QueuedGang(d, workers=2),
    )
    found = suggestions(known, GPU, like, SuggestionRound(jobs, 2, room_mib=10.0), 9)
    assert {frozenset(each.workloads) for each in found} <= {frozenset({a, c})}


def test_the_jobs_of_an_instance_with_a_workload_that_was_never_seen(data, like):
    name = sorted(data.workloads(GPU))[0]
    gpu = {"id": "g", "model": GPU, "memory_mib": 8000}
    instance = Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "office",
            "cluster": {"nodes": [{"id": "n", "gpus": [gpu]}]},
            "workloads": {name: {"memory_mib": 1000}, "new": {"memory_percent": 25}},
            "jobs": [{"id": "x", "workload": name}, {"id": "y", "workload": "new", "gsla": 1.1}],
        }
    )
    pool = SuggestionRound.of_instance(instance, GPU)
    assert [(job.workload, job.gsla) for job in pool.jobs] == [(name, np.inf), ("new", 1.1)]
    assert [job.memory_mib for job in pool.jobs] == [1000, 2000]
    (found,) = suggestions(data, GPU, like, pool, 3)
    assert set(found.workloads) == {name, "new"}
    with pytest.raises(InputError, match="GPU of model"):
        SuggestionRound.of_instance(instance, "another")


def test_pairs_are_suggested_at_the_splits_that_were_measured(data, like):
    names = sorted(data.workloads(GPU))[:2]
    capped = Measurement(workloads=names, gpu_model=GPU, share=(40, 60), slowdown=(2.0, 1.6))
    known = data.replace(measurements=(*data.measurements, capped))
    found = suggestions(known, GPU, like, SuggestionRound.of_data(data, GPU), 30)
    assert {each.shares for each in found} <= {(None, None), (40, 60), (60, 40)}
    assert ({*names}, (40, 60)) not in [({*each.workloads}, each.shares) for each in found]


def test_pairs_without_caps_are_not_suggested_where_none_was_measured(data):
    measurements = [m.replace(share=(40, 60)) for m in data.measurements]
    known = data.replace(measurements=measurements)
    found = suggestions(known, GPU, process(known, GPU), SuggestionRound.of_data(known, GPU), 30)
    assert found
    assert {each.shares for each in found} <= {(40, 60), (60, 40)}
