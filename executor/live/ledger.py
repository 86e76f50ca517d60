"""Joint updates of the journal and the state machine, and execution of the resulting commands.

Requests come from many threads and are answered by one, once what they caused is durable. Actions
that fail are retried.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from dovetail.executor.jobs.commands import Command, Launch, Pause, Release, StopRun
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.journal import EVENTS_A_CHECKPOINT, Journal
from dovetail.executor.jobs.journal_lock import JournalError
from dovetail.executor.jobs.specs import Run
from dovetail.executor.jobs.state_machine import StateMachine, TransitionError
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.devices import Devices
from dovetail.executor.live.errors import BusyError
from dovetail.executor.pools.pool import NodePool
from dovetail.instances.errors import DovetailError

AGAIN_S: Final = 2.0
"""Seconds after which a failed action of the disk, the pool or the policy is retried."""

_LOG: Final = logging.getLogger("dovetail.live")


class Troubles:
    """The present failures, one of each kind; each is logged once.

    Parameters
    ----------
    now_s : callable
        The service's clock.

    Attributes
    ----------
    again_s : float
        When the failed actions are retried, on that clock; infinity if nothing failed recently.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._texts: dict[str, str] = {}
        self.again_s = math.inf

    def report(self, kind: str, error: Exception) -> None:
        """Record a failure, and plan a retry."""
        text = str(error) or type(error).__name__
        if self._texts.get(kind) != text:
            unforeseen = None if isinstance(error, DovetailError) else error
            _LOG.error("%s: %s", kind, text, exc_info=unforeseen)
        self._texts[kind] = text
        self.again_s = min(self.again_s, self._now_s() + AGAIN_S)

    def clear(self, kind: str) -> None:
        """Record a success."""
        self._texts.pop(kind, None)

    def try_again(self) -> None:
        """Begin a retry of everything if it is due."""
        if self.again_s <= self._now_s():
            self.again_s = math.inf

    def __contains__(self, kind: str) -> bool:
        return kind in self._texts

    @property
    def texts(self) -> list[str]:
        """One line for each failure; thread-safe."""
        return [*self._texts.copy().values()]


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


class EventLedger:
    """Makes events durable, applies them, and carries out the resulting commands.

    Its methods are called from the service's thread.

    Parameters
    ----------
    journal : Journal
        The journal, used by this service only.
    machine : StateMachine
        The state machine replayed from it.
    lock : threading.RLock
        Held while the state machine changes.
    troubles : Troubles
        Where failures of journal and pool are reported.
    devices : Devices
        The devices of the pool; a change of them is applied with the others.

    Attributes
    ----------
    news : list of AnyEvent
        Events to commit before any others.
    commands : list of Command
        Commands to carry out once the events that led to them are durable.
    applied : set of str
        The kinds of the events that were applied since it was last emptied.
    """

    def __init__(
        self,
        journal: Journal,
        machine: StateMachine,
        lock: threading.RLock,
        troubles: Troubles,
        devices: Devices,
    ) -> None:
        self._journal, self._machine, self._lock = journal, machine, lock
        self._troubles, self._devices = troubles, devices
        self._disk = ThreadPoolExecutor(1, "disk")
        self.news: list[AnyEvent] = []
        self.commands: list[Command] = []
        self.applied: set[str] = set()

    def commit(self, happened: Sequence[AnyEvent]) -> None:
        """Write the news and these events to the journal, and apply them.

        Raises
        ------
        JournalError
            If they cannot be written; the state machine does not see them then.
        """
        happened = [*self.news, *happened]
        if not happened:
            return
        self._journal.append(happened)
        self.news = []
        self._troubles.clear("journal")
        for event in happened:
            try:
                with self._lock:
                    self.commands += self._machine.apply(event)
            except TransitionError as error:
                _LOG.warning("%s is ignored: %s", event.kind, error)
        kinds = {event.kind for event in happened}
        if "devices_changed" in kinds:
            with self._lock:
                self._devices.take_up()
        self.applied |= kinds
        self.checkpoint()

    def commit_news(self) -> bool:
        """Commit the news; return True if none are left."""
        try:
            self.commit(())
        except JournalError as error:
            self._troubles.report("journal", error)
        return not self.news

    def answer(self, requests: Sequence[QueuedRequest[Any]]) -> None:
        """Make all requests durable together, and answer them."""
        granted = []
        for request in requests:
            try:
                asked = request.events()
                if asked:
                    self.commit(asked)
            except Exception as error:
                # An error in one request must not affect the others.
                request.refuse(self._reason(error))
            else:
                granted.append((request, asked))
        failure = self._sync() if granted else None
        for request, asked in granted:
            if asked and failure:
                request.refuse(BusyError(str(failure)))
            else:
                request.reply(asked)

    def _reason(self, error: Exception) -> Exception:
        """Return the error with which a request is answered."""
        if isinstance(error, JournalError):
            self._troubles.report("journal", error)
            return BusyError(str(error))
        if not isinstance(error, DovetailError):
            _LOG.exception("a request is refused")
        return error

    def _sync(self) -> JournalError | None:
        """Wait until all events are on the disk; return the error if they are not."""
        try:
            self._journal.sync()
        except JournalError as error:
            self._troubles.report("journal", error)
            return error
        return None

    def execute(self, pool: NodePool | None) -> bool:
        """Carry out the commands once their events are durable; return whether they are durable.

        Parameters
        ----------
        pool : NodePool or None
            The pool; None drops the commands. A command that fails is retried at the next call.
        """
        runs = [command.run for command in self.commands if isinstance(command, Launch)]
        if pool is None or not runs:
            failure = self._sync()
        else:
            # Another thread waits for the disk, since preparing takes about as long.
            synced = self._disk.submit(self._sync)
            for run in runs:
                self._prelaunch(run, pool)
            failure = synced.result()
        if failure:
            return False
        commands, self.commands = self.commands, []
        if pool is None:
            return True
        launched = {run.id for run in runs}

        def can_wait(command: Command) -> bool:
            return isinstance(command, Release) and command.run not in launched

        for command in sorted(commands, key=can_wait):
            try:
                self._carry_out(command, pool)
            except Exception as error:
                self._troubles.report("pool", error)
                self.commands.append(command)
        if commands and not self.commands:
            self._troubles.clear("pool")
        return True

    def _prelaunch(self, run: Run, pool: NodePool) -> None:
        """Let the pool prepare a launch while its event becomes durable."""
        try:
            if self._is_wanted(run):
                pool.prelaunch(run)
        except Exception as error:
            self._troubles.report("pool", error)

    def _is_wanted(self, run: Run) -> bool:
        """Return whether a run was neither stopped nor replaced by another."""
        measuring = self._machine.shares.present
        if measuring is not None and measuring.run == run.id:
            return not measuring.stopping
        job = self._machine.holding.get(run.job)
        return job is not None and job.run == run and job.state is not JobState.STOPPING

    def _carry_out(self, command: Command, pool: NodePool) -> None:
        match command:
            case Launch(run):
                if self._is_wanted(run):
                    pool.launch(run)
            case StopRun(run, grace_s):
                pool.stop(run, grace_s)
            case Pause(run, on):
                pool.pause(run, on)
            case Release(run):
                pool.release(run)

    def compact(self, before_s: float) -> bool:
        """Remove old events from the journal; return whether there are more."""
        try:
            return self._journal.compact(self._machine, before_s)
        except JournalError as error:
            _LOG.warning("the journal is not compacted: %s", error)
            return False

    def checkpoint(self, every: int = EVENTS_A_CHECKPOINT) -> None:
        """Store the state if ``every`` events have come since the last time."""
        try:
            self._journal.checkpoint(self._machine, every)
        except JournalError as error:
            _LOG.warning("no checkpoint: %s", error)
