"""Fresh tiny rounds of all features against enumeration, as many as there is time for.

    python -m tests.solver.exact_campaign --first 0 --rounds 100000 --seconds 3000

A round has hosts, racks or none, nodes without GPUs, shares and ``idle``, sub-batches, gangs,
running jobs, jobs that speed each other up, declared slowdowns, weights over up to 21 orders of
magnitude, memory in per cent, GPUs under MPS beside time-sliced ones, and any objective, one of
three of our own included; some are preempted. ``auto`` solves each, and often another solver too.
Compared with ``tests.oracle`` are: value, bound, status, certificate, proven ties, and what the
checker says of random plans. Seeds of whatever differs are printed, and in the end how often each
thing was compared.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random

import numpy as np

from dovetail.formulations.values import JobValues
from dovetail.instances.checking.checker import check
from dovetail.instances.errors import UnsupportedError, VerificationError
from dovetail.instances.instance import Instance, Job
from dovetail.instances.objectives import OBJECTIVES, ObjectiveName
from dovetail.instances.plan import Assignment, Plan
from dovetail.solver.result import Result
from dovetail.solver.rounds import solve
from dovetail.solver.verification import verify
from tests.oracle import MINIMISED, TWO_STAGE, Optimum, OwnGain, judged, optimum
from tests.strategies import (
    Shape,
    random_instance,
    with_assumed,
    with_known_power,
    with_mechanisms,
    with_percent,
)

_ALL = Shape(jobs=4, gpus=3, nodes=True, gains=True, hosts=True, drained=True, unready=True)
SHAPES = (
    _ALL,
    replace(_ALL, hosts=False),
    replace(_ALL, hosts=False, models=False, memory=False, sets=False),
    replace(_ALL, hosts=False, models=False, jobs=5, gpus=3, power=False),
    replace(_ALL, whole=False, shares=False, latency=False, batches=False),
    replace(_ALL, gpus=2, jobs=5, gangs=False),
    replace(_ALL, hosts=False, gpus=5, jobs=3, sets=False, shares=False, batches=False),
    replace(_ALL, gpus=5, jobs=3, models=False, memory=False, shares=False, batches=False),
)
SOLVERS = ("matching", "highs", "cpsat", "networkx")
_GAP, _SUMS = 1e-6, 1e-9
"""The gap up to which a plan is called optimal, and what rounding may do to a sum."""


class Fair(JobValues):
    """Log of 1 + weight x rate."""

    def gain(self, job, slowdown, model):
        return np.log1p(super().gain(job, slowdown, model))


class Steep(JobValues):
    """Weight x rate squared."""

    def gain(self, job, slowdown, model):
        return self.weight[job] * (self.round.speed[model][job] / slowdown) ** 2


class Loss(JobValues):
    """Weight x (1.5 - slowdown): below 0 for slow jobs."""

    def gain(self, job, slowdown, model):
        return self.weight[job] * (1.5 - slowdown)


OWN: dict[type[JobValues], OwnGain] = {
    Fair: lambda job, slowdown, speed: math.log1p(job.weight * speed / slowdown),
    Steep: lambda job, slowdown, speed: job.weight * (speed / slowdown) ** 2,
    Loss: lambda job, slowdown, speed: job.weight * (1.5 - slowdown),
}


@dataclass(frozen=True)
class Case:
    """A round, and what is asked of it."""

    instance: Instance
    objective: ObjectiveName
    own: type[JobValues] | None
    solvers: tuple[str, ...]
    preempt: bool
    spans: bool

    @property
    def asked(self) -> ObjectiveName | type[JobValues]:
        return self.own or self.objective

    @property
    def before(self) -> Instance:
        """The round that enumeration solves."""
        return self.instance.preempted() if self.preempt else self.instance


_LATER_OBJECTIVES: dict[int, ObjectiveName] = {5: "completion", 6: "fewest"}
_FIRST_OBJECTIVES = [each for each in OBJECTIVES if each not in _LATER_OBJECTIVES.values()]


def case_of(seed: int) -> Case:
    """Return a random round and what is asked of it."""
    draw = Random(f"exact {seed}")
    wide, widest = draw.random() < 0.2, draw.random() < 0.1
    shape = replace(draw.choice(SHAPES), wide=wide, widest=widest)
    objective, own = draw.choice(_FIRST_OBJECTIVES), None
    # The other seeds keep the objective that they had before there were these.
    objective = _LATER_OBJECTIVES.get(seed % 7, objective)
    if objective == "energy":
        shape = replace(shape, power=True)
    if draw.random() < 0.15:
        objective, own = "throughput", draw.choice(list(OWN))
    solvers = ("auto", draw.choice(SOLVERS)) if draw.random() < 0.3 else ("auto",)
    preempt = draw.random() < 0.1
    instance, spans = random_instance(draw, shape), draw.random() < 0.3
    late = Random(f"declared or in per cent {seed}")
    if objective != "energy" and late.random() < 0.2:
        instance = with_assumed(late, instance)
    if late.random() < 0.2:
        instance = with_percent(late, instance)
    if late.random() < 0.3:
        instance = with_mechanisms(late, instance)
        instance = with_known_power(instance) if objective == "energy" else instance
    return Case(instance, objective, own, solvers, preempt, spans)


def differences(seed: int, count: Counter[str]) -> Iterator[str]:
    """Yield whatever is wrong with the answers to a random round, and count what was compared."""
    yield from differences_in(case_of(seed), f"plans {seed}", count)


def differences_in(case: Case, draw: str, count: Counter[str]) -> Iterator[str]:
    """Do the same for a round; ``draw`` is the seed of the plans that are checked as well."""
    count["rounds"] += 1
    gain = OWN[case.own] if case.own else None
    best = optimum(case.before, case.objective, gain, case.spans)
    for solver in case.solvers:
        try:
            result = solve(case.instance, case.asked, solver, preempt=case.preempt, explain=False)
        except UnsupportedError:
            continue
        count["solved"] += 1
        count[f"by {solver}"] += 1
        count[f"under {case.own.__name__ if case.own else case.objective}"] += 1
        count["optimal"] += result.status == "optimal"
        for what in _wrong(case, result, best, count):
            yield f"{solver}: {what}"
    yield from _wrong_checks(case, Random(draw), count)


def _wrong(case: Case, result: Result, best: Optimum, count: Counter[str]) -> Iterator[str]:
    gain = OWN[case.own] if case.own else None
    if result.plan.stopped == "error":
        yield f"internal error: {result.plan.notes[0]}"
        return
    report = check(case.instance, result.plan, case.objective)
    if not report.valid:
        yield f"invalid: {report.violations[0]}"
    moved = case.before
    value = judged(moved, _started(result.plan, moved), case.objective, gain)
    if value is None or not _close(value, result.objective, case):
        yield f"value {result.objective!r}, enumeration judges {value!r}"
        return
    yield from _wrong_claims(case, result, best, count)
    if result.proof is not None:
        count["certificates"] += 1
        try:
            verify(case.instance, result, case.asked)
        except VerificationError as error:
            yield f"certificate: {error}"
    if case.spans and result.plan.tie_break == "proven" and result.status == "optimal":
        count["ties proven"] += 1
        found = (report.nodes_spanned, report.racks_spanned, report.gpus_used)
        if best.spans is not None and found > best.spans and _equal(case, result, best):
            yield f"tie break: {found}, possible are {best.spans}"


def _started(plan: Plan, instance: Instance) -> Plan:
    """Return the plan as one of jobs that all start but those that run."""
    running = {job.id for job in instance.jobs if job.running}
    rows = tuple(row.replace(start=row.job not in running) for row in plan.assignments)
    return plan.replace(assignments=rows)


def _wrong_claims(case: Case, result: Result, best: Optimum, count: Counter[str]) -> Iterator[str]:
    sign = -1 if case.objective in MINIMISED else 1
    claim = result.plan.objective
    assert claim is not None
    if case.objective in TWO_STAGE:
        placed, most = _weight(result.plan, case), _weight(best.plan, case)
        if placed > most:
            yield f"places {float(placed)!r}, enumeration {float(most)!r}"
        weight_bound = claim.placed_weight_bound
        if weight_bound is not None and weight_bound < float(most) * (1 - _SUMS):
            yield f"false bound on the weight: {weight_bound!r}, possible is {float(most)!r}"
        if result.status == "optimal" and placed < most * (1 - Fraction(1, 10**6)):
            yield f"false optimal: places {float(placed)!r}, possible is {float(most)!r}"
        if placed != most:
            count["lighter, by less than rounding"] += result.status == "optimal"
            return
    rounding = _rounding(case)
    short = sign * (best.value - result.objective)
    if short < -_GAP * abs(best.value) - rounding:
        yield f"better than enumeration: {result.objective!r} against {best.value!r}"
    if result.status == "optimal" and short > 1.01 * _GAP * abs(best.value) + rounding:
        yield f"false optimal: {result.objective!r}, possible is {best.value!r}"
    if result.bound is not None:
        count["bounds"] += 1
        if sign * (best.value - result.bound) > _GAP * abs(best.value) / 10 + rounding:
            yield f"false bound: {result.bound!r}, possible is {best.value!r}"
    if result.status != "optimal":
        count["complete but not proven"] += result.stopped == "complete"


def _weight(plan: Plan, case: Case) -> Fraction:
    jobs = case.instance.jobs_by_id
    return sum((Fraction(repr(jobs[row.job].weight)) for row in plan.assignments), Fraction())


def _equal(case: Case, result: Result, best: Optimum) -> bool:
    return math.isclose(result.objective, best.value, rel_tol=_SUMS) and (
        case.objective not in TWO_STAGE or _weight(result.plan, case) == _weight(best.plan, case)
    )


def _rounding(case: Case) -> float:
    """Return what rounding may do to a value: a part of its largest terms."""
    largest = max((job.weight for job in case.instance.jobs), default=0.0)
    if case.objective == "completion":
        largest *= max((job.remaining_s or 1.0 for job in case.instance.jobs), default=1.0)
    return _SUMS * largest * (1e-3 if case.objective == "jct" else 1)


def _close(value: float, other: float, case: Case) -> bool:
    return math.isclose(value, other, rel_tol=1e-8, abs_tol=_rounding(case))


# -- the checker on random plans ------------------------------------------------------------


def _wrong_checks(case: Case, draw: Random, count: Counter[str]) -> Iterator[str]:
    gain = OWN[case.own] if case.own else None
    for _ in range(3):
        plan = _random_plan(case.instance, draw)
        report = check(case.instance, plan, case.objective)
        value = judged(case.instance, plan, case.objective, gain)
        count["random plans"] += 1
        count["random plans, valid"] += value is not None
        if report.valid != (value is not None):
            why = "valid" if report.valid else str(report.violations[0])
            yield f"the checker says {why!r} and enumeration {value!r} of {plan.to_data()}"
        elif value is not None and gain is None and not _close(value, report.value or 0.0, case):
            yield f"the checker computes {report.value!r}, enumeration {value!r}"


def _random_plan(instance: Instance, draw: Random) -> Plan:
    rows = []
    gpus = list(instance.places)
    for job in instance.jobs:
        if job.running:
            rows.append(_as_it_runs(job))
        elif draw.random() < 0.5 and len(gpus) >= job.workers:
            rows.append(_random_start(instance, job, draw, gpus))
    return Plan(instance=instance.name, assignments=tuple(rows))


def _as_it_runs(job: Job) -> Assignment:
    return Assignment(
        job=job.id, gpus=job.gpus or (), share=job.shares, sub_batch=job.sub_batch, start=False
    )


def _random_start(instance: Instance, job: Job, draw: Random, gpus: list[str]) -> Assignment:
    chosen = tuple(draw.sample(gpus, job.workers))
    shares = [None, None, *instance.cluster.shares]
    batch = instance.workloads[job.workload].batch
    return Assignment(
        job=job.id,
        gpus=chosen,
        share=tuple(draw.choice(shares) for _ in chosen),
        sub_batch=draw.choice([batch.size, batch.size // 2]) if batch else None,
        start=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="when to end")
    given = parser.parse_args()
    count: Counter[str] = Counter()
    ends, began = time.monotonic() + given.seconds, time.process_time()
    for seed in range(given.first, given.first + given.rounds):
        for what in differences(seed, count):
            count["DIFFERENCES"] += 1
            print(f"seed {seed}: {what}", flush=True)
        if time.monotonic() > ends:
            break
        if count["rounds"] % 1000 == 0:
            print(dict(count), f"{time.process_time() - began:.0f} CPU s", flush=True)
    print(dict(count), f"{time.process_time() - began:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
