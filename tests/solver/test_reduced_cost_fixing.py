"""Tightened bounds lose no solution of the value asked for, and are tighter."""

from __future__ import annotations

from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from scipy.sparse import csr_array

from dovetail.formulations.budget import Budget
from dovetail.formulations.programs.integer_program import build
from dovetail.formulations.programs.program import IntegerProgram
from dovetail.instances import library
from dovetail.solver.backends import reduced_cost_fixing
from dovetail.solver.backends.cpsat import CpSat
from dovetail.solver.backends.highs import Highs
from dovetail.solver.backends.reduced_cost_fixing import ReducedCostFixing, Relaxation
from dovetail.solver.types import Limits
from tests.forms import groups_of


def random_program(seed: int) -> IntegerProgram:
    draw = np.random.default_rng(seed)
    size, count = 5, 4
    rows = draw.integers(-3, 6, (count, size)) * (draw.random((count, size)) < 0.7)
    upper = draw.integers(1, 4, size)
    inside = rows @ draw.integers(0, upper + 1)
    kind = draw.integers(0, 3, count)
    return IntegerProgram(
        csr_array(rows.astype(float)),
        np.where(kind == 0, -np.inf, inside - (kind == 1)),
        np.where(kind == 1, np.inf, inside + (kind == 0)),
        np.zeros(size, dtype=np.int64),
        upper,
        np.round(draw.normal(size=size), 2),
    )


def solutions(program: IntegerProgram) -> np.ndarray:
    ranges = [range(a, b + 1) for a, b in zip(program.lower, program.upper, strict=True)]
    every = np.array(list(product(*ranges)))
    activity = every @ program.rows.toarray().T
    fits = (activity >= program.row_lower) & (activity <= program.row_upper)
    return every[fits.all(axis=1)]


def test_no_solution_of_the_value_is_lost():
    for seed in range(50):
        program = random_program(seed)
        every = solutions(program)
        values = every @ program.cost
        for at_least in (values.max(), np.median(values), values.min()):
            good = every[values >= at_least]
            tight = Relaxation(program, Limits()).tightened(float(at_least))
            assert (good >= tight.lower).all(), seed
            assert (good <= tight.upper).all(), seed


def test_few_groups_of_the_lab_are_within_reach_of_its_optimum():
    groups = groups_of(library.load("lab"))
    program = build(groups).program
    best = CpSat().solve(program, Limits()).bound
    left = np.count_nonzero(Relaxation(program, Limits()).tightened(best).upper[: len(groups)])
    assert left < len(groups) / 5


def test_what_is_cut_off_is_never_the_best():
    for seed in range(30):
        program = random_program(seed)
        every = solutions(program)
        values = every @ program.cost
        start = every[int(np.argmin(values))]
        answer = ReducedCostFixing(Highs()).solve(program, Limits(), start)
        assert answer.stopped == "complete", seed
        assert program.cost @ answer.x == pytest.approx(values.max(), abs=1e-6)
        assert answer.bound >= values.max() - 1e-6


def test_without_time_the_start_comes_back():
    program = random_program(3)
    start = solutions(program)[0]
    answer = ReducedCostFixing(Highs()).solve(program, Limits(Budget.of(0)), start)
    assert (answer.x == start).all()
    assert answer.stopped == "time_limit"
    assert answer.bound >= (solutions(program) @ program.cost).max() - 1e-9


@pytest.mark.parametrize("worth", [4.4e-16, 1.0, 1.2e6])
def test_the_search_ends_where_the_relaxation_bounds_by_0(worth):
    # z >= |2 x - 1|: the relaxation takes x = 1/2 and z = 0, an integer x costs z = 1. Steps in
    # parts of the bound once were 0, and the target never fell.
    rows = csr_array(np.array([[-2.0, 1.0], [2.0, 1.0]]))
    low, none = np.array([-1.0, 1.0]), np.full(2, np.inf)
    zero, one = np.zeros(2, dtype=np.int64), np.ones(2, dtype=np.int64)
    program = IntegerProgram(rows, low, none, zero, one, np.array([0.0, -worth]))
    answer = ReducedCostFixing(Highs()).solve(program, Limits(Budget.of(20.0)), one)
    assert answer.stopped == "complete"
    assert program.cost @ answer.x == -worth


def pieces(seed: int) -> tuple[IntegerProgram, np.ndarray]:
    """Return a choice of sets of 3 of 20 kinds, whose values depend on their sizes only."""
    draw = np.random.default_rng(seed)
    kinds, gpus = 20, 12
    memory = draw.integers(10, 45, kinds)
    sets = [
        kept
        for size in (1, 2, 3)
        for kept in combinations_with_replacement(range(kinds), size)
        if memory[list(kept)].sum() <= 80
    ]
    rows = np.zeros((kinds + 1, len(sets)))
    for column, kept in enumerate(sets):
        np.add.at(rows[:, column], list(kept), 1)
    rows[kinds] = 1
    top = np.array([*draw.integers(1, 4, kinds), gpus])
    cost = np.array([(1.0, 1.8, 2.4)[len(kept) - 1] for kept in sets])
    size = len(sets)
    none = np.full(kinds + 1, -np.inf)
    zero, most = np.zeros(size, dtype=np.int64), np.full(size, gpus)
    return IntegerProgram(csr_array(rows), none, top, zero, most, cost), zero


@pytest.mark.parametrize("many", [1, 10**9])
def test_a_search_of_few_variables_first_gives_the_same_best_value(monkeypatch, many):
    monkeypatch.setattr(reduced_cost_fixing, "_MANY", many)
    for seed in range(5):
        program, start = pieces(seed)
        answer = ReducedCostFixing(Highs()).solve(program, Limits(), start)
        right = CpSat().solve(program, Limits())
        assert answer.stopped == "complete"
        assert program.holds(answer.x)
        assert program.cost @ answer.x == pytest.approx(program.cost @ right.x, abs=1e-6), seed
        assert answer.bound == pytest.approx(right.bound, abs=1e-4)
    for seed in range(30):  # most bounds of the relaxation are not reached here
        program = random_program(seed)
        every = solutions(program)
        values = every @ program.cost
        answer = ReducedCostFixing(Highs()).solve(program, Limits(), every[int(np.argmin(values))])
        assert program.cost @ answer.x == pytest.approx(values.max(), abs=1e-6)


def test_bounds_of_whole_numbers_of_gpus_are_whole_and_hold():
    for seed in range(100):
        program = random_program(seed)
        unit = (1.0, 2.5, 0.1)[seed % 3]
        program = program.with_cost(unit * np.round(3 * program.cost))
        most = (solutions(program) @ program.cost).max()
        relaxation = Relaxation(program, Limits())
        assert relaxation.bound >= most - 1e-9, seed
        if seed % 3 < 2:  # 0.1 is no multiple of itself in binary
            least = np.abs(program.cost[program.cost != 0]).min(initial=np.inf)
            units = program.cost / least
            if (units == np.round(units)).all():
                assert relaxation.bound / least == np.round(relaxation.bound / least)
        tight = relaxation.tightened(float(most))
        every = solutions(program)
        best = every[every @ program.cost >= most - 1e-9]
        assert (best >= tight.lower).all(), seed
        assert (best <= tight.upper).all(), seed
