"""Where requests of many threads wait for the one that serves them, and the bell that wakes it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.live.errors import BusyError

_CLOSED: Final = "the service is stopping"
_ABANDONED: Final = "the service ended before it could answer"


@dataclass(frozen=True)
class Request:
    """Something that a user wants changed.

    Attributes
    ----------
    events : callable
        Returns the events that make it so, given how many jobs came before; raises what the
        user is told where it may not be.
    answer : callable
        Returns what the user is told once these events are durable.
    key : str
        What requests for the same thing have in common; empty: there is no other.
    told : Future
        Where the user's thread waits.
    """

    events: Callable[[int], Sequence[AnyEvent]]
    answer: Callable[[Sequence[AnyEvent]], Any]
    key: str = ""
    told: Future[Any] = field(default_factory=Future)

    def reply(self, events: Sequence[AnyEvent]) -> None:
        """Answer, now that these events are durable."""
        try:
            self.told.set_result(self.answer(events))
        except Exception as error:
            self.told.set_exception(error)

    def refuse(self, error: Exception) -> None:
        """Tell why it may not be, or cannot be."""
        self.told.set_exception(error)


class RequestQueue:
    """Requests in the order in which they came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._waiting: list[Request] = []
        self._taken: list[Request] = []
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether nobody serves requests any more."""
        return self._closed

    def ask(self, request: Request) -> Any:  # noqa: ANN401 - each request has its own answer
        """Leave a request and wait for its answer.

        Raises
        ------
        BusyError
            When nobody serves requests any more.
        DovetailError
            Whatever the request was answered with.
        """
        with self._lock:
            if self._closed:
                raise BusyError(_CLOSED)
            self._waiting.append(request)
        self.ring()
        return request.told.result()

    def ring(self) -> None:
        """Wake who waits; from any thread."""
        self._bell.set()

    def wait(self, timeout_s: float) -> None:
        """Sleep until the bell rings or the time is over."""
        self._bell.wait(timeout_s)
        self._bell.clear()

    def take(self) -> list[Request]:
        """Return the requests that have come since the last call."""
        with self._lock:
            self._taken, self._waiting = self._waiting, []
        return self._taken

    def each_once(self, taken: Sequence[Request]) -> list[Request]:
        """Return those taken but later ones for the same thing, which wait for the next time."""
        first: dict[str, Request] = {}
        now: list[Request] = []
        later: list[Request] = []
        for one in taken:
            alone = not one.key or first.setdefault(one.key, one) is one
            (now if alone else later).append(one)
        if later:
            with self._lock:
                self._taken, self._waiting = now, later + self._waiting
            self.ring()
        return now

    def close(self) -> None:
        """Refuse what waits and what comes; what was taken is still answered."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
        _refuse(waiting, _CLOSED)
        self.ring()

    def abandon(self) -> None:
        """Close, and tell those who were not answered that they never will be."""
        self.close()
        _refuse(self._taken, _ABANDONED)


def _refuse(requests: Sequence[Request], why: str) -> None:
    for request in requests:
        if not request.told.done():
            request.refuse(BusyError(why))
