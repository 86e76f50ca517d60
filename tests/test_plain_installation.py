"""The default installation: everything works without the packages that only extras bring."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

HIDE = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {hidden!r} else find(name, path, target)

PathFinder.find_spec = find_spec
"""
"""A ``sitecustomize`` of a Python that does not have these packages."""


def of_the_default_installation() -> set[str]:
    """Return the names of the packages that ``pip install ./dovetail`` brings, itself included."""
    found: set[str] = set()
    left = ["dovetail"]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        left += _required(name)
    return found


def _required(name: str) -> Iterator[str]:
    """Yield what a package requires without extras; markers of platforms are not looked at."""
    for requirement in importlib.metadata.requires(name) or ():
        needed = re.match(r"[\w.-]+", requirement)
        assert needed is not None
        if "extra ==" not in requirement and _is_installed(needed[0]):
            yield _normalised(needed[0])


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def hidden() -> frozenset[str]:
    """The modules of the top level that only extras bring."""
    default = of_the_default_installation()
    return frozenset(
        module
        for module, packages in importlib.metadata.packages_distributions().items()
        if not default & {_normalised(package) for package in packages}
    )


@pytest.fixture
def run(hidden, tmp_path):
    """Run ``dovetail`` in a process that finds no other packages; return it when it has ended."""
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(hidden=set(hidden)))
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

    def dovetail(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dovetail", *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return dovetail


def test_the_default_installation_has_eight_dependencies_and_no_second_solvers(hidden):
    assert len(list(_required("dovetail"))) == 8
    assert {"networkx", "pulp", "sklearn", "matplotlib", "fastapi", "pytest"} <= hidden
    assert not hidden & {"numpy", "scipy", "ortools", "numba", "pydantic", "yaml", "rich", "jinja2"}


def test_a_round_is_planned_checked_and_explained(run, tmp_path):
    plan = run("plan", "library:lab", "--compare", "--verify", "--report", "p.html", "-o", "p.json")
    assert plan.returncode == 0, plan.stderr
    assert "optimal" in plan.stdout
    assert "matplotlib" in (tmp_path / "p.html").read_text()  # instead of the charts
    for command in ("check", "explain"):
        told = run(command, "library:lab", "p.json")
        assert (told.returncode, told.stderr) == (0, ""), told


@pytest.mark.parametrize("solver", ["matching", "cpsat", "highs"])
def test_every_other_solver_plans(run, solver):
    planned = run("plan", "library:first-pairs", "--solver", solver)
    assert planned.returncode == 0, planned.stderr
    assert "throughput  2.425 " in planned.stdout


def test_days_are_simulated_and_compared(run, tmp_path):
    window = ("library:lab-week", "--window", "0:3")
    simulated = run("simulate", *window, "--policy", "dovetail", "-o", "run")
    assert simulated.returncode == 0, simulated.stderr
    assert (tmp_path / "run" / "jobs.csv.gz").exists()
    compared = run("compare", *window)
    assert compared.returncode == 0, compared.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["plan", "library:lab", "--solver", "milp"],
            "solver milp needs pulp: pip install './dovetail[milp]'",
        ),
        (
            ["plan", "library:lab", "--solver", "milp:SCIP_CMD"],
            "solver milp:SCIP_CMD needs pulp: pip install './dovetail[milp]'",
        ),
        (
            ["plan", "library:lab", "--write-model", "round.mps"],
            "--write-model needs pulp: pip install './dovetail[milp]'",
        ),
        (
            ["plan", "library:lab", "--solver", "networkx"],
            "solver networkx needs networkx: pip install './dovetail[networkx]'",
        ),
        (
            ["plan", "library:lab", "--figures", "out"],
            "--figures needs matplotlib: pip install './dovetail[figures]'",
        ),
        (["serve", "--pool", "cpu"], "pip install './dovetail[live]'"),
    ],
)
def test_what_asks_for_an_extra_is_refused_in_one_line_that_names_it(run, arguments, told):
    refused = run(*arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.count("\n") == 1
    assert refused.stderr.endswith(told + "\n"), refused.stderr
