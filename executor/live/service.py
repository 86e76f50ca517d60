"""The service: it joins the journal, the brain, a pool and a policy, and loses no job.

One thread serves (``Service.run``); any thread may ask (``Desk``). What happens is told to the
brain, made durable, and only then carried out. While the journal cannot be written, requests are
refused and nothing is carried out; jobs run on, and what happens to them is kept until it can be
written.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from dovetail.executor.live import events
from dovetail.executor.live.brain import HOLDING, OVER, Brain, JobState, LiveJob, TransitionError
from dovetail.executor.live.clock import ServiceClock, boot_id
from dovetail.executor.live.commands import Command, Launch, Release, Stop
from dovetail.executor.live.desk import BusyError, RefusedError, UnknownJobError
from dovetail.executor.live.events import AnyEvent
from dovetail.executor.live.gate import Gate
from dovetail.executor.live.jobs import JobSpec, Owner, Run, Seat
from dovetail.executor.live.journal import JournalError
from dovetail.executor.live.mailbox import Mailbox, Request
from dovetail.executor.live.pools.pool import NodePool, Usage
from dovetail.executor.live.presenting import device_views, job_views
from dovetail.executor.live.views import JobView, ServiceView
from dovetail.executor.live.world import World
from dovetail.executor.rounds import run_rounds
from dovetail.instances._version import VERSION
from dovetail.instances.errors import DovetailError, InputError
from dovetail.solver.policies import Decision, Policy, Start, State, policy_named
from dovetail.solver.policies.policy import NOTHING

_LOG: Final = logging.getLogger("dovetail.live")

AGAIN_S: Final = 2.0
"""Seconds after which what the disk, a pool or a policy refused is tried again."""

REST: Final = 4.0
"""How many times as long as the last decision took the next one waits, if only jobs came."""


class Journal(Protocol):
    """Where events are durable."""

    def replay(self) -> Brain:
        """Return the brain after all events."""
        ...

    def append(self, events: Sequence[AnyEvent]) -> int:
        """Make events durable, all or none, and return the number of the last."""
        ...


class Service:
    """Runs the jobs of a journal on a pool (a ``Desk`` and a ``rounds.Pool``).

    Parameters
    ----------
    journal : Journal
        Held by nobody else.
    pool : NodePool
        Where jobs run; nobody has resumed it yet.
    world : World
        What policies see.
    policy : str
        Name and options, as in ``policy_named``.
    directory : path
        The state directory, for people.
    dry_run : bool
        Never start or stop anything; ``plan`` says what would be.
    any_user : bool, optional
        Whether jobs may run as other users than the service's; by default if that is root.

    Attributes
    ----------
    state : State
        What the policy sees.

    Raises
    ------
    UnsupportedError
        When there is no such policy.
    """

    state: State

    def __init__(
        self,
        journal: Journal,
        pool: NodePool,
        world: World,
        policy: str = "dovetail",
        *,
        directory: str | Path = "",
        dry_run: bool = False,
        any_user: bool | None = None,
    ) -> None:
        self._journal = journal
        self._pool = pool
        self._world = world
        self._policy_name = policy
        self._policy = policy_named(policy)
        self._directory = os.fspath(directory)
        self._dry_run = dry_run
        self._any_user = os.geteuid() == 0 if any_user is None else any_user
        self._lock = threading.RLock()
        self._mailbox = Mailbox()
        self._brain = Brain()
        self._clock = ServiceClock()
        self._cluster = pool.cluster()
        self._started_s = 0.0
        # What the brain knows and the journal does not yet, and what is to be done for it.
        self._undurable: list[AnyEvent] = []
        self._commands: list[Command] = []
        self._strays: dict[str, set[int]] = {}
        self._again_s = math.inf
        self._changed = self._urgent = True
        self._rest_until_s = 0.0
        self._wake_s = math.inf
        self._decide_s: float | None = None
        self._gap: float | None = None
        self._trouble: dict[str, str] = {}
        self._usage: dict[str, Usage] = {}

    # The life of a service.

    def run(self) -> None:
        """Serve until ``stop``; every job runs on afterwards.

        Raises
        ------
        JournalError
            When the journal cannot be read, or not be written at the start.
        """
        try:
            self._start()
            run_rounds(self, _Unfailing(self._policy, self._told_trouble))
        finally:
            self._mailbox.close()
            self._pool.close()

    def stop(self) -> None:
        """Let ``run`` return; from any thread."""
        self._mailbox.close()

    def _start(self) -> None:
        """Take up what an earlier service left: nothing is started before it is all known."""
        with self._lock:
            self._brain = self._journal.replay()
        self._clock = ServiceClock(self._brain.now_s)
        self._started_s = self._clock.now_s()
        held = [job for job in self._brain.jobs.values() if job.state in HOLDING]
        runs = [job.run for job in held if job.run is not None]
        beyond = self._pool.resume(runs)
        self._note([self._attached()])
        self._take_up(beyond)
        told = self._pool.poll()
        self._note(told)
        self._note(_untraced(held, told))
        self._write([])
        if self._undurable:
            raise JournalError(self._trouble["journal"])
        self._commands = [*self._releases(), *self._brain.outstanding()]
        self._pool.attach(self._mailbox.ring)

    def _attached(self) -> AnyEvent:
        return events.ServiceStarted(
            at_s=self._clock.now_s(),
            boot=boot_id(),
            pool=self._pool.name,
            gpus=tuple(gpu.id for node in self._cluster.nodes for gpu in node.devices),
            version=VERSION,
        )
