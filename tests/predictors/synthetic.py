"""A data set of synthetic workloads in families: nothing in it is measured."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np

from dovetail.instances.datasets import DataSet, Measurement, SoloProfile

GPU = "made-up"


def synthetic(families=6, each=2, seed=0, noise=0.02, skipped=0.0):
    """Return workloads whose slowdowns follow from two hidden traits, and noise.

    ``a`` slows down by ``compute_a * compute_b + memory_a * memory_b`` and by a habit of its
    own. ``skipped`` is the part of the pairs that is left out.
    """
    draw = np.random.default_rng(seed)
    names = [f"f{f} b{k}" for f in range(families) for k in range(each)]
    compute = np.repeat(draw.uniform(0.1, 0.8, families), each) + draw.uniform(0, 0.1, len(names))
    memory = np.repeat(draw.uniform(0.0, 0.6, families), each) + draw.uniform(0, 0.1, len(names))
    habit = draw.normal(0.0, 0.03, len(names))
    profiles = [
        SoloProfile(
            workload=name,
            family=name.split()[0],
            gpu_model=GPU,
            metrics={"sm_active": min(1.0, compute[k]), "dram_active": min(1.0, memory[k])},
            throughput=float(10 * (k + 1)),
            memory_mib=1000.0,
        )
        for k, name in enumerate(names)
    ]

    def slowdown(a, b):
        shared = compute[a] * compute[b] + memory[a] * memory[b]
        return float(max(0.5, 1 + shared + habit[a] + noise * draw.standard_normal()))

    pairs = combinations_with_replacement(range(len(names)), 2)
    measurements = [
        Measurement(
            workloads=(names[a], names[b]),
            gpu_model=GPU,
            slowdown=(slowdown(a, b), slowdown(b, a)),
        )
        for a, b in pairs
        if draw.uniform() >= skipped
    ]
    return DataSet(name="synthetic", profiles=profiles, measurements=measurements)
