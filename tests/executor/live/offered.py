"""Beliefs about the jobs of a made-up story, on devices that no pool has to run."""

from __future__ import annotations

from dovetail.executor.live.devices import Devices
from dovetail.executor.live.job_beliefs import JobBeliefs
from dovetail.executor.live.rounds.policy_view import PolicyView
from dovetail.instances.slowdowns.shares import caps_of


class Offered:
    """A pool that only says which devices it has, and how jobs may share them."""

    def __init__(self, cluster, sharing=lambda same_user: None, allowed=None, reserves=False):
        self.offered, self.sharing, self.reserves = cluster, sharing, reserves
        self.allowed = allowed or (lambda library, model: caps_of(cluster.shares))

    def cluster(self):
        return self.offered


def view_of(machine, cluster, of_workloads, **rules):
    """Return the view of a state machine's jobs on the devices of a cluster."""
    pool = Offered(cluster, **rules)
    beliefs = JobBeliefs(machine, pool, Devices(pool))
    beliefs.of_workloads = of_workloads
    return PolicyView(beliefs)


def offer(view, cluster):
    """Let the pool have other devices, of which the service knows."""
    view.beliefs.pool.offered = cluster
    view.beliefs.devices.news(0.0)
    view.beliefs.devices.take_up()
