"""Published slowdowns: the best throughput by every exact solver.

The data lie next to the checkout. The figures are the optima of the published pairs, one job of
each type, found with other code.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from dovetail.instances.checking.checker import check
from dovetail.instances.importers.pairs import import_pairs
from dovetail.instances.instance import Instance
from dovetail.papers.importers.gavel import import_gavel
from dovetail.papers.importers.lucid import import_lucid
from dovetail.solver.result import Result
from dovetail.solver.rounds import solve

DATA = Path(__file__).parents[3] / "shared" / "data"
EXACT = ("auto", "highs", "cpsat", "networkx")
GAVEL = {"k80": 14.862034537, "p100": 16.946680865, "v100": 21.661713351}
LUCID = {26: 54.446, 20: 43.513}

pytestmark = pytest.mark.skipif(
    not DATA.exists(), reason=f"no data at {DATA}: python benchmarks/fetch_data.py"
)


@cache
def gavel(device: str) -> Instance:
    """Return one job of each of the 26 types on 13 GPUs."""
    return import_pairs(str(DATA / "gavel" / "gavel_pairs.csv"), 13, device=device).instance


@cache
def lucid(gpus: int) -> Instance:
    """Return one job of each of the 52 types of which every pair was measured."""
    return import_lucid(str(DATA / "lucid"), gpus)


def proven(instance: Instance, solver: str) -> Result:
    result = solve(instance, solver=solver)
    assert check(instance, result.plan).violations == ()
    assert (result.status, result.stopped) == ("optimal", "complete")
    return result


@pytest.mark.parametrize(
    ("device", "solver"), [*((d, "auto") for d in GAVEL), *(("v100", s) for s in EXACT[1:])]
)
def test_gavel(device, solver):
    assert len(gavel(device).jobs) == 26
    assert proven(gavel(device), solver).objective == pytest.approx(GAVEL[device], abs=1e-9)


@pytest.mark.parametrize(("device", "best"), GAVEL.items())
def test_gavel_from_its_own_throughputs(device, best):
    # The file of pairs rounds its slowdowns; the throughputs themselves differ in the sixth digit.
    source = DATA / "gavel" / "simulation_throughputs.json.gz"
    instance = import_gavel(str(source), device, 13)
    assert proven(instance, "auto").objective == pytest.approx(best, abs=2e-6)


@pytest.mark.parametrize(("gpus", "solver"), [(26, "auto"), (20, "auto"), (26, "highs")])
def test_lucid(gpus, solver):
    assert len(lucid(gpus).jobs) == 52
    assert proven(lucid(gpus), solver).objective == pytest.approx(LUCID[gpus], abs=5e-4)


def test_greedy_stays_below():
    """Queue order is below the optimum on every table; the benchmarks measure by how much."""
    rounds = [(gavel(device), best) for device, best in GAVEL.items()]
    rounds += [(lucid(gpus), best) for gpus, best in LUCID.items()]
    for instance, best in rounds:
        result = solve(instance, solver="greedy")
        assert check(instance, result.plan).violations == ()
        assert 0.7 * best < result.objective < 0.995 * best
        assert result.bound >= best - 1e-3
