"""One resident worker: a process that builds a workload once and runs it whenever it is told to.

``workloads/worker.py`` is the program. The pool starts and ends its process; commands and events
go through a socket, one JSON object a line. Instants are seconds of CLOCK_MONOTONIC
(``time.monotonic``), the same clock in all processes of a machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from dovetail.executor.live.pools.submissions import Submission, Submissions
from dovetail.executor.measuring.records import Seat
from dovetail.executor.measuring.windows import Answered, Events, Steps

Event = Mapping[str, Any]

_MEASURED: Final[Mapping[str, Callable[[Event], Steps | Answered]]] = MappingProxyType(
    {
        "steps": lambda told: Steps(told["at"], told["n"], told["busy_s"]),
        "answered": lambda told: Answered(told["at"], told["arrived"], told["started"]),
    }
)
_LAST_WORDS_S: Final = 1.0


class Failure(NamedTuple):
    """Why a worker cannot be used any more; ``told`` is one line."""

    why: Literal["out-of-memory", "error"]
    told: str


class Worker(ABC):
    """What runs a seat's workload when it is told to.

    Parameters
    ----------
    seat : Seat
        What it runs, and in which setting.
    submissions : Submissions
        The way to its pool.
    """

    def __init__(self, seat: Seat, submissions: Submissions) -> None:
        self.seat, self._submissions = seat, submissions
        self.submission: Submission | None = None
        self.started_s = time.monotonic()
        self.used_s = self.started_s
        self.ready: Event | None = None
        self.ready_after_s = 0.0
        self.memory_mib: float | None = None
        self._stopped = True
        self._failure: Failure | None = None

    @property
    def run_id(self) -> str:
        """The id of its run in the pool."""
        return "" if self.submission is None else self.submission.run.id

    @property
    def idle(self) -> bool:
        """Whether it is ready and has no work."""
        return self.ready is not None and self._stopped and self.failure() is None

    def failure(self) -> Failure | None:
        """Return why it cannot be used any more; None: it can, or is not ready yet."""
        if self._failure is None and self.submission is not None and self.submission.over:
            last = self._submissions.last_words(self.submission)
            self._fail(Failure("error", ": ".join([self.submission.over, *last[-1:]])))
        return self._failure

    @abstractmethod
    def run(self) -> None:
        """Let it work; what it told of its last run is forgotten."""

    @abstractmethod
    def stop(self) -> None:
        """Tell it to stop; it is ``idle`` when its device is."""

    @abstractmethod
    def events(self) -> Events:
        """Return what it has measured since ``run``."""

    @abstractmethod
    def forget(self) -> None:
        """Let go of what is left of one that has ended."""

    def _fail(self, failure: Failure) -> None:
        self._failure = self._failure or failure
        self._submissions.wake()


class Resident(Worker):
    """A process that builds its workload once; the pool's ``--socket`` leads to it.

    Parameters
    ----------
    seat, submissions
        As of a `Worker`; the latter is woken whenever the worker has told something.
    path : str
        Of the socket, which is made here, before the process starts.
    """

    def __init__(self, seat: Seat, submissions: Submissions, path: str) -> None:
        super().__init__(seat, submissions)
        self._path = path
        self._events: list[Steps | Answered] = []
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(1)
        self._connection: socket.socket | None = None
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def failure(self) -> Failure | None:
        """Return why it cannot be used any more, when it has said all it had to say."""
        run = self.submission
        if run is not None and run.over and self._connection is not None:
            self._listening.join(_LAST_WORDS_S)
        return super().failure()

    def run(self) -> None:
        """Let it work; what it told of its last run is forgotten."""
        with self._lock:
            self._events, self._stopped = [], False
        self._tell("run")

    def stop(self) -> None:
        """Tell it to stop; it is ``idle`` when its device is."""
        self._tell("stop")

    def events(self) -> Events:
        """Return what it has measured since ``run``."""
        with self._lock:
            return tuple(self._events)  # type: ignore[return-value]

    def forget(self) -> None:
        """Let go of the socket of one that has ended."""
        for one in (self._listener, self._connection):
            with contextlib.suppress(OSError):
                if one is not None:
                    one.shutdown(socket.SHUT_RDWR)
        self._listening.join(_LAST_WORDS_S)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    # How it listens.

    def _tell(self, what: str) -> None:
        # One that has gone is found out by its end.
        with contextlib.suppress(OSError):
            if self._connection is not None:
                self._connection.sendall(json.dumps({"do": what}).encode() + b"\n")

    def _listen(self) -> None:
        with contextlib.suppress(OSError), self._listener:
            self._connection, _ = self._listener.accept()
            with self._connection, self._connection.makefile("rb") as lines:
                for line in lines:
                    self._take(line)
        self._submissions.wake()

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            self._note(event["event"], event)
        except (ValueError, KeyError, TypeError):
            told = line[:60].decode(errors="replace")
            self._fail(Failure("error", f"said what is no event: {told!r}"))

    def _note(self, kind: str, event: Event) -> None:
        if kind in _MEASURED:
            with self._lock:
                self._events.append(_MEASURED[kind](event))
            return
        if kind == "ready":
            self.ready_after_s = time.monotonic() - self.started_s
            self.ready = event
        elif kind == "stopped":
            self._stopped = True
        self.memory_mib = event.get("memory_mib") or self.memory_mib
        if kind == "failed":
            told = " ".join(str(event.get("told", "")).split())
            lacks_memory = event.get("why") == "out-of-memory"
            self._fail(Failure("out-of-memory" if lacks_memory else "error", told))
        self._submissions.wake()
