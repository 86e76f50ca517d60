"""The same 12 jobs as real processes on the ``cpu`` pool and in the simulator.

    python benchmarks/live/against_simulation.py [--seconds 12] [--devices 1] [--policy dovetail]

Three kinds of small loops (they compute, wait as for data, or both) run twice. The first round
gives the service their profiles and slowdowns; mean JCT and makespan are taken from the second.
The simulator then gets the same jobs with the measurements so far. Processor cores stand in for
GPUs, and other load on the machine distorts the measurements.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import psutil
from faults import state_directory
from load import ME
from service_process import Cores, ServiceProcess, Setup

from dovetail.executor.jobs.journal import read_state_machine
from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.simulation import Options, simulate
from dovetail.instances.datasets import Repository
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.instance import Instance, Workload
from dovetail.instances.slowdowns.entry import SlowdownEntry
from dovetail.instances.traces import Trace, TraceJob
from dovetail.solver.policies import policy_named

_KINDS: Final = {"compute": (1.0, 0.0), "load": (0.25, 0.75), "both": (0.5, 0.5)}
"""The parts of a step in which a kind computes and waits."""

_STEP_S: Final = 0.04
_LOOP: Final = """\
import sys, time
steps, turns, wait_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
for step in range(1, steps + 1):
    for _ in range(turns): pass
    if wait_s: time.sleep(wait_s)
    print("step", step, flush=True)
"""
_WATCHING: Final = WatchOptions(
    warm_up_s=0.5, settle_s=0.3, profile_s=3.0, window_s=2.0, window_most_s=8.0
)
_ROUND: Final = 12
_LOOK_S: Final = 0.1


class Figures(NamedTuple):
    """Mean seconds from submission to end, and from the first submission to the last end."""

    mean_jct_s: float
    makespan_s: float


def main() -> None:
    """Print both, and how far they are apart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="of a job alone, about")
    parser.add_argument("--devices", type=int, default=1, help="cores that jobs run on")
    parser.add_argument("--policy", default="dovetail")
    options = parser.parse_args()
    _tell_load("began")
    turns = _turns_per_s()
    jobs = [_spec(kind, options.seconds, turns) for kind in [*_KINDS] * (_ROUND // len(_KINDS))]
    with state_directory() as directory:
        setup = Setup(
            directory, Cores(options.devices), options.policy, watching=_WATCHING, sample_s=0.25
        )
        service = ServiceProcess(setup)
        try:
            for _ in range(2):
                ids = _run_round(service, jobs)
            cluster = service.ask("instance").cluster
        finally:
            service.stop()
        known = Repository(directory / "repository.db").data_set()
        real, launch_s = _real(directory, ids), _launch_s(directory, ids)
    world = _world(known, cluster)
    simulated = _simulated(world, jobs, options.policy)
    _tell_load("ended")
    print(f"from a decision to every rank's run: {launch_s:.2f} s (mean), in the simulator 0 s")
    for entry in world.slowdowns:
        print(f"  {' with '.join(entry.workloads)}: {entry.slowdown}")
    for name, mine, theirs in zip(("mean JCT", "makespan"), real, simulated, strict=True):
        print(f"{name}: {mine:.1f} s real, {theirs:.1f} s simulated ({theirs / mine - 1:+.1%})")


def _tell_load(when: str) -> None:
    load = psutil.getloadavg()[0]
    print(
        f"load average when the jobs {when}: {load:.1f} on {psutil.cpu_count()} cores", flush=True
    )


def _turns_per_s() -> float:
    """Return how many empty turns of a loop a core does in a second of CPU time."""
    turns, began = 2_000_000, time.process_time()
    for _ in range(turns):
        pass
    return turns / (time.process_time() - began)


def _spec(kind: str, seconds: float, turns_per_s: float) -> JobSpec:
    computes, waits = _KINDS[kind]
    turns, wait_s = round(computes * _STEP_S * turns_per_s), waits * _STEP_S
    steps = round(seconds / _STEP_S)
    return JobSpec(
        command=(sys.executable, "-S", "-c", _LOOP, str(steps), str(turns), str(wait_s)),
        workload=kind,
        owner=ME,
        cwd="/",
        estimate_s=seconds,
        progress_pattern=r"step (\d+)",
    )


def _run_round(service: ServiceProcess, jobs: Sequence[JobSpec]) -> tuple[str, ...]:
    """Submit all at once and wait until they are over; return their ids."""
    ids: tuple[str, ...] = service.ask("submit", list(jobs), ME)
    while service.ask("jobs"):
        time.sleep(_LOOK_S)
    return ids


def _real(directory: Path, ids: Sequence[str]) -> Figures:
    jobs = [read_state_machine(directory).jobs[name] for name in ids]
    if any(job.state is not JobState.FINISHED for job in jobs):
        sys.exit("a job did not finish: " + "; ".join(f"{job.id}: {job.why}" for job in jobs))
    first = min(job.submitted_s for job in jobs)
    return Figures(
        statistics.mean(job.since_s - job.submitted_s for job in jobs),
        max(job.since_s for job in jobs) - first,
    )


def _launch_s(directory: Path, ids: Sequence[str]) -> float:
    """Return the mean seconds that jobs were starting."""
    jobs = [read_state_machine(directory).jobs[name] for name in ids]
    return statistics.mean(
        after.at_s - step.at_s
        for job in jobs
        for step, after in pairwise(job.history)
        if step.state is JobState.STARTING
    )


def _world(known: DataSet, cluster: object) -> Instance:
    """Return the cluster with the workloads and the mean slowdowns of each pair measured."""
    measured: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for found in known.measurements:
        if found.slowdown is None or len(found.workloads) != 2 or any(found.shares):
            continue
        pair = sorted(zip(found.workloads, found.slowdown, strict=True))
        measured[pair[0][0], pair[1][0]].append((pair[0][1], pair[1][1]))
    entries = [_entry(pair, values) for pair, values in sorted(measured.items())]
    workloads = {
        profile.workload: Workload(
            memory_mib=profile.memory_mib or 0.0,
            metrics=profile.metrics,
            throughput={100: profile.throughput},
        )
        for profile in known.profiles
        if profile.throughput and profile.share is None
    }
    return Instance(
        name="measured", cluster=cluster, workloads=workloads, jobs=(), slowdowns=tuple(entries)
    )


def _entry(pair: tuple[str, str], values: Sequence[tuple[float, float]]) -> SlowdownEntry:
    mine, theirs = (statistics.mean(side) for side in zip(*values, strict=True))
    if pair[0] == pair[1]:
        mine = theirs = (mine + theirs) / 2
    return SlowdownEntry(pair=pair, slowdown=(mine, theirs))


def _simulated(world: Instance, jobs: Sequence[JobSpec], policy: str) -> Figures:
    trace = Trace(
        "round",
        tuple(
            TraceJob(f"j{k}", 0.0, 1, _alone_s(world, spec), _name(spec))
            for k, spec in enumerate(jobs)
        ),
    )
    history = simulate(trace, world, policy_named(policy), Options())
    ends = [outcome.finish_s for outcome in history.outcomes]
    return Figures(statistics.mean(ends), max(ends))


def _name(spec: JobSpec) -> str:
    return f"{spec.owner.name}/{spec.workload}"


def _alone_s(world: Instance, spec: JobSpec) -> float:
    return int(spec.command[4]) / world.workloads[_name(spec)].throughput[100]


if __name__ == "__main__":
    main()
