"""The integer program admits every valid choice of groups, at its value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.formulations.candidates.groups import ceiling, idle_counts, score
from dovetail.formulations.programs.integer_program import build
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import OBJECTIVES, ObjectiveName
from dovetail.solver.greedy import Rule, greedy_counts
from dovetail.solver.types import Limits
from tests.data import small
from tests.forms import groups_of
from tests.strategies import Shape, instances


def assert_feasible(program, x):
    assert (program.lower <= x).all()
    assert (x <= program.upper).all()
    rows = program.rows @ x
    assert (rows >= program.row_lower - 1e-9).all()
    assert (rows <= program.row_upper + 1e-9).all()


@given(
    instances(Shape(jobs=8, nodes=True)),
    st.sampled_from(OBJECTIVES),
    st.sampled_from(["best", "alone", "random"]),
    st.integers(0, 5),
)
def test_every_choice_is_feasible_at_its_value(
    instance: Instance, objective: ObjectiveName, rule: Rule, seed: int
) -> None:
    groups = groups_of(instance, objective)
    counts = greedy_counts(groups, Limits(seed=seed), rule)
    formulation = build(groups)
    x = formulation.solution(counts)
    assert_feasible(formulation.program, x)
    reached = score(groups, counts)
    assert formulation.gain @ x == pytest.approx(reached.gain, rel=1e-12, abs=1e-12)
    assert formulation.weight @ x == pytest.approx(reached.weight)
    if groups.values.ratio:
        assert formulation.cost @ x == pytest.approx(reached.cost)
    assert (formulation.counts(x) == counts).all()
    most = ceiling(groups)
    assert reached.weight <= most.weight + 1e-9
    assert reached.gain <= most.gain + 1e-9


AA = {"pair": ["a", "a"], "slowdown": [1.5, 1.5]}


def test_three_two_gpu_gangs_share_three_gpus():
    # Every two of them together on one GPU: six workers, three GPUs, all at 1.5.
    groups = groups_of(small([{"id": k, "workers": 2} for k in "jkl"], [AA], gpus=3))
    counts = (groups.sizes == 2).astype(np.int64)
    formulation = build(groups)
    x = formulation.solution(counts)
    assert_feasible(formulation.program, x)
    assert formulation.gain @ x == pytest.approx(3 / 1.5)


def violated(groups, counts):
    formulation = build(groups)
    program = formulation.program
    rows = program.rows @ formulation.solution(counts)
    beyond = (rows < program.row_lower - 1e-9) | (rows > program.row_upper + 1e-9)
    return bool(beyond.any())


@pytest.mark.parametrize(
    ("jobs", "counts"),
    [
        # Groups in order: j alone, k alone, j with k.
        pytest.param([1, 1], [2, 0, 0], id="one-GPU job on two GPUs"),
        pytest.param([1, 1], [1, 0, 1], id="in two groups"),
        pytest.param([2, 1], [1, 0, 0], id="half a gang"),
        pytest.param([2, 2], [3, 0, 0], id="a worker too many"),
        pytest.param([2, 2], [1, 2, 1], id="four GPUs of three"),
    ],
)
def test_what_may_not_be_is_infeasible(jobs, counts):
    queue = [{"id": k, "workers": w} for k, w in zip("jk", jobs, strict=True)]
    groups = groups_of(small(queue, [AA], gpus=3)).apart
    assert [len(groups), *groups.sizes] == [3, 1, 1, 2]
    assert violated(groups, np.array(counts))


def test_whole_gangs_may_not_share_half():
    # On two of three GPUs alone and with the other: fine where sharing is partial.
    queue = [{"id": k, "workers": 2} for k in "jk"]
    half = np.array([1, 1, 1])
    assert not violated(groups_of(small(queue, [AA], gpus=3)), half)
    whole = groups_of(small(queue, [AA], gpus=3, gang_sharing="whole"))
    assert violated(whole, half)
    assert not violated(whole, np.array([0, 0, 2]))


def test_running_jobs_cannot_be_left_out():
    running = {"id": "r", "state": "running", "gpus": ["g-0"]}
    groups = groups_of(small([running], [AA]))
    assert violated(groups, np.array([0]))
    assert not violated(groups, idle_counts(groups))


def test_a_further_row_and_another_cost():
    program = build(groups_of(small([{"id": "j"}]))).program
    wanted = program.with_row(np.ones(program.size), 1.0).with_cost(np.zeros(program.size))
    assert wanted.rows.shape == (program.rows.shape[0] + 1, program.size)
    assert (wanted.row_lower[-1], wanted.row_upper[-1]) == (1.0, np.inf)
    assert not wanted.cost.any()
    assert program.cost.any()
