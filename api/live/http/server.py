"""The HTTP server of a service: a UNIX socket, and TCP if tokens are given."""

from __future__ import annotations

import logging
import os
import resource
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from dovetail.instances.errors import InputError
from dovetail.live.http.connections import Connection, ConnectionLimits
from dovetail.live.places import checked_socket

_BACKLOG: Final = 1024
_AT_ONCE: Final = 16
"""Connections that are accepted before any of them is handled."""

_PATIENCE_S: Final = 2


class Listening(NamedTuple):
    """The addresses of a server.

    Attributes
    ----------
    path : Path
        Path of the UNIX socket.
    everybody : bool
        Whether every user of the machine may connect to it.
    address : tuple of str and int, optional
        Host and port; port 0 takes a free one.
    """

    path: Path
    everybody: bool
    address: tuple[str, int] | None = None


@contextmanager
def serving(answering: FastAPI, where: Listening, ready: threading.Event) -> Iterator[int | None]:
    """Answer requests in another thread while the block runs; yield the TCP port.

    The socket's file exists while the block runs. An earlier socket without a listener is treated
    as left by a killed service, and replaced.

    Parameters
    ----------
    answering : FastAPI
        The application that answers (``application``).
    where : Listening
        Addresses to listen on.
    ready : Event
        Set once the service can answer; earlier connections wait.

    Raises
    ------
    InputError
        When it cannot listen there, for example because another service or file is there.
    """
    # The server closes its sockets only if it has begun to answer.
    with ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(_unix_socket(where))]
        if where.address is not None:
            sockets.append(open_sockets.enter_context(_tcp_socket(*where.address)))
        port = sockets[-1].getsockname()[1] if where.address else None
        try:
            with _running(answering, sockets, ready):
                yield port
        finally:
            where.path.unlink(missing_ok=True)


@contextmanager
def _running(
    answering: FastAPI, sockets: list[socket.socket], ready: threading.Event
) -> Iterator[None]:
    server = Server(answering)

    def answer() -> None:
        ready.wait()
        if not server.should_exit:
            server.run(sockets)

    thread = threading.Thread(target=answer, name="api", daemon=True)
    thread.start()
    try:
        yield
    finally:
        answering.state.ending.set()
        server.should_exit = True
        ready.set()
        thread.join()


class Server(uvicorn.Server):
    """A server of limited connections; it accepts few at once, and lets many wait.

    Parameters
    ----------
    answering : ASGIApp
        What answers the requests.
    """

    def __init__(self, answering: ASGIApp) -> None:
        # Malformed requests of clients do not belong in the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        limits = ConnectionLimits(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        super().__init__(
            uvicorn.Config(
                answering,
                http=partial(Connection, limits),  # type: ignore[arg-type]  # is called
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=_AT_ONCE,
                timeout_graceful_shutdown=_PATIENCE_S,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_BACKLOG)


def _unix_socket(where: Listening) -> socket.socket:
    path = checked_socket(where.path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _make_folder(path.parent, where.everybody)
        _remove_dead(path)
        made.bind(str(path))
        # Before it listens, so that no connection is made under another mode.
        os.chmod(path, 0o666 if where.everybody else 0o600)
    except OSError as error:
        made.close()
        raise InputError(f"cannot listen: {error.strerror}", "--socket", str(path)) from None
    except InputError:
        made.close()
        raise
    made.listen(_BACKLOG)
    return made


def _remove_dead(path: Path) -> None:
    """Remove a socket without a listener, and nothing else."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise InputError("a file that is not a socket is there", "--socket", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A listener with a full backlog is alive, too.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
    raise InputError("another service listens there", "--socket", str(path))


def _make_folder(folder: Path, everybody: bool) -> None:
    """Make the folder of a socket; an existing one stays as it is."""
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o755 if everybody else 0o700)


def _tcp_socket(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot listen: {reason}", "--listen", f"{host}:{port}") from None
