"""The fault campaign of a Slurm pool: no job is lost, and none runs twice at the same time.

Jobs record when and where they run (``witness``). A gang has two nodes and another job the third,
while brief ones wait. Times are printed (``pytest -s``) for ``docs/evidence/nodes.md``.
"""

from __future__ import annotations

import re
import time
from typing import NamedTuple

import psutil
import pytest

from dovetail.executor.system.clock import boot_s
from tests.executor.waiting import LIMIT_S, wait_until

from .slurm_bench import PATIENT_POOL, PILOT, POOL, report
from .slurm_bench import bench as bench
from .slurm_bench import running_slurm as running_slurm
from .slurm_bench import slurm as slurm
from .slurm_cluster import NODES, agents_on, freeze_node, head_of, thaw
from .slurm_intruder import assert_refuses_what_lacks_the_token
from .witness import assert_one_after_the_other, copies, left_running, runs_of, witness

PATIENT = PILOT.replace(POOL, PATIENT_POOL)
PATIENT_FILES = f"scratch={{scratch}}/$SLURMD_NODENAME,{PATIENT_POOL}"


class Load(NamedTuple):
    """The jobs of the campaign: a gang of two, a single job (maybe), and two brief ones."""

    gang: str
    single: str
    brief: tuple[str, ...]

    @property
    def held(self):
        return {self.gang: 2, **({self.single: 1} if self.single else {})}


def submitted(bench, stubborn=True, single=True, **fields):
    """Submit the jobs, and return them once the gang and the single job have started."""
    waits = witness(bench.home, stubborn=stubborn)
    (gang,) = bench.submit_program(waits, 2, **fields)
    wait_until(lambda: len(copies(bench.home, gang)) == 2, "the gang has started")
    alone = ""
    if single:
        (alone,) = bench.submit_program(waits, 1, **fields)
        wait_until(lambda: copies(bench.home, alone), "the single job has started")
    brief = bench.submit_program(witness(bench.home, brief=True), 1, 2, **fields)
    return Load(gang, alone, tuple(brief))


def alive(bench, load):
    """Return the processes of gang and single job, once all of them have written a new line."""
    now_s = boot_s()
    found = {}
    for job, ranks in load.held.items():
        newest = lambda job=job: [c for c in copies(bench.home, job) if c.last_s > now_s]  # noqa: E731
        wait_until(lambda ranks=ranks, newest=newest: len(newest()) == ranks, f"{job} runs")
        found[job] = {copy.pid for copy in newest()}
    return found


def runs_again(bench, job, ranks=2):
    """Return when the second run of a job began, once all of its ranks have started."""

    def second():
        runs = runs_of(copies(bench.home, job))
        return runs[1] if len(runs) > 1 and len(runs[1]) == ranks else None

    wait_until(second, f"{job} runs again")
    return max(copy.began_s for copy in second())


def sick(bench, node):
    with bench.client() as client:
        return any(d.trouble for d in client.service().devices if d.id.startswith(f"{node}/"))


def finish(bench, load, frozen=False):
    """End all jobs; none may be lost, have run twice at a time, or leave a process."""
    (bench.home / "go").touch()
    names = [*load.held, *load.brief]
    bench.wait_for(names, "finished")
    for job in names:
        assert_one_after_the_other(bench.home, job, frozen)
        last = runs_of(copies(bench.home, job))[-1]
        assert sorted(copy.rank for copy in last) == [*range(load.held.get(job, 1))]
    wait_until(lambda: not left_running(bench.home), "no process of a job is left")


@pytest.mark.parametrize("lent", ["allocation", pytest.param("pilot", marks=pytest.mark.slow)])
def test_jobs_run_on_whatever_else_is_killed(bench, lent):
    """Kill controller, agent, head, slurmd and slurmctld in turn; all processes run on.

    The third node of the allocation cannot join, and says why.
    """
    pool = PATIENT if lent == "pilot" else f"slurm:{allocation(bench)},{PATIENT_FILES}"
    service = bench.start(pool)
    load = submitted(bench, single=lent == "pilot")
    if lent == "allocation":
        with bench.client() as client:
            why = r"n3 \(.*Not a directory: '\S*/scratch/n3/\S+'\)"
            wait_until(lambda: re.search(why, client.service().notice), "why n3 does not join")
    before = alive(bench, load)
    assert_refuses_what_lacks_the_token(bench)

    begun_s = time.monotonic()
    service.kill()
    service.wait()
    service = bench.start(pool)
    wait_until(lambda: {*bench.job(load.gang).pids} == before[load.gang], "the gang")
    report("controller killed: the next has its jobs", begun_s)
    assert alive(bench, load) == before

    begun_s = time.monotonic()
    (agent,) = agents_on("n2", bench.home)
    agent.kill()
    wait_until(lambda: [p for p in agents_on("n2", bench.home) if p != agent], "an agent")
    wait_until(lambda: {*bench.job(load.gang).pids} == before[load.gang], "the gang")
    report("agent killed: another has its jobs", begun_s)
    assert alive(bench, load) == before

    begun_s = time.monotonic()
    head = head_of(bench.home)
    head.kill()
    wait_until(lambda: head_of(bench.home) not in (head, None), "another head")
    assert alive(bench, load) == before
    (agent,) = agents_on("n2", bench.home)
    agent.kill()
    wait_until(lambda: [p for p in agents_on("n2", bench.home) if p != agent], "an agent")
    report("head killed, then an agent: the next head has started another", begun_s)
    wait_until(lambda: not any(sick(bench, node) for node in NODES), "all nodes")
    report("and the controller has reached it", begun_s)
    assert alive(bench, load) == before

    bench.slurm.kill("n2")
    assert alive(bench, load) == before
    bench.slurm.kill("slurmctld")
    assert alive(bench, load) == before
    bench.slurm.start_one("slurmctld")
    wait_until(lambda: len(bench.slurm.states()) == 3, "slurmctld")
    bench.slurm.start_one("n2")
    assert alive(bench, load) == before
    with bench.client() as client:
        assert not any(device.trouble for device in client.service().devices)
    finish(bench, load)
    assert {bench.job(job).runs for job in load.held} == {1}
    steps = bench.slurm.ask("squeue", "-h", "-s", "-o", "%j %N").splitlines()
    assert "dovetail-nodes n[1-3]" in steps
    service.terminate()
    service.wait(LIMIT_S)


def allocation(bench):
    """Return an allocation of all nodes that somebody else holds; the third has no scratch."""
    (bench.home / "scratch").mkdir()
    (bench.home / "scratch" / "n3").touch()
    job = bench.slurm.ask(
        *("sbatch", "--parsable", "--nodes=3", "--no-kill", "--ntasks-per-node=1", "--time=60"),
        *("--output=/dev/null", "--wrap", "sleep 3600"),
    ).strip()
    wait_until(lambda: bench.slurm.ask("squeue", "-h", "-j", job, "-t", "R"), "it runs")
    return job


@pytest.mark.slow
def test_controller_head_and_agent_that_are_killed_together(bench):
    first = bench.start(PATIENT)
    load = submitted(bench)
    before = alive(bench, load)
    (agent,) = agents_on("n2", bench.home)
    begun_s = time.monotonic()
    for process in (first, head_of(bench.home), agent):
        process.kill()
    first.wait()
    with bench.serving(PATIENT):
        wait_until(lambda: {*bench.job(load.gang).pids} == before[load.gang], "the gang")
        wait_until(lambda: not any(sick(bench, node) for node in NODES), "all nodes")
        report("controller, head and agent killed: the same processes", begun_s)
        assert alive(bench, load) == before
        finish(bench, load)
        assert {bench.job(job).runs for job in load.held} == {1}
    assert len(bench.slurm.ask("squeue", "-h").splitlines()) == 1


@pytest.mark.long
def test_a_raylet_that_is_killed_is_started_again_within_the_lease(bench):
    with bench.serving(PATIENT):
        load = submitted(bench)
        before = alive(bench, load)
        (agent,) = agents_on("n2", bench.home)
        begun_s = time.monotonic()
        raylet = agent.parent()
        assert "raylet/raylet" in raylet.cmdline()[0]
        raylet.kill()
        wait_until(lambda: [p for p in agents_on("n2", bench.home) if p != agent], "an agent")
        report("raylet killed: another has an agent", begun_s)
        wait_until(lambda: not any(sick(bench, node) for node in NODES), "all nodes")
        assert alive(bench, load) == before
        finish(bench, load)
        assert {bench.job(job).runs for job in load.held} == {1}


@pytest.mark.long
def test_without_slurmctld_another_controller_attaches_and_starts_jobs(bench):
    first = bench.start(PATIENT)
    load = submitted(bench)
    before = alive(bench, load)
    bench.slurm.kill("slurmctld")
    first.kill()
    first.wait()
    with bench.serving(PATIENT):
        assert alive(bench, load) == before
        finish(bench, load)
        bench.slurm.start_one("slurmctld")
        wait_until(lambda: len(bench.slurm.states()) == 3, "slurmctld")
        (later,) = bench.submit_program(witness(bench.home), 2)
        bench.wait_for([later], "finished")
        assert {bench.job(job).runs for job in load.held} == {1}


@pytest.mark.long
def test_jobs_run_on_without_a_slurmd(bench):
    with bench.serving(PATIENT):
        load = submitted(bench)
        before = alive(bench, load)
        begun_s = time.monotonic()
        bench.slurm.kill("n2")
        wait_until(lambda: any(s.startswith("down") for s in bench.slurm.states()))
        report("slurmd killed: Slurm has its node down", begun_s)
        assert alive(bench, load) == before
        finish(bench, load)
        (later,) = bench.submit_program(witness(bench.home), 3)
        bench.wait_for([later], "finished")
        assert {bench.job(job).runs for job in load.held} == {1}


@pytest.mark.slow
def test_a_cancelled_pilot_is_replaced_and_runs_its_jobs(bench):
    """Jobs are requeued, or taken over by the next agent if Slurm has missed their processes.

    ``proctrack/linuxproc`` ends children of its step; the jobs of a dead agent are not.
    """
    with bench.serving():
        load = submitted(bench, stubborn=False, retries=0)
        cancelled = bench.pilot()
        begun_s = boot_s()
        bench.slurm.ask("scancel", cancelled)
        wait_until(lambda: any(sick(bench, node) for node in NODES), "nodes are missed")
        print(f"pilot cancelled: seen after {boot_s() - begun_s:.1f} s")
        wait_until(lambda: not any(sick(bench, node) for node in NODES), "the next pilot")
        assert bench.pilot() != cancelled
        alive(bench, load)
        runs = {job: bench.job(job).runs for job in load.held}
        print(f"pilot cancelled: all run after {boot_s() - begun_s:.1f} s, runs {runs}")
        assert set(runs.values()) <= {1, 2}
        finish(bench, load)


@pytest.mark.long
def test_a_requeued_pilot_runs_its_jobs_again(bench):
    with bench.serving():
        load = submitted(bench, stubborn=False, retries=0)
        pilot = bench.pilot()
        bench.slurm.ask("scontrol", "requeue", pilot)
        wait_until(lambda: any(sick(bench, node) for node in NODES), "nodes are missed")
        bench.slurm.ask("scontrol", "update", f"JobId={pilot}", "StartTime=now")
        wait_until(lambda: not any(sick(bench, node) for node in NODES), "it runs again")
        assert bench.pilot() == pilot
        alive(bench, load)
        assert {bench.job(job).runs for job in load.held} <= {1, 2}
        finish(bench, load)


@pytest.mark.long
def test_a_node_that_is_frozen_for_longer_than_the_lease_loses_its_jobs(bench):
    """The node is thawed once its gang runs elsewhere."""
    with bench.serving():
        load = submitted(bench)
        node = other_node(bench, load)
        stopped = freeze_node(bench.slurm, node, bench.home)
        begun_s = boot_s()
        lost_and_again(bench, load, node, "node stopped", begun_s)
        thaw(stopped)
        on_s = boot_s()
        former = {c.pid for c in copies(bench.home, load.gang) if c.node == node}
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in former), "they are gone")
        print(f"node goes on: its copies are gone after {boot_s() - on_s:.2f} s at most")
        last_s = max(c.last_s for c in copies(bench.home, load.gang) if c.pid in former)
        print(f"node goes on: their last line after {max(0.0, last_s - on_s):.2f} s")
        finish(bench, load, frozen=True)


@pytest.mark.long
def test_a_node_that_is_frozen_for_less_than_the_lease_keeps_its_jobs(bench):
    with bench.serving(PATIENT):
        load = submitted(bench)
        pids = alive(bench, load)
        node = other_node(bench, load)
        stopped = freeze_node(bench.slurm, node, bench.home)
        begun_s = boot_s()
        wait_until(lambda: sick(bench, node), "the node is missed")
        print(f"node stopped for a moment: missed after {boot_s() - begun_s:.1f} s")
        thaw(stopped)
        on_s = boot_s()
        wait_until(lambda: not sick(bench, node), "it answers again")
        print(f"node goes on in time: answers after {boot_s() - on_s:.1f} s")
        assert alive(bench, load) == pids
        finish(bench, load)
        assert {bench.job(job).runs for job in load.held} == {1}


@pytest.mark.long
def test_a_node_whose_processes_are_all_killed(bench):
    with bench.serving():
        load = submitted(bench)
        node = other_node(bench, load)
        for process in freeze_node(bench.slurm, node, bench.home):
            process.kill()
        bench.slurm.kill(node)
        lost_and_again(bench, load, node, "all of a node killed", boot_s())
        finish(bench, load)


def other_node(bench, load):
    """Return a node of the gang on which the pilot's script does not run."""
    return max(copy.node for copy in copies(bench.home, load.gang))


def lost_and_again(bench, load, node, fault, begun_s):
    """Wait until a node is missed and its gang runs elsewhere, and print the times.

    The single job is ended, since the gang needs its node.
    """
    wait_until(lambda: sick(bench, node), "the node is missed")
    print(f"{fault}: missed after {boot_s() - begun_s:.1f} s")
    (bench.home / f"go-{load.single}").touch()
    again_s = runs_again(bench, load.gang)
    print(f"{fault}: runs elsewhere after {again_s - begun_s:.1f} s")
    assert node not in {copy.node for copy in runs_of(copies(bench.home, load.gang))[1]}
