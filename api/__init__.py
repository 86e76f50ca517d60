"""Dovetail decides which GPU jobs share which GPUs, with a proof.

>>> from dovetail import Instance, solve
>>> lab = Instance.build("two on one", reserve_mib=500)
>>> lab.add_node("n0", gpus=1, model="V100", memory_mib=16160)
>>> lab.add_workload("resnet", memory_mib=5000)
>>> lab.add_workload("bert", memory_mib=8000)
>>> lab.add_job("a", "resnet", gsla=1.5)
>>> lab.add_job("b", "bert")
>>> lab.add_slowdown(["resnet", "bert"], [1.25, 1.6])
>>> result = solve(lab)
>>> result.status, round(result.objective, 3)
('optimal', 1.425)
>>> [(a.job, a.gpus, a.co_runners) for a in result.plan.assignments]
[('a', ('n0-0',), (('b',),)), ('b', ('n0-0',), (('a',),))]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.instances._version import VERSION

if TYPE_CHECKING:
    from dovetail.formulations.values import JobValues
    from dovetail.instances.builder import InstanceBuilder
    from dovetail.instances.checking.checker import CheckReport, check
    from dovetail.instances.errors import (
        ArgumentError,
        DovetailError,
        InputError,
        UnsupportedError,
    )
    from dovetail.instances.files import (
        read_instance,
        read_plan,
        write_instance,
        write_plan,
    )
    from dovetail.instances.instance import Instance, Job
    from dovetail.instances.plan import Plan
    from dovetail.predictors import predict
    from dovetail.solver.result import Result
    from dovetail.solver.rounds import solve
    from dovetail.solver.types import Answer

__version__ = VERSION

__all__ = [
    "Answer",
    "ArgumentError",
    "CheckReport",
    "DovetailError",
    "InputError",
    "Instance",
    "InstanceBuilder",
    "Job",
    "JobValues",
    "Plan",
    "Result",
    "UnsupportedError",
    "check",
    "predict",
    "read_instance",
    "read_plan",
    "solve",
    "write_instance",
    "write_plan",
]

_HOME = {
    "dovetail.formulations.values": ("JobValues",),
    "dovetail.instances.builder": ("InstanceBuilder",),
    "dovetail.instances.checking.checker": ("CheckReport", "check"),
    "dovetail.instances.errors": (
        "ArgumentError",
        "DovetailError",
        "InputError",
        "UnsupportedError",
    ),
    "dovetail.instances.files": ("read_instance", "read_plan", "write_instance", "write_plan"),
    "dovetail.instances.instance": ("Instance", "Job"),
    "dovetail.instances.plan": ("Plan",),
    "dovetail.predictors": ("predict",),
    "dovetail.solver.result": ("Result",),
    "dovetail.solver.rounds": ("solve",),
    "dovetail.solver.types": ("Answer",),
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that ``import dovetail`` costs nothing."""
    from importlib import import_module

    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'dovetail' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, also those that were not used yet."""
    return sorted({*__all__, "__version__"})
