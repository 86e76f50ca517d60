"""Moves of running jobs touch as few processes as possible."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.formulations.candidates.groups import Groups
from dovetail.formulations.programs.moves import fewest_moves
from dovetail.formulations.rounds import Round
from dovetail.instances.instance import Instance
from dovetail.solver.greedy import greedy_counts
from dovetail.solver.types import Limits
from tests.data import small
from tests.forms import groups_of
from tests.strategies import Shape, instances

SHAPE = Shape(jobs=5, nodes=True)


def running(name, *gpus, **fields):
    fields = {"state": "running", "gpus": list(gpus), "workers": len(gpus), **fields}
    return {"id": name, **fields}


def kept(
    groups: Groups, placed: Mapping[int, int], job: Mapping[int, int], now: Instance
) -> tuple[int, int]:
    """Return how many processes stay, counted from the instance, and how many of them of gangs."""
    found, of_gangs, ids = 0, 0, groups.round.machines.gpu_ids
    for gpu, group in placed.items():
        for m in groups.members(group):
            held = now.jobs[job[int(groups.job[m])]]
            batch = now.workloads[held.workload].batch
            at = dict(zip(held.gpus or (), held.shares, strict=held.running))
            sub_batch = int(groups.variants.sub_batch[groups.variant[m]]) or None
            same = at.get(ids[gpu], -1) == (int(groups.share[m]) or None)
            same = same and sub_batch == (held.sub_batch or (batch and batch.size))
            found += same
            of_gangs += same and held.workers > 1
    return found, of_gangs


def may_be_on(groups: Groups, group: int | None, gpu: int) -> bool:
    return group is None or groups.node[group] in (-1, groups.round.machines.node[gpu])


def placements(groups: Groups, counts: Sequence[int]) -> Iterator[Mapping[int, int]]:
    """Yield every way to give the counted groups GPUs of their classes."""
    per_class = []
    for k, gpus in enumerate(groups.round.classes.gpus):
        wanted = [g for g, n in enumerate(counts) for _ in range(n) if groups.gpu_class[g] == k]
        idle = [None] * (len(gpus) - len(wanted))
        per_class.append(
            [
                tuple(zip(gpus, way, strict=True))
                for way in permutations(wanted + idle)
                if all(may_be_on(groups, g, gpu) for gpu, g in zip(gpus, way, strict=True))
            ]
        )
    for ways in product(*per_class):
        yield {gpu: group for way in ways for gpu, group in way if group is not None}


def exchanges(now: Instance, kinds: Sequence[Hashable]) -> Iterator[Mapping[int, int]]:
    """Yield every way in which jobs of one worker and one kind take each other's place."""
    alike = defaultdict(list)
    for k, job in enumerate(now.jobs):
        alike[kinds[k], k if job.workers > 1 else None].append(k)
    for takers in product(*(permutations(same) for same in alike.values())):
        yield {
            job: taker
            for same, way in zip(alike.values(), takers, strict=True)
            for job, taker in zip(same, way, strict=True)
        }


@pytest.mark.parametrize("exchange", [False, True])
@given(instance=instances(SHAPE), seed=st.integers(0, 9))
def test_no_way_touches_fewer_processes(exchange, instance, seed):
    groups = groups_of(instance.preempted()).apart
    counts = greedy_counts(groups, Limits(seed=seed), "random")
    workloads = [job.workload for job in instance.jobs]
    kinds = workloads if exchange else range(len(instance.jobs))
    placed, taker = fewest_moves(groups, counts, Round.of(instance), kinds)
    chosen = {int(j) for g in np.flatnonzero(counts) for j in groups.job[groups.members(g)]}
    assert set(taker) == chosen
    assert len(set(taker.values())) == len(chosen)
    assert [workloads[j] for j in taker] == [workloads[j] for j in taker.values()]
    assert np.bincount(list(placed.values()), minlength=len(counts)).tolist() == list(counts)
    assert kept(groups, placed, taker, instance) == max(
        kept(groups, placed, job, instance)
        for placed in placements(groups, counts.tolist())
        for job in exchanges(instance, kinds)
    )


def moved(instance: Instance, counts: Mapping[str, int], kinds: Sequence[Hashable]):
    """Return the destinations of the groups named by their jobs, and which job replaces which."""
    groups = groups_of(instance.preempted()).apart
    name = [job.id for job in instance.jobs]
    names = ["".join(name[groups.job[m]] for m in groups.members(g)) for g in range(len(groups))]
    chosen = np.array([counts.get(each, 0) for each in names])
    placed, taker = fewest_moves(groups, chosen, Round.of(instance), kinds)
    ids = groups.round.machines.gpu_ids
    on = {ids[gpu]: names[group] for gpu, group in placed.items()}
    return on, {name[job]: name[other] for job, other in taker.items()}


def test_a_running_job_goes_on_and_one_like_it_waits():
    instance = small([{"id": "i"}, running("j", "g-1"), {"id": "k", "workload": "b"}])
    assert moved(instance, {"i": 1, "k": 1}, "aab") == (
        {"g-1": "i", "g-0": "k"},
        {"i": "j", "k": "k"},
    )
    assert moved(instance, {"i": 1, "k": 1}, "abc")[1] == {"i": "i", "k": "k"}


def test_of_jobs_that_are_alike_the_running_ones_move_before_others_start():
    instance = small([{"id": "i"}, running("j", "g-1", share=[50])], shares=[50])
    placed, job = moved(instance, {"i": 1}, "aa")  # without the cap, so nothing stays
    assert list(placed.values()) == ["i"]
    assert job == {"i": "j"}


def test_a_gang_that_keeps_a_part_of_its_gpus_keeps_those_of_one_node():
    # One process of j gets a cap and starts again; that on m is alone there.
    data = small([], [{"pair": ["a", "a"], "share": [50, 50], "slowdown": [1.1, 1.1]}]).to_data()
    gpu = {"model": "V100", "memory_mib": 16000}
    data["cluster"] |= {
        "shares": [50],
        "nodes": [{"id": n, "gpu_count": 2, "gpu": gpu} for n in "mn"],
    }
    jobs = [running("j", "m-0", "n-0", "n-1"), {"id": "k"}]
    data["jobs"] = [{"workload": "a", **job} for job in jobs]
    placed, _ = moved(Instance.from_data(data), {"j": 2, "jk": 1}, "aa")
    assert {gpu for gpu, group in placed.items() if group == "j"} == {"n-0", "n-1"}
