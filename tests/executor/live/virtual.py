"""A real service on a virtual clock that advances only while the service is idle."""

from __future__ import annotations

import threading
import time

from dovetail.executor.jobs.journal import Journal
from dovetail.executor.live.ledger import RequestQueue
from dovetail.executor.live.service import Service, ServiceOptions
from dovetail.executor.pools.simulated import SimulatedNode
from dovetail.instances.datasets import Repository


class JumpingNode(SimulatedNode):
    """The simulated pool on a virtual clock: it wakes no service, which asks for the next event."""

    def attach(self, wake):
        """Do without the alarm, which follows the machine's clock."""


class Jumps(RequestQueue):
    """Lets time pass instead of waiting, and submits jobs when they are due."""

    def __init__(self, clock, node, submissions):
        super().__init__()
        self.service = None
        self._clock, self._node = clock, node
        self._due = sorted(submissions, key=lambda due: due[0])

    def wait(self, timeout_s):
        next_s = self._due[0][0] if self._due else float("inf")
        at_s = min(self._clock.now_s + timeout_s, next_s, self._node.next_s())
        if not self._due and not self.service.api.jobs():
            self.close()
        self._clock.now_s = max(self._clock.now_s, at_s)
        while self._due and self._due[0][0] <= self._clock.now_s:
            _, spec = self._due.pop(0)
            asked = threading.Thread(target=self.service.api.submit, args=([spec], spec.owner))
            before = len(self._waiting)
            asked.start()
            while len(self._waiting) == before and asked.is_alive():
                time.sleep(1e-4)


class VirtualClock:
    """Seconds since the machine booted, as set by the test."""

    def __init__(self):
        self.now_s = 1e6

    def __call__(self):
        return self.now_s


def served(directory, truth, profiles, measurements, submissions, **options):
    """Serve jobs, (seconds from the beginning, spec) each, until all are over.

    Returns the service's state machine, and the moment at which it began on its own clock.
    """
    clock = VirtualClock()
    node = JumpingNode(directory, truth, boot_s=clock)
    repository = Repository(directory / "repository.db")
    repository.append(profiles, measurements)
    due = [(clock.now_s + at_s, spec) for at_s, spec in submissions]
    with Journal(directory) as journal:
        service = Service(journal, node, repository, ServiceOptions(boot_s=clock, **options))
        began_s = service.live.now_s
        service.live.requests = Jumps(clock, node, due)
        service.live.requests.service = service
        service.run()
        return service.live.machine, began_s
