"""The scheduler of a GPU, started by hand: a mistake is one line, and no file is lost."""

from __future__ import annotations

import subprocess
import sys

import pytest


def started(path):
    command = [sys.executable, "-m", "dovetail.isolation.server", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_file_in_the_place_of_the_socket_is_kept(tmp_path):
    file = tmp_path / "notes"
    file.write_text("keep me")
    found = started(file)
    assert found.returncode == 2
    told = f"python -m dovetail.isolation.server: {file}: must be a socket or not exist\n"
    assert found.stderr == told
    assert file.read_text() == "keep me"


@pytest.mark.parametrize(
    ("name", "rule"),
    [("none/socket", "No such file or directory"), ("x" * 200, "AF_UNIX path too long")],
)
def test_a_socket_that_cannot_be_made_is_one_line(tmp_path, name, rule):
    found = started(tmp_path / name)
    assert found.returncode == 2
    told = f"python -m dovetail.isolation.server: {tmp_path / name}: {rule}\n"
    assert found.stderr == told
