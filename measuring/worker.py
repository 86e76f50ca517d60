"""A resident worker: a process that builds a workload once and runs it on command.

``workloads/worker.py`` is the program. The pool starts and ends its process; commands and events
are JSON objects, one per line, on a socket. Times are seconds of CLOCK_MONOTONIC
(``time.monotonic``), which all processes of a machine share.
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

from dovetail.executor.pools.runs.submissions import PoolSubmissions, Submission
from dovetail.measuring.campaign import Arrivals, WorkerSeat
from dovetail.measuring.windows import Answered, Events, Steps

Event = Mapping[str, Any]

_LAST_EVENTS_S: Final = 1.0


class Failure(NamedTuple):
    """Why a worker cannot be used any more; ``text`` is one line."""

    why: Literal["out-of-memory", "error"]
    text: str


class Requests(NamedTuple):
    """Requests to a worker: how many are due a second, and whether at random times."""

    requests_s: float
    arrivals: Arrivals


class Worker:
    """Runs a seat's workload on command.

    Parameters
    ----------
    seat : WorkerSeat
        Its workload and setting.
    submissions : PoolSubmissions
        Starts its process; woken by its events.

    Attributes
    ----------
    submission : Submission or None
        Its process in the pool, once submitted.
    ready : mapping or None
        Its ``ready`` event, once received.
    memory_mib : float or None
        The last memory that it reported.
    profiled : mapping or None
        Its ``profiled`` event, once received.
    requests : Requests or None
        What it answers in its last run, if not its own.
    """

    def __init__(self, seat: WorkerSeat, submissions: PoolSubmissions) -> None:
        self.seat, self._submissions = seat, submissions
        self.submission: Submission | None = None
        self.started_s = self.used_s = time.monotonic()
        self.ready: Event | None = None
        self.ready_after_s = 0.0
        self.memory_mib: float | None = None
        self.profiled: Event | None = None
        self.requests: Requests | None = None
        self._stopped = True
        self._failure: Failure | None = None
        self._events: list[Steps | Answered] = []
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._connection: socket.socket | None = None

    def listen(self, path: str) -> None:
        """Create the socket that its process will connect to."""
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(1)
        self._listening = threading.Thread(target=self._listen, args=(self._listener,), daemon=True)
        self._listening.start()

    @property
    def idle(self) -> bool:
        """Whether it is ready and does not run."""
        return self.ready is not None and self._stopped and self.failure() is None

    def failure(self) -> Failure | None:
        """Return why it cannot be used any more; None if it can, or is not ready yet."""
        run = self.submission
        if self._failure is None and run is not None and run.over:
            if self._connection is not None:  # it may have sent the reason
                self._listening.join(_LAST_EVENTS_S)
            last = self._submissions.last_words(run)
            self._fail("error", ": ".join([run.over, *last[-1:]]))
        if self._failure is None and run is not None and run.unisolated:
            self._fail("error", f"is not isolated: {run.unisolated}")
        return self._failure

    def run(self, requests: Requests | None = None) -> None:
        """Start a run; events of its previous run are dropped.

        Parameters
        ----------
        requests : Requests, optional
            What it answers; by default its own requests, or it iterates without a pause.
        """
        with self._lock:
            self._events, self._stopped = [], False
        self.requests = requests
        self._send("run", **({} if requests is None else requests._asdict()))

    def stop(self) -> None:
        """Command it to stop; it is ``idle`` as soon as its device is."""
        self._send("stop")

    def profile(self) -> str:
        """Command it to iterate under a profiler; return the file for the trace.

        ``profiled`` then says that it has written the file, or why not.
        """
        trace = f"{self._path}.json"
        self._send("profile", trace=trace)
        return trace

    def events(self) -> Events:
        """Return its measurements since ``run``."""
        with self._lock:
            return tuple(self._events)  # type: ignore[return-value]

    def forget(self) -> None:
        """Close the socket of a worker that has ended."""
        if self._listener is None:
            return
        for one in (self._listener, self._connection):
            with contextlib.suppress(OSError):
                if one is not None:
                    one.shutdown(socket.SHUT_RDWR)
        self._listening.join(_LAST_EVENTS_S)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _fail(self, why: Literal["out-of-memory", "error"], text: str) -> None:
        self._failure = self._failure or Failure(why, text)
        self._submissions.wake()

    def _send(self, command: str, **facts: str | float) -> None:
        # A worker that has ended is noticed by its end.
        with contextlib.suppress(OSError):
            if self._connection is not None:
                self._connection.sendall(json.dumps({"do": command, **facts}).encode() + b"\n")

    def _listen(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError), listener:
            self._connection, _ = listener.accept()
            with self._connection, self._connection.makefile("rb") as lines:
                for line in lines:
                    try:
                        self._take(json.loads(line))
                    except (ValueError, KeyError, TypeError):
                        text = line[:60].decode(errors="replace")
                        self._fail("error", f"sent something other than an event: {text!r}")
        self._submissions.wake()

    def _take(self, event: Event) -> None:
        match event["event"]:
            case "steps":
                self._measured(Steps(event["at"], event["n"], event["busy_s"]))
                return
            case "answered":
                self._measured(Answered(event["at"], event["arrived"], event["started"]))
                return
        self.memory_mib = event.get("memory_mib") or self.memory_mib
        match event["event"]:
            case "ready":
                self.ready_after_s = time.monotonic() - self.started_s
                self.ready = event
            case "stopped":
                self._stopped = True
            case "profiled":
                self.profiled = event
            case "failed":
                short = event.get("why") == "out-of-memory"
                text = " ".join(str(event.get("text", "")).split())
                self._fail("out-of-memory" if short else "error", text)
        self._submissions.wake()

    def _measured(self, one: Steps | Answered) -> None:
        with self._lock:
            self._events.append(one)
