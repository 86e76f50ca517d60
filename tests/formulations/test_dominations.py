"""Which gangs need not be placed before others, compared pair by pair."""

from __future__ import annotations

import itertools
import time
from random import Random

import numpy as np
import pytest

from dovetail.formulations.budget import UNLIMITED, Budget
from dovetail.formulations.candidates.dominations import ALONE, Dominations, SeatTable
from dovetail.formulations.programs.worker_graph import WorkerGraph
from dovetail.instances.instance import Instance
from tests.forms import groups_of


def drawn_rows(draw: Random, gangs: int, others: int) -> list[tuple[int, int, int, int, int]]:
    """Return seats (gang, partner, worth, of partner, cost) of gangs of a few kinds at random."""
    kind = [draw.randrange(3) for _ in range(gangs)]
    ways = {
        pair: [(draw.randrange(2), draw.randrange(2), draw.randrange(2)) for _ in range(2)]
        for pair in itertools.combinations_with_replacement(range(3), 2)
    }
    alone = [draw.random() < 0.7 for _ in range(3)]
    rows = set()
    for a, b in itertools.combinations(range(gangs), 2):
        if draw.random() < 0.05:
            continue
        for way in ways[min(kind[a], kind[b]), max(kind[a], kind[b])]:
            for worth, of_partner, cost in (way, (way[1], way[0], way[2])):
                rows |= {(a, b, worth, of_partner, cost), (b, a, of_partner, worth, cost)}
    for a in range(gangs):
        if alone[kind[a]]:
            rows.add((a, ALONE, 1, 0, 0))
        for other in range(gangs, gangs + others):
            if draw.random() < 0.9:
                rows.add((a, other, kind[a] % 2, 0, 0))
    return sorted(rows)


def taken(rows, gang, without):
    return {row[1:] for row in rows if row[0] == gang and row[1] != without}


def dominations(rows, gangs, budget=UNLIMITED):
    columns = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    return Dominations(np.zeros(gangs, dtype=np.int64), SeatTable(*columns), budget)


def test_gangs_dominate_what_takes_no_seats_that_they_may_not():
    found = 0
    for seed in range(150):
        draw = Random(seed)
        gangs = draw.randrange(2, 9)
        rows = drawn_rows(draw, gangs, 2)
        made = dominations(rows, gangs)
        for a, b in itertools.combinations(range(gangs), 2):
            of_a, of_b = taken(rows, a, b), taken(rows, b, a)
            after, before = b in made.dominated(a), a in made.dominated(b)
            assert after == (a in made.dominating(b))
            assert before == (b in made.dominating(a))
            if taken(rows, a, ALONE - 1) and taken(rows, b, ALONE - 1):
                assert (after, before) == (of_a >= of_b, of_a < of_b)
            found += after
    assert found > 200


def test_out_of_time_gangs_dominate_none():
    rows = drawn_rows(Random(1), 6, 1)
    made = dominations(rows, 6, Budget.of(0.0))
    assert [made.dominated(job).tolist() for job in range(6)] == [[job] for job in range(6)]


def sweep(gangs: int, gslas: int = 1) -> Instance:
    """Return gangs of two of one workload on half the GPUs that they ask for.

    Of three gSLAs the last, of every third gang, is too strict to share under.
    """
    gpu = {"model": "A", "memory_mib": 16000}
    nodes = [{"id": f"n{k}", "gpu_count": 8, "gpu": gpu} for k in range(gangs // 8)]
    job = {"workload": "w", "workers": 2, "remaining_s": 100.0}
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "sweep",
            "cluster": {"nodes": nodes},
            "workloads": {"w": {"memory_mib": 1000}},
            "jobs": [{"id": f"g{k}", **job, "gsla": 1.5 - k % gslas / 5} for k in range(gangs)],
            "slowdowns": [{"pair": ["w", "w"], "slowdown": [1.2, 1.2]}],
        }
    )


@pytest.mark.parametrize(("gslas", "last"), [(1, 3), (3, 135)])
def test_a_sweep_of_equal_gangs_is_compared_by_classes(gslas, last):
    groups = groups_of(sweep(400, gslas))
    began = time.process_time()
    graph = WorkerGraph(groups, groups.gain)
    assert time.process_time() - began < 3.0  # more than 10 where all pairs are compared
    assert len(graph.dominated(0)) == 400
    assert len(graph.dominated(397)) == last
