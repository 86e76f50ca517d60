"""The trial on one machine of ``docs/howto/ray.md``, as a reader does it."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.executor.waiting import LIMIT_S, wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "ray.md").read_text(encoding="utf-8")
FILE = re.compile(r"^`([^`\n]+)`:\n\n```\w+\n(.*?)^```$", re.M | re.S)
BIN = Path(sys.executable).parent
SUBMIT = re.compile(r"^dovetail submit .*$", re.M)

pytestmark = [
    pytest.mark.alone,
    pytest.mark.slow,
    # Nodes import Dovetail from where their `ray` is.
    pytest.mark.skipif(not BIN.joinpath("ray").exists(), reason="needs dovetail[live,ray]"),
]


def ours(folder):
    """Yield the processes that know a folder."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and folder in (
                " ".join(process.cmdline()) + process.environ().get("RAY_AUTH_TOKEN_PATH", "")
            ):
                yield process


@pytest.fixture
def folder(monkeypatch):
    """Return a folder with the page's files; all that is started there is ended."""
    with tempfile.TemporaryDirectory(prefix="np", ignore_cleanup_errors=True) as name:
        monkeypatch.chdir(name)
        monkeypatch.setenv("DOVETAIL_HOME", f"{name}/home")
        monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
        for file, text in FILE.findall(PAGE):
            Path(name, file).write_text(text)
        yield Path(name)
        announced = Path(name, "home", "service.json")
        if announced.exists():
            os.kill(json.loads(announced.read_text())["pid"], signal.SIGTERM)
        wait_until(lambda: not [process.kill() for process in ours(name)])


def shell(command):
    """Return the output of a command; processes that it starts may go on."""
    with tempfile.TemporaryFile("w+") as out:
        done = subprocess.run(["bash", "-c", command], stdout=out, stderr=out, timeout=LIMIT_S)
        out.seek(0)
        output = out.read()
    assert done.returncode == 0, output
    return output


def test_two_nodes_and_a_gang_over_them(folder):
    shell(". ./start.sh")
    wait_until((folder / "home" / "service.json").exists)
    assert (folder / "service.log").read_text().startswith("serving the ray pool, ")
    wait_until(lambda: all(f"n{k}" in shell("dovetail top --once") for k in (1, 2)))
    (submit,) = SUBMIT.findall(PAGE)
    assert shell(submit) == "j1\n"
    wait_until(lambda: "rank 0 of 2 meets at 127.0.0." in shell("dovetail logs j1"))
    assert shell("dovetail cancel --wait j1").startswith("j1: cancelled")
