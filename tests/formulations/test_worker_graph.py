"""The relaxation of partial sharing: gangs split into workers."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from dovetail.formulations.programs.worker_graph import ANY, WorkerGraph
from dovetail.instances import library
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.instance import Instance
from dovetail.solver.pairing import match_pairs
from dovetail.solver.pairing.gang_options import pair_values
from tests.forms import groups_of
from tests.formulations.test_pair_graph import AA, running, small
from tests.oracle import optimum
from tests.strategies import Shape, random_instance

SHAPE = Shape(jobs=6, gpus=4, models=False, memory=False, sets=False)


def graph_of(instance: Instance) -> WorkerGraph:
    groups = groups_of(instance).apart
    return WorkerGraph(groups, groups.gain)


def bound(graph: WorkerGraph, box=None):
    box = graph.root if box is None else box
    pairs = graph.pairs(box, pair_values)
    found = match_pairs(
        pairs.pair_value, pairs.single_value, gpus=graph.gpus, required=pairs.required
    )
    return found.bound + graph.constant(box), graph.seats(found.mate, box)


def partial_rounds(count: int):
    for seed in range(count):
        draw = Random(seed)
        shape = replace(SHAPE, running=draw.random() < 0.5, batches=draw.random() < 0.3)
        data = random_instance(draw, shape).to_data()
        data["cluster"]["gang_sharing"] = "partial"
        yield Instance.from_data(data)


def test_no_plan_exceeds_the_bound():
    loose = exact = 0
    for instance in partial_rounds(60):
        try:
            graph = graph_of(instance)
        except UnsupportedError:
            continue
        most, seats = bound(graph)
        best = optimum(instance, "throughput").value
        assert most >= best - 1e-7
        whole = ((seats.placed == 0) | (seats.placed == graph.workers)).all()
        if whole and not seats.mixed.any():
            assert graph.value(seats) <= best + 1e-9
            exact += 1
        loose += most > best + 1e-6
    assert exact > 10
    assert loose > 2


def test_the_triangle_of_gangs_is_found():
    # Three gangs of two on three GPUs: every two of them share one.
    graph = graph_of(library.load("gang-partial"))
    most, seats = bound(graph)
    assert most == pytest.approx(library.manifest()["gang-partial"].optimum["throughput"].value)
    assert seats.placed.tolist() == graph.workers.tolist()


def test_workers_of_one_gang_take_a_gpu_each():
    graph = graph_of(small([{"id": "j", "workers": 2}], [AA], gpus=3))
    pairs = graph.pairs(graph.root, pair_values)
    assert np.isnan(pairs.pair_value).all()
    assert pairs.single_value.tolist() == [0.5, 0.5]


def test_a_box_narrows_a_gang_down():
    jobs = [{"id": "j", "workers": 2}, {"id": "k"}, {"id": "l"}]
    graph = graph_of(small(jobs, [{**AA, "slowdown": [1.25, 1.25]}], gpus=2))
    free, seats = bound(graph)
    assert seats.placed.tolist() == [2, 1, 1]
    assert free == pytest.approx(2.4)
    assert graph.worths(0).tolist() == [0.8, 1.0]
    alone, seats = bound(graph, graph.root.settled(0, floor=1.0, required=True))
    assert (alone, seats.placed.tolist()) == (pytest.approx(1.0), [2, 0, 0])
    without, seats = bound(graph, graph.root.settled(0, excluded=True))
    assert (without, seats.placed.tolist()) == (pytest.approx(2.0), [0, 1, 1])
    capped, _ = bound(graph, graph.root.settled(0, cap=0.5))
    assert capped == pytest.approx(2.1)


def test_workers_of_some_jobs_are_worth_what_they_are_among_all():
    for instance in partial_rounds(20):
        try:
            graph = graph_of(instance)
        except UnsupportedError:
            continue
        box = graph.root.settled(0, cap=0.5).settled(-1, excluded=True)
        changed = box.differs(graph.root)
        every, some = (graph.pairs(box, pair_values, jobs) for jobs in (None, changed))
        assert set(graph.job_of_worker[some.workers]) <= {0, len(graph.workers) - 1}
        np.testing.assert_array_equal(some.pair_value, every.pair_value[some.workers])
        np.testing.assert_array_equal(some.single_value, every.single_value[some.workers])
        np.testing.assert_array_equal(some.required, every.required[some.workers])


def test_a_gang_dominates_one_that_tolerates_less():
    gang = {"workload": "a", "workers": 2}
    jobs = [
        {"id": "j", **gang, "gsla": 1.1},
        {"id": "k", **gang, "gsla": 2.0},
        {"id": "l", **gang, "gsla": 2.0},
        {"id": "m", **gang, "gsla": 2.0, "weight": 3.0},
        {"id": "n", "workload": "b"},
    ]
    graph = graph_of(small(jobs, [{"pair": ["a", "b"], "slowdown": [1.5, 1.0]}], gpus=4))
    assert graph.dominated(1).tolist() == [1, 0, 2]
    assert graph.dominated(2).tolist() == [2, 0]
    assert graph.dominating(0).tolist() == [0, 1, 2]
    assert graph.dominating(3).tolist() == [3]
    assert graph.dominated(4).tolist() == [4]


def test_running_gangs_stay_on_the_gpus_they_hold():
    jobs = [running("r", "g-0", "g-1", workload="b"), {"id": "k"}, {"id": "l"}]
    graph = graph_of(small(jobs, [AA], gpus=3))
    # No job may join workload b: its workers have no choice, and one GPU is left.
    assert graph.gpus == 1
    assert graph.constant(graph.root) == 1.0
    most, seats = bound(graph)
    assert most == pytest.approx(1 + 2 / 1.5)
    assert seats.placed.tolist() == [2, 1, 1]
    assert seats.variant[0] == ANY


def test_cost_of_gpus_is_taken_off():
    groups = groups_of(small([{"id": "j", "workers": 2}], [AA], gpus=2))
    worth = groups.gain
    graph = WorkerGraph(groups, worth, cost=np.full(len(groups), 0.25))
    most, seats = bound(graph)
    assert most == pytest.approx(0.5)
    assert graph.value(seats) == pytest.approx(0.5)
