"""Limits that keep requests from harming the service or others: identity, size, time, waiting.

Each user has a lane of each kind of requests. Requests beyond its places wait in line; requests
beyond the line are refused (429). An answer occupies its place until the client has read it, so
that answers that are never read take the memory of one; a client that stops reading is
disconnected.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Final, NamedTuple, TypeVar
from urllib.parse import parse_qs

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.executor.live.errors import UnknownJobError
from dovetail.executor.live.requests.service_api import ServiceApi
from dovetail.live.http.connections import Tokens
from dovetail.live.http.faults import Fault
from dovetail.live.http.requests import MOST_BODY_BYTES

LONGEST_BODY_S: Final = 60.0
"""Seconds within which a request's body must arrive."""

_POLL_S: Final = 0.1
_Made = TypeVar("_Made")


def answer(fault: Fault, status: int) -> JSONResponse:
    """Return the response that reports a fault."""
    return JSONResponse(asdict(fault), status)


class Gate:
    """Refuses requests of users that neither the kernel nor a token identifies."""

    def __init__(self, app: ASGIApp, tokens: Tokens | None) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        names = {name for name, _ in scope["headers"]}
        if names >= {b"content-length", b"transfer-encoding"}:
            # A proxy may read another part of it as the next request (RFC 9112, 6.3).
            line = "must have Content-Length or Transfer-Encoding, got both"
            refusal = answer(Fault(kind="http", error=line), 400)
            refusal.headers["connection"] = "close"
            return refusal
        if not self._known(scope):
            return answer(Fault(kind="token", error=_lacking(scope)), 401)
        state = scope["state"]
        if "peer" not in state:
            return None
        if "recognised" in state and not state["recognised"](state["peer"].uid):
            return answer(Fault(kind="busy", error="too many connections"), 503)
        return None

    def _known(self, scope: Scope) -> bool:
        state = scope.setdefault("state", {})
        if "peer" not in state and self._tokens is not None:
            headers = dict(scope["headers"])
            kind, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
            user = self._tokens.user(token.strip()) if kind.lower() == "bearer" else None
            if user is not None:
                state["peer"] = user
        return "peer" in state or "stranger" in state


def _lacking(scope: Scope) -> str:
    if any(name == b"authorization" for name, _ in scope["headers"]):
        return "this token is not known"
    return "over TCP a token is needed: Authorization: Bearer"


class Bodies:
    """Reads the bodies of requests, one at a time per user, and parses one at a time in all.

    Thus the requests of one user take little memory and do not delay other users.
    """

    def __init__(self) -> None:
        self._of_user: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._parsing = asyncio.Lock()

    async def read(self, request: Request, made: Callable[[bytes], _Made]) -> _Made:
        """Return the result of ``made`` for a request's body; it is called in another thread."""
        async with self._of_user[request.state.peer.uid]:
            try:
                body = await asyncio.wait_for(request.body(), LONGEST_BODY_S)
            except TimeoutError:
                rule = f"a body must arrive within {LONGEST_BODY_S:g} s"
                raise HTTPException(408, rule) from None
            except ClientDisconnect:
                raise HTTPException(400, "the body broke off") from None
            async with self._parsing:
                return await run_in_threadpool(made, body)


class JobEnds:
    """Waits until jobs end, with one poll per job for all requests that wait for it.

    Parameters
    ----------
    api : ServiceApi
        The service.
    ending : callable
        Returns whether no request may wait any longer.
    """

    def __init__(self, api: ServiceApi, ending: Callable[[], bool]) -> None:
        self._api, self._ending = api, ending
        self._waiting: dict[str, set[asyncio.Future[bool]]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def over(self, job: str, within_s: float) -> bool:
        """Return whether a job, or the service, is over within a time."""
        if self._is_over(job):
            return True
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(job, set())
        waiting.add(waiter)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        await asyncio.wait([waiter], timeout=within_s)
        waiting.discard(waiter)
        return waiter.done()

    async def _look(self) -> None:
        while self._waiting:
            for job, waiting in list(self._waiting.items()):
                over = self._is_over(job)
                for waiter in waiting if over else ():
                    waiter.set_result(True)
                if over or not waiting:
                    del self._waiting[job]
            await asyncio.sleep(_POLL_S)

    def _is_over(self, job: str) -> bool:
        try:
            return self._ending() or self._api.is_over(job)
        except UnknownJobError:
            return True


class SmallBodies:
    """Refuses requests with bodies above ``MOST_BODY_BYTES``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request unless its body is too large."""
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MOST_BODY_BYTES:
                raise HTTPException(413, f"a request has at most {MOST_BODY_BYTES} bytes")
            return message

        await self._app(scope, counted, send)


TAKEN_S: Final = 30.0
"""Seconds within which a client must read the next part of an answer."""

_PART_BYTES: Final = 2**16


class Lane(NamedTuple):
    """A kind of requests.

    Attributes
    ----------
    places : int
        How many requests of a user are answered at a time.
    line : int
        How many more may wait.
    streams : bool
        Whether answers may take any time, as they are sent in small parts.
    """

    places: int
    line: int
    streams: bool = False


READS: Final = Lane(1, 256)
PREVIEWS: Final = Lane(1, 64)
CHANGES: Final = Lane(8, 256)
WAITS: Final = Lane(256, 0)
LOGS: Final = Lane(32, 0, streams=True)
EVENTS: Final = Lane(128, 0)
"""Changes of pages; each part has to be read in time."""


def lane_of(method: str, path: str, query: bytes) -> Lane:
    """Return the lane of a request."""
    if method not in ("GET", "HEAD"):
        return CHANGES
    if path == "/events":
        return EVENTS
    if path.endswith("/log"):
        return LOGS
    if path in ("/v1/plan", "/v1/instance") or path.endswith("/explanation"):
        return PREVIEWS
    asked = parse_qs(query.decode("latin-1"))
    if path.startswith("/v1/jobs/") and asked.get("wait_s", ["0"]) != ["0"]:
        return WAITS
    return READS


class _NotTakenError(Exception):
    """The client has stopped reading an answer."""


class Lanes:
    """Answers the requests of each user lane by lane.

    Who has not logged in has no lane, which others could fill: all that is open to such requests is
    small, and their connections are limited.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: dict[tuple[Lane, int], _LanePlaces] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in its turn, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        peer = scope["state"].get("peer")
        if peer is None:
            await self._taken(scope, receive, send)
            return
        lane = lane_of(scope["method"], scope["path"], scope["query_string"])
        async with self._place(lane, peer.uid) as entered:
            if not entered:
                most = lane.places + lane.line
                line = f"at most {most} such requests of a user may wait for their answers"
                refusal = answer(Fault(kind="too_many", error=line), 429)
                refusal.headers["retry-after"] = "1"
                await refusal(scope, receive, send)
            elif lane.streams:
                await self._app(scope, receive, send)
            else:
                await self._taken(scope, receive, send)

    @asynccontextmanager
    async def _place(self, lane: Lane, uid: int) -> AsyncIterator[bool]:
        places = self._open.setdefault((lane, uid), _LanePlaces(lane.places))
        if places.asked >= lane.places + lane.line:
            yield False
            return
        places.asked += 1
        try:
            async with places.free:
                yield True
        finally:
            places.asked -= 1
            if not places.asked:
                del self._open[lane, uid]

    async def _taken(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in parts, and disconnect a client that reads the next one too late."""

        async def part(message: Message) -> None:
            try:
                async with asyncio.timeout(TAKEN_S):
                    await send(message)
            except TimeoutError:
                raise _NotTakenError from None

        async def parts(message: Message) -> None:
            body = message.get("body", b"")
            starts = range(0, len(body), _PART_BYTES)
            for start in starts[:-1]:
                first = body[start : start + _PART_BYTES]
                await part({**message, "body": first, "more_body": True})
            await part({**message, "body": body[starts[-1] :]} if starts else message)

        try:
            await self._app(scope, receive, parts)
        except _NotTakenError:
            disconnect: Callable[[], None] = scope["state"]["disconnect"]
            disconnect()
            # The server must learn of it before this returns with an unfinished answer.
            await asyncio.sleep(0)


class _LanePlaces:
    """The places of a lane of a user, and how many requests have or await one."""

    def __init__(self, count: int) -> None:
        self.free = asyncio.Semaphore(count)
        self.asked = 0
