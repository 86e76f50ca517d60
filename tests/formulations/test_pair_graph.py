"""Rounds whose plans are matchings, and the reasons where they are not."""

from __future__ import annotations

import pytest

from dovetail.formulations.programs.pair_graph import PairGraph
from dovetail.instances import library
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.instance import Instance
from tests.data import small
from tests.forms import groups_of

AA = {"pair": ["a", "a"], "slowdown": [1.5, 1.5]}
AAA = {"set": ["a", "a", "a"], "slowdown": [1.5, 1.5, 1.5]}
JK = [{"id": "j"}, {"id": "k"}]
GANGS = [{"id": name, "workers": 2} for name in "jkl"]


def graph(instance: Instance) -> PairGraph:
    return PairGraph(groups_of(instance).apart)


def running(name, *gpus, **fields):
    return {"id": name, "state": "running", "gpus": gpus, "workers": len(gpus), **fields}


def test_an_edge_for_each_pair_and_for_each_job_alone():
    found = graph(small([*JK, {"id": "l", "workload": "b"}], [AA]))
    edges = sorted(zip(found.first.tolist(), found.second.tolist(), strict=True))
    assert edges == [(0, 0), (0, 1), (1, 1), (2, 2)]
    assert found.capacity == 2
    assert sorted(found.gain.tolist()) == pytest.approx([1, 1, 1, 2 / 1.5])
    assert not found.required.any()


def refusal(instance: Instance) -> str:
    with pytest.raises(UnsupportedError) as caught:
        graph(instance)
    return str(caught.value)


@pytest.mark.parametrize("other", [{"model": "K80"}, {"memory_mib": 8000}])
def test_unlike_gpus(other):
    data = small(JK, [AA]).to_data()
    gpu = {"id": "h-0", "model": "V100", "memory_mib": 16000, **other}
    data["cluster"]["nodes"].append({"id": "h", "gpus": [gpu]})
    assert "not interchangeable" in refusal(Instance.from_data(data))


def test_sets_of_three():
    assert "three" in refusal(small([*JK, {"id": "l"}], [AAA], max_jobs_per_gpu=3))
    # Where no three can meet there is nothing to refuse.
    assert graph(small(JK, [AA, AAA], max_jobs_per_gpu=3)).jobs == 2


def test_gangs_that_may_share_some_of_their_gpus():
    assert "partial" in refusal(small(GANGS, [AA], gpus=3))
    assert graph(small(GANGS, [], gpus=3)).jobs == 3  # no partner
    assert graph(small(GANGS, [AA], gpus=3, gang_sharing="whole")).jobs == 3


def test_three_gangs_show_why():
    # Partial: in a triangle all three fit on three GPUs. Matchings see one pair and no room.
    instance = library.load("gang-partial")
    assert "partial" in refusal(instance)
    whole = graph(library.load("gang-whole"))
    assert set(whole.size.tolist()) == {2}
    assert whole.capacity == 3


def test_a_running_gang_that_is_not_alike_on_all_its_gpus():
    jobs = [running("r", "g-0", "g-1", share=[50, None]), {"id": "k", "workers": 2}]
    entry = {**AA, "share": [50, None]}
    whole = {"gang_sharing": "whole", "shares": [50]}
    assert "running gang r differ" in refusal(small(jobs, [entry], **whole))


def test_running_jobs_must_be_covered_and_those_without_a_join_are_fixed():
    jobs = [running("r", "g-0"), running("s", "g-1", workload="b"), {"id": "j"}]
    found = graph(small(jobs, [AA], gpus=3))
    assert found.required.tolist() == [True, False, False]
    assert found.fixed.sum() == 1
    assert found.capacity == 2
    edges = sorted(zip(found.first.tolist(), found.second.tolist(), strict=True))
    assert edges == [(0, 0), (0, 2), (2, 2)]


def test_a_gang_larger_than_the_free_gpus_has_no_edge_of_its_own():
    # Two of three GPUs are held by r; of the gangs of two only one could start, with r.
    jobs = [running("r", "g-0", "g-1"), {"id": "k", "workers": 2}]
    found = graph(small(jobs, [AA], gpus=3, gang_sharing="whole"))
    edges = sorted(zip(found.first.tolist(), found.second.tolist(), strict=True))
    assert edges == [(0, 0), (0, 1)]
