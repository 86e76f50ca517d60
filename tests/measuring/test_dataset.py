import pytest

from dovetail.instances.datasets import read_dataset
from dovetail.measuring.campaign import WorkerSeat
from dovetail.measuring.dataset import measured_data, write_tables
from dovetail.measuring.ledger import Contents, Ledger
from tests.measuring.made import Latency, campaign, machine, pace, result

OF = campaign(
    {"measure": "solos", "repeats": 2},
    {"measure": "pairs"},
    workloads=["conv", "lstm", {"name": "tiny", "program": "tiny.py", "family": "mine"}],
)
WHERE = machine(campaign())
ALONE = (
    result(["conv"], [0.02]),
    result(["conv"], [0.04], repeat=1),
    result(["lstm"], [0.01]),
)


def found(*results, where=WHERE):
    return measured_data(Contents((where,), OF, results), "lab")


def together(*seats, times=(0.06, 0.015), **fields):
    return result(list(seats), list(times), stage=1, **fields)


def test_a_slowdown_is_over_the_mean_of_all_repeats_alone():
    # conv alone: (0.02 + 0.04) / 2 = 0.03 s; together 0.06 s: 2. lstm: 0.015 / 0.01 = 1.5.
    data, left_out = found(*ALONE, together("conv", "lstm"))
    (pair,) = data.measurements
    assert pair.slowdown == pytest.approx((2, 1.5))
    assert (pair.workloads, pair.gpu_model, pair.share) == (("conv", "lstm"), "H200", None)
    assert not left_out


def test_repeats_are_rows_of_their_own():
    data, _ = found(*ALONE, together("conv", "lstm"), together("conv", "lstm", repeat=1))
    assert len(data.measurements) == 2
    assert [profile.throughput for profile in data.profiles] == pytest.approx([50, 25, 100])


def test_a_capped_pair_is_over_the_uncapped_baseline():
    seats = [WorkerSeat("lstm", "mps", 10), WorkerSeat("conv", "mps", 90)]
    capped = result([WorkerSeat("lstm", "mps", 10)], [0.05])
    data, _ = found(*ALONE, capped, together(*seats, times=[0.06, 0.03]))
    (pair,) = data.measurements
    assert pair.slowdown == pytest.approx((6, 1))
    assert pair.share == (10, 90)
    assert [(p.share, p.throughput) for p in data.profiles][-1] == (10, pytest.approx(20))


def served(time_s, p99_s):
    return pace(time_s, latency=Latency(p50_s=p99_s / 2, p99_s=p99_s, mean_s=p99_s / 2, requests=9))


def test_p99_is_over_the_mean_of_all_repeats_alone():
    # conv's 99th percentile alone: (0.1 + 0.3) / 2 = 0.2 s; together 0.5 s: 2.5.
    alone = (
        result(["conv"], paces=[served(0.02, 0.1)]),
        result(["conv"], paces=[served(0.02, 0.3)], repeat=1),
        result(["lstm"], [0.01]),
    )
    pair = together("conv", "lstm", paces=[served(0.03, 0.5), pace(0.015)])
    data, _ = found(*alone, pair)
    (measured,) = data.measurements
    assert measured.p99 == (pytest.approx(2.5), None)
    assert [profile.latency_p99_s for profile in data.profiles] == [0.1, 0.3, None]
    (entry,) = data.instance("H200", 1).slowdowns
    assert entry.p99 == pytest.approx((2.5, 1.5))
    # Without requests alone there is nothing that it could have grown from.
    assert found(*ALONE, pair).data.measurements[0].p99 is None


def test_what_ran_by_turns_is_time_sliced_with_a_baseline_of_its_own():
    turns = [WorkerSeat(name, "time-sliced") for name in ("conv", "lstm")]
    pair = together(*turns, times=[0.08, 0.03])
    data, left_out = found(*ALONE, pair)
    assert not data.measurements
    assert left_out[0].why == "conv was not measured alone without a cap (time-sliced) yet"
    alone = (result(turns[:1], [0.04]), result(turns[1:], [0.01]))
    data, left_out = found(*ALONE, *alone, pair, together("conv", "lstm"))
    assert [(m.gpu_model, m.mode) for m in data.measurements] == [
        ("H200", "time_sliced"),
        ("H200", "mps"),
    ]
    assert data.measurements[0].slowdown == pytest.approx((2, 3))
    # A workload is the same alone in both modes, and so has one profile.
    assert len(data.profiles) == len(ALONE)
    assert {one.why for one in left_out} == {"its profile is the one under MPS"}
    data, _ = found(*alone, pair)
    assert [p.workload for p in data.profiles] == ["conv", "lstm"]


def test_a_pair_out_of_memory_has_failed_and_needs_no_baseline():
    data, left_out = found(result(["conv", "lstm"], stage=1, status="out-of-memory"))
    assert data.measurements[0].failed
    assert not left_out


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (result(["conv"], status="out-of-memory"), "out of memory alone"),
        (result(["conv"], status="failed", reason="signal 9"), "failed: signal 9"),
        (
            result([WorkerSeat("conv", "mps", 33)], status="refused", reason="33 % computes wrong"),
            "refused: 33 % computes wrong",
        ),
        (
            together("conv", "lstm", disturbed_by=[12, 13]),
            "disturbed by other processes on the device: pid 12, pid 13",
        ),
        (
            together(WorkerSeat("conv", "mps", None, True), "lstm"),
            "one is preferred to the other, which a data set cannot express",
        ),
        (
            together("conv", "lstm"),
            "conv was not measured alone without a cap (mps) yet",
        ),
    ],
)
def test_what_is_left_out_and_why(one, why):
    data, left_out = found(one)
    assert not data.measurements
    assert not data.profiles
    assert [(each.key, each.why) for each in left_out] == [(one.key, why)]


def test_a_disturbed_window_is_no_baseline():
    data, _ = found(*ALONE, result(["lstm"], [0.5], repeat=1, disturbed_by=[7]),
                    together("conv", "lstm"))  # fmt: skip
    assert data.measurements[0].slowdown == pytest.approx((2, 1.5))


def test_a_profile_has_all_that_was_measured():
    one = result(
        ["conv"],
        paces=[pace(0.02, memory_mib=900.0)],
        families=["conv"],
        batch_sizes=[64],
        power_w=412.0,
        metrics={"sm_active": 0.9, "dram_active": 0.4},
        metrics_variance={"sm_active": 0.01},
        metrics_source="GPM",
    )
    (profile,) = found(one).data.profiles
    assert profile.metrics.sm_active == 0.9
    assert profile.metrics_variance == {"sm_active": 0.01}
    assert (profile.family, profile.batch_size) == ("conv", 64)
    assert (profile.power_w, profile.memory_mib, profile.throughput) == (412, 900, 50)
    assert profile.source == "dovetail measure: first; metrics: GPM"
    assert profile.date == one.date


def test_the_campaigns_family_goes_before_the_programs():
    one = result(["tiny"], [0.001], families=["theirs"])
    assert found(one).data.profiles[0].family == "mine"


def test_what_no_gpu_gave_says_so_in_every_row():
    where = machine(campaign(), stand_in="CPU cores")
    (profile,) = found(ALONE[0], where=where).data.profiles
    assert profile.source == "dovetail measure: first; NO GPU: CPU cores"


def test_impossible_figures_are_left_out_and_reported():
    one = result(["conv"], [0.02], metrics={"sm_active": 1.2})
    data, left_out = found(one)
    assert not data.profiles
    assert left_out[0].why == "impossible values: metrics.sm_active: must be <= 1, got 1.2"


def test_rates_of_bytes_vary_by_more_than_any_rate():
    # 10^8 bytes/s and more in bursts: the variance is that squared.
    variances = {"pcie_rx_bytes_s": 4e16, "sm_active": 0.1}
    one = result(["conv"], [0.02], metrics={"pcie_rx_bytes_s": 1.5e8}, metrics_variance=variances)
    (profile,) = found(one).data.profiles
    assert profile.metrics_variance == variances


def starved(*seats, most):
    """Return a result of workers that did at most so many iterations a second."""
    why = {"status": "starved", "reason": "lstm: did little"}
    return result(seats, stage=1, most_iterations_s=most, **why)


def test_who_starved_is_slower_by_at_least_what_it_can_have_done():
    # lstm does 100/s alone and at most 5/s together; conv takes 0.03 s alone and 1/30 s together.
    data, left_out = found(*ALONE, starved("conv", "lstm", most=[30.0, 5.0]))
    (pair,) = data.measurements
    assert pair.failed
    assert pair.at_least == pytest.approx((1 / 0.9, 20))
    assert not left_out
    # Nobody takes the bound for the slowdown, and the pair may not share.
    (entry,) = data.instance("H200", 1).slowdowns
    assert entry.slowdown is None


def test_a_bound_that_says_little_is_left_out():
    data, left_out = found(*ALONE, starved("conv", "lstm", most=[30.0, 51.0]))
    assert not data.measurements
    assert left_out[0].why == "starved: lstm: did little: raise most_s"


def test_a_retried_experiment_counts_once():
    failed = together("conv", "lstm").replace(status="failed", paces=None)
    data, left_out = found(*ALONE, failed, together("conv", "lstm"))
    assert len(data.measurements) == 1
    assert not left_out


def test_the_folder_of_a_ledger_becomes_a_data_set(tmp_path):
    of = campaign()
    with Ledger(tmp_path / "lab") as ledger:
        ledger.begin(machine(of), of)
        for one in (*ALONE, together("conv", "lstm"), result(["lstm"] * 2, stage=1,
                                                             status="out-of-memory")):  # fmt: skip
            ledger.append(one)
    written = write_tables(tmp_path / "lab")
    read = read_dataset(tmp_path / "lab")
    assert read == written
    assert (len(read.profiles), len(read.measurements)) == (3, 2)
    assert read.name == "lab"


def test_a_folder_without_results_yet_is_an_empty_data_set(tmp_path):
    of = campaign()
    with Ledger(tmp_path) as ledger:
        ledger.begin(machine(of), of)
    write_tables(tmp_path)
    assert not read_dataset(tmp_path).profiles


KERNELS = {
    "profiler": "torch.profiler",
    "launches": 4.0,
    "metrics": {"kernel_mean_s": 1e-5, "kernel_full": 0.25},
    "iterations": 10,
    "cost_s": 2.5,
}


def test_kernels_that_were_profiled_once_describe_all_profiles_without_a_share():
    capped = result([WorkerSeat("conv", "mps", 50)], [0.05])
    first = result(["conv"], [0.02], kernels=KERNELS)
    data, _ = found(first, result(["conv"], [0.04], repeat=1), capped)
    described = [one.metrics and one.metrics.to_data() for one in data.profiles]
    rest = KERNELS["metrics"]
    assert described == [
        {"kernels_s": pytest.approx(200.0), **rest},  # 4 / 0.02 s
        {"kernels_s": pytest.approx(100.0), **rest},
        None,
    ]
    assert data.profiles[1].source == "dovetail measure: first; kernels: torch.profiler"


def test_without_a_profiler_the_counts_of_built_in_workloads_give_kernels_a_second():
    of = campaign(workloads=["gemm", {"name": "stream", "program": "stream.py"}])
    results = (result(["gemm"], [0.01]), result(["stream"], [0.01]))
    data = measured_data(Contents((machine(campaign()),), of, results), "lab").data
    gemm, stream = data.profiles
    assert gemm.metrics.to_data() == {"kernels_s": pytest.approx(800.0)}
    assert gemm.source == "dovetail measure: first; kernels: counted"
    assert stream.metrics is None  # a program of the user's own
    tiny = of.replace(size="tiny")
    small = measured_data(Contents((machine(campaign()),), tiny, results), "lab").data
    assert small.profiles[0].metrics is None
    core = machine(campaign(), stand_in="a core")
    assert measured_data(Contents((core,), of, results), "lab").data.profiles[0].metrics is None
