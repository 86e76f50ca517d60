"""Faults injected into clients, servers and daemons, and their effect on the others."""

import os
import shutil
import signal
import sys
import time

import pytest

from dovetail.executor.mps import processes
from dovetail.executor.mps.recovery import PATIENCE

from . import bench as benches
from .bench import CLIENT, error_text, outcome, said, settled

pytestmark = pytest.mark.faults

NOBODY = 65534
MPS_TERMINATED = 810
"""CUDA_ERROR_MPS_CLIENT_TERMINATED (cuda.h)."""


@pytest.mark.check("it hangs until the first user's clients have left", usual_s=12)
def test_second_user(bench, daemon):
    """A client of a second user on a server in use."""
    if os.geteuid() != 0:
        pytest.skip("it needs root, to start a client of another user")
    first = daemon.client("idle", name="first user")
    first.ready()
    for path in (daemon.base, *daemon.base.rglob("*")):
        path.chmod(0o777)
    second = of_nobody(bench, daemon)
    early = second.wait("ready", "error", within_s=5.0)
    daemon.say("get_server_list")
    first.leave()
    begun = time.monotonic()
    late = second.wait("ready", "error", within_s=10.0)
    daemon.say("get_server_list")
    if not second.events("started") or (late or {}).get("call") == "dlopen":
        pytest.skip(f"user {NOBODY} cannot run Python with CUDA here")
    late_s = time.monotonic() - begun
    bench.saw(within_5_s=outcome(early), after_the_first_left=outcome(late), then_s=late_s)
    assert early is None
    assert late is not None


def of_nobody(bench, daemon):
    """Start a client of another user, with files that every user can read."""
    program = daemon.base / CLIENT.name
    program.write_bytes(CLIENT.read_bytes())
    program.chmod(0o644)
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    command = [python, "-I", "-S", str(program)]
    try:
        return bench.start("second user", ["idle"], daemon.environment(), NOBODY, command)
    except OSError as error:
        pytest.skip(f"user {NOBODY} cannot run {python}: {error.strerror}")


@pytest.mark.check("0, within 30 s; the other goes on", usual_s=6)
def test_terminate(bench, daemon):
    """terminate_client on one of two busy clients, then SIGKILL."""
    busy, partner = daemon.client("busy", name="busy"), daemon.client("busy", name="partner")
    settled(busy, partner)
    server = daemon.server()
    answer = daemon.say(f"terminate_client {server} {busy.pid}", within_s=PATIENCE.terminate_s)
    error = busy.error(benches.LATE_S)
    busy.send(signal.SIGKILL)
    goes_on = partner.goes_on()
    bench.saw(
        answer=said(answer),
        after_s=answer.seconds,
        client_error=error_text(error),
        server_after_SIGKILL=daemon.status(server),
        partner_goes_on=goes_on,
        newcomer=outcome(daemon.newcomer()),
    )
    assert answer.out.split()[-1:] == ["0"]
    assert goes_on
    assert error is not None
    assert error["number"] == MPS_TERMINATED


@pytest.mark.check(
    "an Xid or FAULT is seen; the partner is lost; newcomers are served once the victims have left",
    usual_s=12,
)
@pytest.mark.parametrize(
    ("what", "mode", "has_partner"),
    [
        pytest.param("An illegal access alone", "illegal", False, id="alone"),
        pytest.param("An illegal access with a busy partner", "illegal", True, id="partner"),
        pytest.param("A trap with a busy partner", "trap", True, id="trap"),
    ],
)
def test_fault(bench, what, mode, has_partner):
    """{what}."""
    bench.xids()
    daemon = bench.daemon()
    culprit = daemon.client(mode, name="culprit")
    there = [culprit, *([daemon.client("busy", name="partner")] if has_partner else [])]
    settled(*there)
    server = daemon.server()
    begun = time.monotonic()
    culprit.order()
    seen = watched(bench, daemon, server, there, begun)
    early = daemon.client("report", name="newcomer in fault")
    meanwhile = early.wait("ready", "error", within_s=benches.NOTICES_S)
    left = [client.leave() for client in (*there, early)]
    recovered = daemon.is_healthy_again(server)
    over_s = time.monotonic() - begun
    after = daemon.newcomer("newcomer after")
    bench.saw(
        **seen,
        over_s=over_s,
        recovered=recovered,
        newcomer_meanwhile=outcome(meanwhile),
        newcomer_afterwards=outcome(after),
        left_when_asked=left,
    )
    assert seen["xids"] or "fault" in [state for state, _ in seen["states"]]
    assert seen["errors"].get("partner") != "no error"
    assert outcome(after) == "is served"


@pytest.mark.check("nothing: undefined, and avoided", usual_s=12)
def test_kill_client(bench):
    """A plain SIGKILL of one of two busy clients."""
    bench.xids()
    daemon = bench.daemon()
    busy, partner = daemon.client("busy", name="busy"), daemon.client("busy", name="partner")
    settled(busy, partner)
    server = daemon.server()
    begun = time.monotonic()
    busy.send(signal.SIGKILL)
    seen = watched(bench, daemon, server, [partner], begun)
    bench.saw(
        **seen,
        server=daemon.status(server),
        dead_one_listed=busy.pid in daemon.control.clients(server),
        partner_goes_on=partner.goes_on(),
        newcomer=outcome(daemon.newcomer()),
    )


@pytest.mark.check("all clients are lost", usual_s=20)
@pytest.mark.parametrize("victim", ["server", "daemon"])
def test_kill(bench, victim):
    """SIGKILL of the {victim} under an idle and a busy client."""
    bench.xids()
    daemon = bench.daemon()
    there = [daemon.client("idle", name="idle"), daemon.client("busy", name="busy")]
    settled(*there)
    server = daemon.server()
    process = processes.look(server) if victim == "server" else daemon.control.daemon()
    if process is None:
        pytest.skip(f"the {victim}'s process was not found")
    begun = time.monotonic()
    bench.line("signal", f"SIGKILL to {process.pid}")
    processes.kill(process, 5.0)
    seen = watched(bench, daemon, server, there, begun)
    goes_on = there[1].goes_on()
    early = outcome(daemon.newcomer())
    health = daemon.control.health().state.value
    server_lives = processes.look(server) is not None
    left = [client.leave() for client in there]
    recovery = daemon.manager.recover(bench.gpu.uuid)
    bench.saw(
        **seen,
        kernels_go_on=goes_on,
        server_lives=server_lives,
        health=health,
        newcomer=early,
        left_when_asked=left,
        steps=recovery.steps,
        newcomer_after_them=outcome(daemon.newcomer("newcomer after")),
    )
    assert "no error" not in seen["errors"].values()
    assert not goes_on
    assert recovery.healthy


def watched(bench, daemon, server, clients, begun):
    """Watch for errors, Xids and states of the server, each with the seconds until it was seen."""
    xids, states = [], []
    while (at := time.monotonic() - begun) < benches.NOTICES_S:
        state = daemon.status(server)
        if not states or states[-1][0] != state:
            states.append((state, at))
        xids += [(code, at) for code in bench.xids()]
        if xids and all(client.events("error") for client in clients):
            break
        time.sleep(0.02)
    errors = {client.name: client.error() for client in clients}
    return {
        "errors": {name: error_text(error) for name, error in errors.items()},
        "errors_after_s": {name: error["at"] - begun for name, error in errors.items() if error},
        "xids": xids,
        "states": states,
    }
