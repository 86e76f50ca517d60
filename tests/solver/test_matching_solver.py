"""Matching under a capacity: by hand, against CP-SAT, and the engine against networkx."""

from __future__ import annotations

from random import Random

import pytest

from dovetail.formulations.programs.pair_graph import PairGraph
from dovetail.instances.instance import Instance
from dovetail.solver.backends.networkx_solver import _exchanged
from dovetail.solver.rounds import solve
from tests.data import small
from tests.forms import groups_of


def test_exchange_takes_as_many_components_as_are_needed():
    # 0-1 against 1-2 and 0 alone; 3 alone is new; 4-5 is in both.
    fewer = frozenset(map(frozenset, [(0, 1), (4, 5)]))
    more = frozenset(map(frozenset, [(1, 2), (0, ~0), (3, ~3), (4, 5)]))
    for number in (2, 3, 4):
        found = _exchanged(fewer, more, number)
        assert len(found) == number
        assert frozenset((4, 5)) in found
        assert sum(map(len, found)) == len(frozenset().union(*found))
    assert _exchanged(fewer, more, 4) == more


def test_the_best_pairs_change_with_the_gpus():
    # Path a - b - c - a' of four jobs: with one GPU the middle pair, b with c at 1.1 each; with
    # two the ends, as the middle would leave a and a' one GPU for two that may not share:
    # 2/1.1 + 1 = 2.82 < 2/1.3 + 2/1.3 = 3.08.
    ends = {"pair": ["a", "b"], "slowdown": [1.3, 1.3]}
    other = {"pair": ["c", "a"], "slowdown": [1.3, 1.3]}
    middle = {"pair": ["b", "c"], "slowdown": [1.1, 1.1]}
    jobs = [{"id": f"j{k}", "workload": name} for k, name in enumerate("abca")]
    values = [
        solve(small(jobs, [ends, other, middle], gpus=gpus), solver="matching").objective
        for gpus in (1, 2, 3, 4)
    ]
    # Three: the middle and both a alone; four: all alone.
    assert values == pytest.approx([2 / 1.1, 4 / 1.3, 2 / 1.1 + 2, 4])


def test_sizes_compete_for_the_gpus():
    # Four GPUs; a pair of two-GPU gangs at 1.25 gives 1.6 for two GPUs, a pair of one-GPU jobs
    # at 1.6 gives 1.25 for one. Two pairs of singles and one of gangs: 2.5 + 1.6 = 4.1.
    gangs = {"pair": ["a", "a"], "slowdown": [1.25, 1.25]}
    singles = {"pair": ["b", "b"], "slowdown": [1.6, 1.6]}
    jobs = [{"id": f"g{k}", "workers": 2} for k in range(4)]
    jobs += [{"id": f"s{k}", "workload": "b"} for k in range(4)]
    instance = small(jobs, [gangs, singles], gpus=4, gang_sharing="whole")
    result = solve(instance, solver="matching")
    # Four singles alone give 4.0, two gang pairs 3.2, and 4.1 is the best.
    assert result.objective == pytest.approx(4.1)
    assert result.status == "optimal"


WEIGHTS = {
    "equal": lambda draw: 1.0,
    "few": lambda draw: draw.choice([1, 1, 2, 3]),
    "decimal": lambda draw: round(draw.uniform(0.1, 5), 2),
    "wide": lambda draw: round(10 ** draw.uniform(-3, 3), 4),
}


def random_round(seed: int, weights: str = "few") -> Instance:
    """Return a round of up to 25 gangs of 1 to 4 GPUs that share whole, some of them running."""
    draw = Random(seed)
    names = "abc"
    entries = [
        {"pair": [x, y], "slowdown": slowdown, "power_w": draw.randint(120, 400)}
        for k, x in enumerate(names)
        for y in names[k:]
        if draw.random() < 0.8
        for slowdown in [[round(draw.uniform(1, 2), 2)] * 2]
    ]
    gpus = draw.randint(4, 20)
    free = [f"g-{k}" for k in range(gpus)]
    jobs = []
    for k in range(draw.randint(5, 25)):
        workers = draw.choice([1, 1, 2, 2, 3, 4])
        job = {"id": f"j{k}", "workload": draw.choice(names), "workers": workers}
        job |= {"weight": WEIGHTS[weights](draw), "gsla": round(draw.uniform(1, 2), 2)}
        if draw.random() < 0.15 and len(free) >= workers:
            job |= {"state": "running", "gpus": [free.pop() for _ in range(workers)]}
        jobs.append(job)
    instance = small(jobs, entries, gpus=gpus, gang_sharing="whole")
    powered = {
        name: workload.replace(power_w=100.0 + 20 * k)
        for k, (name, workload) in enumerate(instance.workloads.items())
    }
    return instance.replace(workloads=powered)


@pytest.mark.parametrize("objective", ["throughput", "slowdown"])
@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 1000), marks=pytest.mark.long)], ids=len
)
def test_agrees_with_cp_sat(seeds, objective):
    several = 0
    for seed in seeds:
        instance = random_round(seed)
        several += len(set(PairGraph(groups_of(instance, objective)).size.tolist())) > 1
        assert_agree(instance, objective, "cpsat", seed)
    assert several > len(seeds) / 2  # several sizes compete in most


@pytest.mark.parametrize("objective", ["slowdown", "sensitivity", "energy", "fewest"])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(2, 300), marks=pytest.mark.long)], ids=len
)
def test_two_stages_agree_with_networkx(seeds, weights, objective):
    for seed in seeds:
        assert_agree(random_round(seed, weights), objective, "networkx", seed)


def assert_agree(instance, objective, other, seed):
    found, known = (solve(instance, objective, name) for name in ("matching", other))
    assert found.status == known.status == "optimal", seed
    assert found.objective == pytest.approx(known.objective, rel=2e-6), seed
    weights = [r.plan.objective.placed_weight or 0.0 for r in (found, known)]
    assert weights[0] == pytest.approx(weights[1], rel=1e-9), seed
