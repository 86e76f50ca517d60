"""A service in a process of its own, which can be made to die at any point.

The product has no hooks for faults: this program wraps the journal and the pool of the service,
and the process ends itself with SIGKILL at the requested point.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.journal import Journal
from dovetail.executor.jobs.specs import Run
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.live.service import Service, ServiceOptions
from dovetail.executor.pools import cpu
from dovetail.executor.pools.cpu import CpuPool
from dovetail.executor.pools.pool import NodePool
from dovetail.executor.pools.simulated import SimulatedNode
from dovetail.executor.system import clock
from dovetail.instances.datasets import Repository
from dovetail.instances.errors import DovetailError
from dovetail.instances.instance import Instance
from dovetail.live.http.application import application
from dovetail.live.http.server import Listening, serving

POINTS = "points"
_THREADS = 64
LONGEST_S = 300.0
"""After so long, what is waited for will not come, however busy the machine is."""
QUICK = WatchOptions(
    warm_up_s=0.05,
    settle_s=0.05,
    profile_s=0.1,
    profile_most_s=2.0,
    window_s=0.1,
    tolerance=0.5,
    iterations=1,
)
"""So that what is brief is profiled, too."""

_CONTEXT = get_context("forkserver")
# What takes long to import; what is next to this file is not found at that moment.
_CONTEXT.set_forkserver_preload(
    [
        "dovetail.executor.live.service",
        "dovetail.live.http.server",
        "dovetail.executor.pools.cpu",
        "dovetail.executor.pools.simulated",
        "dovetail.solver.policies.dovetail",
        "dovetail.predictors.fill",
        "psutil",
    ]
)


class ServiceGoneError(Exception):
    """The service's process is no more."""


@dataclass(frozen=True)
class Setup:
    """A service to be started.

    Attributes
    ----------
    directory : path
        Its state directory.
    make_pool : callable
        Makes its pool from the directory, in the service's process.
    policy : str
        As in ``policy_named``.
    kill_at : int
        At which of its points it dies; 0 = at none.
    shift_s : float
        By how much the time of day is wrong as it reads it.
    watching : WatchOptions
        How long it looks at runs.
    sample_s : float
        Seconds between two looks.
    socket : path, optional
        Where it answers HTTP, too.
    """

    directory: Path
    make_pool: Callable[[Path], NodePool]
    policy: str = "dovetail"
    kill_at: int = 0
    shift_s: float = 0.0
    watching: WatchOptions = QUICK
    sample_s: float = 0.05
    socket: Path | None = None


@dataclass
class Points:
    """Counts the points that a service passes, names them in a file, and kills it at one."""

    file: Path
    kill_at: int
    passed: int = 0
    _descriptor: int = field(init=False)

    def __post_init__(self) -> None:
        self._descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def reach(self, name: str) -> None:
        """Pass a point, or die at it."""
        self.passed += 1
        dies = self.passed == self.kill_at
        # The disk may be full.
        with contextlib.suppress(OSError):
            os.write(self._descriptor, f"{'died' if dies else 'passed'} {name}\n".encode())
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)


class KillableJournal(Journal):
    """A journal with a point before and after each append."""

    def __init__(self, directory: Path, points: Points) -> None:
        super().__init__(directory)
        self._points = points

    def append(self, events: Sequence[AnyEvent]) -> int:
        """Append, and pass two points for each kind of event."""
        kinds = "+".join(dict.fromkeys(event.kind for event in events))
        self._points.reach(f"before {kinds}")
        last = super().append(events)
        self._points.reach(f"after {kinds}")
        return last


class KillablePool:
    """A pool with a point before and after each command."""

    def __init__(self, pool: NodePool, points: Points) -> None:
        self._pool = pool
        self._points = points

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the pool has
        return getattr(self._pool, name)

    def launch(self, run: Run) -> None:
        """Launch between two points."""
        self._points.reach("before Launch")
        self._pool.launch(run)
        self._points.reach("after Launch")

    def stop(self, run: str, grace_s: float) -> None:
        """Stop between two points."""
        self._points.reach("before Stop")
        self._pool.stop(run, grace_s)
        self._points.reach("after Stop")

    def release(self, run: str) -> None:
        """Release between two points."""
        self._points.reach("before Release")
        self._pool.release(run)
        self._points.reach("after Release")


class ServiceProcess:
    """The parent's side: a service that is running, and the pipe to it.

    Raises
    ------
    DovetailError
        When the service could not start; the error is its own.
    """

    def __init__(self, setup: Setup) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(setup, theirs), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self._answer()
        except DovetailError:
            self.wait()
            raise
        except ServiceGoneError:
            # It died at one of its first points: the next request reports it.
            pass

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid or 0

    def ask(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - as the method
        """Call a method of the service's desk, or one of ``_FAULTS``.

        Raises
        ------
        ServiceGoneError
            When no answer comes any more: whether the call was carried out is unknown.
        DovetailError
            Whatever the service answered with.
        """
        self.tell(method, *arguments)
        return self._answer()

    def tell(self, method: str, *arguments: object) -> None:
        """Call a method and do not wait for the answer: nothing else can be asked then.

        Raises
        ------
        ServiceGoneError
            When it is gone already.
        """
        try:
            self._pipe.send((method, arguments))
        except OSError:
            raise ServiceGoneError from None

    def kill(self) -> None:
        """Send it SIGKILL."""
        self._process.kill()
        self.wait()

    def stop(self) -> None:
        """Let it end as it does by itself."""
        with contextlib.suppress(ServiceGoneError):
            self.ask("stop")
        self.wait()

    def wait(self) -> int | None:
        """Wait until it has ended and return its exit status."""
        self._process.join(LONGEST_S)
        self._pipe.close()
        return self._process.exitcode

    def _answer(self) -> Any:  # noqa: ANN401 - as the method
        try:
            good, answer = self._pipe.recv()
        except (EOFError, OSError):
            raise ServiceGoneError from None
        if good:
            return answer
        raise answer


# The service's side.


def _serve(setup: Setup, pipe: Connection) -> None:
    try:
        points = Points(setup.directory / POINTS, setup.kill_at)
        service = _service(setup, points)
    except DovetailError as error:
        pipe.send((False, error))
        return
    listener = threading.Thread(target=_listen, args=(service, pipe), daemon=True)
    listener.start()
    if setup.socket is None:
        service.run()
        return
    where = Listening(setup.socket, everybody=False)
    with serving(application(service.api), where, service.ready):
        service.run()


def _service(setup: Setup, points: Points) -> Service:
    logging.basicConfig(filename=setup.directory / "service.log")
    _set_clock(setup.shift_s)
    journal = KillableJournal(setup.directory, points)
    pool = KillablePool(setup.make_pool(setup.directory), points)
    repository = Repository(setup.directory / "repository.db")
    return Service(
        journal,
        pool,
        repository,
        ServiceOptions(
            policy=setup.policy,
            watching=setup.watching,
            sample_s=setup.sample_s,
            directory=setup.directory,
        ),
    )


def _listen(service: Service, pipe: Connection) -> None:
    service.ready.wait()
    pipe.send((True, None))
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            # The parent of this service has ended: no process will stop it.
            os._exit(1)
        try:
            if method == "at_once":
                answer = _at_once(service, *arguments)
            else:
                answer = (
                    _FAULTS.get(method)
                    or getattr(service if method == "stop" else service.api, method)
                )(*arguments)
            pipe.send((True, answer))
        except DovetailError as error:
            pipe.send((False, error))


def _fill_disk() -> None:
    """Let every write to a file fail, as on a full disk (with EFBIG instead of ENOSPC)."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def _free_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class _SetClock:
    """Stands for the module ``time`` in ``clock``: its time of day can be set."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME
    clock_gettime = staticmethod(time.clock_gettime)

    def __init__(self, shift_s: float) -> None:
        self._shift_s = shift_s

    def time(self) -> float:
        """Return the time of day as it was set."""
        return time.time() + self._shift_s


def _set_clock(shift_s: float) -> None:
    """Set the time of day as this process reads it."""
    clock.time = _SetClock(shift_s)  # type: ignore[attr-defined]


def _at_once(service: Service, method: str, calls: Sequence[tuple[Any, ...]], file: Path) -> int:
    """Call a method from very many threads; note each call in a file once it is answered."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def call(arguments: tuple[Any, ...]) -> None:
        answer = getattr(service.api, method)(*arguments)
        os.write(descriptor, f"{answer[0] if isinstance(answer, tuple) else answer.id}\n".encode())

    with ThreadPoolExecutor(_THREADS) as threads:
        return len(list(threads.map(call, calls)))


_FAULTS: dict[str, Callable[..., Any]] = {
    "fill_disk": _fill_disk,
    "free_disk": _free_disk,
    "set_clock": _set_clock,
}


@dataclass(frozen=True)
class Simulated:
    """Makes simulated pools (a ``make_pool``)."""

    truth: Instance
    start_s: float = 0.05

    def __call__(self, directory: Path) -> NodePool:
        """Return a pool that keeps its files in the directory."""
        return SimulatedNode(directory, self.truth, start_s=self.start_s)


@dataclass(frozen=True)
class Cores:
    """Makes pools of cores of this machine, each a device (a ``make_pool``)."""

    devices: int = 2

    def __call__(self, directory: Path) -> NodePool:
        """Return a pool that keeps its files in the directory."""
        if os.sched_getscheduler(0) == os.SCHED_RR:
            # Control groups may refuse processes of real-time priority.
            cpu.find_groups = lambda name: None
        return CpuPool(directory, devices=self.devices)
