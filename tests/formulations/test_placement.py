"""From counted groups to GPUs: gangs on few nodes and racks."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dovetail.formulations.programs.placement import place
from dovetail.instances.instance import Instance
from dovetail.solver.greedy import greedy_counts
from dovetail.solver.types import Limits
from tests.data import small
from tests.forms import groups_of
from tests.strategies import Shape, instances

AA = {"pair": ["a", "a"], "slowdown": [1.5, 1.5]}


def cluster(gpus, racks=None, jobs=()):
    """Return an instance with a node of so many GPUs for each item; nodes A, B, C ..."""
    data = small(list(jobs), [AA]).to_data()
    data["cluster"]["nodes"] = [
        {
            "id": "ABCDEF"[k],
            "rack": racks[k] if racks else "r",
            "gpu_count": number,
            "gpu": {"model": "V100", "memory_mib": 16000},
        }
        for k, number in enumerate(gpus)
    ]
    return Instance.from_data(data)


def nodes_of(instance: Instance, counts: dict[str, int]) -> dict[str, str]:
    """Return the nodes on which the groups are placed, named by their jobs, in order."""
    groups = groups_of(instance).apart
    names = [
        "".join(instance.jobs[groups.job[m]].id for m in groups.members(g))
        for g in range(len(groups))
    ]
    placed = place(groups, np.array([counts.get(name, 0) for name in names]))
    assert Counter(names[g] for g in placed.values()) == counts
    ids = groups.round.machines.gpu_ids
    return {
        name: "".join(sorted({ids[gpu][0] for gpu, g in placed.items() if names[g] == name}))
        for name in counts
    }


def gang(name, workers):
    return {"id": name, "workers": workers}


def test_a_gang_goes_on_one_node_where_one_has_room():
    instance = cluster([2, 4, 3], jobs=[gang("j", 3)])
    assert nodes_of(instance, {"j": 3}) == {"j": "C"}  # B would do, C is the tighter fit


def test_the_larger_gang_chooses_first():
    instance = cluster([3, 4], jobs=[gang("j", 3), gang("k", 4)])
    assert nodes_of(instance, {"j": 3, "k": 4}) == {"j": "A", "k": "B"}


def test_single_jobs_do_not_break_up_a_gang():
    instance = cluster([2, 2], jobs=[gang("i", 1), gang("j", 1), gang("k", 2)])
    found = nodes_of(instance, {"i": 1, "j": 1, "k": 2})
    assert len(found["k"]) == 1


def test_a_gang_over_two_nodes_stays_in_a_rack():
    instance = cluster([2, 2, 2], racks=["r", "s", "r"], jobs=[gang("j", 4)])
    assert nodes_of(instance, {"j": 4}) == {"j": "AC"}


def test_a_gang_that_shares_some_gpus_only_stays_together():
    # j and k share one GPU and are alone on one each.
    instance = cluster([1, 2, 1], jobs=[gang("j", 2), gang("k", 2)])
    found = nodes_of(instance, {"j": 1, "k": 1, "jk": 1})
    assert found["j"] == found["jk"] == "B"


@given(instances(Shape(jobs=8, nodes=True)), st.integers(0, 9))
def test_every_group_is_placed_as_often_as_counted_on_gpus_of_its_class(instance, seed):
    groups = groups_of(instance).apart
    counts = greedy_counts(groups, Limits(seed=seed), "random")
    placed = place(groups, counts)
    assert Counter(placed.values()) == {g: n for g, n in enumerate(counts.tolist()) if n}
    classes = groups.round.classes
    assert all(gpu in classes.gpus[groups.gpu_class[g]] for gpu, g in placed.items())
    node = groups.round.machines.node
    assert all(groups.node[g] in (-1, node[gpu]) for gpu, g in placed.items())


def test_a_gang_stays_with_the_gpus_it_shares_bug():
    """A gang whose shared GPU was placed already forgot that node and took another one too."""
    instance = cluster([1, 3], jobs=[gang("j", 2), gang("k", 2)])
    found = nodes_of(instance, {"j": 1, "jk": 1, "k": 1})
    assert found == {"j": "B", "jk": "B", "k": "B"}
