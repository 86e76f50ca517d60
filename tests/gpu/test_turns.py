"""Two clients on one GPU: priorities under MPS, and time slices without it."""

import pytest

from .bench import alone, together


@pytest.mark.check(
    "a hint, nothing more: the preferred one is not slower than in an equal pair", usual_s=18
)
def test_priority(bench, daemon):
    """Kernels a second of two busy clients at priority 0 and 1."""
    whole, work = alone(daemon.client("busy", name="alone"))
    equal = together(*(daemon.client("busy", *work, name=f"{name} at 1") for name in "ab"))
    preferred, other = together(
        daemon.client("busy", *work, latency=True, name="at 0"),
        daemon.client("busy", *work, name="at 1 with it"),
    )
    bench.saw(alone=whole, equal=equal, at_0=preferred, at_1_beside_it=other)
    assert preferred >= 0.95 * min(equal)


@pytest.mark.check("by turns they share one GPU's rate", usual_s=18)
def test_turns(bench):
    """Kernels a second of two processes by turns without MPS, and under MPS."""
    whole, work = alone(bench.alone("busy", name="without MPS"))
    turned = together(*(bench.alone("busy", *work, name=f"{name} by turns") for name in "ab"))
    # Started only now: nothing of MPS is there while they take turns.
    daemon = bench.daemon()
    under = together(*(daemon.client("busy", *work, name=f"{name} under MPS") for name in "ab"))
    bench.saw(alone_without_MPS=whole, by_turns=turned, under_MPS=under)
    assert 0.7 <= sum(turned) / whole <= 1.1
