"""The worth of first looks at pairs to ``dovetail``: ``python benchmarks/first_looks.py``.

Simulated: 200 jobs of 5 to 100 minutes of 16 workloads arrive within 17 hours at 8 GPUs, a fifth of
them gangs of two, on the synthetic contention model of ``instances.generate``. A predictor is
fitted on a part of the pairs (``--beliefs``); pairs that run together are measured and then known.

``as it is``: no pair runs to be measured. Under the other rules, while no GPU is idle, a waiting
job joins a running one with which it was never measured, whatever the policy decides: a random
pair, the pair with the least certain slowdowns, or the most valuable pair. Its value is the
expected gain in throughput from choosing with the truth instead of the prediction (the knowledge
gradient of the pair alone) times the number of pairs of waiting jobs that it concerns. As in live
mode, the GPUs spend at most a quarter of their time on looks of five minutes. Mean JCTs are
relative to those with every slowdown known from the start, with standard errors.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import norm

from dovetail.executor.simulation import simulate
from dovetail.executor.simulation.beliefs import beliefs_named
from dovetail.executor.simulation.metrics import summary
from dovetail.instances.generate import generate
from dovetail.instances.traces import Trace, TraceJob
from dovetail.solver.policies import Decision, Start, State, policy_named
from dovetail.solver.policies.draft import Draft

RULES = ("as it is", "random", "uncertain", "worth")
GPUS, WORKLOADS, SPAN_S = 8, 16, 6e4
LOOK_S, PART = 300.0, 4
QUANTILE = float(norm.ppf(0.9))
"""Of the upper bounds of predictions."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--beliefs", default="held-out:auto:0.3")
    asked = parser.parse_args(arguments)
    found = [ran(seed, asked) for seed in range(asked.seeds)]
    print(f"Simulated. Mean JCT over that with exact beliefs; beliefs {asked.beliefs}.")
    for rule in RULES:
        ratio = np.array([of_seed[rule] for of_seed in found])
        error = ratio.std(ddof=1) / np.sqrt(len(ratio)) if len(ratio) > 1 else np.nan
        print(f"{rule:10} {ratio.mean():.3f} ({error:.3f})")


def ran(seed: int, asked: argparse.Namespace) -> dict[str, float]:
    """Return the mean JCT under each rule, relative to that with exact beliefs."""
    world = generate(1, seed=seed, gpus=GPUS, workloads=WORKLOADS, shares=())
    draw = random.Random(seed)
    names = list(world.workloads)
    jobs = [
        TraceJob(
            id=f"j{k}",
            arrival_s=draw.uniform(0, SPAN_S * asked.jobs / 200),
            workers=draw.choice([1, 1, 1, 1, 2]),
            duration_s=draw.uniform(300, 6000),
            workload=draw.choice(names),
            gsla=draw.choice([None, 2.0, 3.0]),
        )
        for k in range(asked.jobs)
    ]
    trace = Trace.of("drawn", jobs)
    believed = beliefs_named(asked.beliefs).of(world, seed)
    exact = summary(simulate(trace, world, policy_named("dovetail")), trace)["jct_mean_s"]
    return {
        rule: summary(simulate(trace, world, Looking(rule, seed), None, believed), trace)[
            "jct_mean_s"
        ]
        / exact
        for rule in RULES
    }


class Looking:
    """The policy ``dovetail``, with first looks before its decisions."""

    def __init__(self, rule: str, seed: int) -> None:
        self._policy = policy_named("dovetail")
        self._rule = rule
        self._draw = random.Random(seed)
        self._next_s = -math.inf

    def decide(self, state: State) -> Decision:
        """Start what is looked at, if anything is due, else what the policy decides."""
        busy = not sum(state.idle_count)
        if self._rule != "as it is" and busy and state.now >= self._next_s:
            best = max(self._open(state), key=lambda one: one[0], default=None)
            if best is not None:
                self._next_s = state.now + PART * LOOK_S / GPUS
                wake_s = math.nextafter(state.now, math.inf)
                return Decision((best[1],), wake_s=wake_s, reserved=state.reserved)
        return self._policy.decide(state)

    def _open(self, state: State) -> Iterator[tuple[float, Start]]:
        """Yield the starts of unmeasured pairs that keep memory and gSLAs, with their ranks."""
        draft, table = Draft(state), state.predicted
        waiting = Counter(job.workload for job in state.pending.values())
        hosts = [
            (gpu, on[0])
            for gpu, on in enumerate(state.residents)
            if len(on) == 1 and on[0].workers == 1 and gpu not in state.reserved_gpus
        ]
        for job in state.pending.values():
            for gpu, host in hosts if job.workers == 1 else ():
                cells = (0, 0, job.workload, host.workload), (0, 0, host.workload, job.workload)
                slowdown, upper = (
                    np.array([of[c] for c in cells]) for of in (table.slowdown, table.upper)
                )
                kept = (upper <= (job.gsla, host.gsla)).all()  # not where they are unknown
                if not state.has_seen(cells[0]) and kept and draft.has_room(gpu, job):
                    error = np.clip(upper - slowdown, 1e-6, 5.0) / QUANTILE
                    concerned = waiting[job.workload] * waiting[host.workload] + 1
                    yield self._rank(slowdown, error, concerned), Start(job, (gpu,))

    def _rank(self, slowdown: np.ndarray, error: np.ndarray, concerned: int) -> float:
        if self._rule == "random":
            return self._draw.random()
        if self._rule == "uncertain":
            return float((error / slowdown).sum())
        # Sharing gains 1 / s + 1 / s' - 1 over one after the other.
        deviation = float(np.linalg.norm(error / slowdown**2))
        x = abs(float((1 / slowdown).sum()) - 1) / deviation
        return concerned * deviation * float(norm.pdf(x) - x * norm.sf(x))


if __name__ == "__main__":
    main()
