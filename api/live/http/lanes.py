"""Limits on how much of the service one user may use at a time: requests queue in lanes.

Each user has a lane of each kind. Requests beyond its places wait in line; requests beyond the line
are refused (429). An answer occupies its place until the client has read it, so that answers that
are never read take the memory of one; a client that stops reading is disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail.live.http.faults import Fault
from dovetail.live.http.guards import answer

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


def lane_of(method: str, path: str, query: bytes) -> Lane:
    """Return the lane of a request."""
    if method not in ("GET", "HEAD"):
        return CHANGES
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
    """Answers the requests of each user lane by lane."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: dict[tuple[Lane, int], _LanePlaces] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in its turn, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        lane = lane_of(scope["method"], scope["path"], scope["query_string"])
        async with self._place(lane, scope["state"]["peer"].uid) as entered:
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
