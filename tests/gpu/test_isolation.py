"""Two clients on one GPU, one in the idle time of the other: launches are intercepted."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from dovetail.executor.mps import processes
from dovetail.executor.pools.isolation import SchedulerStatus
from dovetail.executor.pools.opening import find_isolation

from .bench import alone, awaited, together

_SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "isolation.py"
_KILLED_S = 10.0
_JOIN_S = 5.0


_PAUSE_MS = 20
"""Of the latency-critical client, after every four kernels: without pauses the other starves."""


@pytest.fixture
def schedulers(tmp_path):
    found = find_isolation(tmp_path / "isolation")
    if isinstance(found, str):
        pytest.skip(f"nothing isolates here: {found}")
    yield found
    for one in processes.every():
        if any(str(tmp_path / "isolation") in argument for argument in one.arguments):
            processes.kill(one, _KILLED_S)


@pytest.mark.check(
    "the driver and clients of MPS bear it; launches are announced, cut up, and preempted",
    usual_s=30,
)
def test_isolation(bench, daemon, schedulers):
    """Kernels a second of a latency-critical and a best-effort client, isolated and not."""
    uuid, uid = bench.gpu.uuid, os.geteuid()
    whole, work = alone(daemon.client("busy", name="alone"))

    def pair(isolated):
        clients = []
        for name, latency in (("critical", True), ("behind", False)):
            more = schedulers.environment(uuid, uid, latency, os.environ) if isolated else None
            called = f"{name}, isolated" if isolated else name
            how = (*work, f"pause={_PAUSE_MS}") if latency else work
            clients.append(daemon.client("busy", *how, name=called, latency=latency, more=more))
        return clients

    plain = together(*pair(isolated=False))
    clients = pair(isolated=True)
    for client in clients:
        client.ready()
    awaited(lambda: len(_status(schedulers, uuid, uid).pids) == len(clients), _JOIN_S)
    joined = _status(schedulers, uuid, uid).pids
    isolated = together(*clients)
    status = _status(schedulers, uuid, uid)
    bench.saw(
        alone=whole,
        critical_and_other=plain,
        critical_and_other_isolated=isolated,
        launches={name: count for name, count in status.launches.items() if count},
        escapes=dict(status.escapes),
    )
    assert len(joined) == len(clients)
    assert status.launches.get("announced", 0) > 0
    assert status.launches.get("isolated", 0) + status.launches.get("whole", 0) > 0


def _step(name, usual_s):
    taken = pytest.mark.check(f"what isolation promises and assumes holds: {name}", usual_s=usual_s)
    return pytest.param(name, usual_s, marks=taken, id=name)


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "usual_s"),
    [
        _step("right", 90),
        _step("costs", 70),
        _step("turnaround", 75),
        _step("throughput", 115),
        _step("p99", 120),
    ],
)
def test_isolation_step(bench, tmp_path, monkeypatch, step, usual_s):
    """Claims of a step of benchmarks/gpu/isolation.py ({step})."""
    monkeypatch.syspath_prepend(_SCRIPT.parent)
    from blocks.claims import claims

    command = [sys.executable, str(_SCRIPT), "--out", str(tmp_path / "out"), "--only", step]
    process = subprocess.Popen(
        [*command, "--minutes", f"{1 + usual_s / 30:.1f}"],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": bench.gpu.uuid},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        for line in process.stdout:
            bench.line(step, line)
        status = process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if status:
        pytest.skip(f"{_SCRIPT.name} ended with status {status}: {bench.lines[-1]['text']}")
    found = [*claims(tmp_path / "out", [step])]
    bench.saw(**{one.text: one.seen for one in found if one.seen is not None})
    if not bench.values:
        pytest.skip("nothing could be measured")
    assert [one.text for one in found if one.holds is False] == []


def _status(schedulers, uuid, uid):
    """Return the status of the scheduler; an empty one if none answers."""
    return schedulers.status(uuid, uid) or SchedulerStatus(frozenset(), {}, {})
