"""What stops by the policy ``dovetail`` bring and cost in a week of jobs with gSLAs, simulated.

    python benchmarks/stops.py

The shipped trace ``lab-week`` in its synthetic world, as it is and with: restarts of five minutes;
run times believed wrongly (three seeds); no gSLAs; stopped jobs that save nothing at the stop and
fall back to their last checkpoint, of every five or thirty minutes. *restarts* are GPU hours
without progress after stops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from dovetail.executor.simulation import Options, simulate
from dovetail.executor.simulation.metrics import summary
from dovetail.instances.traces import Trace, library_trace, library_world
from dovetail.solver.policies import policy_named

POLICIES = ("tiresias", "dovetail:preempt=false", "dovetail")
TRACE = "lab-week"


def main() -> None:
    print("Simulated.")
    print("week | policy | mean JCT h | p99 h | broken gSLAs % | stops | restarts, GPU h")
    trace = library_trace(TRACE)
    free = trace.replace(dataclasses.replace(job, gsla=None) for job in trace.jobs)
    wrong = [Options(estimate_error=0.5, seed=seed) for seed in range(3)]
    loses = [Options(saves_at_stop=False, checkpoint_s=seconds) for seconds in (300.0, 1800.0)]
    show("as it is", trace, [Options()])
    show("restarts of 300 s", trace, [Options(restart_s=300.0)])
    show("run times err", trace, wrong)
    show("no gSLAs", free, [Options()])
    show("a checkpoint every 5 min", trace, loses[:1])
    show("a checkpoint every 30 min", trace, loses[1:])


def show(name: str, trace: Trace, worlds: Sequence[Options]) -> None:
    """Print a row for each policy: means over these worlds."""
    for policy in POLICIES:
        rows = np.mean([_row(trace, policy, options) for options in worlds], axis=0).tolist()
        figures = zip(rows, (2, 1, 2, 0, 1), strict=True)
        print(name, policy, *(f"{value:.{digits}f}" for value, digits in figures), sep=" | ")


def _row(trace: Trace, policy: str, options: Options) -> list[float]:
    history = simulate(trace, library_world(TRACE), policy_named(policy), options)
    found = summary(history, trace)
    restarts_s = sum(stay.delay_s * len(stay.gpus) for stay in history.stays)
    return [
        found["jct_mean_s"] / 3600,
        found["jct_p99_s"] / 3600,
        100 * found["violation_rate"],
        found["preemptions"],
        restarts_s / 3600,
    ]


if __name__ == "__main__":
    main()
