"""The law of MPS: by hand, against a simulated queue of kernels, and on measured pairs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.estimator_checks import parametrize_with_checks

from dovetail.instances.errors import InputError
from dovetail.instances.instance import Workload
from dovetail.instances.metrics import Metrics
from dovetail.predictors import KernelsPredictor, Law
from dovetail.predictors.estimators.kernels import LawOfMps
from dovetail.predictors.features import Features
from dovetail.predictors.forms.kernels import FEATURES, Kernels
from dovetail.predictors.kernels import profiles, ranges, time_sliced
from tests.predictors.test_analytic_form import COLUMNS, EXPECTED_FAILURES

OTHER_COLUMNS = EXPECTED_FAILURES | dict.fromkeys(
    [
        "check_dtype_object",
        "check_fit2d_1sample",
        "check_regressor_data_not_an_array",
        "check_regressors_int",
        "check_regressors_train",
    ],
    COLUMNS,
)
PLAIN = Law(wait=1.0, warps=0.5, room_exponent=1.0, bandwidth=1.0)


def workload(busy=1.0, kernel_us=None, *, throughput=(), **metrics):
    """Return a workload whose kernels fill the SMs and leave no room for others."""
    known = {"sm_active": busy, "sm_occupancy": busy, "dram_active": 0.0, "tensor_active": 0.0}
    known |= {"graphics_active": busy} | metrics
    if kernel_us is not None:
        known["kernels_s"] = busy / kernel_us * 1e6
    return Workload(memory_mib=1, metrics=Metrics(**known), throughput=dict(throughput))


def predicted(*workloads, shares=None, law=PLAIN, confidence=0.9):
    """Return the prediction for these workloads on one GPU."""
    known = {str(k): one for k, one in enumerate(workloads)}
    jobs = np.arange(len(workloads))[np.newaxis]
    caps = np.zeros_like(jobs) if shares is None else np.array([shares])
    return KernelsPredictor(law, confidence).predict(known, jobs, caps)


def slowdowns(*workloads, **options):
    return predicted(*workloads, **options).slowdown[0].tolist()


def test_short_kernels_wait_for_a_long_one_at_every_launch():
    # 10,000 launches a second of 50 µs each wait for a kernel of 400 µs: 0.5 + 10,000 * 400e-6.
    short, long = workload(0.5, 50), workload(1.0, 400)
    # The long job's 2,500 launches a second wait for 50 µs each.
    assert slowdowns(short, long) == pytest.approx([0.5 + 4.0, 1.0 + 2500 * 50e-6])


def test_waits_that_fit_into_the_host_s_time_cost_nothing():
    # Busy 0.2 and 0.3: 0.2 + 0.2 < 1, whatever waits for the other.
    assert slowdowns(workload(0.2, 100), workload(0.3, 100)) == [1.0, 1.0]


def test_two_that_fill_the_gpu_with_equal_kernels_take_turns():
    assert slowdowns(workload(1.0, 20), workload(1.0, 20)) == pytest.approx([2.0, 2.0])


def test_three_wait_for_a_kernel_of_each_other():
    assert slowdowns(*[workload(1.0, 20)] * 3) == pytest.approx([3.0, 3.0, 3.0])


def test_small_blocks_run_beside_others():
    # Warps 0.1 + 0.15 of 0.5: half of the room is taken, so half of the waits are left.
    first = workload(1.0, 20, sm_occupancy=0.1)
    second = workload(1.0, 20, sm_occupancy=0.15)
    assert slowdowns(first, second) == pytest.approx([1.5, 1.5])


def test_only_kernels_that_fill_the_sms_are_waited_for():
    half_full = workload(1.0, 20, kernel_full=0.5)
    assert slowdowns(workload(1.0, 20), half_full)[0] == pytest.approx(1.5)


def test_the_memory_and_the_tensor_cores_have_one_rate():
    small = {"sm_occupancy": 0.01}
    both = [
        workload(1.0, 20, dram_active=0.9, **small),
        workload(1.0, 20, dram_active=0.7, **small),
    ]
    assert slowdowns(*both, law=Law()) == pytest.approx([1.6, 1.6])
    both = [workload(1.0, 20, tensor_active=0.9, **small)] * 2
    assert slowdowns(*both, law=Law()) == pytest.approx([1.8, 1.8])


def test_under_caps_only_traffic_and_power_are_left():
    curve = {50: 5.0, 100: 8.0}
    first = workload(0.5, 20, sm_active=0.5, dram_active=0.36, throughput=curve)
    second = workload(0.5, 400, sm_active=0.5, throughput=curve)
    # Alone 1.6 at half of the SMs; the other's traffic is 0.36 / 1.6 of the memory's.
    found = slowdowns(first, second, shares=[50, 50])
    assert found == pytest.approx([1.6, 1.6 * math.exp(0.5 * (0.36 / 1.6) ** 1.5)])


def test_the_power_limit_slows_the_clock_of_both_but_not_the_memory():
    curve = {50: 10.0, 100: 10.0}
    first = workload(1.0, 20, throughput=curve)
    second = workload(1.0, 20, dram_active=0.75, throughput=curve)
    # Active 1 + 1, the first slowed by traffic first.
    memory = math.exp(0.75**1.5)
    clock = 1 / memory + 1
    expected = [memory * clock, clock**0.25]
    assert slowdowns(first, second, shares=[50, 50]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("job", "share", "expected"),
    [
        (workload(1.0, 20), 50, 2.0),
        (workload(1.0, 20), 25, 4.0),
        (workload(0.5, 20), 50, 1.0),
        (workload(0.8, 20, sm_active=0.4), 50, 1.2),
        # Saturated memory for 0.81 of the time needs half of the SMs only.
        (workload(1.0, 20, dram_active=0.9), 50, 1.19),
    ],
)
def test_alone_at_a_share_by_the_roofline(job, share, expected):
    idle = workload(0.0, 20)
    assert slowdowns(job, idle, shares=[share, 100 - share])[0] == pytest.approx(expected)


def test_time_slices_are_shared_by_jobs_that_have_work():
    jobs = [workload(1.0), workload(1.0), workload(0.4), workload(0.5)]
    demand = ranges(profiles({str(k): job for k, job in enumerate(jobs)})).likely
    found = time_sliced(demand.at(np.array([[0, 1], [2, 3], [0, 2]])))
    # 1 + 0.8 in the last: the second has work for 0.4 * 2 of the time.
    assert found == pytest.approx(np.array([[2.0, 2.0], [1.0, 1.0], [1.8, 1.0]]))


def test_the_predictor_answers_for_time_slices_without_caps_and_without_a_bound():
    known = {"a": workload(1.0, 50), "b": workload(0.5, 400)}
    jobs, caps = np.array([[0, 1], [0, 1]]), np.array([[0, 0], [50, 50]])
    found = KernelsPredictor().predict(known, jobs, caps, mode="time_sliced")
    expected = time_sliced(ranges(profiles(known)).likely.at(jobs[:1]))
    assert found.slowdown[0] == pytest.approx(expected[0])
    assert np.isnan(found.slowdown[1]).all()
    assert found.upper is None


def simulated(first, second, seconds=1.0):
    """Run two jobs of (work, kernel) seconds on a queue of kernels; return their slowdowns.

    Each job launches a kernel, waits until it has run, and works on the host until the next. One
    kernel runs at a time; a tie goes to the job that did not run last.
    """
    ready, launched, last, now = [0.0, 0.0], [0, 0], 1, 0.0
    while now < seconds:
        waiting = [k for k in (0, 1) if ready[k] <= now]
        if not waiting:
            now = min(ready)
            continue
        k = waiting[0] if len(waiting) == 1 else 1 - last
        kernel, host = (first, second)[k]
        now += kernel
        ready[k] = now + host
        launched[k] += 1
        last = k
    alone = [seconds / sum(one) for one in (first, second)]
    return [alone[k] / launched[k] for k in (0, 1)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((50e-6, 0.0), (400e-6, 0.0)),
        ((20e-6, 0.0), (20e-6, 0.0)),
        ((5e-6, 0.0), (80e-6, 0.0)),
        ((30e-6, 1e-6), (300e-6, 0.0)),
    ],
)
def test_a_queue_of_kernels_behaves_so(first, second):
    jobs = [workload(kernel / (kernel + host), 1e6 * kernel) for kernel, host in (first, second)]
    assert slowdowns(*jobs) == pytest.approx(simulated(first, second), rel=0.05)


fractions = st.floats(0, 1)


@st.composite
def workloads(draw):
    names = ("graphics_active", "sm_active", "dram_active", "tensor_active", "sm_occupancy")
    metrics = {name: draw(fractions) for name in names if draw(st.booleans())}
    metrics["gpu_util"] = draw(fractions)
    if draw(st.booleans()):
        metrics["kernels_s"] = draw(st.floats(0, 1e5))
    if draw(st.booleans()):
        metrics["kernel_full"] = draw(fractions)
    rates = st.dictionaries(st.sampled_from([20, 50, 100]), st.floats(1, 9))
    return Workload(memory_mib=1, metrics=Metrics(**metrics), throughput=draw(rates))


@given(
    st.lists(workloads(), min_size=2, max_size=4),
    st.sampled_from([0, 20, 25, 50]),
    st.sampled_from([0.5, 0.9, 0.99]),
)
def test_every_answer_is_finite_symmetric_and_below_its_bound(jobs, share, confidence):
    shares = [share] * len(jobs)
    found = predicted(*jobs, shares=shares, law=Law(), confidence=confidence)
    if share * len(jobs) > 100:
        assert np.isnan(found.slowdown).all()
        return
    assert np.isfinite(found.slowdown).all()
    assert (found.upper >= found.slowdown).all()
    for order in itertools.permutations(range(len(jobs))):
        mirrored = predicted(
            *(jobs[k] for k in order), shares=shares, law=Law(), confidence=confidence
        )
        assert mirrored.slowdown[0].tolist() == found.slowdown[0, list(order)].tolist()
        assert mirrored.upper[0].tolist() == found.upper[0, list(order)].tolist()


def test_caps_of_some_only_have_no_answer():
    found = predicted(workload(0.5, 20), workload(0.5, 20), shares=[50, 0])
    assert np.isnan(found.slowdown).all()


def test_a_bound_rises_with_the_confidence_and_with_the_gang():
    jobs = {"a": workload(0.9, 20), "b": workload(0.8, 30)}
    pair, caps = np.array([[0, 1]]), np.array([[50, 50]])
    of = [KernelsPredictor(confidence=c).predict(jobs, pair, caps).upper for c in (0.8, 0.9)]
    gang = KernelsPredictor(confidence=0.8, workers={"a": 2}).predict(jobs, pair, caps).upper
    assert (of[1] > of[0]).all()
    assert gang[0].tolist() == [of[1][0, 0], of[0][0, 1]]


def test_what_is_unknown_widens_the_bound():
    known = workload(0.8, 25, sm_active=0.56, sm_occupancy=0.3, dram_active=0.17)
    metrics = Metrics(gpu_util=0.8)
    unknown = Workload(memory_mib=1, metrics=metrics)
    certain = predicted(known, known, law=Law())
    guessed = predicted(unknown, unknown, law=Law())
    assert guessed.slowdown == pytest.approx(certain.slowdown, rel=0.2)
    assert (guessed.upper > 3 * certain.upper).all()
    halves = predicted(unknown, unknown, shares=[50, 50], law=Law())
    assert (halves.upper < 4).all()


def test_how_long_kernels_run_is_unknown_where_only_active_sms_are_counted():
    known = workload(0.8, 25, sm_active=0.4, dram_active=0.0)
    metrics = known.metrics.replace(graphics_active=None)
    only_sms = Workload(memory_mib=1, metrics=metrics)
    certain, guessed = (predicted(job, job, shares=[50, 50]) for job in (known, only_sms))
    # 0.8 + 0.4 alone at half of the SMs; expected 0.4 + 0.4, at worst busy for 0.4 / 0.5.
    assert certain.slowdown[0].tolist() == pytest.approx([1.2, 1.2])
    assert guessed.slowdown[0].tolist() == [1.0, 1.0]
    assert guessed.upper == pytest.approx(certain.upper)
    assert "graphics_active by sm_active" in KernelsPredictor().assumed(only_sms)


def test_the_answer_of_a_pair_is_an_estimate():
    assert predicted(workload(), workload()).estimate


def test_a_workload_without_activity_is_lacking():
    predictor = KernelsPredictor()
    assert predictor.lacks("a", workload()) == ()
    nothing = Workload(memory_mib=1)
    assert predictor.lacks("a", nothing) == ("gpu_util",)
    with pytest.raises(InputError, match="gpu_util: this metric is required to predict"):
        predictor.predict({"a": nothing}, np.array([[0, 0]]), np.array([[0, 0]]))


def test_what_is_assumed_is_named():
    of_smi = Workload(memory_mib=1, metrics=Metrics(gpu_util=0.5, mem_util=0.1))
    assert KernelsPredictor().assumed(of_smi) == (
        "kernel_mean_s by 25 µs",
        "sm_active by 0.7 of the busy time",
        "dram_active by mem_util",
        "throughput at shares by a roofline",
    )
    assert KernelsPredictor().assumed(workload(0.5, 20, throughput={50: 1.0, 100: 2.0})) == ()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"wait": 0.0}, "wait: must be from 0.2 to 3, got 0"),
        ({"warps": 2.5}, "warps: must be from 0.1 to 2, got 2.5"),
        ({"bandwidth": math.nan}, "bandwidth: must be from 0 to 3, got nan"),
    ],
)
def test_numbers_out_of_range_are_refused(numbers, message):
    with pytest.raises(InputError, match=message):
        Law(**numbers)


def test_a_confidence_out_of_range_is_refused():
    with pytest.raises(InputError, match="confidence: must be > 0 and < 1, got 1"):
        KernelsPredictor(confidence=1)


@parametrize_with_checks([LawOfMps()], expected_failed_checks=lambda e: OTHER_COLUMNS)
def test_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


@given(workloads(), workloads())
def test_the_form_says_what_the_predictor_says(first, second):
    known = {"a": first, "b": second}
    caps = np.array([0, 20, 50])
    states = Features(FEATURES).states(known, np.repeat([0, 1], 3), np.tile(caps, 2))
    own, other = np.indices((6, 6)).reshape(2, -1)
    found = Kernels(Law()).predict(states, own, other)
    pairs = np.stack([own // 3, other // 3], axis=1)
    shares = np.stack([caps[own % 3], caps[other % 3]], axis=1)
    expected = KernelsPredictor().predict(known, pairs, shares).slowdown[:, 0]
    assert np.array_equal(found, expected, equal_nan=True)


def test_the_numbers_of_a_made_up_gpu_are_found():
    rng = np.random.default_rng(0)
    truth = Law(wait=1.3, warps=0.65, room_exponent=3.8, bandwidth=0.7)
    jobs = {
        str(k): workload(
            busy,
            10 ** rng.uniform(0.5, 2.5),
            sm_active=busy * rng.uniform(0.3, 1),
            sm_occupancy=busy * rng.uniform(0.05, 0.3),
            dram_active=busy * rng.uniform(0, 0.6),
            throughput={50: 1.0, 100: rng.uniform(1, 2)},
        )
        for k, busy in enumerate(rng.uniform(0.4, 1, 12))
    }
    caps = np.array([0, 50])
    states = Features(FEATURES).states(jobs, np.repeat(np.arange(12), 2), np.tile(caps, 12))
    own, other = np.indices((24, 24)).reshape(2, -1)
    same = own % 2 == other % 2
    table = np.hstack([states[own[same]], states[other[same]]])
    slowdown = Kernels(truth).predict(states, own[same], other[same])
    law = LawOfMps().fit(table, slowdown).to_form().law
    assert law.wait == pytest.approx(truth.wait, rel=0.1)
    assert law.warps == pytest.approx(truth.warps, rel=0.1)
    assert law.bandwidth == pytest.approx(truth.bandwidth, rel=0.1)


@pytest.mark.parametrize(
    ("name", "value", "features", "message"),
    [
        ("wait", 9.0, 13, "wait: must be from 0.2 to 3"),
        ("warps", np.nan, 13, "warps: must be finite"),
        ("warps", 0.5, 12, "features: must be 13, got 12"),
    ],
)
def test_arrays_that_cannot_be_such_a_form_are_refused(name, value, features, message):
    arrays = {**Kernels(Law()).arrays(), name: np.array([value])}
    with pytest.raises(InputError, match=message):
        Kernels.from_arrays(arrays, features)
