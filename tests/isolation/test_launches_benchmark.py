"""The benchmark of launches on the stand-in: that it runs, not how quick a busy machine is."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks.isolation.launches import (
    KERNEL,
    WAIT,
    StandIn,
    at_load,
    idle_rate,
    opened,
    quantiles,
    rate,
)

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def stand_in():
    # The path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="dv-") as folder:
        yield StandIn(Path(folder))


def test_launches_share_waits(stand_in):
    """Five or six of 5 microseconds fit into the bound, as soon as their time is known."""
    with stand_in.scheduler():
        joined = stand_in.start("latency", 1e-3, 1e9, (5,))
        log = stand_in.start("best-effort", 0.3, 0, (5,)).log()
        joined.end()
    kinds = log[(log[:, 0] == KERNEL) | (log[:, 0] == WAIT), 0]
    half = kinds[len(kinds) // 2 :]
    assert 4 < np.count_nonzero(half == KERNEL) / np.count_nonzero(half == WAIT) < 7


def test_all_figures_are_there(stand_in):
    """On a busy machine a figure may be of nothing, which is said."""
    assert quantiles(opened(stand_in, 0.3))
    assert quantiles(np.array([1e-6, 2e-6])).split() == ["1.5", "1.9", "2.0"]
    assert not rate(stand_in.start("plain", 0.3, 0, (20,)).log()) < 0
    assert not idle_rate(stand_in, 0.3, (20,)) < 0
    found = at_load(stand_in, 0.7, (5, 20))
    assert found.left_out >= 0
    assert np.all(found.turnarounds >= 0)
