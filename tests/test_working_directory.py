"""No process of Dovetail runs a file of the working directory that has the name of a library."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from dovetail import Instance, solve
from dovetail.executor.simulation.campaign import SimulationCampaign
from dovetail.executor.simulation.setup import Setup
from dovetail.instances._children import module_command
from tests.data import example_data
from tests.executor.simulation.worlds import trace, world

PROGRAMS = (
    "dovetail.executor.live.observation.fitting",
    "dovetail.solver.backends.child_process",
)
"""What `module_command` is asked to run by the core."""


@pytest.mark.usefixtures("shadowed")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_ours(program):
    imports_all_that_it_needs(program)


def imports_all_that_it_needs(program):
    # None has an option of this name: they end at once.
    command = [*module_command(program), "--no-such-option"]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "No module named" not in done.stderr


def test_every_module_is_run_by_that_command():
    root = Path(__file__).parents[1]
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = [root / folder for folder in settings["package-dir"].values()]
    texts = {path: path.read_text() for folder in folders for path in folder.glob("*.py")}
    # The doctor prints commands, and runs none of these.
    texts = {path: text for path, text in texts.items() if path.parent.name != "doctor"}
    assert [path.name for path, text in texts.items() if '"-m"' in text] == ["_children.py"]


@pytest.mark.usefixtures("shadowed")
def test_the_process_of_a_solver():
    assert solve(Instance.from_data(example_data()), solver="milp").status == "optimal"


@pytest.mark.usefixtures("shadowed")
def test_the_processes_of_a_comparison(tmp_path):
    setup = Setup(trace((0, 1, 10, "a"), (1, 2, 5, "b")), world(gpus=2, slowdowns=[]))
    assert (
        SimulationCampaign(setup, ("fifo", "ssf"), (0,), tmp_path / "runs").run(processes=2) == []
    )
    assert "PYTHONSAFEPATH" not in os.environ
