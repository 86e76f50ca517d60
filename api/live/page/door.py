"""What stands before the pages: who asks, from where, and what a browser may do with an answer.

Over TCP a browser is recognised by the cookie of its session. Because browsers send cookies
unasked, requests with one are trusted only as far as their ``Host`` is a name of this service (DNS
rebinding) and, if they change something, as far as they come from a page of it (``Origin``).
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Collection
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.live.http.faults import Fault
from dovetail.live.http.guards import answer
from dovetail.live.page.rendering import Frame, page, style_digest
from dovetail.live.page.sessions import Sessions, cookie_name, cookie_of
from dovetail.live.page.words import line

HEADERS: Final = (
    (
        b"content-security-policy",
        f"default-src 'none'; style-src '{style_digest()}'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'".encode(),
    ),
    (b"x-content-type-options", b"nosniff"),
    # With no-referrer, forms would have no Origin.
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-embedder-policy", b"require-corp"),
)
"""Headers of every answer to a browser."""

_PATHS: Final = frozenset({"/", "/jobs", "/gpus", "/plan", "/events", "/login", "/logout"})
_BELOW: Final = ("/jobs/", "/gpus/", "/login/", "/static/")
_KEPT: Final = (b"retry-after", b"connection")
_READS: Final = ("GET", "HEAD")
_MOST_ERROR_BYTES: Final = 64 * 1024


def is_page(path: str) -> bool:
    """Return whether a path is one of the page, and not of the API."""
    return path in _PATHS or path.startswith(_BELOW)


def is_open(path: str) -> bool:
    """Return whether a path of the page is open to strangers."""
    return path == "/login" or path.startswith(("/login/", "/static/"))


class Door:
    """Lets browsers in, and makes their answers safe; everything else passes.

    Parameters
    ----------
    app : ASGIApp
        The application.
    sessions : Sessions
        The sessions of browsers.
    names : collection of str
        Names of this service, besides addresses, ``localhost`` and the machine's own name.
    """

    def __init__(self, app: ASGIApp, sessions: Sessions, names: Collection[str] = ()) -> None:
        self._app = app
        self._sessions = sessions
        named = (socket.gethostname(), "localhost", *names)
        self._names = frozenset(name.lower() for name in named)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        of_page = is_page(scope["path"])
        safe: Send = _Safe(scope, send) if of_page else send
        if not of_page and may_be_a_browser(scope):
            safe = _marked(send)
        refusal = self._refusal(scope, of_page)
        await (self._app if refusal is None else refusal)(scope, receive, safe)

    def _refusal(self, scope: Scope, of_page: bool) -> Response | None:
        """Return why a request is refused; otherwise enter who asks."""
        state, headers = scope.setdefault("state", {}), scope["headers"]
        secret = "" if "peer" in state else cookie_of(headers, cookie_name(scope))
        given = dict(headers)
        if (of_page or secret) and "peer" not in state and not self._is_ours(given):
            host = line(given.get(b"host", b"").decode("latin-1"), 100)
            return answer(Fault("refused", f"this service is not called {host!r}"), 403)
        if of_page and scope["method"] not in _READS and not is_same_origin(given):
            rule = "a change must come from a page of this service"
            return answer(Fault("refused", rule), 403)
        if secret and (of_page or scope["method"] in _READS):
            user = self._sessions.user(secret)
            if user is not None:
                state["peer"], state["session"] = user, secret
        if "peer" in state or not of_page or b"authorization" in given:
            return None
        if is_open(scope["path"]):
            state["stranger"] = True
            return None
        if scope["method"] in _READS and scope["path"] != "/events":
            return RedirectResponse("/login", 303)
        return answer(Fault("token", "log in first"), 401)

    def _is_ours(self, headers: dict[bytes, bytes]) -> bool:
        host = host_name(headers.get(b"host", b"").decode("latin-1"))
        return host in self._names or is_address(host) or host.endswith(".localhost")


def host_name(host: str) -> str:
    """Return the name in a ``Host`` header, without the port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def is_address(host: str) -> bool:
    """Return whether a host is an address, which no name server can point elsewhere."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def may_be_a_browser(scope: Scope) -> bool:
    """Return whether a request may be a browser's: over TCP, without a token."""
    from_a_socket = "peer" in scope.get("state", {})
    return not from_a_socket and all(name != b"authorization" for name, _ in scope["headers"])


def is_same_origin(headers: dict[bytes, bytes]) -> bool:
    """Return whether a browser says that a request comes from a page of the same origin."""
    site = headers.get(b"sec-fetch-site")
    if site is not None and site != b"same-origin":
        return False
    origin = headers.get(b"origin", b"").decode("latin-1")
    if origin in ("", "null"):
        return site == b"same-origin"
    # A proxy in front may speak another scheme with the browser.
    return origin.partition("://")[2].encode("latin-1") == headers.get(b"host", b"")


def _marked(send: Send) -> Send:
    """Return what sends an answer of the API with the headers for browsers."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message["headers"], (b"cache-control", b"no-store"), *HEADERS]
            message = {**message, "headers": headers}
        await send(message)

    return sent


class _Safe:
    """Sends an answer with the headers for browsers, and an error as a small page."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._error: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            headers = [(k.lower(), v) for k, v in message["headers"]]
            if message["status"] >= 400 and (b"content-type", b"application/json") in headers:
                self._error = message
                return
            await self._send({**message, "headers": [*self._kept(headers), *HEADERS]})
        elif self._error is None:
            await self._send(message)
        else:
            if len(self._body) < _MOST_ERROR_BYTES:
                self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._send_error(self._error)

    def _kept(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        if any(name == b"cache-control" for name, _ in headers):
            return headers
        return [*headers, (b"cache-control", b"no-store")]

    async def _send_error(self, started: Message) -> None:
        status = started["status"]
        made = error_page(status, _line_of(self._body))
        mine = [(k, v) for k, v in started["headers"] if k.lower() in _KEPT]
        headers = [*made.raw_headers, *mine, (b"cache-control", b"no-store"), *HEADERS]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        body = b"" if self._scope["method"] == "HEAD" else made.body
        await self._send({"type": "http.response.body", "body": body})


def error_page(status: int, text: str) -> HTMLResponse:
    """Return a small page with an error in a line."""
    html = page("error.html.j2", Frame(), title=HTTPStatus(status).phrase, line=line(text, 1000))
    return HTMLResponse(html, status)


def _line_of(body: bytes) -> str:
    try:
        found: Any = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return "the service does not say why"
    return str(found)
