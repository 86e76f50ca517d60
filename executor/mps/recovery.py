"""Recovery of MPS on a GPU: a sequence of steps, each taken only if the previous one failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from dovetail.executor.mps import processes
from dovetail.executor.mps.control import ANSWER_S, Control, Health, HealthState, MpsError


class RecoveryTimeouts(NamedTuple):
    """Timeouts in seconds.

    Attributes
    ----------
    answer_s : float
        For the answer to a command.
    active_s : float
        For a server in fault to become active again, which requires its clients to leave.
    terminate_s : float
        For ``terminate_client``.
    quit_s : float
        For ``quit``, before it ends servers by force.
    """

    answer_s: float = ANSWER_S
    active_s: float = 60.0
    terminate_s: float = 30.0
    quit_s: float = 10.0


PATIENCE: Final = RecoveryTimeouts()


class Recovery(NamedTuple):
    """Outcome of a recovery.

    Attributes
    ----------
    healthy : bool
        Whether new clients may start; otherwise the GPU must be marked as sick.
    steps : tuple of str
        The steps taken, in words and in order.
    left : tuple of int
        Possible clients that still live, if more than waiting was needed. Their work is lost, so
        they must be ended.
    """

    healthy: bool
    steps: tuple[str, ...]
    left: tuple[int, ...] = ()


def recover(control: Control, patience: RecoveryTimeouts) -> Recovery:
    """Take steps until new clients are served.

    A daemon that does not answer is awaited and then killed, because the steps between need its
    answers. A daemon that has died can only leave servers, which are killed immediately.
    """
    steps: list[str] = []
    for words, step, needs_answers in _STEPS:
        health = control.health()
        if _is_healthy(control, health):
            break
        if needs_answers and health.state in (HealthState.DOWN, HealthState.UNKNOWN):
            continue
        try:
            step(control, patience)
        except MpsError as error:
            words = f"{words}: {error}"
        steps.append(words)
    left = control.holders() if len(steps) > 1 else ()
    return Recovery(_is_healthy(control, control.health()), tuple(steps), left)


def _is_healthy(control: Control, health: Health) -> bool:
    """Return whether the daemon answers, and all servers belong to it and are healthy.

    If the control program cannot report a server's state, the server must have no clients.
    """
    if any(server.pid not in health.servers for server in control.server_processes()):
        return False
    if health.state is HealthState.UNREPORTED:
        return not health.clients
    return health.state in (HealthState.IDLE, HealthState.ACTIVE)


def _wait(control: Control, patience: RecoveryTimeouts) -> None:
    end = time.monotonic() + patience.active_s
    while time.monotonic() < end:
        health = control.health()
        if health.state is HealthState.DOWN or _is_healthy(control, health):
            return
        time.sleep(patience.active_s / 50)


def _terminate(control: Control, patience: RecoveryTimeouts) -> None:
    for server in control.servers():
        for client in control.clients(server):
            control.terminate_client(server, client, patience.terminate_s)


def _restart(control: Control, patience: RecoveryTimeouts) -> None:
    control.quit(patience.quit_s)
    control.start()


def _kill(control: Control, patience: RecoveryTimeouts) -> None:
    daemon = control.daemon()
    for process in (*((daemon,) if daemon else ()), *control.server_processes()):
        if not processes.kill(process, patience.answer_s):
            raise MpsError(f"{control}: process {process.pid} does not die")
    control.start()


_STEPS: Final[tuple[tuple[str, Callable[[Control, RecoveryTimeouts], None], bool], ...]] = (
    ("waited for its servers", _wait, False),
    ("terminated its clients", _terminate, True),
    ("had the daemon quit and started another", _restart, True),
    ("killed the daemon and started another", _kill, False),
)
"""Description and function of each step, and whether it needs a daemon that answers."""
