"""One resident worker: a process that builds a workload once and runs it whenever it is told to.

``workloads/worker.py`` is the program; it tells one JSON object a line. Instants are seconds of
CLOCK_MONOTONIC (``time.monotonic``), the same clock in all processes of a machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, Literal, NamedTuple

from dovetail.executor.live.pools.processes import Process, session, stat_of
from dovetail.executor.measuring.records import Seat
from dovetail.executor.measuring.windows import Answered, Events, Steps

Event = Mapping[str, Any]

LOG_MOST: Final = 256 * 2**10
"""Bytes of a worker's standard error that are kept."""

_MEASURED: Final[Mapping[str, Callable[[Event], Steps | Answered]]] = MappingProxyType(
    {
        "steps": lambda told: Steps(told["at"], told["n"], told["busy_s"]),
        "answered": lambda told: Answered(told["at"], told["arrived"], told["started"]),
    }
)
_LAST_WORDS_S: Final = 1.0
_CHUNK: Final = 2**16


class Failure(NamedTuple):
    """Why a worker cannot be used any more; ``told`` is one line."""

    why: Literal["out-of-memory", "error"]
    told: str


class Worker:
    """A process that runs a seat's workload.

    Parameters
    ----------
    seat : Seat
        What it runs, and in which setting.
    process : Popen
        Just started, with pipes for all three streams, as the leader of a session.
    log : path
        Where its standard error goes, up to ``LOG_MOST`` bytes.
    changed : Condition
        Is notified whenever it has told something or has ended.
    """

    def __init__(
        self, seat: Seat, process: subprocess.Popen[bytes], log: Path, changed: threading.Condition
    ) -> None:
        self.seat, self.process, self.log = seat, process, log
        stat = stat_of(process.pid)
        self._process = Process(process.pid, 0 if stat is None else stat.started)
        self.started_s = time.monotonic()
        self.used_s = self.started_s
        self.ready: Event | None = None
        self.ready_after_s = 0.0
        self.memory_mib: float | None = None
        self._changed = changed
        self._events: list[Steps | Answered] = []
        self._stopped = True
        self._failure: Failure | None = None
        self._last_words = b""
        self._threads = (
            self._thread("events", self._listen),
            self._thread("log", self._keep_log),
        )

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    @property
    def idle(self) -> bool:
        """Whether it is ready and has no work."""
        return self.ready is not None and self._stopped and self.failure() is None

    def failure(self) -> Failure | None:
        """Return why it cannot be used any more; None: it can, or is not ready yet."""
        if self._failure is None and self.process.poll() is not None:
            self._threads[0].join(_LAST_WORDS_S)
            self._threads[1].join(_LAST_WORDS_S)
            self._fail(Failure("error", self._end_told()))
        return self._failure

    def run(self) -> None:
        """Let it work; what it told of its last run is forgotten."""
        with self._changed:
            self._events = []
            self._stopped = False
        self._tell("run")

    def stop(self) -> None:
        """Tell it to stop; it is ``idle`` when its device is."""
        self._tell("stop")

    def events(self) -> Events:
        """Return what it has measured since ``run``."""
        with self._changed:
            return tuple(self._events)  # type: ignore[return-value]

    def quit(self) -> None:
        """Tell it to end."""
        self._tell("quit")
        with contextlib.suppress(OSError):
            self._stdin.close()

    def ends(self, within_s: float) -> bool:
        """Wait for its end, and return whether it has come."""
        try:
            self.process.wait(max(0.0, within_s))
        except subprocess.TimeoutExpired:
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        """Signal it and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def forget(self, *, keep_log: bool) -> None:
        """Let go of what remains of it when it has ended: other processes of its, its log."""
        for left in session(self._process):
            left.send(signal.SIGKILL)
        for thread in self._threads:
            thread.join(_LAST_WORDS_S)
        if not keep_log or not self._last_words:
            self.log.unlink(missing_ok=True)

    # How it listens.

    @property
    def _stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def _tell(self, what: str) -> None:
        # One that has gone is found out by its end.
        with contextlib.suppress(OSError, ValueError):
            self._stdin.write(json.dumps({"do": what}).encode() + b"\n")
            self._stdin.flush()

    def _thread(self, what: str, body: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=body, name=f"{what} of {self.pid}", daemon=True)
        thread.start()
        return thread

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._take(line)
        with self._changed:
            self._changed.notify_all()

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            self._note(event["event"], event)
        except (ValueError, KeyError, TypeError):
            told = line[:60].decode(errors="replace")
            self._fail(Failure("error", f"said what is no event: {told!r}"))

    def _note(self, kind: str, event: Event) -> None:
        with self._changed:
            if kind in _MEASURED:
                self._events.append(_MEASURED[kind](event))
                return
            if kind == "ready":
                self.ready = event
                self.ready_after_s = time.monotonic() - self.started_s
            elif kind == "stopped":
                self._stopped = True
            self.memory_mib = event.get("memory_mib") or self.memory_mib
            self._changed.notify_all()
        if kind == "failed":
            told = " ".join(str(event.get("told", "")).split())
            lacks_memory = event.get("why") == "out-of-memory"
            self._fail(Failure("out-of-memory" if lacks_memory else "error", told))

    def _fail(self, failure: Failure) -> None:
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def _keep_log(self) -> None:
        assert self.process.stderr is not None
        kept = 0
        with self.process.stderr as source, self.log.open("wb") as log:
            while chunk := os.read(source.fileno(), _CHUNK):
                log.write(chunk[: max(0, LOG_MOST - kept)])
                log.flush()
                kept += len(chunk)
                self._last_words = (self._last_words + chunk)[-_CHUNK:]

    def _end_told(self) -> str:
        status = self.process.returncode
        lines = self._last_words.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        how = f"ended by {_signal_name(-status)}" if status < 0 else f"ended with status {status}"
        return f"{how}: {last}" if last else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
