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
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from dovetail.executor.measuring.records import Seat
from dovetail.executor.measuring.windows import Answered, Events, Steps
from dovetail.executor.pools.submissions import Submission, Submissions

Event = Mapping[str, Any]

_LAST_WORDS_S: Final = 1.0


class Failure(NamedTuple):
    """Why a worker cannot be used any more; ``told`` is one line."""

    why: Literal["out-of-memory", "error"]
    told: str


class Worker:
    """What runs a seat's workload when it is told to.

    Parameters
    ----------
    seat : Seat
        What it runs, and in which setting.
    submissions : Submissions
        The way to its pool; woken whenever the worker has told something.

    Attributes
    ----------
    submission : Submission or None
        Its program in the pool, once it was submitted.
    ready : mapping or None
        What it told of itself when it was ready.
    memory_mib : float or None
        The most that it said to hold.
    """

    def __init__(self, seat: Seat, submissions: Submissions) -> None:
        self.seat, self._submissions = seat, submissions
        self.submission: Submission | None = None
        self.started_s = self.used_s = time.monotonic()
        self.ready: Event | None = None
        self.ready_after_s = 0.0
        self.memory_mib: float | None = None
        self._stopped = True
        self._failure: Failure | None = None
        self._events: list[Steps | Answered] = []
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._connection: socket.socket | None = None

    def listen(self, path: str) -> None:
        """Make the socket that its process is to connect to; before it starts."""
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(1)
        self._listening = threading.Thread(target=self._listen, args=(self._listener,), daemon=True)
        self._listening.start()

    @property
    def idle(self) -> bool:
        """Whether it is ready and has no work."""
        return self.ready is not None and self._stopped and self.failure() is None

    def failure(self) -> Failure | None:
        """Return why it cannot be used any more; None: it can, or is not ready yet."""
        run = self.submission
        if self._failure is None and run is not None and run.over:
            if self._connection is not None:  # it may have said why
                self._listening.join(_LAST_WORDS_S)
            last = self._submissions.last_words(run)
            self._fail("error", ": ".join([run.over, *last[-1:]]))
        return self._failure

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
        if self._listener is None:
            return
        for one in (self._listener, self._connection):
            with contextlib.suppress(OSError):
                if one is not None:
                    one.shutdown(socket.SHUT_RDWR)
        self._listening.join(_LAST_WORDS_S)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _fail(self, why: Literal["out-of-memory", "error"], told: str) -> None:
        self._failure = self._failure or Failure(why, told)
        self._submissions.wake()

    def _tell(self, what: str) -> None:
        # One that has gone is found out by its end.
        with contextlib.suppress(OSError):
            if self._connection is not None:
                self._connection.sendall(json.dumps({"do": what}).encode() + b"\n")

    def _listen(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError), listener:
            self._connection, _ = listener.accept()
            with self._connection, self._connection.makefile("rb") as lines:
                for line in lines:
                    try:
                        self._take(json.loads(line))
                    except (ValueError, KeyError, TypeError):
                        told = line[:60].decode(errors="replace")
                        self._fail("error", f"said what is no event: {told!r}")
        self._submissions.wake()

    def _take(self, event: Event) -> None:
        match event["event"]:
            case "steps":
                self._measured(Steps(event["at"], event["n"], event["busy_s"]))
            case "answered":
                self._measured(Answered(event["at"], event["arrived"], event["started"]))
            case kind:
                self.memory_mib = event.get("memory_mib") or self.memory_mib
                if kind == "ready":
                    self.ready_after_s = time.monotonic() - self.started_s
                    self.ready = event
                elif kind == "stopped":
                    self._stopped = True
                elif kind == "failed":
                    lacks_memory = event.get("why") == "out-of-memory"
                    told = " ".join(str(event.get("told", "")).split())
                    self._fail("out-of-memory" if lacks_memory else "error", told)
                self._submissions.wake()

    def _measured(self, one: Steps | Answered) -> None:
        with self._lock:
            self._events.append(one)
