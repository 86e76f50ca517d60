"""Plans, simulations and live mode solve the same round with the same solver."""

import ast
from pathlib import Path

import pytest

from dovetail import solve
from dovetail.instances.library import load
from dovetail.solver import policies
from dovetail.solver.policies import policy_named
from dovetail.solver.registry import Auto
from tests.executor.live.test_service import ME, service_in, spec
from tests.executor.simulation.worlds import run, trace, world
from tests.executor.waiting import wait_until


@pytest.fixture
def solved(monkeypatch):
    """Return the objectives of the problems that ``auto`` has solved."""
    seen = []
    real = Auto.solve

    def noting(self, problem, limits):
        seen.append(problem.values.name)
        return real(self, problem, limits)

    monkeypatch.setattr(Auto, "solve", noting)
    return seen


def test_a_plan_and_a_simulation_reach_the_same_solver(solved):
    where = world(gpus=1, slowdowns=[("a", "b", 1.2, 1.2)])
    run(trace((0, 1, 100, "a"), (1, 1, 100, "b")), where, policy_named("dovetail"))
    assert set(solved) == {"completion"}
    assert len(solved) == 2
    solve(load("weights"))
    assert solved[2:] == ["throughput"]


def test_the_policy_has_no_solver_of_its_own():
    folder = Path(policies.__file__).parent
    for file in [*folder.glob("dovetail*.py"), folder / "state_round.py"]:
        imported = {
            node.module or ""
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.ImportFrom)
        }
        assert not any(
            "scipy" in name or "pairing" in name or "program" in name for name in imported
        )


@pytest.mark.parametrize("objective", ["completion", "energy"])
def test_live_mode_reaches_the_same_solver_while_a_device_has_room(solved, tmp_path, objective):
    with service_in(tmp_path, policy=f"dovetail:objective={objective}") as service:
        service.api.submit([spec(work_s=1e3), spec(work_s=1e3), spec(work_s=1e3)], ME)
        wait_until(lambda: sum(bool(job.gpus) for job in service.api.jobs()) == 2)
        assert set(solved) == {objective}
        before = len(solved)
        waiting = service.api.plan().waiting  # no device has room for it: there is no round
        assert len(waiting) == 1
        assert len(solved) == before
