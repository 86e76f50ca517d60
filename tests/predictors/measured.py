"""A synthetic data set whose slowdowns follow a formula that models can learn."""

from __future__ import annotations

from itertools import combinations_with_replacement

from dovetail.instances.datasets import DataSet, Measurement, SoloProfile
from dovetail.instances.metrics import Metrics

VARIANTS = 2


def measured(gpu_models=("V100",), families=4):
    """Return workloads of some families, two variants each, and all their pairs.

    A job is slowed by ``1 + 0.8 * its gpu_util * the co-runner's gpu_util`` on a V100, half as
    much on other GPU models.
    """
    util = {
        f"f{f} v{v}": 0.15 + 0.8 * (f * VARIANTS + v) / (families * VARIANTS)
        for f in range(families)
        for v in range(VARIANTS)
    }
    return DataSet(
        name="synthetic",
        profiles=tuple(
            SoloProfile(
                workload=name,
                gpu_model=model,
                family=name.split()[0],
                metrics=Metrics(gpu_util=value, mem_util=value / 2),
                throughput=100 * value,
                memory_mib=1000.0 + 100 * k,
            )
            for model in gpu_models
            for k, (name, value) in enumerate(util.items())
        ),
        measurements=tuple(
            Measurement(
                workloads=pair,
                gpu_model=model,
                slowdown=tuple(1 + _factor(model) * util[pair[0]] * util[pair[1]] for _ in pair),
            )
            for model in gpu_models
            for pair in combinations_with_replacement(util, 2)
        ),
    )


def _factor(model):
    return 0.8 if model == "V100" else 0.4
