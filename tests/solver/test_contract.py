"""Every solver under the contract; a new one is a class of two lines here."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.solver.contract import ExactContract, MatchingContract, PairsContract, ValidityContract


class TestCpSat(ExactContract):
    solver = "cpsat"


class TestHighs(ExactContract):
    solver = "highs"


class TestAuto(ExactContract):
    solver = "auto"


class TestMatching(PairsContract):
    solver = "matching"


class TestNetworkx(MatchingContract):
    solver = "networkx"


class TestMilp(ExactContract):
    # Every call starts a process, which takes the better part of a second.
    solver = "milp"
    examples = 1
    step = 20


@pytest.mark.skipif(find_spec("highspy") is None, reason="highspy is not installed")
class TestMilpHighs(ExactContract):
    solver = "milp:HiGHS"
    examples = 1
    step = 20


class TestGreedy(ValidityContract):
    solver = "greedy"
