"""Campaigns with real workers on a CPU core; no figure is of a GPU."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dovetail.executor.pools.cpu import SOURCE
from dovetail.executor.pools.runs.processes import runs
from dovetail.executor.pools.shim.kernel import stat_of
from dovetail.instances.datasets import read_dataset
from dovetail.measuring import device as device_module
from dovetail.measuring.campaign import WorkerSeat
from dovetail.measuring.dataset import write_tables
from dovetail.measuring.stand_ins import CpuDevice
from dovetail.measuring.worker_pool import WorkerPool
from tests.executor.waiting import LIMIT_S

from .programs import (
    BRIEF,
    BROKEN,
    DIES,
    GREEDY,
    GREEDY_LATER,
    HANGS,
    HASTY,
    HOG,
    HOLDS,
    NEEDS,
    REQUESTS,
    SPIN,
    STEADY,
    VICTIM,
    a_campaign,
    sitting,
    worker_command,
    write,
)


@pytest.fixture
def device(tmp_path):
    device = CpuDevice(tmp_path / "pool")
    yield device
    device.close()


def measured(device, tmp_path, of, **options):
    """Carry out a campaign; return results, remaining experiments and reports."""
    with sitting(device, of, tmp_path / "out", worker_command(of), **options) as now:
        left = now.runner.run()
        return now.ledger.results, left, now.heard


def alive(pid):
    stat = stat_of(pid)
    return stat is not None and runs(stat)


@pytest.mark.usefixtures("shadowed")
def test_alone_and_in_pairs(device, tmp_path, monkeypatch):
    monkeypatch.setattr(device_module, "READING_S", 0.05)
    workloads = write(tmp_path, spin=SPIN, requests=REQUESTS)
    # Long enough for two readings of the device on a busy machine.
    windows = {**BRIEF, "least_s": 1.5, "most_s": 3.0}
    of = a_campaign(workloads, {"measure": "solos"}, {"measure": "pairs"}, windows=windows)
    results, left, heard = measured(device, tmp_path, of)
    assert left == ()
    # Two alone, and three pairs.
    assert [one.status for one in results] == ["ok"] * 5
    assert sorted(one.workloads for one in results)[:2] == [("requests",), ("requests", "requests")]
    alone = {one.workloads[0]: one for one in results if len(one.workloads) == 1}
    assert alone["spin"].paces[0].latency is None
    assert alone["requests"].paces[0].latency.requests >= 3
    assert alone["requests"].paces[0].latency.p50_s >= 0.002
    spin = alone["spin"]
    assert spin.families == ("spin",)
    assert spin.batch_sizes == (8,)
    assert spin.window_s >= 1.5
    assert spin.paces[0].memory_mib > 5
    assert spin.metrics_source == SOURCE
    assert 0 < spin.metrics["sm_active"] <= 1
    # A worker that waits for requests leaves the core alone.
    assert alone["requests"].metrics["sm_active"] < spin.metrics["sm_active"]
    assert [left for _, left in heard.begun] == [5, 4, 3, 2, 1]
    assert heard.ended == list(results)
    # Workers that did well leave no log.
    assert list((tmp_path / "pool" / "runs").iterdir()) == []
    # What castor is fitted on.
    assert {"sm_active", "gpu_util"} <= spin.metrics_variance.keys() & spin.metrics.keys()


def test_a_victim_that_does_nothing_is_slower_by_at_least_so_much(device, tmp_path):
    windows = {**BRIEF, "settle_s": 0.3, "most_s": 0.4}
    workloads = write(tmp_path, hog=HOG, victim=VICTIM)
    of = a_campaign(workloads, {"measure": "solos"}, {"measure": "pairs"}, windows=windows)
    results, left, _ = measured(device, tmp_path, of)
    assert left == ()
    (starved,) = [one for one in results if one.status != "ok"]
    assert starved.workloads == ("hog", "victim")
    assert (starved.status, starved.paces) == ("starved", None)
    assert starved.reason.startswith("victim: did fewer than 3 chunks in ")
    assert starved.window_s >= 5 * 0.4
    data = write_tables(tmp_path / "out")
    (pair,) = [one for one in data.measurements if one.failed]
    hog, victim = pair.at_least
    # At most two chunks of 50 ms in 2 s: 20 times slower or more.
    assert victim > 10 > 2 > hog
    assert read_dataset(tmp_path / "out").measurements == data.measurements


def test_loads_are_relative_to_the_throughput_alone(device, tmp_path):
    workloads = write(tmp_path, spin=SPIN, steady=STEADY)
    served = {"latency": ["steady"], "load": 0.25}
    stages = (
        {"measure": "pairs", **served, "load": 0.5},
        {"measure": "solos"},
        {"measure": "solos", **served, "workloads": ["steady"]},
        {"measure": "pairs", **served},
    )
    of = a_campaign(workloads, *stages, windows={**BRIEF, "most_s": 1.5})
    results, left, _ = measured(device, tmp_path, of)
    assert left == ()
    early, *solos, alone, pair = results
    assert (early.status, early.reason) == (
        "refused",
        "steady: a load is relative to its throughput alone, which was not measured yet",
    )
    (usual,) = [one.paces[0].iterations_s for one in solos if one.workloads == ("steady",)]
    for one in (alone, pair):
        assert one.status == "ok"
        # The mean is known to 50 % long before, but not the 99th percentile.
        assert one.window_s >= 1.5
        (load,) = [load for load in one.loads if load]
        served = next(pace.latency for pace in one.paces if pace.latency)
        assert (load.part, load.arrivals) == (0.25, "poisson")
        assert served.requests_s == pytest.approx(0.25 * usual)
        assert served.requests > 0
    # The early stage is measured now that the throughput is known.
    again, left, _ = measured(device, tmp_path, of)
    assert left == ()
    assert again[-1].key == early.key
    assert again[-1].status == "ok"
    names = {one.workload for one in write_tables(tmp_path / "out").profiles}
    # On a busy core requests may queue up, which is no profile.
    assert {"spin", "steady"} <= names <= {"spin", "steady", "steady-load0.25"}


def test_a_core_isolates_nothing(device, tmp_path):
    stage = {"measure": "pairs", "mode": "isolated", "latency": ["steady"], "load": 0.5}
    of = a_campaign(write(tmp_path, spin=SPIN, steady=STEADY), stage)
    (refused,), _, _ = measured(device, tmp_path, of)
    assert refused.status == "refused"
    assert refused.reason.endswith("a processor core has no kernels that could be intercepted")


def skip_if_busy(*results):
    """Skip where other processes took part of this core."""
    if max(one.others_busy for one in results) > 0.05:
        pytest.skip("other processes use this core: paces say nothing")


@pytest.mark.alone
def test_cpu_time_of_other_processes_is_reported(device, tmp_path):
    of = a_campaign(write(tmp_path, spin=SPIN), {"measure": "solos"})
    # In a session of its own, as workers are: Linux may give every session the same part of a core.
    forever = [sys.executable, "-c", "while True: pass"]
    foreign = subprocess.Popen(forever, start_new_session=True)
    try:
        os.sched_setaffinity(foreign.pid, {max(os.sched_getaffinity(0))})
        (spin,), _, _ = measured(device, tmp_path, of)
    finally:
        foreign.kill()
        foreign.wait()
    # Two that compute all the time have about half a core each.
    assert spin.others_busy > 0.25


@pytest.mark.alone
def test_two_on_one_core_take_twice_as_long(device, tmp_path):
    windows = {**BRIEF, "least_s": 2.0, "most_s": 2.0}
    stages = {"measure": "solos"}, {"measure": "pairs"}
    of = a_campaign(write(tmp_path, steady=STEADY), *stages, windows=windows)
    (alone, pair), _, _ = measured(device, tmp_path, of)
    skip_if_busy(alone, pair)
    for pace in pair.paces:
        assert alone.paces[0].iterations_s / pace.iterations_s == pytest.approx(2, rel=0.15)


@pytest.mark.alone
def test_a_cap_is_kept(device, tmp_path):
    if device.why_not(WorkerSeat("steady", "mps", 30)) is not None:
        pytest.skip("no control group can be limited here")
    windows = {**BRIEF, "least_s": 2.0, "most_s": 2.0}
    solos = {"measure": "solos"}
    stages = solos, {**solos, "shares": [30]}
    of = a_campaign(write(tmp_path, steady=STEADY), *stages, windows=windows)
    (alone, capped), _, _ = measured(device, tmp_path, of)
    assert capped.metrics["sm_active"] <= 0.36
    skip_if_busy(alone)
    ratio = capped.paces[0].iterations_s / alone.paces[0].iterations_s
    assert ratio == pytest.approx(0.3, rel=0.25)


def test_what_cannot_be_capped_is_refused(device, tmp_path, monkeypatch):
    monkeypatch.setattr(device._pool, "shares", "none")
    stage = {"measure": "solos", "shares": [50]}
    of = a_campaign(write(tmp_path, spin=SPIN), stage)
    (refused,), left, heard = measured(device, tmp_path, of)
    assert refused.status == "refused"
    assert refused.reason.startswith("spin: a cap needs control groups")
    assert left == ()
    # Refused again for the same reason, it is not reported again.
    again, _, heard = measured(device, tmp_path, of)
    assert len(again) == 1
    assert heard.ended == []


@pytest.mark.long
def test_too_little_memory_is_a_finding_and_the_rest_goes_on(device, tmp_path):
    workloads = write(tmp_path, greedy=GREEDY, spin=SPIN)
    results, left, _ = measured(device, tmp_path, a_campaign(workloads, {"measure": "pairs"}))
    found = {one.workloads: (one.status, one.reason) for one in results}
    short = ("out-of-memory", "greedy: MemoryError: not so much")
    assert found == {
        ("greedy", "greedy"): short,
        ("greedy", "spin"): short,
        ("spin", "spin"): ("ok", ""),
    }
    assert left == ()


def test_memory_that_others_hold_is_given_back_before_it_is_said_to_lack(device, tmp_path):
    workloads = write(tmp_path, greedy=GREEDY_LATER, spin=SPIN)
    # Its memory is all taken when it has been there for a second, in the midst of the window.
    windows = {**BRIEF, "least_s": 1.5, "most_s": 1.5}
    of = a_campaign(workloads, {"measure": "solos"}, windows=windows)
    results, left, _ = measured(device, tmp_path, of)
    assert left == ()
    (short,) = [one for one in results if one.status != "ok"]
    assert short.workloads == ("greedy",)
    assert short.status == "out-of-memory"
    # It was tried once more without a co-runner.
    assert short.residents == 1


def test_idle_workers_end_where_another_lacks_memory_to_start(device, tmp_path):
    workloads = write(tmp_path, holds=HOLDS, needs=NEEDS)
    stages = (
        {"measure": "solos", "workloads": ["holds"]},
        {"measure": "pairs", "workloads": ["needs"]},
    )
    results, left, _ = measured(device, tmp_path, a_campaign(workloads, *stages))
    assert left == ()
    # The pair of itself comes first, while the other's idle worker holds all memory.
    assert [one.workloads for one in results[:2]] == [("holds",), ("needs", "needs")]
    assert [one.status for one in results] == ["ok"] * 3


@pytest.mark.long
def test_a_worker_that_dies_or_fails_is_tried_twice_and_reported(device, tmp_path):
    workloads = write(tmp_path, dies=DIES, broken=BROKEN, spin=SPIN)
    results, left, _ = measured(device, tmp_path, a_campaign(workloads, {"measure": "solos"}))
    assert left == ()
    assert [one.status for one in results].count("failed") == 4
    # What has failed comes again after everything else.
    assert [one.status for one in results[-2:]] == ["failed", "failed"]
    reasons = {one.workloads[0]: one.reason for one in results if one.status == "failed"}
    assert reasons["dies"] == "dies: ended with status 7: goodbye"
    assert reasons["broken"] == "broken: ValueError: no such layer"
    runs = list((tmp_path / "pool" / "runs").iterdir())
    assert {run.name.partition("-")[0] for run in runs} <= {"dies", "broken"}
    assert any((run / "rank0" / "log").read_text() == "goodbye\n" for run in runs)


def test_a_worker_that_hangs_is_given_up(device, tmp_path):
    of = a_campaign(write(tmp_path, hangs=HANGS), {"measure": "solos"})
    limits = HASTY._replace(ready_s=0.5, obey_s=0.2)
    results, left, _ = measured(device, tmp_path, of, limits=limits)
    assert [one.reason for one in results] == ["hangs: was not ready within 0.5 s"] * 2
    assert left == ()


def test_a_worker_that_is_killed_in_a_window_is_reported_and_another_takes_over(device, tmp_path):
    windows = {**BRIEF, "settle_s": 1.0}
    of = a_campaign(write(tmp_path, spin=SPIN), {"measure": "solos"}, windows=windows)
    with sitting(device, of, tmp_path / "out", worker_command(of)) as now:
        begins = now.heard.begins

        def kill_the_first(*args):
            begins(*args)
            if len(now.heard.begun) == 1:
                pid = now.workers.pids[0]
                threading.Timer(0.5, os.kill, (pid, signal.SIGKILL)).start()

        now.heard.begins = kill_the_first
        assert now.runner.run() == ()
        results = now.ledger.results
    assert [one.status for one in results] == ["failed", "ok"]
    assert results[0].reason == "spin: ended by SIGKILL"


@pytest.mark.long
def test_workers_stay_as_long_as_they_are_needed(device, tmp_path):
    workloads = write(tmp_path, one=SPIN, two=SPIN)
    stages = (
        {"measure": "solos"},
        {"measure": "pairs", "workloads": ["one"]},
        {"measure": "solos", "workloads": ["two"]},
    )
    of = a_campaign(workloads, *stages)
    pids = []
    with sitting(device, of, tmp_path / "out", worker_command(of)) as now:
        ends = now.heard.ends

        def look(result):
            ends(result)
            pids.append(set(now.workers.pids))

        now.heard.ends = look
        now.runner.run()
    # Alone: both. In pairs: another of the first joins for its self-pair. Then: the second only.
    assert len(pids) == 5
    assert pids[0] == pids[1]
    assert len(pids[0]) == 2
    assert pids[0] < pids[2] == pids[3]
    assert len(pids[2]) == 3
    assert len(pids[4]) == 1
    assert pids[4] < pids[0]
    assert not any(map(alive, set().union(*pids)))


@pytest.mark.long
def test_no_more_workers_than_there_may_be(device, tmp_path):
    of = a_campaign(write(tmp_path, one=SPIN, two=SPIN), {"measure": "pairs"})
    limits = HASTY._replace(workers=2)
    results, left, _ = measured(device, tmp_path, of, limits=limits)
    assert left == ()
    assert [one.status for one in results] == ["ok"] * 3
    assert {one.residents for one in results} == {2}


def test_when_time_is_up_the_rest_is_left_and_measured_later(device, tmp_path):
    of = a_campaign(write(tmp_path, spin=SPIN), {"measure": "solos", "repeats": 4})
    with sitting(device, of, tmp_path / "out", worker_command(of)) as now:

        def end_the_time(result):
            if len(now.ledger.results) == 2:
                now.runner._until_s = time.monotonic()

        now.heard.ends = end_the_time
        left, results = now.runner.run(), now.ledger.results
    assert [len(left), len(results)] == [2, 2]
    everything, left, _ = measured(device, tmp_path, of)
    assert left == ()
    assert everything[:2] == results
    assert [one.key for one in everything] == [f"0:mps:spin#{k}" for k in range(4)]


def test_nothing_begins_that_would_not_fit(device, tmp_path):
    of = a_campaign(write(tmp_path, spin=SPIN), {"measure": "solos"})
    results, left, heard = measured(device, tmp_path, of, until_s=time.monotonic() + 5.0)
    assert results == ()
    assert len(left) == 1
    assert heard.begun == []


def test_workers_end_when_their_parent_has_gone(device, tmp_path):
    of = a_campaign(write(tmp_path, spin=SPIN), {"measure": "solos"})
    with WorkerPool(device, worker_command(of), HASTY) as workers:
        (worker,) = workers.take([WorkerSeat("spin", "mps")], time.monotonic() + LIMIT_S)
        worker.forget()
        workers.wait(lambda: worker.submission.over, time.monotonic() + LIMIT_S)
        assert worker.submission.status == 0


def test_an_interruption_during_a_start_leaves_no_process_behind(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.measuring.interrupted", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    ended, pids = json.loads(done.stdout)
    assert ended == "interrupted", done.stderr
    assert len(pids) == 1
    assert not alive(pids[0])
