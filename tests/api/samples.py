"""Plans that tests of the tables and of the report show."""

from __future__ import annotations

from functools import cache

from dovetail.instances.generate import generate
from dovetail.instances.instance import Instance
from dovetail.instances.library import load
from dovetail.instances.plan import Plan
from dovetail.planning.comparison import PlanComparison, compare
from dovetail.solver.rounds import solve
from tests.data import small

HOSTILE = '<script>alert("1")</script>" onload="alert(2) & [bold]x[/bold]'
"""A name that is code to a browser and markup to a terminal, where it is not kept as text."""


@cache
def lab() -> tuple[Instance, Plan, PlanComparison]:
    """Return the shipped lab, planned by the queue's greedy, and its comparison."""
    instance = load("lab")
    plan = solve(instance, solver="greedy").plan
    return instance, plan, compare(instance, plan)


@cache
def large() -> tuple[Instance, Plan]:
    """Return 1,000 jobs planned on 200 GPUs."""
    instance = generate(1000, seed=1, gpus=200, workloads=12, shares=(), running=0.05)
    return instance, solve(instance, solver="greedy").plan


def named(name: str) -> tuple[Instance, Plan]:
    """Return a plan in which a running gang shares a GPU and a job waits, all named alike."""
    gang = {"id": f"{name} 1", "workers": 2, "state": "running"}
    instance = small(
        [
            {**gang, "gpus": ["g-0", "g-1"], "gsla": 1.5},
            {"id": f"{name} 2", "gsla": 2.0},
            {"id": f"{name} 3", "workers": 3},
        ],
        [{"pair": ["a", "a"], "slowdown": [1.25, 1.25], "upper": [1.5, 1.5]}],
    )
    renamed = instance.to_data()
    renamed["name"] = name
    renamed["workloads"] = {name: renamed["workloads"]["a"]}
    renamed["jobs"] = [{**job, "workload": name} for job in renamed["jobs"]]
    renamed["slowdowns"][0]["pair"] = [name, name]
    renamed["cluster"]["nodes"][0]["id"] = name
    renamed["jobs"][0]["gpus"] = [f"{name}-0", f"{name}-1"]
    instance = Instance.from_data(renamed)
    plan = solve(instance).plan
    return instance, plan.replace(notes=(f"note on {name}",))
