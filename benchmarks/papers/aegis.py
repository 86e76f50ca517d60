"""The simulator compared with a real machine: the three traces of AEGIS on three A100.

    python benchmarks/papers/aegis.py FOLDER

FOLDER is a checkout of github.com/ehsanyousefzadehasl/AEGIS. It has no licence, so no part of it is
kept here. Its authors ran 60 training jobs from windows of Philly, Saturn and Venus on three GPUs
of 40 GiB (A100, as their earlier system CARMA says) under several schedulers, once each. The same
jobs are simulated in several ways, which test what explains the differences. Nothing is fitted to
the measured completion times.

- Arrivals are derived: Exclusive takes jobs in the order of submission and solo times are known, so
  a job arrived at its end less its completion time. For this, solo times are stretched by the mean
  execution time of that run over their mean (1.01).
- ``analytic`` slowdowns come from the solo profiles; the table that is read has no PCIe traffic,
  which is treated as none. ``time slices`` is the same model with jobs that take turns on the whole
  GPU, as without MPS. ``pairs`` are those that the authors measured on the same machine. Both jobs
  start together there and one runs on alone, which is subtracted; pairs that share less than half
  of the longer run are left out. The rest is predicted by ``hierarchical``, fitted to these pairs.
- ``as run``: the rules in the repository's scheduler. Horus shares a GPU up to 100 % of utilisation
  in sum, among any number of jobs; Lucid starts jobs in the order of arrival, with the published
  sharing scores.

A fourth trace ran on an older machine of eight RTX 2080 Ti. Its arrivals are published, its metrics
are those of ``nvidia-smi``: time slices only.

AEGIS's own policies decide by telemetry of running jobs, which is not published: they are not
simulated. ``dovetail`` never ran on that machine.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from aegis_data import (
    GPU_MODEL,
    GPUS,
    OLDER,
    TRACES,
    Times,
    measured,
    measured_pairs,
    older,
    profiled,
    trace_of,
)
from runs import end_in_one_line, print_table

from dovetail import predict
from dovetail.executor.simulation import Options, simulate
from dovetail.executor.simulation.metrics import job_table, summary
from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.instance import Instance, Job
from dovetail.instances.metrics import Metrics
from dovetail.instances.traces.trace import Trace
from dovetail.papers.policies.open_gpus import OpenGpus
from dovetail.predictors.fitted.training import fit
from dovetail.predictors.predictor import Predictor
from dovetail.solver.policies import Decision, Policy, State, policy_named, state
from dovetail.solver.policies.draft import Draft
from dovetail.solver.policies.placement import idle_gpus

GUARD_MIB: Final = 2048.0
"""Memory that Lucid as run keeps free on a shared GPU."""
MOST: Final = 8
"""Jobs on a GPU under Horus as run, which has no limit."""


class Case(NamedTuple):
    """One way to simulate the traces."""

    slowdowns: str
    as_run: bool = False
    round_s: float = 0.0
    memory: bool = True


CASES: Final = {
    "as documented": Case("analytic"),
    "as documented, pairs": Case("pairs"),
    "as documented, decisions every 30 s": Case("analytic", round_s=30.0),
    "as documented, no memory limit": Case("analytic", memory=False),
    "as run": Case("analytic", as_run=True),
    "as run, no slowdown": Case("none", as_run=True),
    "as run, time slices": Case("time slices", as_run=True),
    "as run, pairs": Case("pairs", as_run=True),
    "as run, pairs, decisions every 30 s": Case("pairs", as_run=True, round_s=30.0),
}
"""30 s is the monitoring window, for which a GPU takes no other job after a start."""


@dataclass(frozen=True)
class LucidAsRun:
    """Jobs in the order of arrival, on idle GPUs or with one job whose score leaves room.

    ``scores`` are the published sharing scores by workload: two may sum to 2.
    """

    scores: Sequence[int]

    def decide(self, state: State) -> Decision:
        """Start jobs from the head of the queue until one finds no place."""
        draft = Draft(state)
        open_gpus = OpenGpus(draft)
        for job in sorted(state.pending.values(), key=lambda job: job.number):
            gpus = idle_gpus(draft, job)
            if gpus is None:
                offer = open_gpus.cheapest(job, partial(self._cost, state))
                if offer is None:
                    break
                gpus = offer[1]
            open_gpus.start(job, gpus)
        return draft.decision()

    def _cost(self, now: State, job: state.Job, residents: Sequence[state.Job], gpu: int) -> float:
        score = sum(self.scores[one.workload] for one in (job, *residents))
        memory = now.used_mib(gpu, (job, *residents)) / GUARD_MIB
        most = now.machines.memory_mib[gpu] / GUARD_MIB
        full = len(residents) > 1 or score > 2 or memory > most - 1
        return math.inf if residents and full else score * most + memory


def main() -> None:
    """Print the measured ratios, and those of every case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a checkout of AEGIS")
    folder = parser.parse_args().folder
    times = {trace: measured(folder, trace) for trace in TRACES}
    traces = {trace: trace_of(folder, trace, times[trace]["exclusive"][2]) for trace in TRACES}
    world, scores = profiled(folder)
    pairs = list(measured_pairs(folder, world))
    worlds = {
        "analytic": _filled(world),
        "time slices": _filled(_sliced(world)),
        "pairs": _with_pairs(world, pairs),
    }
    worlds["none"] = worlds["analytic"].replace(
        slowdowns=[e.replace(slowdown=(1.0, 1.0)) for e in worlds["analytic"].slowdowns]
    )
    _print_slowdowns(worlds, pairs)
    real = {trace: _ratios(found) for trace, found in times.items()}
    _print("measured", real)
    gaps = []
    for title, case in CASES.items():
        runs = {
            name: _simulated(trace, worlds[case.slowdowns], case, scores)
            for name, trace in traces.items()
        }
        found = {name: _ratios(run) for name, run in runs.items()}
        _print(f"simulated, {title}", found)
        gaps.append([title, *_gaps(found, real)])
    head = ["simulated less measured, mean and largest amount", "makespan", "JCT", "execution"]
    print_table("gaps", head, gaps)
    trace, machine, older_scores = older(folder)
    case = Case("time slices", as_run=True)
    runs[OLDER] = _simulated(trace, _filled(_sliced(machine)), case, older_scores)
    times[OLDER] = measured(folder, OLDER)
    _print("measured, older machine", {OLDER: _ratios(times[OLDER])})
    _print("simulated, older machine, as run, time slices", {OLDER: _ratios(runs[OLDER])})
    body = []
    for name, run in runs.items():
        both = zip(run["exclusive"], times[name]["exclusive"], strict=True)
        body.append([name, *(f"{a / b:.2f}" for a, b in both)])
    print_table("Exclusive, simulated over measured", ["trace", *head[1:]], body)


def _filled(world: Instance, predictor: str | Predictor = "analytic") -> Instance:
    """Return the world with predictions for the pairs without an entry."""
    jobs = tuple(Job(id=f"{name}-{k}", workload=name) for name in world.workloads for k in "ab")
    return predict(world.replace(jobs=jobs), predictor).replace(jobs=())


def _sliced(world: Instance) -> Instance:
    """Return the world whose jobs occupy the whole GPU in turn."""
    sliced = {}
    for name, workload in world.workloads.items():
        metrics = workload.metrics or Metrics()
        turns = metrics.replace(sm_active=metrics.gpu_util, dram_active=0.0)
        sliced[name] = workload.replace(metrics=turns)
    return world.replace(workloads=sliced)


def _with_pairs(world: Instance, pairs: Sequence[Measurement]) -> Instance:
    profiles = tuple(
        SoloProfile(workload=name, gpu_model=GPU_MODEL, family=w.family, metrics=w.metrics)
        for name, w in world.workloads.items()
    )
    data = DataSet(name="aegis", profiles=profiles, measurements=tuple(pairs))
    entries = data.instance(GPU_MODEL, GPUS).slowdowns
    return _filled(world.replace(slowdowns=entries), fit(data, "hierarchical"))


def _simulated(trace: Trace, world: Instance, case: Case, scores: Sequence[int]) -> Times:
    if not case.memory:
        free = {name: w.replace(memory_mib=0.0) for name, w in world.workloads.items()}
        world = world.replace(workloads=free)
    crowded = world.replace(cluster=world.cluster.replace(max_jobs_per_gpu=MOST))
    runs: dict[str, tuple[Policy, Instance]] = {
        "exclusive": (policy_named("dedicated"), world),
        "horus": (policy_named("horus"), world),
        "lucid": (policy_named("lucid"), world),
        "dovetail": (policy_named("dovetail"), world),
    }
    if case.as_run:
        runs["horus"] = policy_named("horus:most_util=1"), crowded
        runs["lucid"] = LucidAsRun(scores), world
    found = {}
    for name, (policy, place) in runs.items():
        history = simulate(trace, place, policy, Options(round_s=case.round_s))
        figures = summary(history, trace)
        held_s = float(job_table(history, trace)["held_s"].mean())
        found[name] = [figures["makespan_s"], figures["jct_mean_s"], held_s]
    return found


def _ratios(times: Times) -> Times:
    alone = times["exclusive"]
    shared = {name: found for name, found in times.items() if name != "exclusive"}
    return {
        name: [a / b for a, b in zip(found, alone, strict=True)] for name, found in shared.items()
    }


def _print(title: str, found: Mapping[str, Times]) -> None:
    body = [
        [policy, *(" / ".join(f"{x:.2f}" for x in ratios[policy]) for ratios in found.values())]
        for policy in next(iter(found.values()))
    ]
    print_table(f"{title}: makespan / JCT / execution over Exclusive", ["policy", *found], body)


def _gaps(found: Mapping[str, Times], real: Mapping[str, Times]) -> list[str]:
    rows = [
        [abs(a - b) for a, b in zip(found[trace][policy], ratios, strict=True)]
        for trace, policies in real.items()
        for policy, ratios in policies.items()
    ]
    return [f"{fmean(column):.3f}, {max(column):.3f}" for column in zip(*rows, strict=True)]


def _print_slowdowns(worlds: Mapping[str, Instance], pairs: Sequence[Measurement]) -> None:
    body = []
    for name in ("none", "analytic", "time slices"):
        known = {entry.workloads: entry.slowdown for entry in worlds[name].slowdowns}
        both = []
        for pair in pairs:
            said = known.get(pair.workloads) or tuple(reversed(known[pair.workloads[::-1]] or ()))
            both += zip(said, pair.slowdown or (), strict=True)
        means = [f"{fmean(side):.2f}" for side in zip(*both, strict=True)]
        body.append([name, *means, f"{fmean(abs(a - b) for a, b in both):.2f}"])
    head = ["model", "mean predicted", "mean measured", "mean amount of the error"]
    print_table("slowdowns of the measured pairs", head, body)


if __name__ == "__main__":
    end_in_one_line(main)
