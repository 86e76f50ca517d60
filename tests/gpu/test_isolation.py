"""Two clients on one GPU, one in the idle time of the other: launches are intercepted."""

import os

import pytest

from dovetail.executor.mps import processes
from dovetail.executor.pools.isolation import SchedulerStatus
from dovetail.executor.pools.opening import find_isolation

from .bench import alone, awaited, together

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


def _status(schedulers, uuid, uid):
    """Return the status of the scheduler; an empty one if none answers."""
    return schedulers.status(uuid, uid) or SchedulerStatus(frozenset(), {}, {})
