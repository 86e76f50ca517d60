"""What is simulated: a trace in a world under beliefs, as one seed draws them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dovetail.executor.simulation.beliefs import Beliefs, Exact
from dovetail.executor.simulation.history import History
from dovetail.executor.simulation.options import Options
from dovetail.executor.simulation.run import simulate
from dovetail.formulations.rules import largest_gang
from dovetail.instances.instance import Instance
from dovetail.instances.slowdown_table import SlowdownTable
from dovetail.instances.traces import Trace
from dovetail.instances.traces.draws import with_gslas, with_workloads
from dovetail.instances.traces.filters import sample
from dovetail.solver.policies import Policy

_STREAMS: Final = ("jobs", "workloads", "gslas", "beliefs", "options")


@dataclass(frozen=True)
class Draws:
    """What each seed draws for a trace.

    Attributes
    ----------
    gslas : str
        gSLAs of the jobs that have none, as in ``instances.traces.draws.with_gslas``.
    workloads : tuple of str
        What jobs may run that name no workload of the world; empty = any of it. Each of those
        that the cluster can hold in so many workers is as likely.
    jobs : int or None
        How many jobs to sample from the trace; None = all.
    """

    gslas: str = "none"
    workloads: tuple[str, ...] = ()
    jobs: int | None = None


@dataclass(frozen=True)
class Scenario:
    """One seed of a setup: nothing is left to chance but what a policy draws itself.

    Attributes
    ----------
    trace : Trace
        Every job names a workload of the world.
    world : Instance
        Cluster, workloads, true slowdowns.
    predicted : SlowdownTable
        What policies believe.
    options : Options
        The rules of the world.
    """

    trace: Trace
    world: Instance
    predicted: SlowdownTable
    options: Options

    def simulate(self, policy: Policy) -> History:
        """Run it under a fresh policy; see ``run.simulate``."""
        return simulate(self.trace, self.world, policy, self.options, self.predicted)


@dataclass(frozen=True)
class Setup:
    """What is simulated, for any seed.

    Attributes
    ----------
    trace : Trace
        The jobs; what they do not say is drawn.
    world : Instance
        Cluster, workloads, true slowdowns.
    draws : Draws
        What is drawn for the trace.
    beliefs : Beliefs
        What policies believe of the slowdowns.
    options : Options
        The rules of the world; its ``seed`` is drawn.
    """

    trace: Trace
    world: Instance
    draws: Draws = field(default_factory=Draws)
    beliefs: Beliefs = field(default_factory=Exact)
    options: Options = field(default_factory=Options)

    def scenario(self, seed: int) -> Scenario:
        """Return what a seed draws.

        Jobs, workloads, gSLAs, beliefs and failures have streams of random numbers of their own:
        another distribution of gSLAs leaves the workloads as they are. Fitting a predictor takes
        a while: draw a scenario once for all policies.

        Raises
        ------
        InputError, UnsupportedError
            When the beliefs or the draws do not fit the world or the trace.
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
        if self.draws.jobs is not None:
            trace = sample(trace, self.draws.jobs, seeds["jobs"])
        trace = self._with_workloads(self._known(trace), seeds["workloads"])
        return with_gslas(trace, self.draws.gslas, seeds["gslas"])

    def _with_workloads(self, trace: Trace, seed: int) -> Trace:
        """Return the trace with a workload drawn for each job without, of those it fits with.

        A job that fits with none gets any, and is refused when it is simulated.
        """
        known = self.world.workloads
        names = self.draws.workloads or tuple(known)
        largest = {k: largest_gang(self.world.cluster, known[k].memory_mib) for k in known}
        fitting = {
            workers: tuple(name for name in names if workers <= largest.get(name, 0)) or names
            for workers in {job.workers for job in trace.jobs}
        }
        drawn = {each: with_workloads(trace, each, seed).jobs for each in set(fitting.values())}
        return trace.replace(drawn[fitting[job.workers]][k] for k, job in enumerate(trace.jobs))

    def _known(self, trace: Trace) -> Trace:
        """Return the trace without the workloads that this world does not have."""
        return trace.replace(
            job if job.workload in self.world.workloads else dataclasses.replace(job, workload=None)
            for job in trace.jobs
        )


def _seed_of(seed: int, stream: int) -> int:
    return int(np.random.SeedSequence([seed, stream]).generate_state(1)[0])
