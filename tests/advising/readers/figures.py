"""What a series says of a job, written out in plain Python: the second calculation of the tests."""

from __future__ import annotations

import itertools
from statistics import median_low


def weights_of(times):
    """Weigh each moment by the time to the next: at most two usual intervals, the last one."""
    steps = [later - now for now, later in itertools.pairwise(times)]
    if not steps:
        return [1.0]
    usual = median_low(steps)
    return [min(step, 2 * usual) for step in steps] + [usual]


def figures_of(times, values):
    """Return mean, p95 and maximum over time."""
    weights = weights_of(times)
    total = sum(weights)
    mean = sum(w * x for w, x in zip(weights, values, strict=True)) / total
    below, p95 = 0.0, None
    for value, weight in sorted(zip(values, weights, strict=True)):
        below += weight
        if p95 is None and below >= 0.95 * total * (1 - 1e-12):
            p95 = value
    return mean, p95, max(values)
