"""The plan for the next hour, against arithmetic written out."""

from __future__ import annotations

import math

import pytest

from dovetail.executor.live.rounds.outlook import MOST_JOBS, ExpectedEnd, outlook
from dovetail.instances.instance import Instance
from dovetail.instances.plan import Assignment


def round_of(jobs, slowdowns=(), gpus=1):
    """Return a round on GPUs of one node; a job is (id, workload, GPU or None)."""
    return Instance.from_data(
        {
            "format": "dovetail-instance/1",
            "name": "now",
            "cluster": {
                "nodes": [
                    {"id": "n", "gpu_count": gpus, "gpu": {"model": "G", "memory_mib": 40_000.0}}
                ]
            },
            "workloads": {
                name: {"memory_mib": 1000.0, "throughput": {"100": 1.0}} for name in ("a", "b")
            },
            "jobs": [
                {"id": name, "workload": workload}
                | ({"state": "running", "gpus": [gpu]} if gpu else {})
                for name, workload, gpu in jobs
            ],
            "slowdowns": [{"pair": list(pair), "slowdown": found} for pair, found in slowdowns],
        }
    )


APART = [(pair, None) for pair in (("a", "a"), ("a", "b"), ("b", "b"))]


def on(job, gpu="n-0", start=False):
    return Assignment(job=job, gpus=(gpu,), start=start)


def stays(made):
    return {stay.job: (stay.from_s, pytest.approx(stay.to_s), stay.starts) for stay in made.stays}


def test_jobs_that_must_run_alone_follow_each_other():
    jobs = [("j1", "a", "n-0"), ("j2", "a", None), ("j3", "a", None), ("j4", "a", None)]
    expected = {
        "j1": ExpectedEnd(600.0, "rate", 700.0),
        "j2": ExpectedEnd(1000.0, "estimate"),
        "j3": ExpectedEnd(2500.0, "estimate"),
        "j4": ExpectedEnd(10.0, "estimate"),
    }
    made = outlook(round_of(jobs, APART), [on("j1")], "throughput", expected, 0.0)
    found = {stay.job: stay for stay in made.stays}
    # The rate that was measured counts, not the work alone: the next one starts at 700 s.
    assert (found["j1"].from_s, found["j1"].to_s, found["j1"].starts) == (0.0, 700.0, False)
    line = sorted((stay for stay in made.stays if stay.starts), key=lambda stay: stay.from_s)
    at_s = 700.0
    for stay in line:
        assert stay.from_s == pytest.approx(at_s)
        assert stay.to_s == pytest.approx(at_s + expected[stay.job].alone_s)
        at_s = stay.to_s
    # One that would end beyond the hour ends the chain.
    assert all(stay.from_s < 3600.0 for stay in line)
    assert set(made.waiting) == {"j2", "j3", "j4"} - {stay.job for stay in line}
    assert made.why == ""


def test_an_unknown_end_is_not_guessed():
    jobs = [("j1", "a", "n-0"), ("j2", "a", None)]
    expected = {"j2": ExpectedEnd(10.0, "estimate")}
    made = outlook(round_of(jobs, APART), [on("j1")], "throughput", expected, 0.0)
    assert stays(made) == {"j1": (0.0, pytest.approx(math.inf), False)}
    assert made.waiting == ("j2",)
    assert made.why == "the end of a running job is unknown"


def test_what_waits_for_services_alone_is_known_not_to_start():
    jobs = [("j1", "a", "n-0"), ("j2", "a", "n-1"), ("j3", "a", None), ("j4", "a", None)]
    expected = {
        "j1": ExpectedEnd(by="service"),
        "j2": ExpectedEnd(600.0, "rate", 600.0),
        "j3": ExpectedEnd(by="service"),
        "j4": ExpectedEnd(10.0, "estimate"),
    }
    instance = round_of(jobs, APART, gpus=2).replace(name="now")
    weights = [job.replace(weight=5.0) if job.id == "j3" else job for job in instance.jobs]
    instance = instance.replace(jobs=tuple(weights))
    made = outlook(instance, [on("j1"), on("j2", "n-1")], "throughput", expected, 0.0)
    found = stays(made)
    assert found["j1"] == (0.0, pytest.approx(math.inf), False)
    # Where j2 ends, the heavier j3 starts, and never ends.
    assert found["j3"] == (pytest.approx(600.0), pytest.approx(math.inf), True)
    assert (made.waiting, made.why, made.until_s) == (("j4",), "", 3600.0)


def test_a_job_whose_co_runner_ends_is_faster_from_then_on():
    # Together each is slowed by 1.5 and 2; j3 needs a device of its own.
    jobs = [("j1", "a", "n-0"), ("j2", "b", "n-0"), ("j3", "a", None)]
    slowdowns = [(("a", "b"), [1.5, 2.0]), (("a", "a"), None), (("b", "b"), None)]
    expected = {"j1": ExpectedEnd(600.0, "estimate"), "j2": ExpectedEnd(1000.0, "estimate")}
    made = outlook(round_of(jobs, slowdowns), [on("j1"), on("j2")], "throughput", expected, 0.0)
    found = stays(made)
    # j1 ends after 600 * 1.5 = 900 s; j2 has done 900 / 2 = 450 of its 1000 s by then. Beside j3,
    # which starts at once, it is slowed by 2 again: 550 * 2 more seconds.
    assert found["j1"] == (0.0, pytest.approx(900.0), False)
    assert found["j2"] == (0.0, pytest.approx(900.0 + 1100.0), False)
    assert found["j3"] == (pytest.approx(900.0), pytest.approx(math.inf), True)


def test_a_start_beside_a_running_job_changes_its_rate():
    jobs = [("j1", "a", "n-0"), ("j2", "b", None)]
    expected = {"j1": ExpectedEnd(600.0, "rate", 600.0), "j2": ExpectedEnd(2000.0, "estimate")}
    instance = round_of(jobs, [(("a", "b"), [1.5, 2.0])])
    made = outlook(instance, [on("j1"), on("j2", start=True)], "throughput", expected, 0.0)
    assert stays(made)["j1"] == (0.0, pytest.approx(900.0), False)
    assert stays(made)["j2"][0] == 0.0


def test_with_many_jobs_only_the_present_is_shown():
    jobs = [("j1", "a", "n-0"), *((f"j{k}", "a", None) for k in range(2, MOST_JOBS + 2))]
    expected = {"j1": ExpectedEnd(600.0, "rate", 600.0)}
    made = outlook(round_of(jobs, APART), [on("j1")], "throughput", expected, 0.0)
    assert len(made.stays) == 1
    assert "more than 200 jobs" in made.why
