"""Several best-effort jobs in the idle time of one latency-critical job on a GPU."""

import numpy as np
import pytest

from dovetail import check, solve
from dovetail.instances._record import IDLE
from dovetail.instances.instance import Instance
from dovetail.predictors.fill import predict
from tests.oracle import optimum

WORKLOADS = ("chat", "a", "b", "c")


def entry(names, slowdown, **fields):
    kind = "pair" if len(names) == 2 else "set"
    share = [None, *["idle"] * (len(names) - 1)]
    return {kind: list(names), "share": share, "slowdown": list(slowdown), **fields}


def round_of(slowdowns, jobs=("a", "b"), gpus=1, most=3, gsla=1.1, util=None, **services):
    """Return a round of one service or several, and best-effort jobs of some workloads."""
    metrics = {"metrics": {"gpu_util": util}} if util else {}
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "behind",
            "cluster": {
                "max_jobs_per_gpu": most,
                "shares": ["idle"],
                "nodes": [
                    {
                        "id": "n0",
                        "gpu_count": gpus,
                        "gpu": {"model": "A100", "memory_mib": 40000.0},
                    }
                ],
            },
            "workloads": {
                "chat": {"memory_mib": 8000.0, **metrics},
                **{name: {"memory_mib": 9000.0, "isolation": "blocks"} for name in WORKLOADS[1:]},
            },
            "jobs": [
                *(
                    {"id": f"s{k}", "workload": "chat", "priority": "latency", "gsla": gsla}
                    for k in range(services.get("services", 1))
                ),
                *({"id": f"j{k}", "workload": name} for k, name in enumerate(jobs)),
            ],
            "slowdowns": slowdowns,
        }
    )


def solved(instance):
    """Return the plan of a round; it is optimal by enumeration, and passes the checker."""
    result = solve(instance)
    assert result.status == "optimal"
    assert result.objective == pytest.approx(float(optimum(instance).value), rel=1e-6)
    assert not check(instance, result.plan).violations
    return {each.job: each for each in result.plan.assignments}


SET = entry(("chat", "a", "b"), (1.05, 2.5, 2.6), p99=[1.08, 2.5, 2.6])


def test_a_set_behind_a_service_is_planned():
    placed = solved(round_of([SET]))
    assert [placed[name].share for name in ("s0", "j0", "j1")] == [(None,), (IDLE,), (IDLE,)]


@pytest.mark.parametrize(("p99", "together"), [(1.1, 3), (1.11, 1)])
def test_the_p99_of_the_set_is_held_against_the_limit(p99, together):
    of_set = entry(("chat", "a", "b"), (1.05, 2.5, 2.6), p99=[p99, 2.5, 2.6])
    assert len(solved(round_of([of_set]))) == together


def test_sets_follow_from_their_pairs():
    known = [
        entry(("chat", "a"), (1.04, 1.5), p99=[1.09, 1.5]),
        entry(("chat", "b"), (1.06, 1.2), p99=[1.07, 1.2]),
    ]
    filled = predict(round_of(known, jobs=("a", "b", "b"), most=4))
    of_three, of_two_b, of_four = filled.slowdowns[2:]
    assert of_three.workloads == ("chat", "a", "b")
    assert of_three.slowdown == (1.06, 3.0, 2.4)
    assert of_three.p99 == (1.09, 3.0, 2.4)
    assert of_two_b.slowdown == (1.06, 2.4, 2.4)
    assert (of_four.workloads, of_four.slowdown) == (("chat", "a", "b", "b"), (1.06, 4.5, 3.6, 3.6))
    assert {each.source for each in (of_three, of_two_b, of_four)} == {"estimate"}


def test_what_is_measured_of_a_set_stays():
    known = [entry(("chat", name), (1.04, 1.5)) for name in "ab"] + [SET]
    assert predict(round_of(known)).slowdowns == round_of(known).slowdowns


@pytest.mark.parametrize("seed", range(12))
def test_random_rounds_are_solved_as_by_enumeration(seed):
    draw = np.random.default_rng(seed)
    known = []
    for name in WORKLOADS[1:]:
        tail = draw.uniform(1.0, 1.2)
        known.append(entry(("chat", name), (1.0 + (tail - 1) / 2, draw.uniform(1.1, 2.5))))
        known[-1]["p99"] = [tail, known[-1]["slowdown"][1]]
    names = sorted(draw.choice(WORKLOADS[1:], 2))
    # In the gaps there is more for two than half of what there is for one.
    first, second = draw.uniform(1.2, 2.4, 2)
    second = first if names[0] == names[1] else second
    tail = float(draw.uniform(1.0, 1.2))
    known.append(entry(("chat", *names), (1.05, first, second), p99=[tail, first, second]))
    jobs = draw.choice(WORKLOADS[1:], 4).tolist()
    instance = round_of(known, jobs, gpus=2, most=4, services=int(draw.integers(1, 3)))
    placed = solved(predict(instance))
    assert placed
