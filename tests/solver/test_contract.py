"""Every solver under the contract; a new one is a class of two lines here."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.solver.contract import ExactContract, MatchingContract, PairsContract, ValidityContract


class TestAuto(ExactContract):
    solver = "auto"


class TestHighs(ExactContract):
    solver = "highs"
    families = ("shares", "sub-batches", "sets of three", "everything")
    step = 5


class TestCpSat(ExactContract):
    solver = "cpsat"
    families = ("running gangs", "everything")
    step = 5


class TestMatching(PairsContract):
    solver = "matching"
    families = ("shares", "running gangs", "sub-batches")
    step = 2


class TestNetworkx(MatchingContract):
    solver = "networkx"
    families = ("shares", "running whole gangs")


class TestMilp(ExactContract):
    # Every call starts a process, which takes the better part of a second.
    solver = "milp"
    families = ("everything",)
    examples = 1
    step = 100


@pytest.mark.slow
@pytest.mark.skipif(find_spec("highspy") is None, reason="highspy is not installed")
class TestMilpHighs(ExactContract):
    solver = "milp:HiGHS"
    families = ("everything",)
    examples = 1
    step = 100


class TestGreedy(ValidityContract):
    solver = "greedy"
