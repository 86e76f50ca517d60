"""The modes of control programs: NVIDIA's own without a GPU, and stand-ins of later ones."""

import shutil

import pytest

from dovetail.executor.mps.processes import PROGRAM
from dovetail.executor.mps.program import ControlModes, modes, version

from . import standin


@pytest.mark.parametrize(
    ("release", "static", "namespaces"),
    [("535", False, False), ("580", False, False), ("590", True, False), ("615", True, True)],
)
def test_modes_are_those_of_the_release(place, release, static, namespaces):
    assert modes(standin.install(place, release)) == ControlModes(static, namespaces)


@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"needs {PROGRAM}")
def test_the_installed_program_has_modes_only_from_its_release_on():
    path = shutil.which(PROGRAM)
    release = int(version(path).partition(".")[0])
    found = modes(path)
    assert found.static in ((False,) if release < 590 else (True, None))
    assert found.namespaces in ((False,) if release < 615 else (True, None))


@pytest.mark.parametrize("line", ["exit 1", "echo usage; exit 0", "exec sleep 0.1"])
def test_a_program_that_does_not_tell_is_unknown(place, line):
    program = place / PROGRAM
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    assert modes(str(program)) == ControlModes(None, None)
    assert modes(str(place / "none")) == ControlModes(None, None)
