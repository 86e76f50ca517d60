"""Live mode on nodes that Slurm lends: three real ``slurmd`` on this machine, real jobs."""

from __future__ import annotations

import os

import pytest

from dovetail.executor.jobs.journal import read_events
from tests.executor.waiting import wait_until

from .slurm_bench import PILOT
from .slurm_bench import bench as bench
from .slurm_bench import running_slurm as running_slurm
from .slurm_bench import slurm as slurm
from .witness import assert_one_after_the_other, copies, witness

WAIT = "while [ ! -e go ]; do sleep 0.1; done"


@pytest.mark.long
def test_jobs_are_accepted_while_the_pilot_is_pending(bench):
    with bench.serving(PILOT.replace("exclusive=", "exclusive=,hold=")):
        with bench.client() as client:
            service = client.service()
        pilot = bench.slurm.ask("squeue", "-h", "-o", "%i").strip()
        assert not service.devices
        assert f"more devices are awaited from pilot {pilot} (PENDING: " in service.notice
        (name,) = bench.submit("sleep 0.5", 3)
        bench.slurm.ask("scontrol", "release", pilot)
        bench.wait_for([name], "finished")
    assert set(bench.starts().values()) == {1}
    assert len(bench.starts()) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")
def test_slurm_names_the_gpus_of_a_step(slurm):
    """A step that overlaps with its pilot has the pilot's GPUs."""
    path = slurm.home / "named"
    slurm.ask(
        *("sbatch", "--wait", "--nodes=1", "--gres=gpu:2", "--exclusive", f"--output={path}"),
        *("--wrap", "srun --overlap env"),
    )
    named = dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
    assert named["SLURM_STEP_GPUS"] == "0,1"


def test_pilots_come_for_waiting_jobs_are_replaced_when_cancelled_and_go_when_idle(bench):
    with bench.serving(PILOT.replace("nodes=3", "nodes=1,pilots=0..2,idle=2")):
        assert not pilots(bench)
        names = bench.submit_program(witness(bench.home), 1, 3, retries=0)
        wait_until(lambda: [bool(copies(bench.home, n)) for n in names].count(True) == 2, "two")
        first = pilots(bench)
        assert len(first) == 2, "no more than may be, though a job waits"
        cancelled = bench.pilot()
        bench.slurm.ask("scancel", cancelled)
        wait_until(lambda: well(bench) < 2, "its node is missed")
        wait_until(lambda: well(bench) == 2, "the next pilot")
        # Its job is requeued, or found by the next agent if Slurm has missed its process.
        wait_until(lambda: "lost" not in bench.states().values(), "its job is known")
        assert cancelled not in pilots(bench)
        (bench.home / "go").touch()
        bench.wait_for(names, "finished")
        wait_until(lambda: not pilots(bench), "all are given back")
    for name in names:
        assert_one_after_the_other(bench.home, name)


def well(bench):
    """Return how many devices are well."""
    with bench.client() as client:
        return [device.trouble for device in client.service().devices].count("")


def pilots(bench):
    return {*bench.slurm.ask("squeue", "-h", "-o", "%i").split()}


@pytest.mark.long
def test_jobs_at_the_end_of_a_pilot_run_again_in_the_next(bench):
    """A pilot of two minutes is released 45 s before its end, so Slurm finds nothing to end."""
    with bench.serving(PILOT.replace("time=60", "time=2")):
        first = bench.pilot()
        (name,) = bench.submit(WAIT, 2, retries=0)
        bench.wait_for_up(name)
        wait_until(lambda: bench.pilot() != first, "the next pilot")
        wait_until(lambda: max(bench.starts().values()) == 2, "it runs again")
        (bench.home / "go").touch()
        bench.wait_for([name], "finished")
    ended = [
        e.event for e in read_events(bench.home) if e.event.kind in ("rank_ended", "rank_gone")
    ]
    assert [one.kind for one in ended] == ["rank_gone"] * 2 + ["rank_ended"] * 2
