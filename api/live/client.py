"""The service as a program asks it, over its socket or over TCP."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote
from uuid import uuid4

from dovetail.executor.live.brain import OVER
from dovetail.executor.live.views import JobView, ServiceView
from dovetail.instances.errors import DovetailError, InputError, UnsupportedError
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan
from dovetail.live.places import NoServiceError, find_service
from dovetail.live.requests import (
    KEY_HEADER,
    TOKEN_VARIABLE,
    Accepted,
    Explained,
    Fault,
    ServiceFailedError,
    error_of,
)

if TYPE_CHECKING:
    from types import TracebackType

    import httpx

RETRY_S: Final = 15.0
"""For how long a submission that got no answer is repeated: a service restarts within that."""

_AGAIN_S = 0.5
_TIMEOUT_S = 60.0
_WAIT_S = 20.0


class _NoAnswerError(NoServiceError):
    """The service may have done what was asked, and did not say so."""


class Client:
    """A connection to a service.

    What the service refuses is raised as the ``Desk`` raises it.

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
    UnsupportedError
        Where the extra ``live`` is not installed.
    """

    def __init__(self, service: str | None = None, token: str | None = None) -> None:
        self.service_name = service or find_service()
        token = token or os.environ.get(TOKEN_VARIABLE)
        self._http = _connection(self.service_name, token)

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
        self._http.close()

    def submit(self, jobs: Sequence[Mapping[str, Any]], key: str | None = None) -> tuple[str, ...]:
        """Submit jobs, all or none, by the fields of ``JobSpec`` without its owner.

        Where the service goes away before it answers, it is asked again for ``RETRY_S``. However
        often it is asked under one key, the jobs are accepted once.

        Parameters
        ----------
        jobs : sequence of mapping
            A job each.
        key : str, optional
            Known to nobody else who submits as this user; by default a new one.
        """
        key = key or uuid4().hex
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
                    told = f"{error}; whether it took the jobs shows who submits with --key {key}"
                    raise NoServiceError(told) from None

    def _submitted(self, body: Mapping[str, Any], key: str) -> tuple[str, ...]:
        with self._answered():
            answer = self._http.post("/v1/jobs", json=body, headers={KEY_HEADER: key})
        return Accepted.from_data(_data(answer)).ids

    def cancel(self, job: str, grace_s: float | None = None) -> JobView:
        """Begin to end a job; a grace, in seconds, may shorten its own."""
        asked = "" if grace_s is None else f"?grace_s={grace_s}"
        return JobView.from_data(self._post(f"jobs/{quote(job, safe='')}/cancel{asked}", None))

    def drain(self, gpus: Sequence[str], on: bool = True) -> ServiceView:
        """Let devices (none named: all) take no new jobs, or take them again."""
        return ServiceView.from_data(self._post("drain", {"gpus": list(gpus), "on": on}))

    def jobs(self, over: bool = False) -> list[JobView]:
        """Return the jobs that are not over, or all."""
        found = self._get("jobs", over=str(over).lower())
        return [JobView.from_data(each) for each in found]

    def job(self, job: str, wait_s: float = 0.0) -> JobView:
        """Return a job; as soon as it is over, or after so many seconds (60 at most)."""
        return JobView.from_data(self._get(f"jobs/{quote(job, safe='')}", wait_s=wait_s))

    def wait(self, job: str) -> JobView:
        """Return a job once it is over."""
        while True:
            found = self.job(job, _WAIT_S)
            if found.state in OVER:
                return found

    def service(self) -> ServiceView:
        """Return the service and its devices."""
        return ServiceView.from_data(self._get("service"))

    def log(
        self, job: str, rank: int = 0, lines: int | None = None, follow: bool = False
    ) -> Iterator[bytes]:
        """Yield what a rank has written, all or the last lines; ``follow``: to the job's end.

        Raises
        ------
        NoServiceError
            Also when the service ends before the job that is followed.
        """
        asked: dict[str, str | int] = {"rank": rank, "follow": str(follow).lower()}
        if lines is not None:
            asked["lines"] = lines
        path = f"/v1/jobs/{quote(job, safe='')}/log"
        with (
            self._answered(),
            self._http.stream("GET", path, params=asked, timeout=None) as answer,
        ):
            if answer.is_error:
                answer.read()
                raise _refusal(answer)
            yield from answer.iter_raw()
        if follow and not self._is_over(job):
            raise NoServiceError(f"the service at {self.service_name} ended before {job}")

    def _is_over(self, job: str) -> bool:
        try:
            return self.job(job).state in OVER
        except NoServiceError:
            return False

    def explain(self, job: str) -> str:
        """Say why a job waits and what would let it start."""
        found = self._get(f"jobs/{quote(job, safe='')}/explanation")
        return Explained.from_data(found).text

    def instance(self) -> Instance:
        """Return the round that the service would solve now."""
        return Instance.from_data(self._get("instance"))

    def plan(self) -> Plan:
        """Return what the service's policy would do now."""
        return Plan.from_data(self._get("plan"))

    def _get(self, path: str, **asked: str | float) -> Any:  # noqa: ANN401
        with self._answered():
            return _data(self._http.get(f"/v1/{path}", params=asked))

    def _post(self, path: str, body: object) -> Any:  # noqa: ANN401
        with self._answered():
            return _data(self._http.post(f"/v1/{path}", json=body))

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Tell in one line that nobody answers."""
        import httpx

        try:
            yield
        except httpx.ConnectError as error:
            reason = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
            told = f"no service answers at {self.service_name}: {reason}"
            raise NoServiceError(told) from None
        except httpx.RemoteProtocolError:
            raise _NoAnswerError(f"the service at {self.service_name} went away") from None
        except httpx.TransportError as error:
            what = str(error) or type(error).__name__
            raise _NoAnswerError(f"the service at {self.service_name} went away: {what}") from None


def _connection(service: str, token: str | None) -> httpx.Client:
    try:
        import httpx
    except ModuleNotFoundError:
        told = "asking a service needs httpx: pip install './dovetail[live]'"
        raise UnsupportedError(told) from None
    if not _is_url(service):
        transport = httpx.HTTPTransport(uds=service)
        return httpx.Client(transport=transport, base_url="http://dovetail", timeout=_TIMEOUT_S)
    if token is None:
        raise InputError("is needed for a service over TCP", TOKEN_VARIABLE)
    headers = {"Authorization": f"Bearer {token}"}
    try:
        return httpx.Client(base_url=service, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
    except (httpx.InvalidURL, ValueError):
        rule = f"must be the path of a socket or a URL, got {service!r}"
        raise InputError(rule, "DOVETAIL_SERVICE") from None


def _is_url(service: str) -> bool:
    return service.startswith(("http://", "https://"))


def _data(answer: httpx.Response) -> object:
    if answer.is_error:
        raise _refusal(answer)
    return answer.json()


def _refusal(answer: httpx.Response) -> DovetailError:
    try:
        return error_of(Fault.from_data(answer.json()))
    except (ValueError, InputError):
        return ServiceFailedError(f"the service answers {answer.status_code} and does not say why")
