"""The shipped measurements are of the workloads that are built in."""

import pytest

from dovetail.instances.datasets.files import read_dataset
from dovetail.measuring.workloads import LAUNCHES


def test_kernels_are_counted_launches_at_the_measured_rate():
    data = read_dataset("library:h200-2026-11")
    kernels = {p.workload: p.metrics.kernels_s for p in data.profiles if p.metrics.kernels_s}
    rates = {p.workload: p.throughput for p in data.profiles}
    assert set(rates) - set(kernels) == {"lstm"}
    assert kernels == pytest.approx({w: LAUNCHES[w] * rates[w] for w in kernels}, rel=1e-5)
