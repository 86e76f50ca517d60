"""How MPS on a GPU is doing, as its control daemon tells it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from dovetail.executor.live.mps.control import Control, ServerStatus
from dovetail.executor.live.mps.errors import MpsError, NoDaemonError, NoServerError


class HealthState(StrEnum):
    """What MPS on a GPU is doing."""

    DOWN = "down"
    """No daemon of ours answers."""
    IDLE = "idle"
    """A daemon runs and has no server; the first client brings one."""
    STARTING = "starting"
    """A server is initialising."""
    ACTIVE = "active"
    """Every server serves."""
    UNTOLD = "untold"
    """A server runs; the installed control program cannot tell its state (before 555)."""
    FAULT = "fault"
    """A client's fault has stopped a server; newcomers are refused."""
    UNKNOWN = "unknown"
    """The daemon does not answer in time, is gone from under its clients, or talks nonsense."""


class Health(NamedTuple):
    """MPS on one GPU.

    Attributes
    ----------
    state : HealthState
        The worst of its servers'.
    uid : int or None
        The user it serves; None where it is down.
    servers, clients : tuple of int
        Their pids.
    why : str
        In words, where there is something to say.
    """

    state: HealthState
    uid: int | None = None
    servers: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    why: str = ""


_STATES: Final = {
    ServerStatus.ACTIVE: HealthState.ACTIVE,
    None: HealthState.UNTOLD,
    ServerStatus.INITIALIZING: HealthState.STARTING,
    ServerStatus.FAULT: HealthState.FAULT,
}
_WORST_LAST: Final = tuple(_STATES.values())


def health_of(control: Control) -> Health:
    """Return how the daemon and its servers are; what cannot be known is a state of its own."""
    try:
        return _asked(control)
    except NoDaemonError as error:
        return Health(HealthState.DOWN, None, why=str(error))
    except MpsError as error:
        return Health(HealthState.UNKNOWN, control.uid, why=str(error))


def _asked(control: Control) -> Health:
    servers = control.servers()
    clients = tuple(client for server in servers for client in control.clients(server))
    states = [state for server in servers if (state := _state(control, server)) is not None]
    if not states:
        return Health(HealthState.IDLE, control.uid, why=control.last_server_exit())
    worst = max(states, key=_WORST_LAST.index)
    return Health(worst, control.uid, servers, clients)


def _state(control: Control, server: int) -> HealthState | None:
    try:
        return _STATES[control.status(server)]
    except NoServerError:
        return None
