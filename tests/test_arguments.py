"""Invalid arguments of the public functions are refused in one line each."""

from __future__ import annotations

import pytest

import dovetail
from dovetail import ArgumentError
from dovetail.instances import library
from dovetail.solver.backends.highs import Highs

LAB = library.load("first-pairs")


def solved(**options):
    return dovetail.solve(LAB, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dovetail.solve(LAB.to_data()), "instance must be an Instance, got a dict"),
        (lambda: solved(time_limit="1s"), "time_limit must be a number of seconds >= 0, got '1s'"),
        (lambda: solved(gap=1), "gap must be >= 0 and < 1, got 1"),
        (lambda: solved(seed=-1), "seed must be a whole number >= 0, got -1"),
        (lambda: solved(previous=solved().plan), "previous must be a Result, got a Plan"),
        (lambda: solved(solver=3), "must be a name, or an object with a method solve, got 3"),
        (lambda: solved(solver=Highs), "a name, or an object with a method solve, got <class"),
        (lambda: dovetail.check(LAB.to_data(), solved().plan), "must be an Instance, got a dict"),
        (lambda: dovetail.check(LAB, solved()), "plan must be a Plan, got a Result"),
        (lambda: dovetail.check(LAB, solved().plan, "x"), "objective must be one of .*, got 'x'"),
        (lambda: dovetail.write_plan(solved(), "-"), "plan must be a Plan, got a Result"),
        (lambda: dovetail.write_instance("-", LAB), "instance must be an Instance, got a str"),
        (lambda: LAB.with_jobs([{"id": "a"}]), r"jobs\[0\] must be a Job, got a dict"),
    ],
)
def test_a_mistake_is_refused(call, message):
    with pytest.raises(ArgumentError, match=message) as refused:
        call()
    assert "\n" not in str(refused.value)
    assert isinstance(refused.value, ValueError)
