"""Starting capped, trying splits, three and four jobs a GPU: ``python benchmarks/capped.py``.

Simulated under policy ``dovetail``; means over seeds.

``start``: the world of ``library:h200-16`` (pairs of eight workloads measured on an H200, without
caps and at 50/50) and 400 jobs of the synthetic ``library:h200-week`` in order. A part of the pairs
is hidden, a model fitted on the rest predicts them. *uncapped* lets pairs that were not measured
share without caps on any prediction, *capped* only if by its bounds neither is slowed more than if
they took turns.

``trials``: synthetic worlds of 12 workloads at all splits, 8 GPUs, 100 jobs at once; predictions
err by a log-normal factor that is the same at all splits of a pair. *as predicted* takes
measurements for the split where they were made only, *tried* for the others, too.

``sets``: the same worlds with at most 2, 3 and 4 jobs a GPU, slowdowns known.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from statistics import fmean
from unittest.mock import patch

from dovetail.executor.simulation import Options, simulate
from dovetail.executor.simulation.beliefs import Beliefs, Exact, HeldOutBeliefs, LogNormalNoise
from dovetail.executor.simulation.metrics import summary
from dovetail.executor.simulation.worlds import synthetic_world
from dovetail.instances.instance import Instance
from dovetail.instances.traces import Trace, TraceJob, library_trace, library_world
from dovetail.instances.traces.draws import with_workloads
from dovetail.solver.policies import policy_named
from dovetail.solver.policies.beliefs import BelievedSlowdowns

JOBS = 400
AT_ONCE = 100


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[*PARTS], choices=[[], *PARTS])
    parser.add_argument("--seeds", type=int, help="default: 2 for start, else 3")
    given = parser.parse_args(arguments)
    for part in given.parts:
        PARTS[part](given.seeds or (2 if part == "start" else 3))


def start(seeds: int) -> None:
    """Print what starting capped changes where pairs are hidden."""
    where, jobs = library_world("h200-week"), library_trace("h200-week")
    jobs = jobs.replace(jobs.jobs[:JOBS])
    for known in (0.25, 0.5):
        for model in ("kernels", "hierarchical"):
            beliefs = HeldOutBeliefs(model, known)
            for name, free in (("uncapped", True), ("capped", False)):
                made = where.replace(cluster=where.cluster.replace(uncapped=free))
                figures = [_simulated(jobs, made, beliefs, seed) for seed in range(seeds)]
                _told(f"{model}, {known:.0%} known, {name}", figures)


def trials(seeds: int) -> None:
    """Print what the measurements at one split say of the others."""
    for sigma in (0.0, 0.15, 0.3):
        beliefs = LogNormalNoise(sigma) if sigma else Exact()
        for name in ("as predicted", "tried"):
            figures = []
            for seed in range(seeds):
                made = synthetic_world(12, 1, splits=True, seed=seed)
                if name == "tried":
                    figures.append(_simulated(_burst(made, seed), made, beliefs, seed))
                    continue
                with patch.object(BelievedSlowdowns, "_correct_untried", lambda book, seen: None):
                    figures.append(_simulated(_burst(made, seed), made, beliefs, seed))
            _told(f"errors of {sigma:.0%}, {name}", figures)


def sets(seeds: int) -> None:
    """Print what three and four jobs a GPU are worth."""
    for most in (2, 3, 4):
        figures = []
        for seed in range(seeds):
            made = synthetic_world(12, 1, splits=True, seed=seed)
            made = made.replace(cluster=made.cluster.replace(max_jobs_per_gpu=most))
            figures.append(_simulated(_burst(made, seed), made, Exact(), seed))
        _told(f"at most {most}", figures)


PARTS: dict[str, Callable[[int], None]] = {"start": start, "trials": trials, "sets": sets}


def _burst(where: Instance, seed: int) -> Trace:
    """Return jobs of one GPU that all come at once."""
    jobs = [
        TraceJob(f"j{k}", 0.0, 1, 600.0 + 3000.0 * (k * 7919 % AT_ONCE) / AT_ONCE, None)
        for k in range(AT_ONCE)
    ]
    return with_workloads(Trace.of("burst", jobs), sorted(where.workloads), seed)


def _simulated(jobs: Trace, where: Instance, beliefs: Beliefs, seed: int) -> dict[str, float]:
    policy, options = policy_named("dovetail"), Options(seed=seed)
    history = simulate(jobs, where, policy, options, beliefs.of(where, seed))
    return summary(history, jobs)


def _told(what: str, figures: Sequence[dict[str, float]]) -> None:
    def mean(name: str) -> float:
        return fmean(figure[name] for figure in figures)

    print(
        f"{what:40s} mean JCT {mean('jct_mean_s') / 3600:7.3f} h, "
        f"makespan {mean('makespan_s') / 3600:7.2f} h, "
        f"slowdown {mean('slowdown_mean'):5.3f} (99 %: {mean('slowdown_p99'):5.2f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
