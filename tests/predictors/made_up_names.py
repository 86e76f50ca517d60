"""A made-up set of workloads known by name alone: nothing in it is measured.

Each workload suffers on two resources and causes contention on them; what it suffers and causes
has a heavy tail (log-normal), and both are multiplied, so that a few pairs are slowed several times
as much as the median. Nothing but the pairs tells workloads apart: no profile, family or batch
size. A model that knows only what workloads do on average, or only measured pairs, errs.

``python -m tests.predictors.made_up_names`` writes ``made-up-names/pairs.csv`` again.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np

from dovetail.instances.datasets import DataSet, Measurement, read_dataset, write_dataset

FOLDER = Path(__file__).parent / "made-up-names"
GPU = "made-up"
WORKLOADS, RESOURCES = 30, 2
TAIL, SCALE, NOISE = 1.0, 0.1, 0.05
"""Standard deviation of the logarithms of what is suffered and caused; the median of their
product; and the standard deviation of the logarithm of a measurement."""


def made(seed: int = 1) -> DataSet:
    """Return the set, drawn again."""
    draw = np.random.default_rng(seed)
    shape = (WORKLOADS, RESOURCES)
    suffers, causes = (np.exp(TAIL * draw.standard_normal(shape)) for _ in range(2))
    noise = np.exp(NOISE * draw.standard_normal((WORKLOADS, WORKLOADS)))
    slowdown = (1 + SCALE * suffers @ causes.T) * noise
    measurements = [
        Measurement(
            workloads=(f"w{a:02}", f"w{b:02}"),
            gpu_model=GPU,
            slowdown=(round(float(slowdown[a, b]), 4), round(float(slowdown[b, a]), 4)),
        )
        for a, b in combinations_with_replacement(range(WORKLOADS), 2)
    ]
    return DataSet(name=FOLDER.name, measurements=measurements)


def committed() -> DataSet:
    """Return the set as it is committed."""
    return read_dataset(FOLDER)


if __name__ == "__main__":
    write_dataset(made(), FOLDER)
