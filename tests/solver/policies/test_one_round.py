"""Plans, simulations and live mode solve the same round with the same solver.

Only what prices settle on tables (``solver.policies.direct``) needs no solver.
"""

import ast
from contextlib import contextmanager
from pathlib import Path

import pytest

from dovetail import solve
from dovetail.instances.datasets import Measurement, Repository, SoloProfile
from dovetail.instances.library import load
from dovetail.solver import policies
from dovetail.solver.policies import policy_named
from dovetail.solver.registry import Auto
from tests.executor.live.test_service import ME, service_in, spec
from tests.executor.simulation.worlds import run, trace, world
from tests.executor.waiting import wait_until


@pytest.fixture
def solved(monkeypatch):
    """Return the objectives of the rounds that ``auto`` has solved."""
    seen = []
    real = Auto.solve

    def noting(self, values, limits):
        seen.append(values.name)
        return real(self, values, limits)

    monkeypatch.setattr(Auto, "solve", noting)
    return seen


def test_a_plan_and_a_simulation_reach_the_same_solver(solved):
    where = world(gpus=1, slowdowns=[("a", "b", 1.2, 1.2)])
    jobs = trace((0, 1, 100, "a"), (1, 1, 100, "b"))
    run(jobs, where, policy_named("dovetail:energy_price=1e-9"))
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
        solvers = ("scipy", "pairing", "integer_program", "node_program")
        assert not any(solver in name for name in imported for solver in solvers)


ALONE = SoloProfile(workload="me/A", gpu_model="V100", throughput=3.0, memory_mib=1000.0)
NO_GAIN = Measurement(workloads=("me/A", "me/A"), gpu_model="V100", slowdown=(2.5, 2.5))
"""A pair that may share, but would end later than one job after the other."""


def test_live_mode_and_its_plan_reach_the_same_solver(solved, tmp_path):
    Repository(tmp_path / "repository.db").append([ALONE], [NO_GAIN])
    with three_jobs_on_two_devices(tmp_path, "dovetail:energy_price=1") as service:
        before = len(solved)
        assert [each.job for each in service.api.plan().waiting] == ["j3"]
        assert len(solved) > before
    assert set(solved) == {"completion"}


def test_a_plan_of_live_mode_solves_no_round_that_tables_settle(solved, tmp_path):
    Repository(tmp_path / "repository.db").append([ALONE], [NO_GAIN])
    with three_jobs_on_two_devices(tmp_path, "dovetail") as service:
        assert [each.job for each in service.api.plan().waiting] == ["j3"]
    assert not solved


def test_a_plan_of_live_mode_solves_no_round_where_no_device_has_room(solved, tmp_path):
    with three_jobs_on_two_devices(tmp_path, "dovetail:objective=energy") as service:
        before = len(solved)
        assert [each.job for each in service.api.plan().waiting] == ["j3"]
        assert len(solved) == before
    assert set(solved) == {"energy"}


@contextmanager
def three_jobs_on_two_devices(folder, policy):
    with service_in(folder, policy=policy) as service:
        service.api.submit([spec(work_s=1e3) for _ in range(3)], ME)
        wait_until(lambda: sum(bool(job.gpus) for job in service.api.jobs()) == 2)
        yield service
