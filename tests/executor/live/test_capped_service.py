"""A fresh service: unmeasured pairs wait for proven shares, then run at a split, and it says so."""

from __future__ import annotations

import textwrap

from dovetail.executor.gpus.splits import read_splits
from dovetail.executor.jobs.states import JobState
from dovetail.executor.pools.simulated import SimulatedNode
from dovetail.instances.checking.checker import check
from dovetail.instances.instance import Instance
from tests.executor.live.test_gathering import cores, job
from tests.executor.live.test_gathering import service_in as gathering_in
from tests.executor.live.test_service import ME, is_in, kinds, service_in, spec
from tests.executor.live.test_service_learning import LIGHT, QUICK
from tests.executor.local_runs import cleared
from tests.executor.waiting import wait_until

TRUTH = Instance.from_data(
    {
        "format": "dovetail-instance/1",
        "name": "truth",
        "cluster": {
            "shares": [50],
            "nodes": [{"id": "n", "gpu_count": 1, "gpu": {"model": "V100", "memory_mib": 16000}}],
        },
        "workloads": {
            name: {"memory_mib": 1000.0, "metrics": LIGHT, "throughput": {"100": 100.0}}
            for name in "AB"
        },
        "jobs": [],
        "slowdowns": [
            {"pair": ["A", "B"], "slowdown": [1.0, 9.0]},
            {"pair": ["A", "B"], "share": [50, 50], "slowdown": [1.2, 1.2]},
        ],
    }
)


def profiled(service, directory, names):
    """Run each workload alone until its profile is recorded."""
    for count, name in enumerate(names, start=1):
        (job,) = service.api.submit([spec(600, workload=name)], ME)
        wait_until(lambda count=count: kinds(directory).count("recorded") == count)
        service.api.cancel(job, ME)
        wait_until(is_in(service, job, JobState.CANCELLED))


def submitted_together(service, names):
    service.api.drain([], True, ME)
    jobs = service.api.submit([spec(600, workload=name) for name in names], ME)
    service.api.drain([], False, ME)
    return jobs


def test_a_pair_that_never_ran_waits_for_a_proven_share_and_then_has_one(tmp_path):
    quick = {"watching": QUICK}
    pool = SimulatedNode(tmp_path, TRUTH, 1.0, made_up=read_splits(tmp_path))
    with gathering_in(tmp_path, pool, None, **quick) as service:
        profiled(service, tmp_path, "AB")
        first, second = submitted_together(service, "AB")
        wait_until(is_in(service, first, JobState.RUNNING))
        # Nothing measures shares here, and without caps A would slow B nine times.
        lacks = "an idle device, or room beside other jobs once an SM share is proven for it"
        wait_until(lambda: service.api.job(second).waiting_for == lacks)
        assert "it needs an SM share, and none is proven for it yet" in service.api.explain(second)
        for job in (first, second):
            service.api.cancel(job, ME)
            wait_until(is_in(service, job, JobState.CANCELLED))
    # A service that measures them: the same two share at the split that was measured.
    pool = SimulatedNode(tmp_path, TRUTH, 1.0, made_up=read_splits(tmp_path))
    with gathering_in(tmp_path, pool, **quick) as service:
        wait_until(lambda: service.live.devices.cluster.shares == (50,))
        first, second = submitted_together(service, "AB")
        for job in (first, second):
            wait_until(is_in(service, job, JobState.RUNNING))
        view = service.api.job(second)
        assert (view.shares, view.co_runners) == ((50,), ((first,),))
        assert view.capped == f"it never ran without one beside {first}"
        assert service.api.explain(second).splitlines()[1] == (
            f"it has an SM share: it never ran without one beside {first}"
        )
        assert check(service.api.instance(), service.api.plan()).valid
        (third,) = service.api.submit([spec(600, workload="A")], ME)
        assert "it and that job need one from their starts" in service.api.explain(third)
        wait_until(lambda: "measured" in kinds(tmp_path))


def test_real_processes_wait_for_proven_shares_and_then_run_at_them(tmp_path):
    """On a core, with made-up evidence; what is measured there says nothing of GPUs."""
    work = textwrap.dedent("""
        import time
        from dovetail_progress import step
        while True:
            until = time.process_time() + 0.008
            while time.process_time() < until:
                pass
            time.sleep(0.012)
            step()
    """)
    with cleared(tmp_path), gathering_in(tmp_path, cores(tmp_path), watching=QUICK) as service:
        wait_until(lambda: service.live.devices.cluster.shares == (10, 50))
        for count, name in enumerate("AB", start=1):
            (alone,) = service.api.submit([job(work, tmp_path, workload=name)], ME)
            wait_until(lambda count=count: kinds(tmp_path).count("recorded") == count)
            service.api.cancel(alone, ME)
            wait_until(is_in(service, alone, JobState.CANCELLED))
        service.api.drain([], True, ME)
        pair = service.api.submit([job(work, tmp_path, workload=name) for name in "AB"], ME)
        service.api.drain([], False, ME)
        for one in pair:
            wait_until(is_in(service, one, JobState.RUNNING))
        shares = [service.api.job(one).shares for one in pair]
        assert all(share in ((10,), (50,)) for share in shares)
        assert service.api.job(pair[0]).capped == f"it never ran without one beside {pair[1]}"


def test_an_owner_may_let_them_share_without(tmp_path):
    bare = TRUTH.replace(cluster=TRUTH.cluster.replace(shares=()), slowdowns=TRUTH.slowdowns[:1])
    options = {"watching": QUICK, "sample_s": 0.05, "uncapped": True}
    with service_in(tmp_path, pool=SimulatedNode(tmp_path, bare, 1.0), **options) as service:
        profiled(service, tmp_path, "AB")
        first, second = submitted_together(service, "AB")
        for job in (first, second):
            wait_until(is_in(service, job, JobState.RUNNING))
        view = service.api.job(second)
        assert (view.shares, view.capped) == ((None,), "")
