"""Connections to the service: their peers, their number, and their time limits."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import Counter
from typing import Any, Final, NamedTuple

from uvicorn.protocols.http.h11_impl import H11Protocol

from dovetail.live.peers import owner_of

HEAD_S: Final = 10.0
"""Seconds in which the head of a request has to come."""

_UCRED: Final = struct.Struct("iII")
_MOST_DESCRIPTORS: Final = 16_384
_FULL: Final = b'{"kind":"busy","error":"too many connections"}'
_REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(_FULL), _FULL)
)


class Peer(NamedTuple):
    """The other end of a connection: ``group`` and, in it, a user's number or a host."""

    group: str
    who: int | str


class Room:
    """How many connections there may be, so that descriptors are left for what runs.

    A quarter of the descriptors is for each group: administrators, other users of this machine,
    and hosts over TCP, where users are unknown before a request. Of these two, one user or
    host has a quarter at most.

    Parameters
    ----------
    descriptors : int
        That the service may have open.
    """

    def __init__(self, descriptors: int) -> None:
        self.of_group = min(descriptors, _MOST_DESCRIPTORS) // 4
        self.of_peer = self.of_group // 4
        self._open: Counter[Peer] = Counter()

    def enter(self, peer: Peer) -> bool:
        """Count a connection if there is room for it; return whether there is."""
        most = self.of_group if peer.group == "administrators" else self.of_peer
        group = sum(count for other, count in self._open.items() if other.group == peer.group)
        if group >= self.of_group or self._open[peer] >= most:
            return False
        self._open[peer] += 1
        return True

    def leave(self, peer: Peer) -> None:
        """Count a connection no more."""
        self._open[peer] -= 1
        if not self._open[peer]:
            del self._open[peer]


class Connection(H11Protocol):
    """Identifies the peer of a UNIX socket by the kernel, and refuses too many connections.

    It is closed if the head of a request takes longer than ``HEAD_S``.
    """

    def __init__(self, room: Room, **options: Any) -> None:  # noqa: ANN401 - as uvicorn has them
        super().__init__(**options)
        self._room = room
        self._peer: Peer | None = None
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take up a connection, or refuse it."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, "disconnect": transport.abort}
        peer = self._identified(transport.get_extra_info("socket"))
        if self._room.enter(peer):
            self._peer = peer
            self._expect_a_head()
        else:
            transport.write(_REFUSAL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Make room for another."""
        self._expect_nothing()
        if self._peer is not None:
            self._room.leave(self._peer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in what comes; nothing of a connection that is refused."""
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

    def _identified(self, connection: socket.socket) -> Peer:
        if connection.family != socket.AF_UNIX:
            return Peer("hosts", self.client[0] if self.client else "")
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        _, uid, gid = _UCRED.unpack(found)
        self.app_state = {**self.app_state, "peer": owner_of(uid, gid)}
        return Peer("administrators" if uid in (0, os.geteuid()) else "users", uid)

    def _expect_a_head(self) -> None:
        self._expect_nothing()
        self._late = self.loop.call_later(HEAD_S, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
