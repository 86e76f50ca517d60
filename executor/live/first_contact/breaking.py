"""Checks that break clients, servers and daemons on purpose, and watch what becomes of the rest."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from dovetail.executor.live.first_contact.bench import (
    Bench,
    Client,
    CouldNotTryError,
    Daemon,
    error_told,
)
from dovetail.executor.live.first_contact.seen import Checking, Seen
from dovetail.executor.live.mps import processes
from dovetail.executor.live.mps.control import ServerStatus
from dovetail.executor.live.mps.health import health_of
from dovetail.executor.live.mps.recovery import PATIENCE, Patience

NOTICES_S: Final = 6.0
"""For errors, states and Xids to show themselves."""

LATE_S: Final = 30.0
MPS_TERMINATED: Final = 810
"""CUDA_ERROR_MPS_CLIENT_TERMINATED (cuda.h)."""


def fault(mode: str, beside: bool, bench: Bench) -> Seen:
    """Let a client fault, alone or beside a busy partner, and watch until newcomers are served."""
    heard = _Xids(bench)
    daemon = bench.daemon()
    culprit = daemon.client(mode, name="culprit")
    partners = [daemon.client("busy", name="partner")] if beside else []
    _settled(culprit, *partners)
    server = daemon.server()
    begun = time.monotonic()
    culprit.order()
    seen = _watched(daemon, server, heard, [culprit, *partners], begun)
    early = daemon.client("report", name="newcomer in fault")
    newcomer = early.wait("ready", "error", within_s=NOTICES_S)
    left = [client.leave() for client in (culprit, *partners, early)]
    back = daemon.healthy_again(server, LATE_S)
    over_s = time.monotonic() - begun
    after = daemon.client("report", name="newcomer after").wait("ready", "error")
    daemon.listen()
    served = after is not None and after["event"] == "ready"
    noticed = seen["fault_s"] is not None or bool(seen["xids"])
    told = (
        f"culprit: {seen['errors']['culprit']}; "
        + (f"partner: {seen['errors']['partner']}; " if beside else "")
        + f"Xid {_listed(seen['xids'])}; FAULT {_after(seen['fault_s'])}, over after {over_s:.1f} s"
        f"{'' if back is not None else ' NOT'}; newcomer meanwhile: {_outcome(newcomer)}, "
        f"afterwards: {_outcome(after)}"
    )
    lost = not beside or seen["errors"]["partner"] != "no error"
    values = {**seen, "over_s": over_s, "left": left, "recovered": back is not None}
    return Seen(told, noticed and lost and served, values)


def terminate(bench: Bench) -> Seen:
    """Terminate a busy client beside another, then kill its process."""
    daemon = bench.daemon()
    busy, partner = daemon.client("busy", name="busy"), daemon.client("busy", name="partner")
    _settled(busy, partner)
    server = daemon.server()
    begun = time.monotonic()
    answer = daemon.control.say([], f"terminate_client {server} {busy.pid}", PATIENCE.terminate_s)
    seconds = time.monotonic() - begun
    error = busy.error(NOTICES_S)
    busy.send(signal.SIGKILL)
    goes_on = _goes_on(partner)
    state = daemon.status(server)
    after = daemon.client("report", name="newcomer").wait("ready", "error")
    daemon.listen()
    last = answer.out.split()[-1:] == ["0"]
    told = (
        f"{' / '.join(answer.out.split()) or 'no answer'} after {seconds:.2f} s; the client: "
        f"{error_told(error)}; after SIGKILL the server is {state}, the partner "
        f"{'goes on' if goes_on else 'DOES NOT go on'}, a newcomer: {_outcome(after)}"
    )
    values = {"seconds": seconds, "error": dict(error or {}), "goes_on": goes_on, "state": state}
    fine = last and goes_on and error is not None and error["number"] == MPS_TERMINATED
    return Seen(told, fine, values)


def kill_client(bench: Bench) -> Seen:
    """Kill a busy client without terminating it first, beside another."""
    heard = _Xids(bench)
    daemon = bench.daemon()
    busy, partner = daemon.client("busy", name="busy"), daemon.client("busy", name="partner")
    _settled(busy, partner)
    server = daemon.server()
    begun = time.monotonic()
    busy.send(signal.SIGKILL)
    seen = _watched(daemon, server, heard, [partner], begun)
    listed = busy.pid in daemon.control.clients(server)
    goes_on = _goes_on(partner)
    after = daemon.client("report", name="newcomer").wait("ready", "error")
    daemon.listen()
    told = (
        f"the server is {daemon.status(server)}, FAULT {_after(seen['fault_s'])}, "
        f"Xid {_listed(seen['xids'])}; the dead one is {'still' if listed else 'not'} listed; the "
        f"partner {'goes on' if goes_on else seen['errors']['partner']}; a newcomer: "
        f"{_outcome(after)}"
    )
    return Seen(told, True, {**seen, "listed": listed, "goes_on": goes_on})


def kill_server(bench: Bench) -> Seen:
    """Kill the server under an idle and a busy client."""
    heard = _Xids(bench)
    daemon = bench.daemon()
    there = [daemon.client("idle", name="idle"), daemon.client("busy", name="busy")]
    _settled(*there)
    server = daemon.server()
    return _killed(bench, daemon, heard, there, server, server)


def kill_daemon(bench: Bench) -> Seen:
    """Kill the daemon under an idle and a busy client."""
    heard = _Xids(bench)
    daemon = bench.daemon()
    there = [daemon.client("idle", name="idle"), daemon.client("busy", name="busy")]
    _settled(*there)
    server, mine = daemon.server(), daemon.control.daemon()
    if mine is None:
        raise CouldNotTryError("the daemon's process was not found")
    return _killed(bench, daemon, heard, there, server, mine.pid)


def _killed(
    bench: Bench, daemon: Daemon, heard: _Xids, there: Sequence[Client], server: int, pid: int
) -> Seen:
    """Kill a process of MPS and watch clients, newcomers, and the way back."""
    process = processes.look(pid)
    if process is None:
        raise CouldNotTryError(f"process {pid} has gone before")
    begun = time.monotonic()
    bench.notes.line("signal", f"SIGKILL to {pid}")
    processes.kill(process, 5.0)
    seen = _watched(daemon, server, heard, there, begun)
    goes_on = _goes_on(there[1])
    newcomer = daemon.client("report", name="newcomer").wait("ready", "error")
    health = health_of(daemon.control).state
    server_lives = processes.look(server) is not None
    left = [client.leave() for client in there]
    recovery = daemon.manager.recover(bench.gpu.uuid)
    after = daemon.client("report", name="newcomer after").wait("ready", "error")
    daemon.listen()
    lost = all(told != "no error" for told in seen["errors"].values()) and not goes_on
    told = (
        f"idle: {seen['errors']['idle']}; busy: {seen['errors']['busy']}"
        f"{', its kernels go on' if goes_on else ''}; the server "
        f"{'lives' if server_lives else 'is gone'}, health {health.value}; a newcomer: "
        f"{_outcome(newcomer)}; after {', '.join(recovery.steps) or 'no step'}: {_outcome(after)}"
    )
    values = {**seen, "goes_on": goes_on, "health": health.value, "left": left}
    return Seen(told, lost and recovery.healthy, {**values, "steps": list(recovery.steps)})


def ladder(trouble: Callable[[Bench, Daemon, Client], None], rung: int, bench: Bench) -> Seen:
    """Make trouble of one kind, climb the ladder, and time that."""
    daemon = bench.daemon(QUICK)
    culprit, partner = (
        daemon.client("illegal", name="culprit"),
        daemon.client("busy", name="partner"),
    )
    _settled(culprit, partner)
    daemon.server()
    trouble(bench, daemon, culprit)
    begun = time.monotonic()
    recovery = daemon.manager.recover(bench.gpu.uuid)
    seconds = time.monotonic() - begun
    for client in (culprit, partner):
        client.send(signal.SIGCONT)
    after = daemon.client("report", name="newcomer").wait("ready", "error")
    daemon.listen()
    served = after is not None and after["event"] == "ready"
    told = (
        f"{'healthy' if recovery.healthy else 'NOT healthy'} after {seconds:.1f} s: "
        f"{'; '.join(recovery.steps) or 'no step was needed'}; a newcomer: {_outcome(after)}"
    )
    values = {"seconds": seconds, "steps": list(recovery.steps), "left": len(recovery.left)}
    return Seen(told, recovery.healthy and served and len(recovery.steps) <= rung, values)


def victims_leave(bench: Bench, daemon: Daemon, culprit: Client) -> None:
    """Fault; all clients leave two seconds later, as processes do that end by the error."""
    _fault(daemon, culprit)
    for client in bench.clients:
        client.leave_later(2.0)


def victims_stay(bench: Bench, daemon: Daemon, culprit: Client) -> None:
    """Fault; the clients hold on to their broken contexts."""
    _fault(daemon, culprit)


def victim_stopped(bench: Bench, daemon: Daemon, culprit: Client) -> None:
    """Fault; one client is stopped, so that it can neither leave nor answer."""
    _fault(daemon, culprit)
    bench.clients[1].send(signal.SIGSTOP)


def daemon_stopped(bench: Bench, daemon: Daemon, culprit: Client) -> None:
    """Stop the daemon, so that it answers nothing."""
    _signal_daemon(bench, daemon, signal.SIGSTOP)


def daemon_gone(bench: Bench, daemon: Daemon, culprit: Client) -> None:
    """Kill the daemon; its server is left."""
    _signal_daemon(bench, daemon, signal.SIGKILL)
    time.sleep(0.5)


QUICK: Final = Patience(answer_s=5.0, active_s=8.0, terminate_s=10.0, shutdown_s=10.0, quit_s=5.0)
"""Shorter than the service's, so that a rung that does not help is left soon."""


def _fault(daemon: Daemon, culprit: Client) -> None:
    culprit.order()
    culprit.error(NOTICES_S)


def _signal_daemon(bench: Bench, daemon: Daemon, sent: signal.Signals) -> None:
    mine = daemon.control.daemon()
    if mine is None:
        raise CouldNotTryError("the daemon's process was not found")
    bench.notes.line("signal", f"{sent.name} to the daemon ({mine.pid})")
    os.kill(mine.pid, sent)


class _Xids:
    """The critical errors since this was made."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.new()

    def new(self) -> list[int]:
        found = [xid.code for xid in self._bench.nvml.xids()]
        for code in found:
            self._bench.notes.line("nvml", f"Xid {code}")
        return found


def _watched(
    daemon: Daemon, server: int, heard: _Xids, clients: Sequence[Client], begun: float
) -> dict[str, Any]:
    """Watch for errors, the server's state and Xids, each with the seconds until it was seen."""
    xids: list[dict[str, float]] = []
    states: list[tuple[float, str]] = []
    while time.monotonic() - begun < NOTICES_S:
        at = time.monotonic() - begun
        state = daemon.status(server)
        if not states or states[-1][1] != state:
            states.append((at, state))
        xids += [{"code": code, "after_s": at} for code in heard.new()]
        if xids and all(client.events("error") for client in clients):
            break
        time.sleep(0.02)
    return {
        "xids": xids,
        "states": states,
        "fault_s": next((at for at, state in states if state == ServerStatus.FAULT), None),
        "errors": {client.name: error_told(client.error(0.0)) for client in clients},
        "errors_after_s": {
            client.name: event["at"] - begun
            for client in clients
            if (event := client.error(0.0)) is not None
        },
    }


def _settled(*clients: Client) -> None:
    for client in clients:
        client.ready()
    for client in clients:
        if client.mode == "busy":
            client.wait("steps", "error")


def _goes_on(client: Client) -> bool:
    """Whether a busy client still finishes kernels."""
    begun = time.monotonic()
    while time.monotonic() - begun < 2.0 and client.alive():
        if any(step["at"] > begun + 0.2 for step in client.events("steps")):
            return True
        time.sleep(0.05)
    return False


def _outcome(event: Any) -> str:
    if event is None:
        return "nothing was said"
    if event["event"] == "error":
        return error_told(event)
    return "is served" if event["mps"] else "runs WITHOUT MPS"


def _listed(xids: Sequence[dict[str, float]]) -> str:
    told = ", ".join(f"{one['code']} after {one['after_s']:.2f} s" for one in xids)
    return told or "none"


def _after(seconds: float | None) -> str:
    return "not seen" if seconds is None else f"after {seconds:.2f} s"


_NOTICED: Final = "an Xid or FAULT is seen; newcomers are served once the victims have left"


def _ladder(
    name: str, how: Callable[[Bench, Daemon, Client], None], rung: int, what: str
) -> Checking:
    taken = f"at most {rung} rungs, and newcomers are served"
    return Checking(name, (21,), what, taken, partial(ladder, how, rung), 120, 15, fault=True)


CHECKS: Final = (
    Checking(
        "terminate",
        (18,),
        "terminate_client on a busy client beside another, then SIGKILL",
        "0, within 30 s; the other goes on",
        terminate,
        90,
        6,
        fault=True,
    ),
    Checking(
        "fault-alone",
        (17,),
        "an illegal access alone",
        _NOTICED,
        partial(fault, "illegal", False),
        120,
        12,
        fault=True,
    ),
    Checking(
        "fault-partner",
        (16,),
        "an illegal access beside a busy partner",
        f"{_NOTICED}; the partner is lost",
        partial(fault, "illegal", True),
        120,
        12,
        fault=True,
    ),
    Checking(
        "trap-partner",
        (16,),
        "a trap beside a busy partner",
        f"{_NOTICED}; the partner is lost",
        partial(fault, "trap", True),
        120,
        12,
        fault=True,
    ),
    _ladder("ladder-leave", victims_leave, 1, "recovery when the victims of a fault leave"),
    _ladder("ladder-stay", victims_stay, 3, "recovery when the victims of a fault stay"),
    _ladder("ladder-stopped", victim_stopped, 4, "recovery when a victim of a fault is stopped"),
    _ladder("ladder-deaf", daemon_stopped, 2, "recovery when the daemon is stopped"),
    _ladder("ladder-gone", daemon_gone, 2, "recovery when the daemon is killed"),
    Checking(
        "kill-client",
        (19,),
        "a plain SIGKILL of a busy client beside another",
        "undefined; avoided",
        kill_client,
        90,
        12,
        fault=True,
    ),
    Checking(
        "kill-server",
        (20,),
        "SIGKILL of the server under an idle and a busy client",
        "all clients are lost",
        kill_server,
        120,
        15,
        fault=True,
    ),
    Checking(
        "kill-daemon",
        (20,),
        "SIGKILL of the daemon under an idle and a busy client",
        "all clients are lost",
        kill_daemon,
        120,
        20,
        fault=True,
    ),
)
