"""The core needs none of the rooms: it names none, and a wheel without them works.

The wheel is built from a copy of the tree in which the rooms are missing from folders, packages and
entry points. It is installed in an environment of its own, which sees the dependencies of this one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from tests.executor.waiting import LIMIT_S, wait_until
from tests.rooms import CORE, ROOMS, ROOT, mentions

QUICK = (
    "instances/test_checker.py",
    "instances/test_plugins.py",
    "predictors/test_analytic.py",
    "formulations/test_rounds.py",
    "solver/test_exactness.py",
    "solver/policies/test_contract.py",
    "executor/jobs",
    "api/cli",
)
"""Tests of each folder of the core that take a minute or two together."""

_LEFT_OUT = ("site", "build", "dist", "shared", "__pycache__", "*.egg-info", ".*")
_BELONGS = re.compile(rf'"dovetail\.(?:{"|".join(ROOMS)})\b')


def test_no_file_of_the_core_names_a_module_of_a_room():
    assert list(mentions(*(ROOT / folder for folder in CORE))) == []


def test_no_test_of_the_core_names_a_module_of_a_room_or_of_its_tests():
    assert list(mentions(*(ROOT / "tests" / folder for folder in CORE))) == []


def test_every_package_is_of_the_core_or_of_a_room():
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {Path(folder).parts[0] for folder in setup["package-dir"].values()}
    assert folders == {*CORE, *ROOMS}


def without_rooms(text: str) -> str:
    """Return ``pyproject.toml`` without the packages, data and entry points of the rooms."""
    end = text.index("[tool.ruff]")
    kept = [line for line in text[:end].splitlines(True) if not _BELONGS.search(line)]
    return "".join(kept) + text[end:]


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """The tree without the rooms, and a Python in which the core alone is installed."""
    folder = tmp_path_factory.mktemp("core")
    tree, environment = folder / "tree", folder / "environment"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for room in ROOMS:
        for place in (tree, tree / "tests", tree / "benchmarks"):
            shutil.rmtree(place / room, ignore_errors=True)
    project = tree / "pyproject.toml"
    project.write_text(without_rooms(project.read_text()))
    offline = ("--no-index", "--no-deps", "--disable-pip-version-check", "--quiet")
    pip = [sys.executable, "-m", "pip"]
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    built = ["wheel", *offline, "--no-build-isolation", "--wheel-dir", folder, tree]
    subprocess.run([*pip, *built], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    installed = ["--python", python, "install", *offline, wheel]
    subprocess.run([*pip, *installed], check=True, capture_output=True)
    shutil.rmtree(tree / "build", ignore_errors=True)
    (site,) = (environment / "lib").glob("python*/site-packages")
    dependencies = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "dependencies.pth").write_text("\n".join(dependencies))
    return tree, python


@pytest.fixture
def run(core, tmp_path):
    """Run a command of the core alone; it must be done as its exit status says."""

    def run(*arguments, status=0):
        done = subprocess.run(
            [core[1], "-m", "dovetail", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
        assert done.returncode == status, done.stderr
        return done.stdout

    return run


def environment(home: Path) -> dict[str, str]:
    """Return the variables of processes of the core, whose state is in a folder."""
    return {**os.environ, "DOVETAIL_HOME": str(home / "home"), "PYTHONPATH": ""}


@pytest.mark.slow
def test_it_is_the_core_alone(core):
    code = (
        "import importlib.util, dovetail; from dovetail.instances.plugins import KINDS, plugins;"
        f"print([room for room in {ROOMS} if importlib.util.find_spec('dovetail.' + room)],"
        " *(each.target for kind in KINDS for each in plugins(kind).values() if each.is_own))"
    )
    done = subprocess.run([core[1], "-c", code], capture_output=True, text=True, cwd=core[0])
    assert done.stdout == "[] dovetail.cli.commands:findings\n", done.stderr


@pytest.mark.slow
def test_it_plans_checks_and_explains(run, tmp_path):
    assert "optimal" in run("plan", "library:lab", "-o", "plan.json")
    run("check", "library:lab", "plan.json")
    run("explain", "library:lab", "plan.json")
    run("library", "lab", "-o", "lab.yaml")
    assert json.loads(run("plan", "lab.yaml", "--objective", "slowdown", "--json"))["assignments"]


@pytest.mark.slow
def test_it_simulates_and_compares(run):
    run("simulate", "library:lab-day", "--policy", "fifo")
    run("compare", "library:lab-day", "--max-workers", "1", "-o", "runs", "--report", "page.html")


@pytest.mark.slow
def test_its_doctor_and_its_help_work(run):
    assert "Machine" in run("doctor", status=1)
    assert "plans from files" in run("--help")
    assert "plan" in run("completion", "bash")


@pytest.mark.slow
def test_a_command_of_a_room_is_one_that_does_not_exist(run):
    run("measure", status=2)


@pytest.mark.slow
def test_it_serves(core, run, tmp_path):
    serve = [core[1], "-m", "dovetail", "serve", "--pool", "cpu"]
    with (tmp_path / "log").open("w") as log:
        service = subprocess.Popen(
            serve, stdout=log, stderr=log, cwd=tmp_path, env=environment(tmp_path)
        )
    try:
        wait_until(lambda: service.poll() is not None or _answers(core[1], tmp_path))
        assert service.poll() is None, (tmp_path / "log").read_text()
        work = (sys.executable, "-c", "print('it ran')")
        assert "finished" in run("submit", "--wait", "--", *work)
        job = json.loads(run("submit", "--json", "--", *work))["id"]
        run("wait", job)
        assert "it ran" in run("logs", job)
        assert job in run("queue", "--all")
    finally:
        service.terminate()
        service.wait(LIMIT_S)


def _answers(python: Path, home: Path) -> bool:
    command = [python, "-m", "dovetail", "queue"]
    return subprocess.run(command, capture_output=True, env=environment(home)).returncode == 0


@pytest.mark.slow
def test_its_quick_tests_pass(core):
    _pytest(core, *QUICK)


@pytest.mark.slow
@pytest.mark.long
def test_all_its_quick_tests_pass(core):
    _pytest(core, *CORE)


def _pytest(core: tuple[Path, Path], *places: str) -> None:
    tree, python = core
    command = [python, "-m", "pytest", "-q", "-n", "2", "-m", "not long and not slow and not alone"]
    done = subprocess.run(
        [*command, *(f"tests/{place}" for place in places)],
        capture_output=True,
        text=True,
        cwd=tree,
        env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
