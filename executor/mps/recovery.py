"""The ladder of recovery: from waiting to a new daemon, each rung only if the one before failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from dovetail.executor.mps import processes
from dovetail.executor.mps.control import ANSWER_S, Control, Health, HealthState
from dovetail.executor.mps.errors import MpsError


class Patience(NamedTuple):
    """Seconds that each rung may take.

    Attributes
    ----------
    answer_s : float
        Until a command counts as not answered.
    active_s : float
        Until a server in fault is active again; its clients have to leave for that.
    terminate_s : float
        For ``terminate_client``, one client.
    quit_s : float
        After which ``quit`` forces servers down.
    """

    answer_s: float = ANSWER_S
    active_s: float = 60.0
    terminate_s: float = 30.0
    quit_s: float = 10.0


PATIENCE: Final = Patience()


class Recovery(NamedTuple):
    """What it took to bring MPS back on a GPU.

    Attributes
    ----------
    healthy : bool
        Whether new clients may come; if not, the GPU is to be marked sick.
    steps : tuple of str
        What was done, in order, in words.
    left : tuple of int
        Processes that were given the daemon and still live, where more than waiting was needed:
        all are lost, end them.
    """

    healthy: bool
    steps: tuple[str, ...]
    left: tuple[int, ...] = ()


def climb(control: Control, patience: Patience) -> Recovery:
    """Climb the ladder as far as is needed.

    A daemon that does not answer is waited for, and then killed: the rungs between would ask it.
    A daemon that is gone leaves at most servers, which are killed at once.
    """
    steps: list[str] = []
    for words, rung, asks in _RUNGS:
        health = control.health()
        if is_well(control, health):
            break
        if asks and health.state in (HealthState.DOWN, HealthState.UNKNOWN):
            continue
        try:
            rung(control, patience)
        except MpsError as error:
            words = f"{words}: {error}"
        steps.append(words)
    left = control.holders() if len(steps) > 1 else ()
    return Recovery(is_well(control, control.health()), tuple(steps), left)


def is_well(control: Control, health: Health) -> bool:
    """Whether the daemon answers, no server is in trouble, and none lives without a daemon.

    Where the program cannot tell a server's state, only one without clients counts as well.
    """
    if any(server.pid not in health.servers for server in control.server_processes()):
        return False
    if health.state is HealthState.UNTOLD:
        return not health.clients
    return health.state in (HealthState.IDLE, HealthState.ACTIVE)


def _wait(control: Control, patience: Patience) -> None:
    end = time.monotonic() + patience.active_s
    while time.monotonic() < end:
        health = control.health()
        if health.state is HealthState.DOWN or is_well(control, health):
            return
        time.sleep(patience.active_s / 50)


def _terminate(control: Control, patience: Patience) -> None:
    for server in control.servers():
        for client in control.clients(server):
            control.terminate_client(server, client, patience.terminate_s)


def _restart(control: Control, patience: Patience) -> None:
    control.quit(patience.quit_s)
    control.start()


def _kill(control: Control, patience: Patience) -> None:
    daemon = control.daemon()
    for process in (*((daemon,) if daemon else ()), *control.server_processes()):
        if not processes.kill(process, patience.answer_s):
            raise MpsError(f"{control}: process {process.pid} does not die")
    control.start()


_RUNGS: Final[tuple[tuple[str, Callable[[Control, Patience], None], bool], ...]] = (
    ("waited for its servers", _wait, False),
    ("terminated its clients", _terminate, True),
    ("made the daemon quit and started another", _restart, True),
    ("killed the daemon and started another", _kill, False),
)
"""What each rung is, in words, and whether the daemon has to answer."""
