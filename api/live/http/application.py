"""The HTTP API of a service, as a FastAPI application."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from pydantic.json_schema import models_json_schema
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from dovetail.executor.jobs.specs import Owner
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.requests.service_api import ServiceApi
from dovetail.executor.live.views import MOST_LISTED, Chosen, JobView, ServiceView
from dovetail.instances._record import Record, input_error
from dovetail.instances._version import VERSION
from dovetail.instances.errors import DovetailError, InputError
from dovetail.live import monitoring
from dovetail.live.http.connections import Tokens
from dovetail.live.http.faults import KEY_HEADER, LACK_HEADER, Fault, fault_of
from dovetail.live.http.guards import Bodies, Gate, JobEnds, Lanes, SmallBodies, answer
from dovetail.live.http.logs import RankOutput, followed, last_lines, require_own, written
from dovetail.live.http.prometheus import exposition
from dovetail.live.http.requests import (
    CHANGES,
    Accepted,
    DrainRequest,
    Explained,
    Submissions,
    parsed,
)
from dovetail.live.page.door import HEADERS, Door, error_page, is_page
from dovetail.live.page.routes import Pages
from dovetail.live.page.routes import router as page_router
from dovetail.live.page.sessions import Sessions

LONGEST_WAIT_S: Final = 60.0
_SLICE_S: Final = 5.0

_router = APIRouter(prefix="/v1")
_Made = TypeVar("_Made")


def application(
    api: ServiceApi | None,
    tokens: Tokens | None = None,
    sessions: Sessions | None = None,
    names: Collection[str] = (),
) -> FastAPI:
    """Return the API of a service, and its page.

    Parameters
    ----------
    api : ServiceApi or None
        The service; None to describe the API only.
    tokens : Tokens, optional
        Tokens of the users that may connect over TCP. Default: none may.
    sessions : Sessions, optional
        The sessions of browsers. Default: none yet.
    names : collection of str
        Further names under which browsers reach the service.
    """
    made = _Described(
        title="Dovetail",
        version=VERSION,
        description="A live service that decides which GPU jobs share which GPUs.",
        # The interactive pages would load scripts from other sites.
        docs_url=None,
        redoc_url=None,
        responses={
            status: {"model": Fault, "description": meaning} for status, _, meaning in MEANINGS
        },
    )
    made.state.api = api
    made.state.ending = threading.Event()
    made.state.bodies = Bodies()
    opened = Sessions() if sessions is None else sessions
    if api is not None:
        made.state.ends = JobEnds(api, made.state.ending.is_set)
        made.state.pages = Pages(api, opened, tokens, made.state.ending.is_set)
    made.include_router(_router)
    made.include_router(page_router)
    made.add_api_route("/metrics", _metrics, response_class=PlainTextResponse)
    made.add_api_route("/metrics/dashboard", _dashboard, response_model=dict[str, Any])
    made.add_api_route("/metrics/alerts", _alerts, response_class=PlainTextResponse)
    made.add_middleware(Lanes)
    made.add_middleware(Gate, tokens=tokens)
    made.add_middleware(SmallBodies)
    made.add_middleware(Door, sessions=opened, names=names)
    made.add_exception_handler(DovetailError, _refused)
    made.add_exception_handler(RequestValidationError, _malformed)
    made.add_exception_handler(HTTPException, _http_error)
    made.add_exception_handler(Exception, _failed)
    return made


class _Described(FastAPI):
    """Also describes the bodies of requests, which FastAPI does not parse here."""

    def openapi(self) -> dict[str, Any]:
        """Return the description of the API."""
        if self.openapi_schema is None:
            named = [(record, "validation") for record in (Submissions, CHANGES, DrainRequest)]
            _, records = models_json_schema(named, ref_template=_SCHEMA)  # type: ignore[arg-type]
            super().openapi()["components"]["schemas"].update(records["$defs"])
        assert self.openapi_schema is not None
        return self.openapi_schema


def _holds(record: type[Record]) -> dict[str, Any]:
    """Return the description of a request body that is a record."""
    schema = {"$ref": _SCHEMA.format(model=record.__name__)}
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}


_SCHEMA: Final = "#/components/schemas/{model}"

MEANINGS: Final = (
    (401, "token", "over TCP: no token, or one that is not known"),
    (403, "refused", "this user may not do this, or not in this state of the job"),
    (404, "http", "there is no such path"),
    (404, "unknown_job", "there is no such job"),
    (405, "http", "the path does not take this method"),
    (408, "http", "the body did not arrive in time"),
    (413, "http", "the body is too large"),
    (422, "input", "the request breaks a rule"),
    (429, "too_many", "too many requests of this user wait for their answers; nothing was done"),
    (500, "failed", "an internal error"),
    (503, "busy", "the change cannot be written to disk now; nothing was done"),
)
"""Status, kind and meaning of each error."""


@_router.get("/service")
def service(request: Request) -> ServiceView:
    """Return the service and its devices."""
    return _api(request).service(_asker(request))


@_router.get("/jobs", response_model=list[JobView])
def jobs(
    request: Request,
    over: bool = False,
    user: str | None = None,
    name: str | None = None,
    state: JobState | None = None,
    within_s: Annotated[float | None, Query(ge=0)] = None,
    before: str | None = None,
    limit: Annotated[int, Query(ge=0, le=MOST_LISTED)] = MOST_LISTED,
) -> Response:
    """Return the jobs that are not over, or all, in the order of submission; without history.

    `user`, `name` and `state` select jobs; `within_s` selects those that ended within the last
    `within_s` seconds. The answer has the last `limit` of these; if it is that long, there may be
    more: ask again with `before`, the first job of the answer.
    """
    chosen = Chosen(user, name, state, within_s, before, limit)
    return _json(_api(request).jobs(over, chosen, _asker(request)))


@_router.post("/jobs", status_code=201, openapi_extra=_holds(Submissions))
async def submit(
    request: Request,
    key: Annotated[str, Header(alias=KEY_HEADER, max_length=200)] = "",
) -> Accepted:
    """Accept jobs, all or none; they run as the requesting user.

    With an `Idempotency-Key`, a repeated request of the same user accepts no job again and returns
    the ids of the first.
    """
    owner = _asker(request)
    specs = await _bodies(request).read(
        request, lambda body: parsed(Submissions, body).specs(owner)
    )
    return Accepted(ids=await run_in_threadpool(_api(request).submit, specs, owner, key))


@_router.get("/jobs/{job}")
async def job(
    request: Request,
    job: str,
    wait_s: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S)] = 0.0,
) -> JobView:
    """Return a job with its history; with `wait_s`, once it is over or that time has passed."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while not _ending(request) and not await request.is_disconnected():
        left_s = deadline - loop.time()
        if left_s <= 0 or await _ends(request).over(job, min(left_s, _SLICE_S)):
            break
    return await run_in_threadpool(_api(request).job, job, _asker(request))


@_router.post("/jobs/{job}/cancel")
def cancel(
    request: Request,
    job: str,
    grace_s: Annotated[float | None, Query(ge=0, allow_inf_nan=False)] = None,
) -> JobView:
    """Cancel a job; a job that is over is left as it is.

    Its processes get SIGTERM, and SIGKILL after its own grace or `grace_s` seconds, whichever
    ends first; 0 kills at once.
    """
    return _api(request).cancel(job, _asker(request), grace_s)


@_router.post("/jobs/{job}/hold")
def hold(request: Request, job: str) -> JobView:
    """Hold a waiting job: it does not start until it is released."""
    return _api(request).hold(job, True, _asker(request))


@_router.post("/jobs/{job}/release")
def release(request: Request, job: str) -> JobView:
    """Release a held job, so that it may start."""
    return _api(request).hold(job, False, _asker(request))


@_router.patch("/jobs/{job}", openapi_extra=_holds(CHANGES))
async def edit(request: Request, job: str) -> JobView:
    """Change fields of a waiting job: its owner may change any, an administrator only `nice`."""
    asked = await _bodies(request).read(request, lambda body: parsed(CHANGES, body))
    changes = {name: getattr(asked, name) for name in asked.model_fields_set}
    return await run_in_threadpool(_api(request).edit, job, changes, _asker(request))


@_router.post("/jobs/{job}/pause")
def pause(request: Request, job: str) -> JobView:
    """Stop all processes of a running job (SIGSTOP); it keeps its devices."""
    return _api(request).pause(job, True, _asker(request))


@_router.post("/jobs/{job}/resume")
def resume(request: Request, job: str) -> JobView:
    """Continue a paused job."""
    return _api(request).pause(job, False, _asker(request))


@_router.post("/jobs/{job}/requeue")
def requeue(request: Request, job: str, hold: bool = False) -> JobView:
    """End a job's run, so that the job waits again; a waiting job is left as it is.

    With `hold`, the job is also held.
    """
    return _api(request).requeue(job, _asker(request), hold)


@_router.get("/jobs/{job}/explanation")
def explanation(request: Request, job: str) -> Explained:
    """Explain why a job waits and what would let it start."""
    return Explained(job=job, text=_api(request).explain(job, _asker(request)))


@_router.get("/jobs/{job}/log", response_class=PlainTextResponse)
async def log(
    request: Request,
    job: str,
    rank: Annotated[int, Query(ge=0)] = 0,
    lines: Annotated[int | None, Query(ge=0)] = None,
    follow: bool = False,
    run: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """Return the output of a rank: all of it, or the last `lines` lines (at most about 4 MiB).

    `follow` continues until the job is over. If the node of the rank does not answer, the header
    `Dovetail-Log-Lack` says so (percent-encoded), and newer output may be missing. `run` is the
    number of a run; default: the current or last one.
    """
    if follow and run is not None:
        raise InputError("cannot be combined with follow, which continues from run to run", "run")
    api, by = _api(request), _asker(request)
    newest = await run_in_threadpool(api.log_path, job, rank, by, run)
    lack = await run_in_threadpool(api.log_lack, job, rank, by, run)
    headers = {LACK_HEADER: quote(lack)} if lack else {}
    uid = (await run_in_threadpool(api.job, job)).uid
    if newest is not None:
        await run_in_threadpool(require_own, newest, uid)
    if follow:
        asked = RankOutput(api, job, rank, by, uid)
        return _stream(followed(asked, lines, lambda: _ending(request)))
    if newest is None:
        return PlainTextResponse(b"", headers=headers)
    if lines is not None:
        text = await run_in_threadpool(last_lines, newest, uid, lines)
        return PlainTextResponse(text, headers=headers)
    return StreamingResponse(written(newest, uid), headers=headers, media_type="text/plain")


@_router.post("/drain", openapi_extra=_holds(DrainRequest))
async def drain(request: Request) -> ServiceView:
    """Drain devices: they take no new jobs; or let them take jobs again."""
    asked = await _bodies(request).read(request, lambda body: parsed(DrainRequest, body))
    return await run_in_threadpool(_api(request).drain, asked.gpus, asked.on, _asker(request))


@_router.get("/instance", response_model=dict[str, Any])
def instance(request: Request) -> Response:
    """Return the round that the service would solve now, in the format `dovetail-instance/1`."""
    return _json(_api(request).instance(_asker(request)).to_data())


@_router.get("/plan", response_model=dict[str, Any])
def plan(request: Request) -> Response:
    """Return what the service's policy would do now, in the format `dovetail-plan/1`."""
    return _json(_api(request).plan(_asker(request)).to_data())


def _metrics(request: Request) -> Response:
    """Return figures for Prometheus."""
    api, by = _api(request), _asker(request)
    views = api.service(by), api.holding(by), api.statistics()
    body, kind = exposition(*views, request.headers.get("accept", ""))
    return Response(body, headers={"content-type": kind})


def _dashboard() -> Response:
    """Return a dashboard of these figures, to import into Grafana."""
    return Response(monitoring.contents(monitoring.DASHBOARD), media_type="application/json")


def _alerts() -> Response:
    """Return alerts on these figures, as a file of rules for Prometheus."""
    return PlainTextResponse(monitoring.alerts())


def _api(request: Request) -> ServiceApi:
    found: ServiceApi = request.app.state.api
    return found


def _json(data: object) -> Response:
    """Return an answer of many records without validating them."""
    return Response(to_json(data), media_type="application/json")


def _ends(request: Request) -> JobEnds:
    found: JobEnds = request.app.state.ends
    return found


def _bodies(request: Request) -> Bodies:
    found: Bodies = request.app.state.bodies
    return found


def _ending(request: Request) -> bool:
    """Return whether the server is ending, so that no request may wait any longer."""
    ending: threading.Event = request.app.state.ending
    return ending.is_set()


def _asker(request: Request) -> Owner:
    found: Owner = request.state.peer
    return found


def _stream(chunks: AsyncIterator[bytes]) -> StreamingResponse:
    async def closed_at_the_end() -> AsyncIterator[bytes]:
        async with aclosing(chunks) as opened:  # type: ignore[type-var]
            async for chunk in opened:
                yield chunk

    return StreamingResponse(closed_at_the_end(), media_type="text/plain")


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, DovetailError)
    return answer(*fault_of(error))


async def _malformed(request: Request, error: Exception) -> JSONResponse:
    """Report what is wrong with a header or with a parameter in the address."""
    assert isinstance(error, RequestValidationError)
    errors: list[Any] = [{**each, "loc": each["loc"][1:]} for each in error.errors()]
    return answer(*fault_of(input_error(Record, errors)))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    line = f"{error.detail}: {request.method} {request.url.path}"
    return answer(Fault(kind="http", error=line), error.status_code)


async def _failed(request: Request, error: Exception) -> Response:
    what = f"internal error, please report it: {type(error).__name__}: {error}"
    if is_page(request.url.path):
        made = error_page(500, what)
        made.raw_headers.extend(HEADERS)
        return made
    return answer(Fault(kind="failed", error=" ".join(what.split())), 500)
