"""The trial on one machine of ``docs/nodes.md``, as a reader does it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.executor.live.local_runs import left_over
from tests.executor.live.waiting import LIMIT_S, wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "nodes.md").read_text(encoding="utf-8")
FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.M | re.S)
SUBMIT = re.compile(r"^dovetail submit .*$", re.M)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with the page's files; agents and services started there are ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOVETAIL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for name, text in FILE.findall(PAGE):
        (tmp_path / name).write_text(text)
    yield tmp_path
    for path in tmp_path.glob("n?.log"):
        os.kill(json.loads(path.read_text().splitlines()[-1])["pid"], signal.SIGTERM)
    announced = tmp_path / "home" / "service.json"
    if announced.exists():
        os.kill(json.loads(announced.read_text())["pid"], signal.SIGTERM)
    for home in tmp_path.glob("n?/homes/*"):
        wait_until(lambda home=home: not left_over(home))


def shell(command):
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_three_agents_and_a_gang_over_them(folder):
    shell(". ./start.sh")
    wait_until((folder / "home" / "service.json").exists)
    told = (folder / "service.log").read_text()
    assert told.startswith("serving the nodes pool, 3 devices, at ")
    (submit,) = SUBMIT.findall(PAGE)
    assert shell(submit) == "j1\n"
    wait_until(lambda: "rank 0 of 3 meets at 127.0.0." in shell("dovetail logs j1"))
    assert all(f"n{k}" in shell("dovetail top --once") for k in (1, 2, 3))
    assert shell("dovetail cancel --wait j1").startswith("j1: cancelled")
