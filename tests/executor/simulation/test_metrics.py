import math
from pathlib import Path

import numpy as np
import pytest

from dovetail.executor.simulation import History, JobTimes, Options, Stay
from dovetail.executor.simulation.metrics import (
    METRICS,
    job_table,
    series_table,
    stay_table,
    summary,
)
from dovetail.instances.traces import Trace, TraceJob
from dovetail.solver.policies import Decision, Job, Start, policy_named
from tests.executor.simulation.worlds import run, trace, world


class Together:
    """Start every job on GPU 0 as it comes."""

    def decide(self, state):
        return Decision(starts=tuple(Start(job, (0,)) for job in state.pending.values()))


# Two GPUs, one of them used. j0 (100 s, gSLA 1.2) comes at 0, j1 (100 s, gSLA 1.8) at 40.
# Together both are slowed to 1.5. j0 has 60 s left at 40 and ends at 40 + 90 = 130. j1 has done
# 90 / 1.5 = 60 s by then and ends at 170.
SHARED = trace((0, 1, 100, "a", 1.2), (40, 1, 100, "b", 1.8))


@pytest.fixture(scope="module")
def shared():
    history = run(SHARED, world(gpus=2, slowdowns=[("a", "b", 1.5, 1.5)]), Together())
    return summary(history, SHARED)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jobs", 2),
        # 130 - 0 and 170 - 40.
        ("jct_mean_s", 130),
        ("jct_p99_s", 130),
        ("jct_mean_1_s", 130),
        ("makespan_s", 170),
        ("throughput_jobs_h", 2 / 170 * 3600),
        ("queueing_max_s", 0),
        ("first_start_max_s", 0),
        ("slowdown_mean", 1.3),
        ("slowdown_max", 1.3),
        # 1.3 is above 1.2 and below 1.8.
        ("violation_rate", 0.5),
        ("violation_rate_shared", 0.5),
        ("excess_p50", 100 * 0.1 / 1.2),
        # j0 is at 1.5 for 90 of the 260 s that both hold a GPU; 1.5 is below j1's 1.8.
        ("breach_part", 90 / 260),
        ("gpu_time_h", 170 / 3600),
        ("shared_part", 90 / 170),
        ("utilisation", 0.5),
        # 200 s of work in 340 GPU seconds.
        ("effective_utilisation", 200 / 340),
        # A GPU was idle all the time: j1 would have run from 40 to 140, 100 s in place of 130.
        ("sharing_benefit_mean", 100 / 130),
        ("sharing_loss_rate", 1),
        # Two jobs never ask for more than the two GPUs there are: rho is 130 / 100.
        ("fairness_max", 1.3),
        ("preemptions", 0),
        ("out_of_memory", 0),
        # Of arrivals and of j0's end; none at the last end.
        ("rounds", 3),
        ("proven_rounds", 0),
        # Two arrivals and two ends.
        ("events", 4),
    ],
)
def test_two_jobs_that_share(shared, name, value):
    assert shared[name] == pytest.approx(value)


@pytest.mark.parametrize("name", ["jct_mean_2_4_s", "gap_max", "energy_kwh", "energy_per_job_kwh"])
def test_what_does_not_exist_is_not_a_number(shared, name):
    assert math.isnan(shared[name])


def test_waiting_is_queueing_and_no_slowdown():
    # One GPU: j0 from 0 to 10, j1 waits from 2 to 10 and runs to 40, j2 waits from 4 to 40.
    # Contention: 1 until 2, 2 until 4, 3 until 10, 2 until 40, 1 until 46.
    jobs = trace((0, 1, 10, "a"), (2, 1, 30, "a"), (4, 1, 6, "b"))
    found = job_table(run(jobs, world(gpus=1), policy_named("fifo")), jobs)
    assert found["queueing_s"] == pytest.approx([0, 8, 36])
    assert found["first_start_delay_s"] == pytest.approx([0, 8, 36])
    assert found["slowdown"] == pytest.approx([1, 1, 1])
    # j0: (2 x 1 + 2 x 2 + 6 x 3) / 10 = 2.4, so rho = 10 / (10 x 2.4). j1: (2 x 2 + 6 x 3 +
    # 30 x 2) / 38 = 82 / 38. j2: (6 x 3 + 30 x 2 + 6 x 1) / 42 = 2.
    assert found["fairness"] == pytest.approx([1 / 2.4, 38 / 30 / (82 / 38), 42 / 12])
    assert np.isnan(found["gsla"]).all()
    assert np.isnan(found["sharing_benefit"]).all()


class OnceAside:
    """Stop the first job when the second comes, let that run, and take the first again."""

    def decide(self, state):
        stops = tuple(j for j in state.running.values() if j.number == 0 and 1 in state.pending)
        free = not state.running or bool(stops)
        starts = sorted(state.pending.values(), key=lambda job: -job.number)[: int(free)]
        return Decision(starts=tuple(Start(job, (0,)) for job in starts), stops=stops)


def test_a_restore_counts_as_slowdown_and_the_wait_before_it_as_queueing():
    # j0 runs from 0 to 10, j1 from 10 to 15; j0 is restored until 20 and does its last 10 s.
    jobs = trace((0, 1, 20, "a", 1.2), (10, 1, 5, "b", 1.2))
    history = run(jobs, world(gpus=1), OnceAside(), Options(restart_s=5.0))
    table, found = job_table(history, jobs), summary(history, jobs)
    assert table["held_s"] == pytest.approx([25, 5])
    assert table["queueing_s"] == pytest.approx([5, 0])
    assert table["slowdown"] == pytest.approx([1.25, 1])
    assert table["starts"].tolist() == [2, 1]
    assert (found["preemptions"], found["violation_rate"]) == (1, 0.5)
    assert found["gpu_time_h"] == pytest.approx(30 / 3600)
    assert math.isnan(found["violation_rate_shared"])


def test_sharing_that_pays():
    # One GPU. j0 needs 100 s; j1 comes at 50 with 10 s of work and shares at 1.25: it ends at
    # 62.5. Waiting until 100 would have let it end at 110: 60 / 12.5 = 4.8.
    jobs = trace((0, 1, 100, "a"), (50, 1, 10, "b"))
    history = run(jobs, world(gpus=1, slowdowns=[("a", "b", 1.25, 1.25)]), Together())
    assert job_table(history, jobs)["sharing_benefit"][1] == pytest.approx(4.8)
    assert summary(history, jobs)["sharing_loss_rate"] == 0


def test_a_slowdown_that_is_the_gsla_breaks_nothing():
    jobs = trace((0, 1, 7.7, "a", 1.3), (0, 1, 7.7, "b", 1.3))
    history = run(jobs, world(gpus=1, slowdowns=[("a", "b", 1.3, 1.3)]), Together())
    assert summary(history, jobs)["violation_rate"] == 0


def test_a_gang_is_a_row_for_each_worker_in_the_table_of_stays():
    jobs = trace((0, 2, 10, "a"), (1, 1, 5, "b"))
    stays = stay_table(run(jobs, world(gpus=3), policy_named("fifo")))
    assert stays["job"].tolist() == [1, 0, 0]
    assert stays["gpu"].tolist() == [2, 0, 1]
    assert stays["stay"].tolist() == [0, 1, 1]
    assert stays["end_s"].tolist() == [6, 10, 10]
    assert stays["ending"].tolist() == ["finished"] * 3
    assert np.isnan(stays["share"]).all()


def test_the_series_are_a_row_a_round():
    jobs = trace((0, 1, 10, "a"), (1, 1, 5, "b"))
    series = series_table(run(jobs, world(gpus=1), policy_named("fifo")))
    assert series["time_s"].tolist() == [0, 1, 10]
    assert series["pending"].tolist() == [0, 1, 0]
    assert series["demanded"].tolist() == [1, 2, 1]


def test_shares_and_failed_starts_are_reported():
    job = Job(0, "j0", workload=0, workers=1, work_s=10.0, arrival_s=0.0, starts=1)
    outcome = JobTimes(10.0, first_start_s=5.0, finish_s=15.0, held_s=10.0, solo_s=10.0)
    stays = [
        Stay(0, 0.0, 0.0, (0,), (30,), 0, 0.0, 0.0, "out_of_memory"),
        Stay(0, 0.0, 0.0, (0,), ("idle",), 0, 0.0, 0.0, "out_of_memory"),
        Stay(0, 5.0, 15.0, (1,), None, 0, 0.0, 10.0, "finished"),
    ]
    table = stay_table(History([job], [outcome], stays, gpus=2))
    np.testing.assert_array_equal(table["share"], [30, math.nan, math.nan])
    assert table["best_effort"].tolist() == [False, True, False]
    history = History([job], [outcome], stays, gpus=2)
    assert summary(history, trace((0, 1, 10, "a")))["out_of_memory"] == 2


def test_every_metric_is_there_and_no_other(shared):
    assert list(shared) == list(METRICS)
    assert all(type(value) is float for value in shared.values())


def test_an_empty_trace():
    history = History([], [], gpus=2)
    found = summary(history, Trace("free", ()))
    assert found["jobs"] == 0
    assert math.isnan(found["jct_mean_s"])


def test_agrees_with_the_series_on_the_time_that_gpus_are_in_use():
    draw = np.random.default_rng(5)
    rows = zip(
        draw.integers(0, 500, 60), draw.integers(1, 4, 60), draw.integers(5, 90, 60), strict=True
    )
    jobs = trace(*((int(at), int(w), int(d), "a") for at, w, d in sorted(rows)))
    history = run(jobs, world(nodes=2, gpus=4), policy_named("fifo"))
    series, found = series_table(history), summary(history, jobs)
    time = np.append(series["time_s"], job_table(history, jobs)["finish_s"].max())
    assert found["gpu_time_h"] * 3600 == pytest.approx((series["busy"] * np.diff(time)).sum())
    assert found["utilisation"] == pytest.approx(found["effective_utilisation"])


def test_every_metric_is_in_the_documentation():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text(
        encoding="utf-8"
    )
    assert [name for name in METRICS if f"`{name}`" not in page] == []


def interrupted_service(priority, ending):
    """Return the history of a job that waits 10 s, and is off its GPU from 40 to 52."""
    service = JobTimes(95.0, first_start_s=10.0, finish_s=122.0, held_s=100.0, solo_s=95.0)
    other = JobTimes(30.0, first_start_s=0.0, finish_s=30.0, held_s=30.0, solo_s=30.0)
    jobs = [Job(k, f"j{k}", k, 1, 95.0, 0.0, starts=2 - k) for k in range(2)]
    stays = [
        Stay(0, 10.0, 40.0, (0,), None, 0, 0.0, 25.0, ending),
        Stay(1, 0.0, 30.0, (1,), None, 0, 0.0, 30.0, "finished"),
        Stay(0, 52.0, 122.0, (0,), None, 0, 5.0, 70.0, "finished"),
    ]
    first = TraceJob("j0", 0.0, 1, 95.0, "a", gsla=1.5, priority=priority)
    made = Trace.of("service", [first, TraceJob("j1", 0.0, 1, 30.0, "b", gsla=1.5)])
    return summary(History(jobs, [service, other], stays, gpus=2), made)


@pytest.mark.parametrize("ending", ["stopped", "failed"])
def test_a_service_that_is_taken_off_its_gpus_is_in_violation_and_its_wait_is_counted_apart(ending):
    found = interrupted_service("latency", ending)
    # The slowdown, 100 / 95, keeps the gSLA.
    assert found["violation_rate"] == 0.5
    assert math.isnan(found["excess_p50"])
    assert found["service_wait_mean_s"] == found["service_wait_max_s"] == 10.0
    assert found["service_off_mean_s"] == found["service_off_max_s"] == 12.0
    assert found["service_absent_part"] == pytest.approx(12 / 112)
    assert found["service_interruptions"] == 1
    assert found["best_effort_jct_mean_s"] == 30.0


def test_without_services_they_have_no_figures():
    found = interrupted_service("batch", "stopped")
    assert found["violation_rate"] == 0
    names = [name for name in METRICS if name.startswith(("service", "best_effort"))]
    assert len(names) == 7
    assert all(math.isnan(found[name]) for name in names)


def test_a_failure_takes_a_service_off_its_gpus():
    jobs = trace((0, 1, 1000, "a", 1.5), priority="latency")
    options = Options(node_mtbf_s=400.0, repair_s=50.0, checkpoint_s=10.0)
    history = run(jobs, world(gpus=1), policy_named("fifo"), options)
    found = summary(history, jobs)
    assert found["failures"] > 0
    assert found["service_interruptions"] == found["failures"]
    assert found["service_off_mean_s"] == pytest.approx(50.0 * found["failures"])
    assert found["violation_rate"] == 1
