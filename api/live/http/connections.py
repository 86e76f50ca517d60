"""Connections to the service: their number, their time limits, and the users at the other end.

A user is identified by the kernel on a UNIX socket, by a token over TCP.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import pwd
import select
import socket
import stat
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from uvicorn.protocols.http.h11_impl import H11Protocol

from dovetail.executor.jobs.specs import Owner
from dovetail.instances.errors import InputError

LEAST_TOKEN: Final = 20
"""Characters; ``openssl rand -hex 16`` gives 32."""

_NAMED_BY_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def owner_of(uid: int, gid: int) -> Owner:
    """Return a user of this machine, with the number as the name if there is none."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return Owner(name=name, uid=uid, gid=gid)


class Tokens:
    """The tokens of users that may connect over TCP, kept as digests.

    Parameters
    ----------
    users : mapping of bytes to Owner
        Users by SHA-256 of the token: the time of a look-up reveals nothing about other tokens.
    """

    def __init__(self, users: Mapping[bytes, Owner]) -> None:
        self._users = MappingProxyType(dict(users))

    @classmethod
    def read(cls, path: str) -> Tokens:
        """Read a file with a user's name and a token on each line; ``#`` begins a comment.

        Raises
        ------
        InputError
            When it cannot be read, users other than its owner may read it, or a line breaks a rule.
        """
        users: dict[bytes, Owner] = {}
        for number, line in enumerate(_private_lines(path), 1):
            words = line.partition("#")[0].split()
            if words:
                digest, owner = _token_line(words, f"line {number}", path)
                users[digest] = owner
        if not users:
            raise InputError("must have a user and a token on a line, got none", "", path)
        return cls(users)

    def user(self, token: str) -> Owner | None:
        """Return the user of a token; None if there is no such token."""
        return self._users.get(_digest(token))


def _private_lines(path: str) -> list[str]:
    try:
        with Path(path).open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & _NAMED_BY_OTHERS:
                rule = "must be readable by its owner only (chmod 600)"
                raise InputError(f"{rule}, got mode {stat.S_IMODE(mode):o}", "", path)
            return file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise InputError(f"cannot be read: {reason}", "", path) from None


def _token_line(words: list[str], where: str, path: str) -> tuple[bytes, Owner]:
    if len(words) != 2:
        raise InputError("must be USER TOKEN, separated by a blank", where, path)
    name, token = words
    if len(token) < LEAST_TOKEN:
        rule = f"must be a token of at least {LEAST_TOKEN} characters, got {len(token)}"
        raise InputError(rule, where, path)
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise InputError(f"must be a user of this machine, got {name!r}", where, path) from None
    return _digest(token), Owner(name=name, uid=user.pw_uid, gid=user.pw_gid)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


HEAD_S: Final = 10.0
"""Seconds within which the head of a request must arrive."""

STRANGER_S: Final = 3.0
"""The same over TCP, before a token says which user is at the other end."""

_AGAIN_S: Final = 0.1
_UCRED: Final = struct.Struct("iII")
_MOST_DESCRIPTORS: Final = 16_384
_FULL: Final = b'{"kind":"busy","error":"too many connections"}'
_REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(_FULL), _FULL)
)


class Peer(NamedTuple):
    """The user at the other end of a connection, and the user's ``group``."""

    group: str
    uid: int

    @classmethod
    def of(cls, uid: int) -> Peer:
        """Return a user of this machine."""
        return cls("administrators" if uid in (0, os.geteuid()) else "users", uid)


class ConnectionLimits:
    """Limits on the number of connections, so that descriptors are left for running jobs.

    A quarter of the descriptors is for administrators and a quarter for other users, each of whom
    has at most a quarter of that. An eighth is for strangers: TCP connections that have sent no
    token yet. These are never refused, as any of them may be a user's; the oldest is closed.

    Parameters
    ----------
    descriptors : int
        Number of descriptors that the service may have open.
    """

    def __init__(self, descriptors: int) -> None:
        self.of_group = min(descriptors, _MOST_DESCRIPTORS) // 4
        self.of_peer = self.of_group // 4
        self.of_strangers = self.of_group // 2
        self._open: Counter[Peer] = Counter()
        self._strangers: dict[object, Callable[[], None]] = {}

    def receive(self, stranger: object, end: Callable[[], None]) -> None:
        """Add a stranger, which ``end`` disconnects; end the oldest if there are too many."""
        self._strangers[stranger] = end
        if len(self._strangers) > self.of_strangers:
            self._strangers.pop(next(iter(self._strangers)))()

    def forget(self, stranger: object) -> None:
        """Stop counting a connection as a stranger."""
        self._strangers.pop(stranger, None)

    def enter(self, peer: Peer) -> bool:
        """Count a connection if there is room for it; return whether there is."""
        most = self.of_group if peer.group == "administrators" else self.of_peer
        group = sum(count for other, count in self._open.items() if other.group == peer.group)
        if group >= self.of_group or self._open[peer] >= most:
            return False
        self._open[peer] += 1
        return True

    def leave(self, peer: Peer) -> None:
        """Stop counting a connection."""
        self._open[peer] -= 1
        if not self._open[peer]:
            del self._open[peer]


class Connection(H11Protocol):
    """Identifies the peer of a UNIX socket by the kernel, and refuses too many connections.

    It is closed if the head of a request takes longer than ``HEAD_S``.
    """

    def __init__(self, limits: ConnectionLimits, **options: Any) -> None:  # noqa: ANN401 - as uvicorn has them
        super().__init__(**options)
        self._limits = limits
        self._peer: Peer | None = None
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or refuse it."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, "disconnect": transport.abort}
        connection = transport.get_extra_info("socket")
        if connection.family != socket.AF_UNIX:
            self.app_state["recognised"] = self._recognised
            self._limits.receive(self, transport.abort)
            self._expect_a_head()
            return
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        _, uid, gid = _UCRED.unpack(found)
        self.app_state["peer"] = owner_of(uid, gid)
        if self._recognised(uid):
            self._expect_a_head()
        else:
            transport.write(_REFUSAL)
            transport.close()

    def _recognised(self, uid: int) -> bool:
        """Count the connection for a user; return whether there is room for it."""
        peer = Peer.of(uid)
        if peer == self._peer:
            return True
        if not self._limits.enter(peer):
            return False
        self._leave()
        self._peer = peer
        return True

    def _leave(self) -> None:
        self._limits.forget(self)
        if self._peer is not None:
            self._limits.leave(self._peer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room for another."""
        self._expect_nothing()
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received data, unless the connection is closing."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._expect_nothing()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._expect_a_head()
        super().on_response_complete()
        if not self.cycle.response_complete:
            self._expect_nothing()

    def _expect_a_head(self) -> None:
        self._expect_nothing()
        within_s = STRANGER_S if self._peer is None else HEAD_S
        self._late = self.loop.call_later(within_s, self._end_late)

    def _end_late(self) -> None:
        """Close the connection, unless it has data that a busy service has not read yet."""
        unread = select.poll()
        unread.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        if unread.poll(0):
            self._late = self.loop.call_later(_AGAIN_S, self._end_late)
        else:
            self.transport.close()

    def _expect_nothing(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
