"""Custom objectives and solvers, as classes and by import path."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from dovetail import Answer, JobValues, Plan, check, solve
from dovetail.formulations.candidates.listing import list_groups
from dovetail.instances import library
from dovetail.instances.errors import UnsupportedError
from dovetail.instances.generate import generate
from dovetail.solver.backends.highs import Highs
from dovetail.solver.registry import solver_named
from dovetail.solver.types import Limits
from dovetail.solver.verification import verify
from tests.data import small
from tests.forms import values_of
from tests.strategies import Shape, random_instance

ONE_EACH = [{"id": w, "workload": w} for w in "abc"]
PAIRS = [
    {"pair": ["a", "b"], "slowdown": [1.1, 5.0]},  # rates 0.91 and 0.20
    {"pair": ["a", "c"], "slowdown": [1.9, 1.9]},  # rates 0.53 and 0.53
]
NAME = f"python:{__name__}.Fairness"


class Fairness(JobValues):
    """The sum over placed jobs of log(1 + weight x rate)."""

    def gain(self, job, slowdown, model):
        return np.log1p(super().gain(job, slowdown, model))


class Rising(JobValues):
    def gain(self, job, slowdown, model):
        return slowdown


class Endless(JobValues):
    def gain(self, job, slowdown, model):
        return np.full(len(job), np.inf)


class Whole(JobValues):
    """Returns a gain for each job of the round, whichever jobs it is asked for."""

    def gain(self, job, slowdown, model):
        return self.weight / slowdown[0]


class Scalar(JobValues):
    def gain(self, job, slowdown, model):
        return 1.0


class Listing(JobValues):
    def gain(self, job, slowdown, model):
        return (1 / slowdown).tolist()


class MyHighs:
    """A backend that uses only the arrays of the library."""

    name = "mine"

    def solve(self, program, limits, start=None):
        return Highs().solve(program, limits, start)


class Bare(JobValues):
    def __init__(self):
        pass


class Narrow(JobValues):
    def gain(self, job, slowdown):
        return slowdown


class Replying:
    """A solver that returns a prepared answer made of the program and the start."""

    name = "replying"

    def __init__(self, reply):
        self.reply = reply

    def solve(self, program, limits, start=None):
        return self.reply(program, start)


class Startless:
    name = "startless"

    def solve(self, program, limits):
        raise NotImplementedError


class Choiceless:
    name = "choiceless"

    def solve(self, values, limits):
        return None


class Nameless:
    def solve(self, program, limits, start=None):
        raise NotImplementedError


class Demanding:
    def __init__(self, colour):
        self.colour = colour

    def solve(self, values, limits):
        raise NotImplementedError


@pytest.mark.parametrize("solver", ["auto", "matching", "cpsat", "highs", "milp"])
def test_every_solver_maximises_what_the_class_says(solver):
    instance = small(ONE_EACH, PAIRS, gpus=1)
    assert {row.job for row in solve(instance, solver=solver).plan.assignments} == {"a", "b"}
    result = solve(instance, Fairness, solver)
    assert {row.job for row in result.plan.assignments} == {"a", "c"}
    assert result.status == "optimal"
    assert result.objective == pytest.approx(2 * math.log1p(1 / 1.9))
    assert result.bound == pytest.approx(result.objective)


def test_solvers_agree_on_larger_rounds():
    instance = generate(24, seed=3, gpus=8)
    found = [solve(instance, Fairness, name).objective for name in ("auto", "cpsat", "highs")]
    assert found == pytest.approx([found[0]] * 3)


def test_the_plan_names_the_class_and_the_checker_says_what_it_did_not_compute():
    instance = small(ONE_EACH, PAIRS, gpus=1)
    plan = Plan.from_data(solve(instance, Fairness).plan.to_data())
    assert plan.objective.name == NAME
    report = check(instance, plan)
    assert report.valid
    assert report.value == pytest.approx(2 / 1.9)
    assert report.warnings == (f"the plan's {NAME} was not checked, only throughput was",)


def test_reasons_speak_of_the_class():
    """Together both jobs would make almost no progress."""
    pair = {"pair": ["a", "b"], "slowdown": [9.0, 9.0]}
    result = solve(small(ONE_EACH[:2], [pair], gpus=1), Fairness)
    reasons = " ".join(row.reason for row in result.plan.waiting)
    assert f"but {NAME} would fall by" in reasons


def test_a_certificate_is_verified_under_the_same_class():
    instance = generate(12, seed=1, gpus=4, gangs=False, shares=())
    result = solve(instance, Fairness, "matching")
    assert verify(instance, result, Fairness).certificate == "checked"


def test_a_round_may_begin_with_the_last_ones_prices():
    instance = generate(12, seed=1, gpus=4, gangs=False, shares=())
    first = solve(instance, Fairness, "matching")
    again = solve(instance, Fairness, "matching", previous=first)
    assert again.objective == pytest.approx(first.objective)
    assert first.prices is None or first.prices.of(instance, "throughput") is None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Rising, "gain must not rise with the slowdown"),
        (Endless, "gain must return an array with a finite number for each job"),
        (Scalar, "gain must return an array with a finite number for each job"),
        (Listing, "gain must return an array with a finite number for each job"),
        (Whole, "gain must return an array with a finite number for each job"),
        (dict, "objective must be a subclass of JobValues, got dict"),
        (Bare, rf"^python:{__name__}.Bare must take a round as its one argument: "),
        (Narrow, r"Narrow.gain must take the arguments job, slowdown and model: "),
    ],
)
def test_gains_that_would_make_bounds_wrong_are_refused(kind, message):
    made = (lambda compiled: {}) if kind is dict else kind
    with pytest.raises(UnsupportedError, match=message):
        solve(small(ONE_EACH, PAIRS), made)


class Worth(Fairness):
    """Groups are worth something besides what their jobs gain."""

    grouped = True

    def value(self, rows):
        return np.full(len(rows), 0.5)


class Unsaid(Worth):
    grouped = False


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Worth, r"Worth.value must be <= 0, got 0.5: add what is gained to gains$"),
        (Unsaid, r"Unsaid: grouped must be True if groups have a value$"),
    ],
)
def test_values_that_would_make_bounds_wrong_are_refused(kind, message):
    with pytest.raises(UnsupportedError, match=message):
        solve(small(ONE_EACH, PAIRS), kind)


@pytest.mark.parametrize("seed", range(30))
def test_groups_cost_something_under_completion(seed):
    """No group has a value above 0, which bounds of objectives with values rest on."""
    shape = Shape(jobs=5, gpus=3, hosts=seed % 3 == 0)
    values = values_of(random_instance(Random(seed), shape), "completion")
    listed = list_groups(values.round, values)
    assert not (listed.value > 0).any()


@pytest.mark.parametrize("solver", [MyHighs(), f"python:{__name__}.MyHighs"])
def test_a_backend_solves_rounds(solver):
    lab = library.load("first-pairs")
    result = solve(lab, solver=solver)
    assert result.plan.solver == "mine"
    assert result.objective == pytest.approx(solve(lab).objective)


@pytest.mark.parametrize("objective", ["throughput", "slowdown", "energy"])
def test_a_backend_may_leave_rounding_errors_in_its_bound(objective):
    def rounded(program, start):
        answer = Highs().solve(program, Limits(), start)
        return replace(answer, bound=answer.bound - 1e-9 * abs(answer.bound))

    instance = generate(10, seed=3)
    result = solve(instance, objective, Replying(rounded))
    assert result.status == "optimal"
    assert result.objective == pytest.approx(solve(instance, objective).objective)


@pytest.mark.parametrize("objective", ["throughput", "slowdown"])
@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (lambda p, s: Answer(s, p.cost @ s - 1, "complete"), "that its own plan exceeds"),
        (lambda p, s: Answer(None, p.cost @ s - 1, "complete"), "may begin with exceeds"),
        (lambda p, s: Answer(s, math.nan, "complete"), "returned a bound of nan"),
        (lambda p, s: Answer(s, None, "complete"), "returned a bound of None"),
        (lambda p, s: Answer(p.upper, -5, "complete"), "x violates a row of the program"),
        (lambda p, s: Answer(p.upper + 1, 1e9, "complete"), "x violates a bound of a variable"),
        (lambda p, s: Answer(s[1:], 1e9, "complete"), "an array of"),
        (lambda p, s: Answer(s + 0.5, 1e9, "complete"), "x must be whole numbers"),
        (lambda p, s: Answer(s * math.nan, 1e9, "complete"), "x must be whole numbers"),
        (lambda p, s: Answer(s, 1e9, "done"), "stopped must be one of complete, "),
        (lambda p, s: None, "Replying.solve must return an Answer, got NoneType"),
    ],
)
def test_an_answer_that_cannot_be_true_is_never_called_proven(objective, reply, message):
    with pytest.raises(UnsupportedError, match=message) as raised:
        solve(generate(10, seed=3), objective, Replying(reply))
    assert f"python:{__name__}.Replying" in str(raised.value)


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (Startless(), "Startless.solve must take the arguments program, limits and start: "),
        (Choiceless(), "Choiceless.solve must return a Choice, got NoneType"),
        (Nameless(), "Nameless must have a name"),
    ],
)
def test_a_solver_that_breaks_the_protocol_is_refused(solver, message):
    with pytest.raises(UnsupportedError, match=f"python:{__name__}.{message}"):
        solve(library.load("first-pairs"), solver=solver)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "python:absent.Mine",
            "cannot be imported as python:MODULE.CLASS: No module named 'absent'",
        ),
        ("python:math.pi", "solver 'python:math.pi' must be a class with a method solve"),
        ("python:fractions.Fraction", "must be a class with a method solve"),
        (f"python:{__name__}.Demanding", "must need no arguments"),
        ("higs", "got 'higs', did you mean highs?"),
    ],
)
def test_an_impossible_solver_is_reported_in_one_line(name, message):
    with pytest.raises(UnsupportedError) as raised:
        solver_named(name)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
