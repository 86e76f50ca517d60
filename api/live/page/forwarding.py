"""A page server on one's own machine, in front of the socket of a service.

Browsers cannot open UNIX sockets. Whoever has the secret link may use this server, and acts as the
user who runs it; other users of the machine, who can connect to the port too, are refused.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import h11
from fastapi.responses import HTMLResponse, Response
from starlette.types import Message, Receive, Scope, Send

from dovetail.live.http.server import Server
from dovetail.live.page.door import HEADERS, error_page, host_name, is_page, is_same_origin
from dovetail.live.page.rendering import Frame, page
from dovetail.live.page.sessions import LASTING_S, cookie_of, set_cookie

ADDRESS: Final = "127.0.0.1"
_NAMES: Final = (ADDRESS, "localhost")
_ENTER: Final = "/enter/"
_CHUNK_BYTES: Final = 1 << 16
_CONNECT_S: Final = 10.0
_LOOK_S: Final = 0.3
_DROPPED: Final = frozenset(
    {
        *(b"connection", b"cookie", b"expect", b"keep-alive", b"transfer-encoding", b"upgrade"),
        *(b"authorization", b"content-length"),
    }
)
_HOP: Final = frozenset({b"connection", b"date", b"keep-alive", b"transfer-encoding"})


class Forwarding:
    """Forwards the requests of a browser that has been given the link to a service's socket.

    Parameters
    ----------
    service : Path
        The socket.
    port : int
        The port at which browsers come in.

    Attributes
    ----------
    ending : bool
        Whether answers that go on, such as events, are to end.
    """

    ending = False

    def __init__(self, service: Path, port: int) -> None:
        self._service, self._port = service, port
        self._secret, self._cookie = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        # Cookies of a host are for all of its ports.
        self._name = f"dovetail_page_{port}"

    @property
    def link(self) -> str:
        """The address with which a browser is let in."""
        return f"http://{ADDRESS}:{self._port}/enter/{self._secret}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        made = self._refusal(scope) or await self._forwarded(scope, receive, send)
        if made is not None:
            made.raw_headers.extend([*HEADERS, (b"cache-control", b"no-store")])
            await made(scope, receive, send)

    async def _forwarded(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Forward a request; return the answer if the service gives none."""
        started = False

        async def sent(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._forward(scope, receive, sent)
        except (OSError, h11.ProtocolError):
            if not started:
                return error_page(502, f"no service answers at {self._service}")
            # The browser must not take what it has for the whole answer.
            scope["state"]["disconnect"]()
            await asyncio.sleep(0)
        return None

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is not forwarded."""
        stranger = self._stranger(scope)
        if stranger is not None:
            return stranger
        # From now on, its connection is one of the user's.
        if not scope["state"]["recognised"](os.geteuid()):
            return error_page(503, "too many connections")
        headers, path = dict(scope["headers"]), scope["path"]
        if path.startswith(_ENTER):
            html = page("entered.html.j2", Frame(), title="Welcome")
            cookie = set_cookie(self._cookie, LASTING_S, self._name)
            return HTMLResponse(html, headers={"set-cookie": cookie})
        if not is_page(path):
            return error_page(404, "there is no such page")
        if scope["method"] not in ("GET", "HEAD") and not is_same_origin(headers):
            return error_page(403, "a change must come from a page of this service")
        return None

    def _stranger(self, scope: Scope) -> Response | None:
        """Return the answer to a request without the link's secret, or under another name."""
        headers, path = dict(scope["headers"]), scope["path"]
        if host_name(headers.get(b"host", b"").decode("latin-1")) not in _NAMES:
            return error_page(403, "this server is on one's own machine only")
        if path.startswith(_ENTER):
            given = path.removeprefix(_ENTER).encode(errors="replace")
            if not hmac.compare_digest(given, self._secret.encode()):
                return error_page(403, "this is not the link that dovetail page printed")
            return None
        shown = cookie_of(scope["headers"], self._name).encode(errors="replace")
        if not hmac.compare_digest(shown, self._cookie.encode()):
            return error_page(403, "open the link that dovetail page printed")
        return None

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request without its body: the forms of pages have no fields."""
        target = scope["raw_path"]
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        headers = [each for each in scope["headers"] if each[0] not in _DROPPED]
        async with self._connected() as (reader, writer):
            talk = h11.Connection(h11.CLIENT)
            request = h11.Request(
                method=scope["method"],
                target=target,
                headers=[*headers, (b"connection", b"close")],
            )
            for event in (request, h11.EndOfMessage()):
                writer.write(talk.send(event) or b"")
            await writer.drain()
            gone = asyncio.create_task(_gone(receive))
            try:
                await self._answer(talk, reader, send, gone)
            finally:
                gone.cancel()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_unix_connection(self._service)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def _answer(
        self,
        talk: h11.Connection,
        reader: asyncio.StreamReader,
        send: Send,
        gone: asyncio.Task[None],
    ) -> None:
        """Send on the answer as it comes, until it ends or the browser goes away."""
        while True:
            event = talk.next_event()
            if event is h11.NEED_DATA:
                chunk = await self._read(reader, gone)
                if chunk is None:
                    await send({"type": "http.response.body", "body": b""})
                    return
                talk.receive_data(chunk)
            elif isinstance(event, h11.Response):
                kept = [(k, v) for k, v in event.headers if k not in _HOP]
                start = {"type": "http.response.start", "status": event.status_code}
                await send({**start, "headers": kept})
            elif isinstance(event, h11.Data):
                body = {"type": "http.response.body", "body": bytes(event.data)}
                await send({**body, "more_body": True})
            elif isinstance(event, h11.EndOfMessage):
                await send({"type": "http.response.body", "body": b""})
                return
            else:
                raise h11.RemoteProtocolError("the service closed the connection")

    async def _read(self, reader: asyncio.StreamReader, gone: asyncio.Task[None]) -> bytes | None:
        """Return what comes next; None if the browser is gone or this server ends."""
        reading = asyncio.create_task(reader.read(_CHUNK_BYTES))
        while not (reading.done() or gone.done() or self.ending):
            await asyncio.wait((reading, gone), timeout=_LOOK_S, return_when=FIRST_COMPLETED)
        if reading.done():
            return reading.result()
        reading.cancel()
        return None


async def _gone(receive: Receive) -> None:
    """Return once the browser has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class QuietServer(Server):
    """A server that leaves signals to its caller; ``run`` takes its listening sockets."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


def listening(port: int) -> socket.socket:
    """Return a socket that listens on a port of this machine's own address; 0: a free one."""
    return socket.create_server((ADDRESS, port))
