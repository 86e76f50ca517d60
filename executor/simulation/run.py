"""One simulation from beginning to end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.executor.rounds import run_rounds
from dovetail.executor.simulation.history import History
from dovetail.executor.simulation.options import Options
from dovetail.executor.simulation.pool import SimulatedPool
from dovetail.instances.instance import Instance
from dovetail.instances.slowdown_table import SlowdownTable
from dovetail.instances.traces import Trace
from dovetail.solver.policies import Decision, Policy, State
from dovetail.solver.policies.policy import decided


def simulate(
    trace: Trace,
    world: Instance,
    policy: Policy,
    options: Options | None = None,
    predicted: SlowdownTable | None = None,
    told: Callable[[int], None] | None = None,
) -> History:
    """Run a trace under a policy and return what happened.

    Parameters
    ----------
    trace : Trace
        The jobs; each names a workload of ``world``.
    world : Instance
        Cluster, workloads and the true slowdowns; its jobs are not read.
    policy : Policy
        A fresh one: policies remember.
    options : Options, optional
        The rules of the world.
    predicted : SlowdownTable, optional
        What the policy sees of slowdowns; None = the truth.
    told : callable, optional
        Is told before every decision how many jobs have ended.

    Raises
    ------
    InputError
        When a job of the trace can never run.
    PolicyError
        When the policy breaks a rule or leaves jobs waiting for ever.
    """
    seen = SlowdownTable.of(world) if predicted is None else predicted
    pool = SimulatedPool(trace, world, seen, options or Options())
    run_rounds(pool, policy if told is None else _Watched(policy, pool, told))
    return pool.history


@dataclass(frozen=True)
class _Watched:
    """A policy that tells how far its pool is."""

    policy: Policy
    pool: SimulatedPool
    told: Callable[[int], None]

    def decide(self, state: State) -> Decision:
        self.told(self.pool.ended)
        return decided(self.policy, state)
