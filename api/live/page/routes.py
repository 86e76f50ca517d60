"""The addresses of the page."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import parse_qs, parse_qsl, quote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from dovetail.executor.jobs.specs import Owner
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.errors import TooManyError
from dovetail.executor.live.requests.service_api import ServiceApi
from dovetail.executor.live.views import Chosen
from dovetail.instances.errors import InputError
from dovetail.live.http.connections import Tokens
from dovetail.live.page import parts as shown
from dovetail.live.page.actions import ACTIONS
from dovetail.live.page.aside import Aside
from dovetail.live.page.feed import Feed
from dovetail.live.page.parts import Filter, PageSource, PageView
from dovetail.live.page.rendering import (
    STATIC,
    Frame,
    page,
    rendered,
    rendered_parts,
    static,
    version,
)
from dovetail.live.page.sessions import LASTING_S, Sessions, cookie_name, set_cookie

_MOST_FORM_BYTES: Final = 4096
_FORM_S: Final = 10.0
_MOST_WORD: Final = 100

READS: Final = ["GET", "HEAD"]

router = APIRouter(include_in_schema=False)


class Pages:
    """The pages of a service, and what they share.

    Parameters
    ----------
    api : ServiceApi
        The service.
    sessions : Sessions
        The sessions of browsers.
    tokens : Tokens, optional
        With which users log in.
    ending : callable
        Returns whether the service ends.

    Attributes
    ----------
    beginning : mapping of int to asyncio.Lock
        Held, by a user's number, while the first view of events is made: of one user, one at a
        time.
    """

    def __init__(
        self,
        api: ServiceApi,
        sessions: Sessions,
        tokens: Tokens | None,
        ending: Callable[[], bool],
    ) -> None:
        self.api, self.sessions, self.tokens = api, sessions, tokens
        self.beginning: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.aside = Aside(ending)
        self.feed = Feed(self.parts, self._states, lambda: api.sequence, ending)

    def view(self, address: str, by: Owner) -> PageView:
        """Return the page at an address, as a user sees it.

        Raises
        ------
        DovetailError
            If there is none.
        """
        path, _, query = address.partition("?")
        source = PageSource(self.api, by, self.aside)
        match path.strip("/").split("/", 1):
            case [""]:
                return shown.overview(source)
            case ["jobs"]:
                return shown.jobs(source, filter_of(query))
            case ["jobs", job]:
                return shown.job(source, job)
            case ["gpus"]:
                return shown.gpus(source)
            case ["gpus", gpu]:
                return shown.gpu(source, gpu)
            case ["plan"]:
                return shown.plan(source)
        raise HTTPException(404, "there is no such page")

    def parts(self, address: str, by: Owner) -> dict[str, str]:
        """Return the HTML of the parts of the page at an address."""
        return rendered_parts(self.view(address, by))

    def html(self, address: str, by: Owner, leaves: bool) -> str:
        """Return the page at an address."""
        view = self.view(address, by)
        frame = Frame(by.name, leaves, address, view.section)
        return rendered(view, rendered_parts(view), frame)

    def _states(self, by: Owner) -> dict[str, str]:
        chosen = Chosen(user=by.name, within_s=60.0, limit=50)
        found = [*self.api.jobs(False, Chosen(user=by.name, limit=100), by)]
        found += self.api.jobs(False, chosen, by)
        return {job.id: job.state.value for job in found}


def filter_of(query: str) -> Filter:
    """Return what a list of jobs is to show, from the query of its address.

    Raises
    ------
    InputError
        If a value is none of those allowed.
    """
    said = {name: value[:_MOST_WORD] for name, value in parse_qsl(query, max_num_fields=20)}
    state = said.get("state", "")
    if state and state not in [each.value for each in JobState]:
        raise InputError(f"must be the state of a job, got {state!r}", "state")
    return Filter(
        mine=said.get("mine") == "1",
        user=said.get("user", "").strip(),
        state=state,
        text=said.get("text", "").strip(),
        over=said.get("over") == "1",
        before=said.get("before", ""),
    )


def _pages(request: Request) -> Pages:
    found: Pages = request.app.state.pages
    return found


def _asker(request: Request) -> Owner:
    found: Owner = request.state.peer
    return found


@router.api_route("/", methods=READS)
@router.api_route("/jobs", methods=READS)
@router.api_route("/jobs/{name}", methods=READS)
@router.api_route("/gpus", methods=READS)
@router.api_route("/gpus/{name:path}", methods=READS)
@router.api_route("/plan", methods=READS)
async def shown_page(request: Request) -> Response:
    """Return a page."""
    leaves = hasattr(request.state, "session")
    pages, by, address = _pages(request), _asker(request), _path_and_query(request)
    return HTMLResponse(await run_in_threadpool(pages.html, address, by, leaves))


def _path_and_query(request: Request) -> str:
    """Return the address of a page, in one form for all that show the same."""
    if request.url.path == "/jobs":
        return _filter(request.url.query).address
    return str(request.scope["path"])


def _filter(query: str) -> Filter:
    try:
        return filter_of(query)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError("must have at most 20 fields", "query") from None


@router.get("/events")
async def events(request: Request, page: str = "/") -> Response:
    """Send the changes of a page."""
    pages, by = _pages(request), _asker(request)
    path, _, query = page[:2000].partition("?")
    address = _filter(query).address if path == "/jobs" else path
    async with pages.beginning[by.uid]:
        if not pages.feed.has_room(address, by):
            raise TooManyError("too many pages are open")
        await run_in_threadpool(pages.view, address, by)
    session = getattr(request.state, "session", None)

    def logged_out() -> bool:
        return session is not None and pages.sessions.user(session) is None

    return _EventStream(lambda gone: pages.feed.events(address, by, lambda: gone() or logged_out()))


class _EventStream(Response):
    """Sends events until there are no more, or the browser is gone."""

    def __init__(self, stream: Callable[[Callable[[], bool]], AsyncGenerator[bytes]]) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        gone = asyncio.create_task(_disconnected(receive))
        head = {"status": self.status_code, "headers": self.raw_headers}
        try:
            await send({"type": "http.response.start", **head})
            # Closed at once, however this ends: then its viewer no longer counts.
            async with aclosing(self._stream(gone.done)) as events:
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@router.post("/jobs/{name}/{action}")
async def change(request: Request, name: str, action: str) -> Response:
    """Change a job, and show it."""
    if action not in ACTIONS:
        raise HTTPException(404, "there is no such action")
    await _form(request)
    pages, by = _pages(request), _asker(request)
    await run_in_threadpool(ACTIONS[action].make, pages.api, name, by)
    return RedirectResponse(f"/jobs/{quote(name, safe='')}", 303)


@router.api_route("/login", methods=READS)
async def login_page(request: Request) -> Response:
    """Return the form to log in."""
    return _login(request, "")


@router.post("/login")
async def login(request: Request) -> Response:
    """Begin a session with a token."""
    pages = _pages(request)
    token = (await _form(request)).get("token", "").strip()
    user = pages.tokens.user(token) if pages.tokens is not None else None
    if user is None:
        return _login(request, "this token is not known", 401)
    return _entered(request, pages.sessions.begin(user))


@router.get("/login/{secret}")
async def enter(request: Request, secret: str) -> Response:
    """Begin the session of a link."""
    begun = _pages(request).sessions.enter(secret)
    if begun is None:
        return _login(
            request, "this link was used already, is too old, or is not one of this service", 403
        )
    return _entered(request, begun)


@router.post("/logout")
async def logout(request: Request) -> Response:
    """End the session."""
    await _form(request)
    _pages(request).sessions.end(getattr(request.state, "session", ""))
    cookie = set_cookie("", 0, cookie_name(request.scope), _is_encrypted(request))
    return RedirectResponse("/login", 303, {"set-cookie": cookie})


@router.api_route("/static/{name}", methods=READS)
async def file(request: Request, name: str) -> Response:
    """Return a file beside the pages."""
    if name not in STATIC:
        raise HTTPException(404, "there is no such file")
    fresh = request.url.query == version()
    cached = f"public, max-age={31_536_000 if fresh else 60}"
    return Response(static(name), media_type=STATIC[name], headers={"cache-control": cached})


def _login(request: Request, line: str, status: int = 200) -> Response:
    tokens = _pages(request).tokens is not None
    return HTMLResponse(
        page("login.html.j2", Frame(), title="Log in", line=line, tokens=tokens), status
    )


def _entered(request: Request, secret: str) -> Response:
    # A page, not a redirect: after a link from elsewhere, the cookie would not be sent at once.
    html = page("entered.html.j2", Frame(), title="Welcome")
    cookie = set_cookie(secret, LASTING_S, cookie_name(request.scope), _is_encrypted(request))
    return HTMLResponse(html, headers={"set-cookie": cookie})


def _is_encrypted(request: Request) -> bool:
    """Return whether the browser says that a proxy with TLS is in front."""
    return request.headers.get("origin", "").startswith("https://")


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises
    ------
    HTTPException
        If it is too large, or does not arrive in time or as a whole.
    """
    body = b""
    try:
        async with asyncio.timeout(_FORM_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MOST_FORM_BYTES:
                    raise HTTPException(413, f"a form has at most {_MOST_FORM_BYTES} bytes")
    except TimeoutError:
        raise HTTPException(408, f"a form must arrive within {_FORM_S:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the form broke off") from None
    try:
        fields: dict[str, Any] = parse_qs(body.decode("latin-1"), max_num_fields=20)
    except ValueError:
        raise HTTPException(422, "a form has at most 20 fields") from None
    return {name: values[-1] for name, values in fields.items()}
