"""Data sets with odd names and numbers, to check that files and repositories keep them."""

from __future__ import annotations

from hypothesis import strategies as st

from dovetail.instances._record import IDLE
from dovetail.instances.datasets import DataSet, Measurement, SoloProfile
from dovetail.instances.metrics import METRICS
from tests.instances.odd import names, positive, shares, slowdowns

DATES = ("2026-11-21", "2026-11-21T10:00:00+02:00", "2026-11-21 10:00:00.5", "20261121")

_maybe_positive = st.none() | positive
_at_least_zero = st.floats(min_value=0, max_value=1e15)
_counts = st.integers(1, 1_000_000)
_metrics = st.dictionaries(st.sampled_from(METRICS), st.floats(0, 1), max_size=4)
_variances = st.dictionaries(st.sampled_from(METRICS), st.floats(0, 1e30), max_size=3)
_about = {"source": st.none() | names, "date": st.none() | st.sampled_from(DATES)}

profiles = st.builds(
    SoloProfile,
    workload=names,
    gpu_model=names,
    share=st.none() | shares,
    family=st.none() | names,
    workers=_counts,
    batch_size=st.none() | _counts,
    metrics=st.none() | _metrics,
    metrics_variance=_variances,
    throughput=_maybe_positive,
    power_w=_maybe_positive,
    memory_mib=st.none() | _at_least_zero,
    memory_mean_mib=st.none() | _at_least_zero,
    duration_s=_maybe_positive,
    latency_p99_s=_maybe_positive,
    **_about,
)


@st.composite
def measurements(draw):
    """Draw a measurement of two to five workloads."""
    size = draw(st.integers(2, 5))

    def each(strategy):
        return draw(st.lists(strategy, min_size=size, max_size=size).map(tuple))

    ran = draw(st.booleans())
    slow = not ran and draw(st.booleans())
    share = draw(st.none() | st.just(each(st.none() | shares)))
    capped = any(cap not in (None, IDLE) for cap in share or ())
    return Measurement(
        workloads=each(names),
        gpu_model=draw(names),
        share=share,
        slowdown=each(slowdowns) if ran else None,
        at_least=each(st.none() | slowdowns) if slow else None,
        p99=each(st.none() | slowdowns) if ran else None,
        power_w=draw(_maybe_positive),
        mode="mps" if capped else draw(st.sampled_from(("mps", "time_sliced"))),
        **{name: draw(strategy) for name, strategy in _about.items()},
    )


data_sets = st.builds(
    DataSet,
    name=st.just("odd"),
    profiles=st.lists(profiles, max_size=3).map(tuple),
    measurements=st.lists(measurements(), max_size=3).map(tuple),
)
