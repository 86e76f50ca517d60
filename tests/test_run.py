"""The project's own test command: what fails is run once more, alone."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).resolve().parent.parent / "run"
LUCK = """
from pathlib import Path
import pytest

def first_time():
    tried = Path(__file__).with_suffix(".tried")
    is_first = not tried.exists()
    tried.touch()
    return is_first

def test_sound(): ...
def test_luck(): assert not first_time(), "the machine was busy"
@pytest.mark.alone
def test_alone(): ...
"""
BROKEN = "def test_broken(): assert 1 + 1 == 3\n"
APART = (["-m", "not alone"], ["-m", "alone"])


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The program, with a project of two tests of its own and this environment."""
    folder = tmp_path / "tests"
    folder.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n")
    (folder / "test_luck.py").write_text(LUCK)
    found = ModuleType("run")
    found.__file__ = str(PROGRAM)
    exec(compile(PROGRAM.read_text(), PROGRAM, "exec"), vars(found))
    found.ROOT, found.VENV = tmp_path, Path(sys.prefix)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the other plugins load slowly
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    return found


def test_what_passes_the_second_time_is_named_unsteady_with_its_first_failure(program, capfd):
    assert program.steady(*APART) == 0
    *_, last = capfd.readouterr().out.splitlines()
    assert last == "run: unsteady: tests.test_luck::test_luck: AssertionError: the machine was busy"


def test_what_fails_again_fails_the_run(program, capfd):
    (program.ROOT / "tests" / "test_broken.py").write_text(BROKEN)
    assert program.steady(*APART) == 1
    unsteady = [x for x in capfd.readouterr().out.splitlines() if x.startswith("run: unsteady")]
    assert [line.split(": ")[2] for line in unsteady] == ["tests.test_luck::test_luck"]


def test_no_failure_asks_for_no_second_run(program, capfd):
    (program.ROOT / "tests" / "test_luck.tried").touch()
    assert program.steady(*APART) == 0
    assert "once more" not in capfd.readouterr().out


@pytest.mark.parametrize("fault", ["import nothing_of_this_name\n", "def test(:\n"])
def test_a_file_that_cannot_be_read_fails_the_run(program, fault):
    (program.ROOT / "tests" / "test_fault.py").write_text(fault)
    assert program.steady(*APART) != 0


def test_many_failures_are_no_luck(program, capfd):
    lines = [f"def test_{i}(): assert 0\n" for i in range(program.MOST_AGAIN)]
    (program.ROOT / "tests" / "test_broken.py").write_text("".join(lines))
    assert program.steady(*APART) == 1
    assert capfd.readouterr().out.splitlines()[-1] == f"run: {program.MOST_AGAIN + 1} tests failed"
