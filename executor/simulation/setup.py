"""Setups and scenarios: a trace in a world under beliefs, as drawn by one seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dovetail.executor.simulation.beliefs import Beliefs, Exact
from dovetail.executor.simulation.history import History
from dovetail.executor.simulation.options import Options
from dovetail.executor.simulation.pool import SimulatedPool, simulate
from dovetail.formulations.rules import largest_gang, modes
from dovetail.instances.instance import Instance
from dovetail.instances.slowdowns.slowdown_table import SlowdownTable
from dovetail.instances.traces.draws import with_gslas, with_workloads
from dovetail.instances.traces.filters import sample
from dovetail.instances.traces.trace import Trace
from dovetail.solver.policies.policy import Policy

_STREAMS: Final = ("jobs", "workloads", "gslas", "beliefs", "options")


@dataclass(frozen=True)
class Scenario:
    """A setup as drawn by one seed; only the policy itself may still draw at random.

    Attributes
    ----------
    trace : Trace
        Every job names a workload of the world.
    world : Instance
        Cluster, workloads, true slowdowns.
    predicted : SlowdownTable
        The slowdowns that policies believe.
    options : Options
        The rules of the simulated world.
    """

    trace: Trace
    world: Instance
    predicted: SlowdownTable
    options: Options

    def require_possible(self) -> None:
        """Raise an InputError that names the first job that can never run, if any."""
        SimulatedPool(self.trace, self.world, self.predicted, self.options)

    def simulate(self, policy: Policy, report: Callable[[int], None] | None = None) -> History:
        """Run the scenario under a new policy; see ``pool.simulate``."""
        return simulate(self.trace, self.world, policy, self.options, self.predicted, report)


@dataclass(frozen=True)
class Setup:
    """A trace, a world and rules, from which each seed draws a scenario.

    Attributes
    ----------
    trace : Trace
        The jobs; missing workloads and gSLAs are drawn.
    world : Instance
        Cluster, workloads, true slowdowns.
    gslas : str
        gSLAs of the jobs without one, as in ``instances.traces.draws.with_gslas``.
    workloads : tuple of str
        Workloads to draw from for jobs that name no workload of the world; empty = all. Those that
        the cluster can hold with the job's number of workers are equally likely.
    sample : int or None
        Number of jobs to draw from the trace; None = all.
    beliefs : Beliefs
        The source of the slowdowns that policies believe.
    options : Options
        The rules of the simulated world; its ``seed`` is drawn.
    """

    trace: Trace
    world: Instance
    gslas: str = "none"
    workloads: tuple[str, ...] = ()
    sample: int | None = None
    beliefs: Beliefs = field(default_factory=Exact)
    options: Options = field(default_factory=Options)

    def scenario(self, seed: int) -> Scenario:
        """Return the scenario of a seed.

        Jobs, workloads, gSLAs, beliefs and failures are drawn from separate streams, so that
        another distribution of gSLAs does not change the workloads. A scenario serves all policies;
        drawing it may fit a predictor, which takes a while.

        Raises
        ------
        InputError, UnsupportedError
            If the beliefs or the draws do not fit the world or the trace.
        """
        seeds = {name: _seed_of(seed, k) for k, name in enumerate(_STREAMS)}
        return Scenario(
            trace=self._drawn(seeds),
            world=self.world,
            predicted=self.beliefs.of(self.world, seeds["beliefs"]),
            options=dataclasses.replace(self.options, seed=seeds["options"]),
        )

    def _drawn(self, seeds: dict[str, int]) -> Trace:
        trace = self.trace
        if self.sample is not None:
            trace = sample(trace, self.sample, seeds["jobs"])
        trace = self._with_workloads(self._known(trace), seeds["workloads"])
        return with_gslas(trace, self.gslas, seeds["gslas"])

    def _with_workloads(self, trace: Trace, seed: int) -> Trace:
        """Return the trace with a workload drawn for each job without one.

        It is drawn from the workloads with which the job fits. A job that fits with none gets any
        workload, and is refused when it is simulated.
        """
        known = self.world.workloads
        names = self.workloads or tuple(known)
        cluster = self.world.cluster
        ways = {name: modes(one, cluster.per_process_mib)[0] for name, one in known.items()}
        largest = {name: largest_gang(cluster, way) for name, way in ways.items()}
        workers = trace.columns.workers
        fitting = {
            count: tuple(name for name in names if count <= largest.get(name, 0)) or names
            for count in np.unique(workers).tolist()
        }
        found = trace.columns.workload
        for each in dict.fromkeys(fitting.values()):
            drawn = with_workloads(trace, each, seed).columns.workload
            wanted = [count for count, among in fitting.items() if among == each]
            found = np.where(np.isin(workers, wanted), drawn, found)
        return trace.altered(workload=found)

    def _known(self, trace: Trace) -> Trace:
        """Return the trace without the workloads that this world does not have."""
        known = self.world.workloads
        named = trace.columns.workload.tolist()
        return trace.altered(workload=[name if name in known else None for name in named])


def _seed_of(seed: int, stream: int) -> int:
    return int(np.random.SeedSequence([seed, stream]).generate_state(1)[0])
