"""What the parts of the live service may ask of each other.

All other data that they share is in `Live`. Rounds and observation ask nothing of each other.
"""

from __future__ import annotations

from typing import Protocol

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.live.views import ServiceView
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Plan


class RoundsForUsers(Protocol):
    """What requests ask of rounds; thread-safe.

    ``audience`` is the only user whose workloads may be named; empty: all users' may.
    """

    def noted(self, service: ServiceView) -> ServiceView:
        """Return the view of the service with the last decision and the evidence for shares."""

    def waiting_for(self, job: LiveJob) -> str:
        """Return what a waiting job lacks; empty for other jobs."""

    def why_capped(self, job: LiveJob) -> str:
        """Return why a run has an SM share, if a co-runner is the reason; empty if none is."""

    def explain(self, job: LiveJob, audience: str = "") -> str:
        """Return why a job waits and what would let it start, or where it runs."""

    def instance(self, audience: str = "") -> Instance:
        """Return the present round."""

    def plan(self, audience: str = "") -> Plan:
        """Return a plan of the policy's present decision."""


class Troubled(Protocol):
    """A part that may fail without the service's failing."""

    @property
    def trouble(self) -> str:
        """What is wrong; empty if nothing is."""
