"""Acceptance tests on a GPU: Dovetail's assumptions about GPUs, drivers and MPS.

    pytest tests/gpu                       tests that break nothing
    pytest tests/gpu -m "not long"         those that break things on purpose, too, last
    pytest tests/gpu -m ""                 all: what isolation promises, too, minutes each
    pytest tests/gpu --proof proof.json    store the findings, and continue an earlier run

A test passes if its assumption holds, fails if it does not, and skips if it could not be tried. A
test whose marker assumes nothing records what it sees, and passes. The suite uses the first idle
GPU, and skips without one. It affects only its own daemons and clients, in new directories below
``/tmp``. The exit status is pytest's, 5 if no GPU is free, and 6 if ``--minutes`` were too few.
"""

import math
import shutil
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dovetail.executor.gpus.nvml import Nvml
from dovetail.executor.mps.control import Control
from dovetail.executor.mps.processes import PROGRAM
from dovetail.instances.errors import DovetailError
from dovetail.instances.files import write_data

from .bench import Bench, limited
from .proof import AS_TAKEN, NOT_TRIED, OTHERWISE, begun, free_gpu, machine_of, markdown

VERDICT = pytest.StashKey()
TIME_UP = 6
EACH_S = 10.0
"""Extra seconds for starting and ending a test."""


def pytest_addoption(parser):
    ours = parser.getgroup("gpu", "acceptance on a GPU")
    ours.addoption(
        "--proof", metavar="FILE", type=Path, help="keep results; what has one is left out"
    )
    ours.addoption("--again", action="store_true", help="leave out nothing that has a result")
    ours.addoption(
        "--minutes",
        metavar="N",
        type=float,
        default=math.inf,
        help="begin no test that would not end in so many minutes",
    )


def pytest_configure(config):
    if not config.option.collectonly:
        config.pluginmanager.register(Acceptance(config.option), "acceptance")


class Acceptance:
    """Runs tests on a free GPU, and stores the outcome of each at once."""

    def __init__(self, option):
        self.option = option
        self.ends_at = time.monotonic() + 60 * option.minutes
        self.nvml = self.gpu = self.program = self.proof = None
        self.refusal, self.left = "", False

    def pytest_sessionstart(self):
        # SIGTERM cleans up like Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        self.program = shutil.which(PROGRAM)
        try:
            self.nvml = Nvml()
            self.gpu = free_gpu(self.nvml)
        except DovetailError as error:
            self.refusal = str(error)
        else:
            machine = machine_of(self.nvml, self.gpu, self.program)
            self.proof = begun(self.option.proof, machine)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        done = {check["id"] for check in self.proof["checks"]} if self.proof else set()
        kept = [] if self.option.again else [item for item in items if check_id(item) in done]
        items[:] = sorted((item for item in items if item not in kept), key=breaks_things)
        config.hook.pytest_deselected(items=kept)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        if self.refusal:
            pytest.skip(self.refusal)
        if time.monotonic() + usual_s(item) + EACH_S > self.ends_at:
            self.left = True
            pytest.skip("no time is left for it")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        with limited(60 + 5 * usual_s(item)):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        bench = item.funcargs.get("bench")
        if bench is None:
            return report
        if call.when == "teardown":
            self.keep(item, bench)
        elif call.when == "call" or call.excinfo is not None:
            item.stash[VERDICT] = judged(bench, call.excinfo)
            item.user_properties += [("verdict", item.stash[VERDICT]), ("seen", bench.seen)]
        return report

    def keep(self, item, bench):
        """Store the outcome of a test, after its cleanup has added its lines."""
        params = item.callspec.params if hasattr(item, "callspec") else {}
        check = {
            "id": check_id(item),
            "looked_at": item.function.__doc__.splitlines()[0].rstrip(".").format(**params),
            "taken": marker(item).args[0].format(**params),
            "seen": bench.seen,
            "verdict": item.stash[VERDICT],
            "seconds": bench.now(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "values": bench.values,
            "commands": bench.commands,
            "lines": bench.lines,
        }
        others = [one for one in self.proof["checks"] if one["id"] != check["id"]]
        self.proof["checks"] = [*others, check]
        if self.option.proof is not None:
            write_data(self.proof, self.option.proof)

    def pytest_terminal_summary(self, terminalreporter):
        if self.proof:
            terminalreporter.section("what was seen")
            terminalreporter.write_line(markdown(self.proof))

    def pytest_sessionfinish(self, session, exitstatus):
        if self.nvml is not None:
            self.nvml.close()
        codes = pytest.ExitCode
        if exitstatus in (codes.OK, codes.TESTS_FAILED, codes.NO_TESTS_COLLECTED):
            if self.refusal:
                session.exitstatus = codes.NO_TESTS_COLLECTED
            elif self.left:
                session.exitstatus = TIME_UP
            elif any(check["verdict"] == OTHERWISE for check in self.proof["checks"]):
                session.exitstatus = codes.TESTS_FAILED
            elif exitstatus == codes.NO_TESTS_COLLECTED:
                session.exitstatus = codes.OK


def judged(bench, excinfo):
    """Return the verdict on a test that has ended, and record its error."""
    if excinfo is None:
        return AS_TAKEN
    if excinfo.errisinstance(AssertionError) and bench.seen:
        bench.line("assert", excinfo.exconly())
        return OTHERWISE
    if not excinfo.errisinstance(pytest.skip.Exception):
        # An unexpected error.
        bench.line("trouble", str(excinfo.getrepr(style="native")))
    bench.seen = " ".join(str(excinfo.value).split()) or excinfo.typename
    return NOT_TRIED


def check_id(item):
    """Return the id of a test in proofs: ``fault-alone`` for ``test_fault[alone]``."""
    name = item.name.removeprefix("test_")
    return name.rstrip("]").replace("_", "-").replace("[", "-")


def marker(item):
    return item.get_closest_marker("check")


def usual_s(item):
    """Return the seconds that a test is expected to take on hardware."""
    return marker(item).kwargs["usual_s"]


def breaks_things(item):
    return item.get_closest_marker("faults") is not None


@pytest.fixture
def bench(request, monkeypatch):
    """The tools of the test; their processes and files are removed at the end."""
    plugin = request.config.pluginmanager.get_plugin("acceptance")
    made = Bench(plugin.gpu, plugin.nvml, plugin.program)
    say = Control.say

    def heard(control, *asked):
        spoken = say(control, *asked)
        made.heard(spoken)
        return spoken

    monkeypatch.setattr(Control, "say", heard)
    yield made
    made.close()


@pytest.fixture
def daemon(bench):
    """A running control daemon of the test."""
    return bench.daemon()
