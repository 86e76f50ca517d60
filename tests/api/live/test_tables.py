"""Tables and the dashboard fit their terminal and cut nothing off."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.promises import promise_of
from dovetail.executor.live.views import DeviceView, JobView, ServiceView, StepView
from dovetail.live.queue import capped_line, queue_view
from dovetail.live.show import job_view
from dovetail.live.tables import (
    by_node,
    co_runners,
    device_table,
    done,
    in_ranges,
    job_table,
    places,
    service_view,
    slowdown,
)
from dovetail.live.top import dashboard
from dovetail.toolkit.wording import lasting


def job(**changes):
    """Return a running job that shares a device."""
    usual = {
        "id": "j1",
        "owner": "anna",
        "uid": 1000,
        "command": ("python", "train.py"),
        "workload": "resnet",
        "workers": 1,
        "priority": "batch",
        "state": JobState.RUNNING,
        "why": "every rank runs",
        "submitted_s": 1000.0,
        "since_s": 1060.0,
        "started_s": 1060.0,
        "runs": 1,
        "run": "j1.1",
        "gpus": ("gpu0",),
        "shares": (50,),
        "co_runners": (("j2",),),
        "pids": (4711,),
        "statuses": (None,),
    }
    return JobView(**{**usual, **changes})


def waiting(k):
    reason = "no slowdown is known with any job that it could join"
    places_of_none = {"gpus": (), "shares": (), "co_runners": (), "pids": (), "statuses": ()}
    return job(id=f"j{k}", state=JobState.WAITING, waiting_for=reason, **places_of_none)


def device(**changes):
    usual = {
        "id": "gpu0",
        "node": "n",
        "model": "H100",
        "memory_mib": 81_559.0,
        "jobs": ("j1", "j2"),
        "used_mib": 20_000.0,
        "power_w": 410.0,
        "energy_j": 1e6,
        "metrics": {"sm_active": 0.75, "dram_active": 0.25, "tensor_active": 0.5},
        "source": "NVML GPM",
    }
    return DeviceView(**{**usual, **changes})


def service(**changes):
    usual = {
        "pool": "gpu",
        "notice": "",
        "policy": "dovetail",
        "version": "0.1.0",
        "pid": 99,
        "directory": "/var/lib/dovetail",
        "started_s": 0.0,
        "now_s": 7300.0,
        "sequence": 17,
        "jobs": {"running": 1, "waiting": 2},
        "decide_s": 0.25,
        "devices": (device(), device(id="gpu1", jobs=(), trouble="drained by root")),
    }
    return ServiceView(**{**usual, **changes})


def printed(view, width=100):
    console = Console(width=width, highlight=False, force_terminal=False, record=True, file=None)
    with console.capture() as captured:
        console.print(view)
    return captured.get()


LONG = job(
    id="j1234",
    name="a name of some length that people gave [to] their job " * 2,
    owner="a.long.user.name",
    gpus=tuple(f"gpu{k}" for k in range(8)),
    shares=(50,) * 8,
    co_runners=tuple((f"j{k}",) for k in range(100, 108)),
    pids=tuple(range(100_000, 100_008)),
    statuses=(None,) * 8,
    slowdown=1.234,
    predicted=1.5,
    upper=1.75,
    iterations=123_456.0,
    rate=3.21,
    solo_rate=4.0,
)


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize(
    "view",
    [
        queue_view([LONG, job(), *map(waiting, range(3, 40))], 99_999.0),
        job_view(LONG, 99_999.0, "j1234 waits for a GPU " * 10),
        service_view(service(notice="a notice " * 20, trouble="trouble " * 20)),
        dashboard(service(), [LONG, job(), waiting(3)], 10),
    ],
    ids=["queue", "job", "service", "dashboard"],
)
def test_nothing_is_wider_than_the_terminal_or_cut_off(view, width):
    text = printed(view, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


def test_names_are_not_taken_for_markup():
    assert "[to] their job" in " ".join(printed(job_view(LONG, 99_999.0, "")).split())


def test_the_queue_shows_placements_and_reasons_to_wait():
    text = printed(queue_view([job(slowdown=1.2, predicted=1.25), waiting(2)], 7300.0))
    row = next(line for line in text.splitlines() if line.startswith("j1 "))
    assert row.split("  ")[-1].strip() == "1.20 (1.25)"
    assert "running" in row
    assert "gpu0 50 %" in row
    assert "1.20 (1.25)" in row
    assert "1 job waits for" in text
    assert "j2  no slowdown is known with any job" in text


def test_columns_in_which_no_job_has_anything_are_left_out():
    heads = printed(queue_view([waiting(2)], 7300.0)).splitlines()[0].split()
    assert heads == ["job", "user", "name", "state", "for"]


def test_a_reason_that_was_just_given_is_not_given_again():
    states = (JobState.STOPPING, JobState.FAILED)
    steps = tuple(StepView(at_s=1000.0, state=state, why="cannot start") for state in states)
    shown = printed(job_view(job(state=JobState.FAILED, history=steps, why="ended"), 2000.0, ""))
    assert shown.count("cannot start") == 1


def test_a_job_goes_by_its_name_or_else_its_workload():
    lines = printed(queue_view([job(name="hello"), job(id="j2")], 7300.0)).splitlines()
    at = next(line for line in lines if line.startswith("job ")).index("name ")
    rows = [line for line in lines if line.startswith(("j1 ", "j2 "))]
    assert [row[at:].split()[0] for row in rows] == ["hello", "resnet"]


def test_a_command_cannot_command_the_terminal():
    text = printed(job_view(job(command=("sh", "-c", "\x1b]0;mine\x07\r")), 7300.0, ""))
    assert "\x1b" not in text
    assert "]0;mine" in text


def test_of_many_jobs_the_first_are_shown():
    different = [replace(waiting(k), waiting_for=f"device {k}") for k in range(1, 5001)]
    text = printed(queue_view(different, 7300.0))
    assert "... 4,800 more jobs: dovetail queue --json" in text
    assert "... 4,980 more waiting: dovetail queue --json" in text
    assert "5,000 jobs wait for" in text


def test_jobs_that_wait_for_the_same_are_in_one_line():
    jobs = [waiting(k) for k in [*range(1, 1001), 1003]]
    jobs[6] = replace(jobs[6], waiting_for="its release")
    lines = printed(queue_view(jobs, 7300.0)).split("1,001 jobs wait for\n")[1].splitlines()
    assert [line.split("  ")[0] for line in lines if line[0] != " "] == [
        "j1 to j6, j8 to j1000,",
        "j1003",
        "j7",
    ]


def test_ids_in_a_row_are_a_range():
    names = [f"j{k}" for k in (1, 2, 3, 5, 9, 10)]
    assert in_ranges(names) == "j1 to j3, j5, j9 to j10"
    assert in_ranges([f"j{2 * k}" for k in range(1, 11)]).endswith("j14, j16 and 2 more")


def test_an_empty_queue():
    assert printed(queue_view([], 0.0)) == "no jobs\n"


def test_a_job_shows_its_history():
    steps = (
        StepView(at_s=1000.0, state=JobState.SUBMITTED, why="submitted"),
        StepView(at_s=1060.0, state=JobState.FAILED, why="rank 0 ended with status 3"),
    )
    ended = job(state=JobState.FAILED, ended_s=1060.0, statuses=(3,), history=steps)
    text = printed(job_view(ended, 2000.0, ""))
    assert text.splitlines()[-1].endswith("failed     rank 0 ended with status 3")
    assert "exit status  3" in text


def test_an_isolated_job_shows_its_launches_and_what_escapes():
    isolated = job(
        isolation="blocks",
        shares=("idle",),
        launches={"isolated": 1200, "whole": 0, "preempted": 3},
        escapes={f"k{n}: slices": "a cluster" for n in range(7)},
    )
    text = " ".join(printed(job_view(isolated, 2000.0, "")).split())
    assert "isolation blocks" in text
    assert "launches 1,200 isolated, 3 preempted escapes k0: slices: a cluster k1" in text
    assert "2 more" in text
    assert "idle %" not in text
    lost = job(isolation="blocks", unisolated="the scheduler has ended")
    assert "not isolated  the scheduler has ended" in printed(job_view(lost, 2000.0, ""))


SERVICE = {"priority": "latency", "service": True, "replicas": 2, "replica": 1}


def test_a_service_shows_where_it_is_how_it_fares_and_what_it_promises():
    served = job(
        **SERVICE,
        ready=True,
        restarts=3,
        address="n1:30001",
        p99_s=0.0123,
        p99_alone_s=0.01,
        p99_promised_s=0.015,
        requests_per_s=12.5,
    )
    text = " ".join(printed(job_view(served, 2000.0, "")).split())
    assert "service replica 1 of 2 address n1:30001 ready yes restarts 3 requests 12.5" in text
    assert "p99 latency now 12.3 ms, alone 10 ms, promised 15 ms" in text
    # Submitted as the only one, and scaled since then.
    first = printed(job_view(job(**{**SERVICE, "replica": None}), 2000.0, ""))
    assert "replica 0 of 2" in first
    only = printed(job_view(job(**{**SERVICE, "replica": None, "replicas": 1}), 2000.0, ""))
    assert "one replica" in only
    slow = printed(job_view(job(**SERVICE, p99_s=10.0, p99_alone_s=0.9995), 2000.0, ""))
    assert "p99 latency  now 10 s" in slow
    idle = " ".join(printed(job_view(job(**SERVICE, requests_per_s=0.0), 2000.0, "")).split())
    assert "requests no requests" in idle
    assert "p99" not in idle
    assert "service" not in printed(job_view(job(), 2000.0, ""))


@pytest.mark.parametrize(
    ("p99_s", "co_runners", "word"),
    [
        (0.0123, (("j2",),), "kept"),
        (0.0149, (("j2",),), "at risk"),
        (0.0149, ((),), "kept"),
        (0.0151, (("j2",),), "broken"),
        (None, (("j2",),), "not measured"),
    ],
)
def test_whether_a_promise_is_kept_is_said_in_the_words_of_the_page(p99_s, co_runners, word):
    figures = {"p99_s": p99_s, "p99_alone_s": 0.01, "p99_promised_s": 0.015}
    served = job(**SERVICE, gsla=1.5, co_runners=co_runners, **figures)
    assert f"promise      {word}" in printed(job_view(served, 2000.0, ""))
    assert promise_of(served).value == word
    assert "promise " not in printed(job_view(job(**SERVICE, gsla=None), 2000.0, ""))


def test_a_job_that_waits_again_is_on_no_device():
    again = job(**SERVICE, again_s=2010.0, state=JobState.WAITING, why="again in 60 s")
    assert places(again) == "-"
    text = printed(job_view(again, 2000.0, ""))
    assert "gpu0" not in text
    assert "4711" not in text


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"ready": False}, "running, not ready"),
        ({"ready": True}, "running"),
        ({"state": JobState.WAITING, "again_s": 2004.0, "quick_ends": 4}, "restarting"),
        ({"state": JobState.WAITING, "again_s": 2004.0, "quick_ends": 5}, "failing"),
        ({"state": JobState.WAITING, "again_s": 2004.0, "held": "anna"}, "held"),
    ],
)
def test_the_queue_says_whether_a_service_answers_or_rests(fields, word):
    row = printed(job_table([job(**SERVICE, **fields)], 2000.0)).splitlines()[2]
    assert f" {word} " in row


def test_a_memory_limit_is_shown_with_what_holds_it():
    held = job(memory_mib=6000.0, memory_held_by="MPS for each of its processes")
    text = " ".join(printed(job_view(held, 2000.0, "")).split())
    assert "memory limit 6,000 MiB a worker, held by MPS for each of its processes" in text
    loose = job(memory_percent=40.0, memory_held_by="nothing")
    assert "40 % of its GPU a worker, held by nothing" in printed(job_view(loose, 2000.0, ""))
    runs = job(memory_percent=40.0, memory_limit_mib=32_000.4)
    assert "40 % of its GPU a worker (32,000 MiB)" in printed(job_view(runs, 2000.0, ""))
    assert "held by" not in printed(job_view(job(memory_mib=6000.0), 2000.0, ""))


def test_a_source_of_no_figures_is_not_named():
    text = printed(device_table([device(metrics={}, power_w=None)]))
    assert not {"power", "activity", "NVML"} & {*text.split()}


def test_the_dashboard_names_what_is_not_there():
    text = printed(dashboard(service(), [waiting(k) for k in range(1, 30)], 5))
    assert "j1 to j29  no slowdown is known" in text
    waits = [replace(waiting(k), waiting_for=f"device {k}") for k in range(1, 30)]
    text = printed(dashboard(service(), waits, 5))
    assert "no job runs" in text
    assert "... 24 more waiting" in text
    assert "drained by root" in text
    assert "activity by NVML GPM" in text


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (-1, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_how_long_something_lasts(time_s, text):
    assert lasting(time_s) == text


def test_cells():
    gang = job(gpus=("a", "b"), shares=(None, 30), co_runners=(("j2",), ("j2",)), workers=2)
    assert places(gang) == "a, b 30 %"
    assert co_runners(gang) == "j2"
    assert co_runners(job(co_runners=((),))) == "-"
    assert [slowdown(job()), slowdown(job(predicted=1.5))] == ["-", "- (1.50)"]
    assert [done(job()), done(job(iterations=1234.0))] == ["-", "1,234 it."]
    assert done(job(iterations=50.0, total=200.0)) == "25 %"


def pool(nodes, each):
    """Return a service with devices on nodes, of which the last does not answer."""
    devices = tuple(
        device(
            id=f"n{k}/gpu{j}",
            node=f"n{k}",
            rack=f"r{k // 32}",
            jobs=("j1",) if k < 3 else (),
            trouble="" if k < nodes else f"n{k} does not answer",
        )
        for k in range(1, nodes + 1)
        for j in range(each)
    )
    return service(devices=devices)


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("nodes", [3, 200])
def test_many_nodes_fit_too(nodes, width):
    gang = job(gpus=tuple(f"n{k}/gpu{j}" for k in range(16) for j in range(4)), shares=(None,) * 64)
    gang = replace(gang, co_runners=((),) * 64, pids=(1,) * 64, statuses=(None,) * 64)
    text = printed(dashboard(pool(nodes, 4), [gang, waiting(3)], 10), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert width < 100 or len(text.splitlines()) < 45
    words = " ".join(text.split())
    assert f"{nodes}, {4 * nodes} devices, 8 of them busy; 1 of the nodes in trouble" in words
    assert "64 devices of 16 nodes" in words


def test_nodes_in_trouble_come_first_and_then_the_busy():
    lines = printed(service_view(pool(200, 4))).splitlines()
    names = [line.split()[0] for line in lines if line.startswith("n") and line[1].isdigit()]
    assert names[:3] == ["n200", "n1", "n2"]
    assert lines[-1] == "... 180 more nodes: dovetail show --json"


def test_of_few_devices_each_has_its_line():
    text = printed(service_view(pool(3, 4)))
    assert all(f"n{k}/gpu{j}" in text for k in (1, 2, 3) for j in range(4))


def test_a_node_counts_its_devices_in_trouble():
    one, other = device(node="n1"), device(id="gpu1", node="n1", trouble="is too hot")
    (node,) = by_node([one, other])
    assert (node.trouble, node.busy) == ("1 of 2: is too hot", 2)


def test_jobs_with_a_share_because_they_never_ran_without_are_told():
    capped = [job(id=name, capped="it never ran without one beside j3") for name in ("j1", "j2")]
    shown = " ".join(printed(job_view(capped[0], 2000.0, ""), 120).split())
    assert "SM share it never ran without one beside j3" in shown
    why = "never measured without beside the co-runners (dovetail show JOB)"
    assert capped_line([*capped, job(id="j3")]) == f"j1 to j2 have SM shares: {why}"
    assert capped_line(capped[:1]) == f"j1 has an SM share: {why}"
    assert capped_line([job()]) == ""
