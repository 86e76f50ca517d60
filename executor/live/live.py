"""What all parts of the live service share.

The service has three parts, which do not know each other's modules: ``requests`` (what users ask),
``rounds`` (decisions and starts) and ``observation`` (progress, profiles, measurements). They meet
here: ``service.py`` makes one `Live`, gives it to each of them, and runs the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from dovetail.executor.jobs.journal import Journal
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.live.devices import Devices
from dovetail.executor.live.job_beliefs import JobBeliefs
from dovetail.executor.live.ledger import EventLedger
from dovetail.executor.live.left_behind import LeftBehind
from dovetail.executor.live.readings import LastReading
from dovetail.executor.live.request_queue import RequestQueue
from dovetail.executor.live.troubles import Troubles
from dovetail.executor.pools.pool import NodePool
from dovetail.executor.system.clock import ServiceClock


@dataclass(kw_only=True)
class Live:
    """The shared state of a service. Only the service's thread changes it.

    Attributes
    ----------
    machine : StateMachine
        Jobs and devices. It changes only as the ledger applies events, with ``lock`` held; other
        threads hold the lock to read it.
    lock : threading.RLock
        Held while the state machine or the devices change.
    clock : ServiceClock
        The service's clock.
    pool : NodePool
        The pool that runs the jobs.
    devices : Devices
        The devices of the pool that the service knows.
    troubles : Troubles
        Where failures are reported, and when what failed is tried again.
    ledger : EventLedger
        Writes events to the journal, applies them, and carries out the resulting commands.
    requests : RequestQueue
        The waiting requests; ``ring`` wakes the service's thread from any other.
    left : LeftBehind
        Runs left by an earlier service.
    beliefs : JobBeliefs
        What is believed about jobs; the observation keeps it up to date.
    readings : LastReading
        What the observation last saw of runs and devices.
    directory : str
        The state directory; empty = none.
    dry_run : bool
        Whether no job is started or stopped.
    """

    machine: StateMachine
    lock: threading.RLock
    clock: ServiceClock
    pool: NodePool
    devices: Devices
    troubles: Troubles
    ledger: EventLedger
    requests: RequestQueue
    left: LeftBehind
    beliefs: JobBeliefs
    readings: LastReading = field(default_factory=LastReading)
    directory: str = ""
    dry_run: bool = False

    @classmethod
    def of(
        cls,
        journal: Journal,
        pool: NodePool,
        devices: Devices,
        boot_s: Callable[[], float],
        directory: str = "",
        dry_run: bool = False,
    ) -> Self:
        """Return the shared state as the journal of an earlier service has it."""
        machine, lock = journal.replay(), threading.RLock()
        clock = ServiceClock(machine.now_s, boot_s)
        troubles = Troubles(clock.now_s)
        return cls(
            machine=machine,
            lock=lock,
            clock=clock,
            pool=pool,
            devices=devices,
            troubles=troubles,
            ledger=EventLedger(journal, machine, lock, troubles, devices),
            requests=RequestQueue(),
            left=LeftBehind(machine),
            beliefs=JobBeliefs(machine, pool, devices),
            directory=directory,
            dry_run=dry_run,
        )

    @property
    def now_s(self) -> float:
        """The moment on the service's clock."""
        return self.clock.now_s()
