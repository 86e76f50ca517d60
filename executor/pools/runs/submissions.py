"""Runs programs on a pool's devices without a service, for campaigns and probes of shares.

There is no queue and no journal: each program is a run of one rank with a seat, and the pool
starts, watches and ends it like a job.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from dovetail.executor.jobs import events
from dovetail.executor.jobs.specs import JobSpec, Owner, Run, Seat
from dovetail.executor.pools.pool import NodePool
from dovetail.executor.pools.runs.lease import SHIM_KILL_S

_LOOK_S: Final = 0.2
_LAST_BYTES: Final = 2**16
_MARGIN_S: Final = 5.0


@dataclass(eq=False)
class Submission:
    """A program that was given to a pool.

    Attributes
    ----------
    run : Run
        The run in the pool.
    pid : int or None
        The PID of its process, once it has one.
    ready : bool
        Whether it is proven to run under its cap.
    status : int or None
        Its exit status, if it exited or was ended by a signal (negative).
    over : str
        How it ended, in words; empty while it may still run.
    stopped : str
        Why the pool stopped it, in words; empty if it did not.
    unisolated : str
        Why its kernel launches are not intercepted although they should be; empty if they are.
    """

    run: Run
    pid: int | None = None
    ready: bool = False
    status: int | None = None
    over: str = ""
    stopped: str = ""
    unisolated: str = ""

    def note(self, event: events.AnyEvent) -> None:
        """Note an event of its run."""
        match event:
            case events.RankStarted():
                self.pid = event.pid
            case events.RankReady():
                self.ready = True
            case events.StopDecided():
                self.stopped = event.reason
            case events.IsolationLost():
                self.unisolated = event.reason
            case events.RankEnded():
                self.status = event.status
                self.over = self.stopped or ended(event.status)
            case events.RankRefused() | events.RankGone():
                self.over = self.stopped or event.reason


class PoolSubmissions:
    """Starts programs on a pool and reports their state; use it as a context manager.

    All methods but `wake` must be called from one thread. Programs that an earlier user of the
    pool's directory left running are ended first.

    Parameters
    ----------
    pool : NodePool
        The pool, owned by this object from now on.
    """

    def __init__(self, pool: NodePool) -> None:
        self.pool = pool
        self._changed = threading.Event()
        self._known: dict[str, Submission] = {}
        self._numbers = itertools.count(1)
        pool.attach(self.wake)
        left = [Submission(run) for run in pool.resume(())]
        self._known.update((one.run.id, one) for one in left)
        self.end(left, 0.0)

    def __enter__(self) -> PoolSubmissions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self,
        command: Sequence[str],
        seat: Seat,
        env: Mapping[str, str] | None = None,
        priority: Literal["batch", "latency"] = "batch",
        name: str = "probe",
        isolated: bool = False,
    ) -> Submission:
        """Start a program on a device, as this process's user, without waiting.

        Parameters
        ----------
        command : sequence of str
            Program and arguments.
        seat : Seat
            Its device and cap.
        env : mapping, optional
            Additional variables, on top of this process's environment.
        priority : {"batch", "latency"}
            Whether it is latency-critical.
        name : str
            The beginning of the run's id.
        isolated : bool
            Whether its kernel launches are intercepted (``Run.isolated``).
        """
        spec = JobSpec(
            command=tuple(command),
            workload=name,
            owner=own_user(),
            cwd=os.getcwd(),
            env={**_texts(os.environ), **(env or {})},
            priority=priority,
            isolation="blocks" if isolated else None,
        )
        safe = re.sub(r"[^A-Za-z0-9_-]", "_", name)
        job = f"{safe}-{os.getpid()}-{next(self._numbers)}-{time.monotonic_ns()}"
        one = Submission(Run(id=f"{job}.1", job=job, spec=spec, seats=(seat,), isolated=isolated))
        # Recorded first, so that the program is ended if an interruption follows.
        self._known[one.run.id] = one
        self.pool.launch(one.run)
        return one

    def wake(self) -> None:
        """Have `wait` check again; may be called from any thread."""
        self._changed.set()

    def wait(self, done: Callable[[], bool], until_s: float) -> bool:
        """Wait until a condition holds or the monotonic time ``until_s``; return if it holds."""
        while True:
            self._changed.clear()
            self._look()
            if done():
                return True
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            self._changed.wait(min(left_s, _LOOK_S))

    def last_words(self, one: Submission) -> list[str]:
        """Return the last lines that a program has printed, without blank lines."""
        return last_lines(self.pool.log_path(one.run.id, 0))

    def end(self, ending: Iterable[Submission], grace_s: float) -> None:
        """End programs (ask, wait, terminate their work on the device, kill).

        Folders of programs that succeeded or printed nothing are removed; other logs stay.
        """
        ending = list(ending)
        for one in ending:
            self.pool.stop(one.run.id, grace_s)
        until_s = time.monotonic() + (grace_s + SHIM_KILL_S + _MARGIN_S if ending else 0.0)
        self.wait(lambda: all(one.over for one in ending), until_s)
        for one in ending:
            quiet = one.status == 0 or not self.last_words(one)
            log = self.pool.log_path(one.run.id, 0)
            self.pool.release(one.run.id)
            self._known.pop(one.run.id, None)
            if one.over and quiet and log is not None:
                shutil.rmtree(Path(log).parents[1], ignore_errors=True)

    def close(self) -> None:
        """End all programs, and close the pool."""
        self.end(list(self._known.values()), 0.0)
        self.pool.close()

    def _look(self) -> None:
        for event in self.pool.poll():
            one = self._known.get(getattr(event, "run", ""))
            if one is not None:
                one.note(event)
                if isinstance(event, events.StopDecided):
                    self.pool.stop(one.run.id, 0.0)


def last_lines(path: str | None) -> list[str]:
    """Return the last lines of a log, without blank lines; empty if there is none."""
    if path is None:
        return []
    with contextlib.suppress(OSError), open(path, "rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - _LAST_BYTES))
        lines = log.read().decode(errors="replace").splitlines()
        return [line.strip() for line in lines if line.strip()]
    return []


def ended(status: int) -> str:
    """Return how a process ended, in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


def own_user() -> Owner:
    """Return the user of this process."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return Owner(name=name, uid=uid, gid=os.getegid())


def _texts(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are valid text, as others cannot be saved with a run."""
    return {
        name: value
        for name, value in environment.items()
        if not any("\ud800" <= letter <= "\udfff" for letter in name + value)
    }
