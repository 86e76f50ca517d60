"""The same seed gives the same history on any machine, however fast it is or runs the engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from dovetail.solver.policies import policy_named
from tests.executor.simulation import histories

ROOT = Path(__file__).parents[3]

SLOW = """
import sys, time
clock = time.monotonic
time.monotonic = lambda: 10_000 * clock()
from tests.executor.simulation import histories
histories.main()
"""
"""On the clock of a machine that is slower by far: no search ends in time."""


def written(folder: Path, *command: str, **environment: str) -> Mapping[str, str]:
    """Return the histories that a process of its own writes, by name."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert len(found) == len(histories.POLICIES) * len(histories.SETTINGS)
    return found


def test_any_machine_gives_the_same_history(tmp_path):
    module = ("-m", "tests.executor.simulation.histories")
    plain = written(tmp_path / "plain", *module, str(tmp_path / "plain"), NUMBA_DISABLE_JIT="1")
    fast = written(tmp_path / "fast", *module, str(tmp_path / "fast"), "compiled")
    slow = written(tmp_path / "slow", "-c", SLOW, str(tmp_path / "slow"), "compiled")
    for name, history in plain.items():
        assert fast[name] == history, name
        assert slow[name] == history, name


@pytest.mark.parametrize("models", histories.SETTINGS.values())
def test_the_limit_is_one_of_work(models):
    world = histories.world(models)
    jobs = histories.jobs(world)
    cut, ample = (
        histories.simulate(jobs, world, policy_named(f"dovetail:time_limit_s={limit}"))
        for limit in ("0.01", "100")
    )
    assert max(cut.series.gap) > 1e-3  # some rounds were not searched to their end
    assert max(ample.series.gap) < 1e-6
