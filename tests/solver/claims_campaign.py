"""What explanations say would let a waiting job start, tried: each change is made, and solved.

    python -m tests.solver.claims_campaign --claims 500 --seconds 1500

Rounds of 20 to 60 jobs under every objective, some with hosts, some with jobs that run. Changes
are applied to the data of the instance by code of its own, and the changed round is solved as
``dovetail plan`` does. Counted are the claims ``would start`` by kind, those after which the job
does not start, and how long an explanation took.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

from dovetail.instances.generate import generate
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import OBJECTIVES, ObjectiveName
from dovetail.instances.plan import Plan
from dovetail.solver.explaining.explanations import Change, explain
from dovetail.solver.rounds import solve

Data = dict[str, Any]

_EACH = 6
"""Waiting jobs that are asked for in a round."""

_TRIALS_S = 120.0
"""For solving changed rounds, on a machine that does other things too."""


def round_of(seed: int) -> tuple[Instance, ObjectiveName, bool]:
    """Return a round of 20 to 60 jobs, its objective, and whether running jobs may move."""
    draw = Random(f"claims {seed}")
    instance = generate(
        draw.randint(20, 60),
        seed=seed,
        gangs=draw.random() < 0.6,
        running=draw.choice([0.0, 0.2, 0.4]),
    )
    data = instance.to_data()
    if draw.random() < 0.25:
        for node in data["cluster"]["nodes"]:
            node["host"] = {"cpu_cores": 12}
        for workload in data["workloads"].values():
            workload["host"] = {"cpu_cores": draw.choice([1, 2, 4, 8])}
    return Instance.from_data(data), draw.choice(OBJECTIVES), draw.random() < 0.15


def changed(instance: Instance, change: Change, job: str) -> Instance:
    """Return the instance as a user would write it after the change."""
    data: Data = copy.deepcopy(instance.to_data())
    own = next(each for each in data["jobs"] if each["id"] == job)
    data["jobs"] = [each for each in data["jobs"] if each["id"] not in change.without]
    for each in data["jobs"]:
        if each["id"] in change.gsla:
            each["gsla"] = change.gsla[each["id"]]
    workload = data["workloads"][own["workload"]]
    if change.less_memory_mib:
        workload["memory_mib"] = max(0.0, workload["memory_mib"] - change.less_memory_mib)
        if "batch" in workload:
            fixed = workload["batch"]["fixed_mib"] - change.less_memory_mib
            workload["batch"]["fixed_mib"] = max(0.0, fixed)
    if change.batch_min is not None:
        workload["batch"]["min"] = change.batch_min
    if change.more_gpus is not None:
        gpus = [
            {"id": f"extra-{k}", **change.more_gpus.gpu.to_data()}
            for k in range(change.more_gpus.gpu_count or 0)
        ]
        data["cluster"]["nodes"].append({"id": "extra", "gpus": gpus})
    entries = [*change.measured, *filter(None, [change.isolated])]
    data["slowdowns"] = [*data.get("slowdowns", []), *(entry.to_data() for entry in entries)]
    if change.isolated is not None:
        data["workloads"][change.isolated.workloads[1]]["isolation"] = "blocks"
        shares = data["cluster"].get("shares", [])
        data["cluster"]["shares"] = [*shares, *(["idle"] if "idle" not in shares else [])]
    return Instance.from_data(data)


def kind_of(change: Change) -> str:
    named = {
        "more GPUs": change.more_gpus,
        "ended or waited": change.without,
        "measured": change.measured,
        "isolated": change.isolated,
        "memory": change.less_memory_mib,
        "gsla": change.gsla,
        "sub-batch": change.batch_min,
    }
    return next((name for name, value in named.items() if value), "nothing changed")


def false_claims(
    instance: Instance, objective: ObjectiveName, preempt: bool, seed: int, count: Counter[str]
) -> Iterator[str]:
    """Yield the claims of a round after which the job does not start."""
    plan = solve(instance, objective, preempt=preempt).plan
    waiting = [each.job for each in plan.waiting]
    for job in Random(seed).sample(waiting, min(_EACH, len(waiting))):
        began = time.process_time()
        story = explain(instance, plan, job, trials_s=_TRIALS_S)
        count["explanations"] += 1
        count["CPU ms of explanations"] += round(1000 * (time.process_time() - began))
        for remedy in story.remedies:
            would = remedy.text.startswith("would start")
            assert would == remedy.sure
            kind = kind_of(remedy.change)
            count[f"{'would' if would else 'could'} start: {kind}"] += 1
            if not would:
                continue
            count["would start"] += 1
            again = changed(instance, remedy.change, job)
            if not _starts(solve(again, objective, preempt=preempt, explain=False).plan, job):
                count["FALSE"] += 1
                yield f"{objective}, {job}: {remedy.text}"


def _starts(plan: Plan, job: str) -> bool:
    return any(row.job == job for row in plan.assignments)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--claims", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=math.inf, help="when to end")
    given = parser.parse_args()
    count: Counter[str] = Counter()
    ends, seed = time.monotonic() + given.seconds, given.first
    while count["would start"] < given.claims and time.monotonic() < ends:
        count["rounds"] += 1
        for what in false_claims(*round_of(seed), seed, count):
            print(f"seed {seed}: {what}", flush=True)
        seed += 1
        if count["rounds"] % 5 == 0:
            print(dict(count), flush=True)
    print(dict(count), flush=True)


if __name__ == "__main__":
    main()
