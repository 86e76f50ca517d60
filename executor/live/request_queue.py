"""Requests of many threads, served by one thread, and the signal that wakes it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.live.errors import BusyError

_CLOSED: Final = "the service is stopping"
_ABANDONED: Final = "the service ended before it could answer"

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class QueuedRequest(Generic[_Answer]):
    """A request that waits to be served.

    Attributes
    ----------
    events : callable
        Returns the events that carry it out (none if it only reads); raises if it is refused.
    answer : callable
        Returns the answer once these events are durable.
    answered : Future
        The requesting thread waits for it.
    """

    events: Callable[[], Sequence[AnyEvent]]
    answer: Callable[[Sequence[AnyEvent]], _Answer]
    answered: Future[_Answer] = field(default_factory=Future)

    def reply(self, events: Sequence[AnyEvent]) -> None:
        """Answer, after its events have become durable."""
        try:
            self.answered.set_result(self.answer(events))
        except Exception as error:
            self.answered.set_exception(error)

    def refuse(self, error: Exception) -> None:
        """Answer with an error."""
        self.answered.set_exception(error)


class RequestQueue:
    """Requests in the order of arrival."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._signal = threading.Event()
        self._waiting: list[QueuedRequest[Any]] = []
        self._taken: list[QueuedRequest[Any]] = []
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether no more requests are served."""
        return self._closed

    def ask(
        self,
        events: Callable[[], Sequence[AnyEvent]],
        answer: Callable[[Sequence[AnyEvent]], _Answer],
    ) -> _Answer:
        """Queue a request (as in ``QueuedRequest``) and wait for its answer.

        Raises
        ------
        BusyError
            If no more requests are served.
        DovetailError
            The error with which the request was answered.
        """
        request = QueuedRequest(events, answer)
        with self._lock:
            if self._closed:
                raise BusyError(_CLOSED)
            self._waiting.append(request)
        self.ring()
        return request.answered.result()

    def read(self, answer: Callable[[], _Answer]) -> _Answer:
        """Call a function in the serving thread and return its result; raise as ``ask`` does."""
        return self.ask(lambda: (), lambda _: answer())

    def ring(self) -> None:
        """Wake the serving thread; thread-safe."""
        self._signal.set()

    def wait(self, timeout_s: float) -> None:
        """Sleep until ``ring`` is called or the timeout has passed."""
        self._signal.wait(timeout_s)
        self._signal.clear()

    def take(self) -> list[QueuedRequest[Any]]:
        """Return the requests that arrived since the last call."""
        with self._lock:
            self._taken, self._waiting = self._waiting, []
        return self._taken

    def close(self) -> None:
        """Refuse waiting and future requests; requests already taken are still answered."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
        _refuse(waiting, _CLOSED)
        self.ring()

    def abandon(self) -> None:
        """Close, and refuse the requests that were taken but not answered."""
        self.close()
        _refuse(self._taken, _ABANDONED)


def _refuse(requests: Sequence[QueuedRequest[Any]], why: str) -> None:
    for request in requests:
        if not request.answered.done():
            request.refuse(BusyError(why))
