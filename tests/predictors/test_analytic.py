"""The contention model: a case by hand, and its general properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.instances.errors import InputError
from dovetail.instances.instance import GpuModel, HostResources, Node, Workload
from dovetail.instances.metrics import Metrics
from dovetail.predictors import UNCAPPED, AnalyticPredictor
from dovetail.predictors.analytic import PCIE_3_X16_BYTES_S

CLOSE = 1e-9

fractions = st.floats(0, 1)
caps = st.integers(1, 99)


def workload(sm, dram, pcie=0.0, throughput=None):
    metrics = Metrics(sm_active=sm, dram_active=dram, pcie_rx_bytes_s=pcie * PCIE_3_X16_BYTES_S)
    return Workload(memory_mib=1000, metrics=metrics, throughput=throughput or {})


@st.composite
def workloads(draw):
    return workload(draw(fractions), draw(fractions), draw(st.floats(0, 3)))


@st.composite
def splits(draw):
    """Draw no caps, or two caps that fit together."""
    if draw(st.booleans()):
        return UNCAPPED, UNCAPPED
    first = draw(caps)
    return first, draw(st.integers(1, 100 - first))


def named(known):
    return {str(k): one for k, one in enumerate(known)}


def slowdowns(first, second, split=(UNCAPPED, UNCAPPED)):
    pair = np.array([[0, 1]])
    prediction = AnalyticPredictor().predict({"a": first, "b": second}, pair, np.array([split]))
    assert prediction.upper is None
    return prediction.slowdown[0]


def alone(one, cap):
    return AnalyticPredictor().alone([one], np.array([cap]))[0, 0]


def test_uncapped_pair_by_hand():
    # Portions (compute, dram, pcie): A = (0.9 - 0.3, 0.3, 0.1), B = (0.5 - 0.4, 0.4, 0.2).
    # Each waits 0.6 * 0.1 + 0.3 * 0.4 + 0.1 * 0.2 = 0.06 + 0.12 + 0.02 = 0.2.
    assert slowdowns(workload(0.9, 0.3, 0.1), workload(0.5, 0.4, 0.2)) == pytest.approx([1.2, 1.2])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # Each waits for its turn whenever the other has work.
        ({"gpu_util": 1.0}, {"gpu_util": 1.0}, [2.0, 2.0]),
        ({"gpu_util": 0.8}, {"graphics_active": 0.5}, [1.5, 1.8]),
        # A kernel on half of the SMs has the whole GPU in its turn; SM activity says no more.
        ({"sm_active": 0.5, "gpu_util": 0.9}, {"sm_active": 0.1}, [2.0, 1.9]),
        # A job without kernels neither waits nor is waited for.
        ({"gpu_util": 0.0}, {"gpu_util": 0.7}, [1.0, 1.0]),
    ],
)
def test_time_slices_by_hand(first, second, expected):
    known = {
        name: Workload(memory_mib=1, metrics=Metrics(**metrics))
        for name, metrics in (("a", first), ("b", second))
    }
    pairs, shares = np.array([[0, 1], [0, 1]]), np.array([[0, 0], [50, 50]])
    found = AnalyticPredictor().predict(known, pairs, shares, mode="time_sliced")
    assert found.slowdown[0] == pytest.approx(expected)
    assert np.isnan(found.slowdown[1]).all()
    assert found.upper is None


def test_capped_pair_by_hand():
    # A at 60 alone: compute 0.6 * (0.9 / 0.6 - 1) = 0.3; half the SMs suffice for dram: 1.3.
    # B at 40 alone: compute 0.1 * (0.5 / 0.4 - 1) = 0.025;
    #                dram 0.4 * (0.5 / 0.4 - 1) = 0.1: 1.125.
    # A waits (0.3 * 0.4 + 0.1 * 0.2) / 1.125 = 0.14 / 1.125.
    # B waits (0.4 * 0.3 + 0.2 * 0.1) / 1.3 = 0.14 / 1.3.
    expected = [1.3 + 0.14 / 1.125, 1.125 + 0.14 / 1.3]
    found = slowdowns(workload(0.9, 0.3, 0.1), workload(0.5, 0.4, 0.2), (60, 40))
    assert found == pytest.approx(expected)


def test_portions_that_overlap_cost_no_more_than_taking_turns():
    # 0.5 * 0.5 + 0.5 * 0.5 + 1 * 1 = 1.5, but in turns each would wait only 1.
    busy = workload(1.0, 0.5, 1.0)
    assert slowdowns(busy, busy) == pytest.approx([2.0, 2.0])


def test_a_bus_can_be_no_more_than_full():
    # 1 * 0.1, not 3 * 0.1.
    found = slowdowns(workload(0.0, 0.0, 3.0), workload(0.0, 0.0, 0.1))
    assert found == pytest.approx([1.1, 1.1])


def test_a_co_runner_that_its_cap_made_faster_keeps_no_resource_more_than_busy():
    # The second runs alone in 100 / 200 = 0.5 of its time and asks for memory all of it, so
    # the first waits 0.5 * 1, not 0.5 * 0.8 / 0.5 = 0.8; the second waits 0.8 * 0.5 = 0.4.
    faster = workload(0.8, 0.8, throughput={100: 100.0, 50: 200.0})
    found = slowdowns(workload(0.5, 0.5), faster, (50, 50))
    assert found == pytest.approx([1.0 + 0.5, 0.5 + 0.4])


def test_measured_throughput_wins_over_the_model():
    # 300 / 240 = 1.25 at 50, where the model says 2.
    measured = workload(1.0, 0.0, throughput={100: 300.0, 50: 240.0})
    assert alone(measured, 50) == pytest.approx(1.25)
    assert alone(measured, 25) == pytest.approx(4.0)
    assert slowdowns(measured, workload(1.0, 0.0), (50, 50)) == pytest.approx([1.25, 2.0])


def test_throughput_without_the_uncapped_value_is_not_used():
    assert alone(workload(1.0, 0.0, throughput={50: 240.0}), 50) == pytest.approx(2.0)


@pytest.mark.parametrize("split", [(UNCAPPED, 50), (50, UNCAPPED), (60, 50), (100, 1)])
def test_shares_that_neither_divide_nor_pool_the_sms_have_no_answer(split):
    assert np.isnan(slowdowns(workload(0.5, 0.1), workload(0.5, 0.1), split)).all()


@given(workloads(), workloads(), splits())
def test_finite_and_no_better_than_the_cap_alone(first, second, split):
    found = slowdowns(first, second, split)
    assert np.isfinite(found).all()
    assert found[0] >= alone(first, split[0]) >= 1
    assert found[1] >= alone(second, split[1]) >= 1


@given(workloads(), workloads(), splits())
def test_no_worse_than_taking_turns_within_the_cap(first, second, split):
    found = slowdowns(first, second, split)
    assert found[0] <= alone(first, split[0]) + 1
    assert found[1] <= alone(second, split[1]) + 1


@given(workloads(), workloads(), splits())
def test_mirrored_exactly(first, second, split):
    mirrored = slowdowns(second, first, split[::-1])
    assert slowdowns(first, second, split).tolist() == mirrored[::-1].tolist()


@given(workloads(), st.one_of(st.just(UNCAPPED), st.integers(1, 50)))
def test_a_workload_with_itself_gets_equal_numbers(one, share):
    found = slowdowns(one, one, (share, share))
    assert found[0] == found[1]


@given(workloads(), fractions, fractions, fractions)
def test_uncapped_no_better_with_a_co_runner_that_is_active_longer(first, sm, more, dram):
    low, high = sorted((sm, more))
    light = slowdowns(first, workload(low, dram))
    heavy = slowdowns(first, workload(high, dram))
    assert heavy[0] >= light[0] - CLOSE


@given(workloads(), st.floats(0, 0.5), st.floats(0, 0.5), st.floats(0, 0.5), splits())
def test_no_better_with_a_co_runner_that_uses_more_memory(first, compute, one, two, split):
    low, high = sorted((one, two))
    light = slowdowns(first, workload(compute + low, low), split)
    heavy = slowdowns(first, workload(compute + high, high), split)
    assert heavy[0] >= light[0] - CLOSE


@given(workloads(), fractions, fractions, fractions, fractions, splits())
def test_no_better_with_a_co_runner_that_receives_more(first, sm, dram, one, two, split):
    low, high = sorted((one, two))
    light = slowdowns(first, workload(sm, dram, low), split)
    heavy = slowdowns(first, workload(sm, dram, high), split)
    assert heavy[0] >= light[0] - CLOSE


@given(workloads(), workloads(), caps, caps)
def test_no_worse_with_a_larger_share_of_the_whole(first, second, one, two):
    low, high = sorted((one, two))
    narrow = slowdowns(first, second, (low, 100 - low))
    wide = slowdowns(first, second, (high, 100 - high))
    assert wide[0] <= narrow[0] + CLOSE


@given(workloads(), workloads(), st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_no_worse_with_a_larger_share_against_the_same_cap(first, second, one, two, other):
    low, high = sorted((one, two))
    narrow = slowdowns(first, second, (low, other))
    wide = slowdowns(first, second, (high, other))
    assert wide[0] <= narrow[0] + CLOSE


@given(st.floats(0, 0.05), st.floats(0, 0.02), st.floats(0, 0.02), st.integers(50, 50))
def test_two_light_jobs_hardly_notice_each_other(sm, dram, pcie, half):
    light = workload(sm, dram, pcie)
    assert slowdowns(light, light)[0] < 1.01
    assert slowdowns(light, light, (half, half))[0] < 1.01


@given(fractions, fractions, splits())
def test_two_jobs_that_saturate_the_sms_share_one_gpu_worth_of_rate(pcie, other, split):
    found = slowdowns(workload(1.0, 0.0, pcie), workload(1.0, 0.0, other), split)
    assert (1 / found).sum() <= 1 + CLOSE


@given(fractions, fractions, fractions, fractions, splits())
def test_two_jobs_that_saturate_the_memory_share_one_gpu_worth_of_rate(
    sm, other_sm, pcie, other_pcie, split
):
    found = slowdowns(workload(sm, 1.0, pcie), workload(other_sm, 1.0, other_pcie), split)
    assert (1 / found).sum() <= 1 + CLOSE


@given(fractions, fractions, fractions, fractions, splits())
def test_two_jobs_that_saturate_the_bus_share_one_gpu_worth_of_rate(
    sm, other_sm, dram, other_dram, split
):
    found = slowdowns(workload(sm, dram, 1.0), workload(other_sm, other_dram, 1.0), split)
    assert (1 / found).sum() <= 1 + CLOSE


@given(st.lists(workloads(), min_size=2, max_size=6), st.data())
def test_rows_do_not_influence_each_other(known, data):
    members = st.integers(0, len(known) - 1)
    rows = data.draw(st.lists(st.tuples(members, members, splits()), min_size=1, max_size=8))
    pairs = np.array([[i, j] for i, j, _ in rows])
    shares = np.array([split for _, _, split in rows])
    together = AnalyticPredictor().predict(named(known), pairs, shares).slowdown
    apart = [slowdowns(known[i], known[j], split).tolist() for i, j, split in rows]
    assert together.tolist() == apart


def test_a_wider_bus_means_less_contention_on_it():
    # At 15.75 GB/s both keep the bus busy half of the time: 0.5 * 0.5 = 0.25; at twice that
    # a quarter of the time: 0.0625.
    pair = named([workload(0.0, 0.0, 0.5)] * 2)
    wide = AnalyticPredictor(pcie_bytes_s=2 * PCIE_3_X16_BYTES_S)
    rows = np.array([[0, 1]]), np.array([[UNCAPPED, UNCAPPED]])
    assert AnalyticPredictor().predict(pair, *rows).slowdown[0] == pytest.approx([1.25, 1.25])
    assert wide.predict(pair, *rows).slowdown[0] == pytest.approx([1.0625, 1.0625])


def of(**metrics):
    return Workload(memory_mib=1, metrics=Metrics(**metrics))


def test_only_a_measure_of_activity_is_needed():
    predictor = AnalyticPredictor()
    for metric in ("sm_active", "gpu_util", "graphics_active"):
        assert predictor.lacks("a", of(**{metric: 0.5})) == ()
    for workload_ in (Workload(memory_mib=1), of(dram_active=0.5, pcie_rx_bytes_s=1.0)):
        assert predictor.lacks("a", workload_) == ("sm_active or gpu_util",)
        with pytest.raises(InputError, match="sm_active: this metric is required"):
            slowdowns(workload_, workload(0.5, 0.5))


def test_what_is_assumed_is_named():
    assumed = AnalyticPredictor().assumed
    assert assumed(workload(0.5, 0.1)) == ()
    assert assumed(of(gpu_util=0.5, mem_util=0.1, pcie_rx_bytes_s=0.0)) == (
        "sm_active by gpu_util",
        "dram_active by mem_util",
    )
    assert assumed(of(graphics_active=0.5)) == (
        "sm_active by graphics_active",
        "dram_active by sm_active",
        "pcie_rx_bytes_s by sm_active",
    )


def test_assumptions_by_hand():
    # Half active: compute 0.5 and memory 0.5, as either may be what is active, and the bus 0.5.
    # Each waits for the other's half of a half, three times.
    assert slowdowns(of(gpu_util=0.5), of(gpu_util=0.5)) == pytest.approx([1.75, 1.75])
    # Hardly active: 3 * 0.05 * 0.05.
    assert slowdowns(of(gpu_util=0.05), of(gpu_util=0.05)) == pytest.approx([1.0075] * 2)


@given(fractions, fractions, fractions, fractions, splits())
def test_assumptions_never_promise_more_than_the_metrics(sm, dram, other, other_dram, split):
    """As long as a job receives no longer than it computes."""
    known = workload(max(sm, dram), min(sm, dram)), workload(max(other, other_dram), other_dram)
    assumed = (of(gpu_util=one.metrics.sm_active) for one in known)
    exact, guessed = slowdowns(*known, split), slowdowns(*assumed, split)
    if split == (UNCAPPED, UNCAPPED):
        assert (guessed >= exact - 1e-9).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"pcie_bytes_s": 0.0}, "pcie_bytes_s: must be > 0 and finite, got 0.0"),
        ({"pcie_bytes_s": float("nan")}, "pcie_bytes_s: must be > 0 and finite, got nan"),
        ({"saturating_sms": 0.0}, r"saturating_sms: must be in \(0, 1\], got 0.0"),
        ({"saturating_sms": 1.5}, r"saturating_sms: must be in \(0, 1\], got 1.5"),
    ],
)
def test_parameters_out_of_range_are_refused(parameters, message):
    with pytest.raises(InputError, match=message):
        AnalyticPredictor(**parameters)


def test_jobs_of_one_node_slow_each_other_through_its_host():
    node = Node(
        id="n",
        gpu_count=4,
        gpu=GpuModel(model="A", memory_mib=1.0),
        host=HostResources(cpu_cores=16.0, disk_bytes_s=1e9),
    )
    loader = Workload(memory_mib=1.0, host=HostResources(cpu_cores=10.0))
    reader = Workload(memory_mib=1.0, host=HostResources(disk_bytes_s=5e8))
    found = AnalyticPredictor().on_node(node, [loader, loader, reader], [1, 1, 2])
    assert found.tolist() == [1.25, 1.25, 1.0]
    unknown = node.replace(host=None)
    assert AnalyticPredictor().on_node(unknown, [loader, loader], [1, 1]).tolist() == [1.0, 1.0]
