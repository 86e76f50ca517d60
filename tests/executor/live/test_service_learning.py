"""Learning on the simulated pool: profiles, pairs, and the jobs that may share."""

from __future__ import annotations

import pytest

from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.beliefs import Source
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.pools.simulated import SimulatedNode
from dovetail.instances.checking.checker import check
from dovetail.instances.datasets import Repository
from dovetail.instances.instance import Assumed, Instance
from tests.executor.live.test_service import ME, is_in, kinds, service_in, spec
from tests.executor.waiting import wait_until

QUICK = WatchOptions(
    warm_up_s=0.1,
    settle_s=0.1,
    profile_s=0.5,
    profile_most_s=5.0,
    window_s=0.5,
    window_most_s=0.5,
    tolerance=0.5,
    iterations=2,
)

LIGHT = {"sm_active": 0.3, "sm_occupancy": 0.2, "dram_active": 0.2, "gpu_util": 0.4}
TRUTH = Instance.from_data(
    {
        "format": "dovetail-instance/1",
        "name": "truth",
        "cluster": {
            "uncapped": True,
            "nodes": [{"id": "n", "gpu_count": 1, "gpu": {"model": "V100", "memory_mib": 16000}}],
        },
        "workloads": {
            name: {"memory_mib": 1000.0, "metrics": LIGHT, "throughput": {"100": 100.0}}
            for name in "AB"
        },
        "jobs": [],
        "slowdowns": [{"pair": ["A", "B"], "slowdown": [1.2, 1.4]}],
    }
)


@pytest.fixture
def learning(tmp_path):
    pool = SimulatedNode(tmp_path, TRUTH, 1.0)
    with service_in(tmp_path, pool=pool, watching=QUICK, sample_s=0.05) as service:
        yield service


def test_jobs_are_profiled_alone_then_share_and_their_slowdowns_are_recorded(tmp_path, learning):
    first, second = learning.api.submit([spec(600, workload="A"), spec(600, workload="B")], ME)
    wait_until(is_in(learning, first, JobState.RUNNING))
    # B has no profile yet: it may not join A.
    assert learning.api.job(second).state is JobState.SUBMITTED
    assert learning.api.job(second).waiting_for == "an idle device"
    assert learning.api.explain(second).splitlines() == [
        "j2: submitted",
        "it starts alone: its workload has no profile yet",
        "capacity: no device is idle",
        "- could start alone on n-0 once j1 has ended",
        "- could start if there were 1 more V100",
    ]
    learning.api.cancel(first, ME)
    wait_until(is_in(learning, second, JobState.RUNNING))
    (third,) = learning.api.submit([spec(600, workload="A")], ME)
    wait_until(is_in(learning, third, JobState.RUNNING))
    assert learning.api.job(third).co_runners == ((second,),)
    wait_until(lambda: kinds(tmp_path).count("recorded") == 3)
    found = Repository(tmp_path / "repository.db").data_set().measurements[0]
    assert dict(zip(found.workloads, found.slowdown, strict=True)) == {
        "me/A": pytest.approx(1.2, rel=0.2),
        "me/B": pytest.approx(1.4, rel=0.2),
    }
    wait_until(lambda: learning.api.job(second).slowdown)
    shown = learning.api.job(second)
    assert shown.predicted >= 1
    assert shown.predicted_by.startswith("estimate: law of MPS")
    # It was measured since, which gives a bound.
    wait_until(lambda: learning.api.job(second).upper)
    learning.api.cancel(second, ME)
    wait_until(is_in(learning, second, JobState.CANCELLED))
    over = learning.api.job(second)
    assert over.iterations >= shown.iterations > 0
    assert over.slowdown == pytest.approx(1.4, rel=0.2)
    assert over.predicted == shown.predicted
    assert (over.rate, over.co_runners) == (None, ())


def test_what_is_declared_lets_jobs_share_until_it_is_measured(tmp_path):
    data = TRUTH.to_data()
    for workload in data["workloads"].values():
        del workload["metrics"]  # nothing can be predicted
    pool, declared = SimulatedNode(tmp_path, Instance.from_data(data), 1.0), Assumed(pair=1.1)
    how = {"watching": QUICK, "sample_s": 0.05, "assumed": declared}
    with service_in(tmp_path, pool=pool, **how) as service:
        asked = [spec(600, workload=name, memory_percent=50) for name in "AB"]
        first, second = service.api.submit(asked, ME)
        wait_until(is_in(service, first, JobState.RUNNING))
        service.api.cancel(first, ME)
        wait_until(is_in(service, second, JobState.RUNNING))
        (third,) = service.api.submit(asked[:1], ME)
        wait_until(is_in(service, third, JobState.RUNNING))
        assert service.api.job(third).co_runners == ((second,),)
        assert "assumed" in service.api.explain(third)
        wait_until(lambda: kinds(tmp_path).count("recorded") == 3)
        said = Repository(tmp_path / "repository.db").data_set().measurements[0].slowdown
        assert sorted(said) == pytest.approx([1.2, 1.4], rel=0.2)
        seen = service.api.job(second)
        # The bound is that of the measurement as soon as this is used.
        assert seen.predicted == 1.1 <= seen.upper
        assert seen.predicted_by == "assumed by the service's administrator"

        def measured():
            found = service.live.beliefs.belief(second, third, "n-0")
            return found is not None and found.kind is Source.MEASURED

        wait_until(measured)


def test_the_plan_of_the_service_passes_the_checker(learning):
    first, second = learning.api.submit([spec(600, workload="A"), spec(600, workload="B")], ME)
    wait_until(is_in(learning, first, JobState.RUNNING))
    instance, plan = learning.api.instance(), learning.api.plan()
    assert check(instance, plan).valid
    assert [row.job for row in plan.assignments] == [first]
    assert [(row.job, row.reason) for row in plan.waiting] == [
        (second, "capacity: no device is idle")
    ]
    assert plan.notes[0] == "simulated from the instance truth: no process runs"
    assert plan.objective is not None
    assert plan.objective.name == "completion"
    assert plan.solver == "policy dovetail"
    assert learning.api.explain(first).startswith(f"{first}: running")


def test_a_workload_that_the_repository_knows_needs_no_profile(tmp_path):
    pool = SimulatedNode(tmp_path, TRUTH, 1.0)
    with service_in(tmp_path, pool=pool, watching=QUICK, sample_s=0.05) as service:
        service.api.submit([spec(600, workload="A")], ME)
        wait_until(lambda: "recorded" in kinds(tmp_path))
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "repository.db").rename(other / "repository.db")
    with service_in(other, pool=SimulatedNode(other, TRUTH, 1.0)) as service:
        service.api.drain([], True, ME)
        service.api.submit([spec(600, workload="A"), spec(600, workload="B")], ME)
        assert [view.state for view in service.api.jobs()] == ["waiting", "submitted"]


def test_a_repository_that_cannot_be_read_holds_up_no_job_and_loses_nothing(tmp_path):
    path = tmp_path / "repository.db"
    path.write_bytes(b"something else" * 100)
    pool = SimulatedNode(tmp_path, TRUTH, 1.0)
    with service_in(tmp_path, pool=pool, watching=QUICK, sample_s=0.05) as service:
        service.api.submit([spec(600, workload="A")], ME)
        wait_until(lambda: "profiled" in kinds(tmp_path))
        assert "must be a profile repository" in service.api.service().trouble
        assert "recorded" not in kinds(tmp_path)
    # Another service knows that A has a profile, and not yet which.
    with service_in(tmp_path, pool=SimulatedNode(tmp_path, TRUTH, 1.0)) as service:
        assert service.api.job("j1").state is JobState.RUNNING
        assert "must be a profile repository" in service.api.service().trouble
        path.unlink()
        wait_until(lambda: "recorded" in kinds(tmp_path))
        wait_until(lambda: not service.api.service().trouble)
    assert [found.workload for found in Repository(path).data_set().profiles] == ["me/A"]


def test_three_share_a_device_where_the_administrator_lets_them(tmp_path):
    workloads = dict.fromkeys("ABC", TRUTH.workloads["A"])
    entries = [{"pair": list(pair), "slowdown": [1.05, 1.05]} for pair in ("AB", "AC", "BC")]
    truth = Instance.from_data(
        {**TRUTH.replace(workloads=workloads).to_data(), "slowdowns": entries}
    )
    pool = SimulatedNode(tmp_path, truth, 1.0)
    options = {"watching": QUICK, "sample_s": 0.05, "max_jobs_per_gpu": 3}
    with service_in(tmp_path, pool=pool, **options) as service:
        for count, name in enumerate("ABC", start=1):
            (job,) = service.api.submit([spec(600, workload=name)], ME)
            wait_until(lambda count=count: kinds(tmp_path).count("recorded") == count)
            service.api.cancel(job, ME)
        jobs = service.api.submit([spec(600, workload=name) for name in "ABC"], ME)
        for job in jobs:
            wait_until(is_in(service, job, JobState.RUNNING))
        assert service.api.job(jobs[0]).co_runners == (jobs[1:],)
        repository = Repository(tmp_path / "repository.db")
        wait_until(lambda: any(len(m.workloads) == 3 for m in repository.data_set().measurements))
        # A measurement may come between the two.
        wait_until(lambda: check(service.api.instance(), service.api.plan()).valid)


def test_three_share_at_shares_and_what_they_do_together_is_remembered(tmp_path):
    """None of them ran with another before: no two share without shares, all three do with."""
    workloads = dict.fromkeys("ABC", TRUTH.workloads["A"])
    entries = [
        {"pair": list(pair), "share": [30, 30], "slowdown": [1.05, 1.05]}
        for pair in ("AB", "AC", "BC")
    ]
    data = TRUTH.replace(workloads=workloads).to_data() | {"slowdowns": entries}
    data["cluster"] = {**data["cluster"], "uncapped": False, "shares": [30], "max_jobs_per_gpu": 4}
    pool = SimulatedNode(tmp_path, Instance.from_data(data), 1.0)
    with service_in(tmp_path, pool=pool, watching=QUICK, sample_s=0.05) as service:
        for count, name in enumerate("ABC", start=1):
            (job,) = service.api.submit([spec(600, workload=name)], ME)
            wait_until(lambda count=count: kinds(tmp_path).count("recorded") == count)
            service.api.cancel(job, ME)
        service.api.drain([], True, ME)
        jobs = service.api.submit([spec(600, workload=name) for name in "ABC"], ME)
        service.api.drain([], False, ME)
        for job in jobs:
            wait_until(is_in(service, job, JobState.RUNNING))
        assert [service.api.job(job).shares for job in jobs] == [(30,)] * 3
        instance, plan = service.api.instance(), service.api.plan()
        assert check(instance, plan).valid
        repository = Repository(tmp_path / "repository.db")
        wait_until(lambda: any(len(m.workloads) == 3 for m in repository.data_set().measurements))
        wait_until(lambda: service.state.predicted.sets)
        (entry,) = service.state.predicted.sets
        assert (entry.source, entry.share) == ("measured", (30, 30, 30))
        assert entry.slowdown == pytest.approx([1.1] * 3, rel=0.2)
