"""A client of the service, over its socket or over TCP.

Every command loads this module, so it uses the standard library's HTTP client and plain records:
the service has checked its answers.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from itertools import chain
from select import select
from socket import AF_UNIX, socket
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit

from dovetail.executor.jobs.states import OVER, JobState
from dovetail.executor.live.errors import TooManyError
from dovetail.executor.live.views import (
    EVERY,
    MOST_LISTED,
    Chosen,
    DeviceView,
    EvidenceView,
    JobView,
    ServiceView,
    StepView,
)
from dovetail.instances.errors import DovetailError, InputError
from dovetail.live.http.faults import (
    KEY_HEADER,
    LACK_HEADER,
    TOKEN_VARIABLE,
    Fault,
    ServiceFailedError,
    error_of,
)
from dovetail.live.places import NoServiceError, find_service

if TYPE_CHECKING:
    from types import TracebackType

    from dovetail.instances.instance import Instance
    from dovetail.instances.plan import Plan


class IncompleteLogError(DovetailError):
    """Output of a job may be missing, as its node does not answer."""


TURN_S: Final = 60.0
"""Seconds for which a request is repeated if the service refuses it as one too many."""

RETRY_S: Final = 15.0
"""Seconds for which a submission without an answer is repeated: a service restarts in less."""

_AGAIN_S = 0.5
_TIMEOUT_S = 60.0
_WAIT_S = 20.0
_CHUNK = 1 << 16

_Made = TypeVar("_Made")
_View = TypeVar("_View", JobView, ServiceView, DeviceView, EvidenceView, StepView)


class _NoAnswerError(NoServiceError):
    """The service did not answer, but may have carried out the request."""


class Client:
    """A client of a service; its methods may be called from any thread.

    They raise the errors of ``ServiceApi``.

    Parameters
    ----------
    service : str, optional
        Path of its socket, or ``http://HOST:PORT``; default: as ``find_service`` says.
    token : str, optional
        For TCP; default: ``DOVETAIL_TOKEN``.

    Raises
    ------
    NoServiceError
        When none is found; every method raises it when the service does not answer.
    ServiceFailedError
        By every method, when anything but a service of this version answers.
    """

    def __init__(self, service: str | None = None, token: str | None = None) -> None:
        self.service_name = service or find_service()
        self._token = token or os.environ.get(TOKEN_VARIABLE)
        self._idle = [self._connection()]

    @property
    def on_this_machine(self) -> bool:
        """Whether the service is known to run here, with the same files."""
        return not _is_url(self.service_name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._idle:
            self._idle.pop().close()

    def submit(self, jobs: Sequence[Mapping[str, Any]], key: str | None = None) -> tuple[str, ...]:
        """Submit jobs, all or none, by the fields of ``JobSpec`` without its owner.

        If the service goes away before it answers, the request is repeated for ``RETRY_S``.
        Repeated requests with one key accept the jobs only once.

        Parameters
        ----------
        jobs : sequence of mapping
            One mapping per job.
        key : str, optional
            Unique among the submissions of this user. Default: a new one.
        """
        key = key or os.urandom(16).hex()
        body = {"jobs": list(jobs)}
        try:
            return self._submitted(body, key)
        except _NoAnswerError:
            give_up_s = time.monotonic() + RETRY_S
        while True:
            time.sleep(_AGAIN_S)
            try:
                return self._submitted(body, key)
            except NoServiceError as error:
                if time.monotonic() > give_up_s:
                    line = (
                        f"{error}; to see whether it took the jobs, submit again with --key {key}"
                    )
                    raise NoServiceError(line) from None

    def _submitted(self, body: Mapping[str, Any], key: str) -> tuple[str, ...]:
        return self._data("POST", "jobs", lambda data: tuple(data["ids"]), body, {KEY_HEADER: key})

    def cancel(self, job: str, grace_s: float | None = None) -> JobView:
        """Begin to cancel a job; ``grace_s`` seconds may shorten its own grace."""
        asked = {} if grace_s is None else {"grace_s": grace_s}
        return self._data("POST", _path("jobs", job, "cancel", **asked), _job)

    def hold(self, job: str) -> JobView:
        """Keep a waiting job from starting until it is released."""
        return self._data("POST", _path("jobs", job, "hold"), _job)

    def release(self, job: str) -> JobView:
        """Let a held job start."""
        return self._data("POST", _path("jobs", job, "release"), _job)

    def edit(self, job: str, changes: Mapping[str, Any]) -> JobView:
        """Change fields of a waiting job."""
        return self._data("PATCH", _path("jobs", job), _job, changes)

    def pause(self, job: str) -> JobView:
        """Stop the processes of a running job where they are."""
        return self._data("POST", _path("jobs", job, "pause"), _job)

    def resume(self, job: str) -> JobView:
        """Continue the processes of a paused job."""
        return self._data("POST", _path("jobs", job, "resume"), _job)

    def requeue(self, job: str, hold: bool = False) -> JobView:
        """Stop a job's run, so that it waits for devices again, or for its release."""
        path = _path("jobs", job, "requeue", hold=str(hold).lower())
        return self._data("POST", path, _job)

    def drain(self, gpus: Sequence[str], on: bool = True) -> ServiceView:
        """Keep devices (none named: all) from taking new jobs, or let them take jobs again."""
        return self._data("POST", "drain", _service, {"gpus": list(gpus), "on": on})

    def jobs(self, over: bool = False, chosen: Chosen = EVERY) -> list[JobView]:
        """Return the chosen jobs that are not over, or with ``over`` all chosen jobs."""
        pages: list[list[JobView]] = []
        left = math.inf if chosen.limit is None else chosen.limit
        more = True
        while more:
            asked = chosen._replace(limit=int(min(left, MOST_LISTED)))
            pages.append(self._page(over, asked))
            left -= len(pages[-1])
            more = left > 0 and len(pages[-1]) == asked.limit
            chosen = chosen._replace(before=pages[-1][0].id if more else None)
        return [*chain.from_iterable(reversed(pages))]

    def _page(self, over: bool, chosen: Chosen) -> list[JobView]:
        said = {name: value for name, value in chosen._asdict().items() if value is not None}
        path = _path("jobs", over=str(over).lower(), **said)
        return self._data("GET", path, lambda data: [_job(each) for each in data])

    def job(self, job: str, wait_s: float = 0.0) -> JobView:
        """Return a job as soon as it is over, or after ``wait_s`` seconds (at most 60)."""
        return self._data("GET", _path("jobs", job, wait_s=wait_s), _job)

    def wait(self, job: str) -> JobView:
        """Return a job once it is over."""
        while True:
            found = self.job(job, _WAIT_S)
            if found.state in OVER:
                return found

    def service(self) -> ServiceView:
        """Return the service and its devices."""
        return self._data("GET", "service", _service)

    def log(
        self,
        job: str,
        rank: int = 0,
        lines: int | None = None,
        follow: bool = False,
        run: int | None = None,
    ) -> Iterator[bytes]:
        """Yield the output of a rank, all or the last lines; ``follow``: to the job's end.

        It is the output of the current or last run, or of run number ``run``.

        Raises
        ------
        NoServiceError
            Also when the service ends before the job that is followed.
        IncompleteLogError
            After all output that is there, if the rank's node does not answer.
        """
        asked: dict[str, Any] = {"rank": rank, "follow": str(follow).lower()}
        if lines is not None:
            asked["lines"] = lines
        if run is not None:
            asked["run"] = run
        connection = self._connection()
        try:
            with self._answered():
                connection.timeout = None
                with self._ask(connection, "GET", _path("jobs", job, "log", **asked)) as answer:
                    lack = unquote(answer.getheader(LACK_HEADER, ""))
                    while chunk := answer.read1(_CHUNK):
                        yield chunk
        finally:
            connection.close()
        if follow and not self._is_over(job):
            raise NoServiceError(f"the service at {self.service_name} ended before {job}")
        if lack and not follow:
            raise IncompleteLogError(f"newer output of {job} may be missing: {lack}")

    def _is_over(self, job: str) -> bool:
        try:
            return self.job(job).state in OVER
        except NoServiceError:
            return False

    def explain(self, job: str) -> str:
        """Return why a job waits and what would let it start."""
        return self._data("GET", _path("jobs", job, "explanation"), lambda data: str(data["text"]))

    def instance(self) -> Instance:
        """Return the round that the service would solve now."""
        from dovetail.instances.instance import Instance

        return self._data("GET", "instance", Instance.from_data)

    def plan(self) -> Plan:
        """Return what the service's policy would do now."""
        from dovetail.instances.plan import Plan

        return self._data("GET", "plan", Plan.from_data)

    # HTTP.

    def _connection(self) -> HTTPConnection:
        name = self.service_name
        if not _is_url(name):
            return _UnixConnection(name, timeout=_TIMEOUT_S)
        if self._token is None:
            raise InputError("is needed for a service over TCP", TOKEN_VARIABLE)
        try:
            url = urlsplit(name)
            host, port = url.hostname or "", url.port
        except ValueError:
            host = ""
        if not host:
            rule = f"must be the path of a socket or a URL, got {name!r}"
            raise InputError(rule, "DOVETAIL_SERVICE")
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        return kind(host, port, timeout=_TIMEOUT_S)

    def _data(
        self,
        method: str,
        path: str,
        made: Callable[[Any], _Made],
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] = {},
    ) -> _Made:
        """Return the result of ``made`` for the JSON that answers a request.

        Raises
        ------
        ServiceFailedError
            When ``made`` fails: another program answers, or another version.
        """
        give_up_s = time.monotonic() + TURN_S
        while True:
            try:
                text = self._text(method, path, body, headers)
                break
            except TooManyError:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(_AGAIN_S)
        try:
            return made(json.loads(text))
        except (ValueError, KeyError, TypeError):
            line = f"what answers at {self.service_name} is not a service of this version"
            raise ServiceFailedError(line) from None

    def _text(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> bytes:
        connection = self._idle.pop() if self._idle else self._connection()
        try:
            with self._answered():
                text = self._ask(connection, method, path, body, headers).read()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return text

    def _ask(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] = {},
    ) -> HTTPResponse:
        """Return the answer to a request, which is still to be read.

        Raises
        ------
        DovetailError
            When the service refuses the request.
        """
        sent = {"Content-Type": "application/json", **headers}
        if self._token is not None and _is_url(self.service_name):
            sent["Authorization"] = f"Bearer {self._token}"
        text = None if body is None else json.dumps(body).encode()
        if connection.sock is not None and select([connection.sock], (), (), 0)[0]:
            connection.close()  # the service has closed it, as it was idle
        if connection.sock is None:
            self._connect(connection)
        prefix = urlsplit(self.service_name).path.rstrip("/") if _is_url(self.service_name) else ""
        connection.request(method, f"{prefix}/v1/{path}", text, sent)
        answer = connection.getresponse()
        if answer.status >= 400:
            raise _refusal(answer.status, answer.read())
        return answer

    def _connect(self, connection: HTTPConnection) -> None:
        try:
            connection.connect()
        except OSError as error:
            reason = error.strerror or str(error)
            line = f"no service answers at {self.service_name}: {reason}"
            raise NoServiceError(line) from None

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Report in one line that no answer came."""
        try:
            yield
        except (OSError, HTTPException) as error:
            what = "" if isinstance(error, HTTPException | ConnectionError) else f": {error}"
            raise _NoAnswerError(f"the service at {self.service_name} went away{what}") from None


class _UnixConnection(HTTPConnection):
    """A connection over a UNIX socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("dovetail", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        made = socket(AF_UNIX)
        try:
            made.settimeout(self.timeout)
            made.connect(self._path)
        except BaseException:
            made.close()
            raise
        self.sock = made


def _is_url(service: str) -> bool:
    return service.startswith(("http://", "https://"))


def _path(*parts: str, **asked: object) -> str:
    try:
        path = "/".join(quote(part, safe="") for part in parts)
        return f"{path}?{urlencode(asked)}" if asked else path
    except UnicodeEncodeError as error:
        # For example from an argument of a command that is not UTF-8.
        rule = f"must be text of whole Unicode characters, got {error.object!r}"
        field = next((name for name, value in asked.items() if value == error.object), "job")
        raise InputError(rule, field) from None


def _job(data: Mapping[str, Any]) -> JobView:
    state, history = JobState[data["state"].upper()], data.get("history", ())
    steps = tuple(
        _made(StepView, {**step, "state": JobState[step["state"].upper()]}) for step in history
    )
    return _made(JobView, {**data, "state": state, "history": tuple(steps)})


def _service(data: Mapping[str, Any]) -> ServiceView:
    devices = tuple(_made(DeviceView, device) for device in data["devices"])
    evidence = data.get("evidence")
    known = None if evidence is None else _made(EvidenceView, evidence)
    return _made(ServiceView, {**data, "devices": devices, "evidence": known})


def _made(kind: type[_View], data: Mapping[str, Any]) -> _View:
    """Return a view of an answer, without fields that a newer service may add."""
    known = {field.name for field in fields(kind)}
    return kind(**{name: _frozen(value) for name, value in data.items() if name in known})


def _frozen(value: Any) -> Any:  # noqa: ANN401 (JSON)
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value


def _refusal(status: int, body: bytes) -> DovetailError:
    try:
        return error_of(Fault(**json.loads(body)))
    except (ValueError, TypeError):
        return ServiceFailedError(f"the service answers {status} and does not say why")
