"""Joint updates of the journal and the state machine, and execution of the resulting commands."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from dovetail.executor.jobs.commands import Command, Launch, Pause, Release, StopRun
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.journal import EVENTS_A_CHECKPOINT, Journal
from dovetail.executor.jobs.journal_lock import JournalError
from dovetail.executor.jobs.specs import Run
from dovetail.executor.jobs.state_machine import StateMachine, TransitionError
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.devices import Devices
from dovetail.executor.live.errors import BusyError
from dovetail.executor.live.request_queue import QueuedRequest
from dovetail.executor.live.troubles import Troubles
from dovetail.executor.pools.pool import NodePool
from dovetail.instances.errors import DovetailError

_LOG: Final = logging.getLogger("dovetail.live")


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
