"""The command that runs for every job that is over: its variables; the service never waits."""

import os
import time

import pytest

from dovetail.executor.live.requests import notifying
from tests.executor.waiting import wait_until

from .test_service import ME, service_in, spec


def writes(path):
    """Return a command that adds a line on each job to a file."""
    line = "$DOVETAIL_JOB $DOVETAIL_NAME $DOVETAIL_USER $DOVETAIL_STATE: $DOVETAIL_WHY"
    return ("sh", "-c", f'echo "$(id -u) {line}" >> {path}')


def test_it_runs_at_each_end_of_any_kind(tmp_path):
    out = tmp_path / "lines"
    with service_in(tmp_path, notify=writes(out)) as service:
        service.api.submit(
            [spec(work_s=1, name="$(touch x)"), spec(work_s=1, words=["status=3"])], ME
        )
        service.api.submit([spec(held=True)], ME)
        service.api.submit([spec(after=("j3",))], ME)
        wait_until(lambda: len(service.api.jobs()) == 2)
        service.api.cancel("j3", ME)
        wait_until(lambda: out.exists() and len(out.read_text().splitlines()) == 4)
    lines = sorted(line.partition(" ")[2] for line in out.read_text().splitlines())
    assert lines == [
        "j1 $(touch x) me finished: every rank ended with status 0",
        "j2 A me failed: rank 0 ended with status 3",
        "j3 A me cancelled: cancelled by me",
        "j4 A me cancelled: j3, which had to finish before it, was cancelled",
    ]
    assert {line.split()[0] for line in out.read_text().splitlines()} == {str(os.getuid())}
    with service_in(tmp_path, notify=writes(out)):
        time.sleep(0.3)
    assert len(out.read_text().splitlines()) == 4, "it ran again after a restart"


def test_one_that_hangs_delays_nothing_and_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(notifying, "LONGEST_S", 3.0)
    out = tmp_path / "lines"
    hangs = ("sh", "-c", f"echo $DOVETAIL_JOB >> {out}; sleep 600 & sleep 600")
    with service_in(tmp_path, notify=hangs) as service:
        began = time.monotonic()
        service.api.submit([spec(work_s=1)] * 3, ME)
        wait_until(lambda: not service.api.jobs())
        done_s = time.monotonic() - began
        assert out.read_text().splitlines() == ["j1"] or done_s > 3
        wait_until(lambda: "took longer than 3 s" in service.api.service().trouble)
        wait_until(lambda: len(out.read_text().splitlines()) == 3)


@pytest.mark.parametrize(
    ("command", "message"),
    [(("false",), "ended with status 1"), (("/no/such",), "No such file or directory")],
)
def test_one_that_fails_is_shown_as_trouble(tmp_path, command, message):
    with service_in(tmp_path, notify=command) as service:
        service.api.submit([spec(work_s=1)], ME)
        wait_until(lambda: message in service.api.service().trouble)
