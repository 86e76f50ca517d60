"""The shipped instances: readable, named, sourced, and with optima that enumeration confirms."""

from __future__ import annotations

from collections import Counter

import pytest

from dovetail.instances import library
from dovetail.instances.errors import InputError
from tests.oracle import TWO_STAGE, optimum

CLAIMS = [
    pytest.param(name, objective, id=f"{name}-{objective}")
    for name, entry in library.manifest().items()
    for objective in entry.optimum
    if name not in ("lab", "sm-allocation")  # too large to enumerate
]


def test_every_file_is_in_the_manifest():
    files = {path.stem for path in library.path("lab").parent.glob("*.yaml")}
    assert files == {*library.names(), "manifest"}


@pytest.mark.parametrize("name", library.names())
def test_instance_is_named_like_its_file_and_says_its_source(name):
    assert library.load(name).name == name
    text = library.path(name).read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert "\n# Source: " in text
    entry = library.manifest()[name]
    assert entry.title
    assert entry.source


@pytest.mark.parametrize("name", library.names())
def test_every_instance_claims_an_optimum(name):
    assert library.manifest()[name].optimum


@pytest.mark.parametrize(("name", "objective"), CLAIMS)
def test_enumeration_confirms_the_optimum(name, objective):
    claim = library.manifest()[name].optimum[objective]
    best = optimum(library.load(name), objective)
    assert best.value == pytest.approx(claim.value, rel=1e-9)
    if claim.placed_weight is not None:
        assert best.placed_weight == claim.placed_weight


def test_two_stage_objectives_claim_the_placed_weight():
    for entry in library.manifest().values():
        for objective, claim in entry.optimum.items():
            two_stages = objective in TWO_STAGE
            assert (claim.placed_weight is not None) == two_stages


def test_sm_allocation_has_table_1_and_no_slowdowns():
    instance = library.load("sm-allocation")
    assert len(instance.jobs) == len(instance.workloads) == 16
    assert instance.slowdowns == ()
    metrics = instance.workloads["Gemm-samples"].metrics
    assert (metrics.sm_active, metrics.dram_active) == (0.985, 0.128)
    # The paper's halves: 11 workloads use more than half of the SMs, 4 of the bandwidth.
    profiles = [workload.metrics for workload in instance.workloads.values()]
    assert sum(profile.sm_active > 0.5 for profile in profiles) == 11
    assert sum(profile.dram_active > 0.5 for profile in profiles) == 4


def test_lab_is_of_lab_size():
    instance = library.load("lab")
    assert (len(instance.places), len(instance.jobs)) == (12, 40)
    assert Counter(job.state for job in instance.jobs) == {"running": 4, "pending": 36}
    assert {job.workers for job in instance.jobs} == {1, 2, 4}
    assert library.path("lab").stat().st_size < 150_000


def test_lab_has_an_unknown_workload_and_pairs_that_failed():
    instance = library.load("lab")
    known = {name for entry in instance.slowdowns for name in entry.workloads}
    assert set(instance.workloads) - known == {"mamba-new"}
    assert any(entry.slowdown is None for entry in instance.slowdowns)


def test_lab_has_pairs_that_do_not_fit_though_they_have_slowdowns():
    instance = library.load("lab")
    gpu = next(iter(instance.places.values())).gpu
    room = gpu.memory_mib - instance.cluster.reserve_mib - 2 * instance.cluster.per_process_mib
    too_large = [
        entry.pair
        for entry in instance.slowdowns
        if entry.slowdown and sum(instance.workloads[w].memory_mib for w in entry.pair) > room
    ]
    assert too_large


def test_lab_knows_enough_for_every_objective():
    instance = library.load("lab")
    assert all(job.remaining_s for job in instance.jobs)
    assert all(workload.power_w for workload in instance.workloads.values())
    assert all(entry.power_w for entry in instance.slowdowns if entry.slowdown)


def test_unknown_name_lists_the_known():
    with pytest.raises(InputError, match=r"library: must be an instance, one of lab, .*got 'nope'"):
        library.path("nope")
