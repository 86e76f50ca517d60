"""The recovery of MPS: how many steps it takes, and how long."""

import os
import signal
import threading
import time

import pytest

from . import bench as benches
from .bench import outcome, settled

pytestmark = pytest.mark.faults


def victims_leave(bench, daemon):
    """They leave two seconds later, as processes do that end by the error."""
    victims_stay(bench, daemon)
    for client in bench.clients:
        threading.Timer(2.0, client.leave).start()


def victims_stay(bench, daemon):
    """They hold on to their broken contexts."""
    bench.clients[0].order()
    bench.clients[0].error(benches.LATE_S)


def victim_stopped(bench, daemon):
    """One can neither leave nor answer."""
    victims_stay(bench, daemon)
    bench.clients[1].send(signal.SIGSTOP)


def daemon_deaf(bench, daemon):
    signal_daemon(bench, daemon, signal.SIGSTOP)


def daemon_gone(bench, daemon):
    """Kill the daemon and leave its server."""
    signal_daemon(bench, daemon, signal.SIGKILL)
    time.sleep(0.5)


def signal_daemon(bench, daemon, sent):
    pid = daemon.control.daemon().pid
    bench.line("signal", f"{sent.name} to the daemon ({pid})")
    os.kill(pid, sent)


@pytest.mark.check("at most {rungs} steps, and newcomers are served", usual_s=15)
@pytest.mark.parametrize(
    ("when", "rungs", "trouble"),
    [
        pytest.param("the victims of a fault leave", 1, victims_leave, id="leave"),
        pytest.param("the victims of a fault stay", 3, victims_stay, id="stay"),
        pytest.param("a victim of a fault is stopped", 3, victim_stopped, id="stopped"),
        pytest.param("the daemon is stopped", 2, daemon_deaf, id="deaf"),
        pytest.param("the daemon is killed", 2, daemon_gone, id="gone"),
    ],
)
def test_ladder(bench, when, rungs, trouble):
    """Recovery when {when}."""
    daemon = bench.daemon(benches.QUICK)
    there = daemon.client("illegal", name="culprit"), daemon.client("busy", name="partner")
    settled(*there)
    daemon.server()
    trouble(bench, daemon)
    begun = time.monotonic()
    recovery = daemon.manager.recover(bench.gpu.uuid)
    seconds = time.monotonic() - begun
    for client in there:
        client.send(signal.SIGCONT)
    after = daemon.newcomer()
    bench.saw(
        healthy=recovery.healthy,
        after_s=seconds,
        steps=recovery.steps,
        left=len(recovery.left),
        newcomer=outcome(after),
    )
    assert recovery.healthy
    assert outcome(after) == "is served"
    assert len(recovery.steps) <= rungs
