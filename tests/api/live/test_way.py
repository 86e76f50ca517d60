"""The diagram of ``docs/internals/live-service.md`` shows the path of a submission."""

from __future__ import annotations

import ast
import re
import sys
import threading
from pathlib import Path

import pytest

from dovetail.live.client import Client
from dovetail.live.http.application import application
from dovetail.live.http.server import Listening, serving
from tests.executor.live.test_service_cpu import ENV, service_on_cores
from tests.executor.local_runs import cleared
from tests.executor.waiting import wait_until

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "internals" / "live-service.md"
SHIM = "executor/pools/shim/"


def steps():
    """Return file and function of every line of the diagram that names them."""
    diagram = PAGE.read_text().partition("## The way of a submission")[2].split("```")[1]
    return re.findall(r"(\w+/[\w/]+\.py)\s+([\w.]+)$", diagram, re.MULTILINE)


@pytest.fixture
def directory(tmp_path):
    with cleared(tmp_path):
        yield tmp_path


@pytest.fixture
def called():
    """Return the functions of steps, in the order in which any thread calls them first."""
    named, found = set(steps()), {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call":
            for step in named:
                # ``api`` is the package itself: in an installation its name is another.
                file = step[0].removeprefix("api/")
                if code.co_qualname == step[1] and code.co_filename.endswith(file):
                    found.setdefault(step)

    threading.setprofile(note)
    sys.setprofile(note)
    yield found
    sys.setprofile(None)
    threading.setprofile(None)


def test_a_submission_goes_through_the_functions_of_the_diagram(directory, called):
    here = [step for step in steps() if not step[0].startswith(SHIM)]
    where = Listening(directory / "api.sock", everybody=False)
    with (
        service_on_cores(directory) as service,
        serving(application(service.api), where, service.ready),
        Client(str(where.path)) as client,
    ):
        called.clear()
        client.submit([{"command": ["true"], "workload": "w", "cwd": str(directory), "env": ENV}])
        wait_until(lambda: not service.api.jobs())
    assert sorted(called) == sorted(here)
    # The ledger is looked at in every turn; and what two threads do at the same time has no order.
    ordered = [step for step in here[:10] if "ledger" not in step[0]]
    assert [step for step in called if step in ordered] == ordered


@pytest.mark.parametrize("step", [step for step in steps() if step[0].startswith(SHIM)])
def test_the_rest_of_the_diagram_is_in_the_shim(step):
    file, name = step
    within = ast.parse((ROOT / file).read_text())
    for part in name.split("."):
        found = [each for each in within.body if getattr(each, "name", None) == part]
        assert len(found) == 1, f"{file} has no {name}"
        within = found[0]
