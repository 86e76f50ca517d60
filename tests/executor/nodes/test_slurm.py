"""Live mode on nodes that Slurm lends: three real ``slurmd`` on this machine, real jobs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from contextlib import suppress

import psutil
import pytest

from dovetail.executor.jobs.journal import read_events
from dovetail.executor.nodes.options import RayPlan
from dovetail.executor.nodes.ray_finder import RayFinder
from dovetail.executor.nodes.slurm_ray import environment, ray_start
from dovetail.instances.errors import UnsupportedError
from tests.executor.waiting import LIMIT_S, wait_until

from .slurm_bench import PATIENT_POOL, PILOT
from .slurm_bench import bench as bench
from .slurm_bench import running_slurm as running_slurm
from .slurm_bench import slurm as slurm
from .slurm_cluster import NODES

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


def test_a_node_that_cannot_join_says_why(bench):
    pool = f"slurm:nodes=3,pilots=1..1,scratch={bench.home},pool=gpu"
    with bench.serving(pool), bench.client() as client:
        why = "(the allocation has no GPU on this node (request GPUs with gres=gpu:N))"
        wait_until(
            lambda: all(f"{node} {why}" in client.service().notice for node in NODES),
            "every node's reason",
        )


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


def test_pilots_are_submitted_while_jobs_lack_devices_and_cancelled_when_idle(bench):
    pool = PILOT.replace("nodes=3", "nodes=1,pilots=0..2,idle=2")
    with bench.serving(pool):
        assert not bench.slurm.ask("squeue", "-h")
        names = bench.submit(WAIT, count=3)
        wait_until(lambda: len(bench.starts()) == 2, "two pilots")
        pilots = {*bench.slurm.ask("squeue", "-h", "-o", "%i").split()}
        assert len(pilots) == 2, "no more than may be, though a job waits"
        (bench.home / "go").touch()
        bench.wait_for(names, "finished")
        wait_until(lambda: not bench.slurm.ask("squeue", "-h"), "all are given back")
        # And they come again.
        bench.wait_for(bench.submit("true"), "finished")
        assert not {*bench.slurm.ask("squeue", "-h", "-o", "%i").split()} & pilots
    assert set(bench.starts().values()) == {1}


def test_an_allocation_that_exists_is_used_by_one_service_after_the_other(bench):
    job = bench.slurm.ask(
        *("sbatch", "--parsable", "--nodes=2", "--no-kill", "--ntasks-per-node=1", "--time=60"),
        *("--output=/dev/null", "--wrap", "sleep 3600"),
    ).strip()
    wait_until(lambda: bench.slurm.ask("squeue", "-h", "-j", job, "-t", "R"), "it runs")
    pool = f"slurm:{job},scratch={{scratch}},{PATIENT_POOL}"
    with bench.serving(pool):
        (name,) = bench.submit(WAIT, 2)
        bench.wait_for_up(name)
        # A rank may write before the service knows its process.
        wait_until(lambda: None not in bench.job(name).pids, "every rank is known")
        pids = bench.job(name).pids
    with bench.serving(pool):
        wait_until(lambda: bench.job(name).pids == pids, "the same processes")
        (bench.home / "go").touch()
        bench.wait_for([name], "finished")
        steps = bench.slurm.ask("squeue", "-h", "-s", "-j", job, "-o", "%j %N").splitlines()
    assert "dovetail-nodes n[1-2]" in steps
    assert set(bench.starts().values()) == {1}


def test_head_and_nodes_refuse_connections_without_the_token(bench):
    """The last attempt has everything except the token, which only its user can read."""
    files = bench.home / "slurm"
    with bench.serving(PILOT.replace("nodes=3", "nodes=1")):
        shown, ports = bench.slurm.ask("scontrol", "show", "job", bench.pilot()), set()
        for process in rays(bench.home):
            with suppress(psutil.Error):  # it may end meanwhile
                shown += " ".join(process.cmdline())
                ports.update(listening(process))
        assert len(ports) > 5
        for port in ports:
            for sent in (b"POST /exchange HTTP/1.1\r\n\r\n", b'{"id": 1}\n' + bytes(1000)):
                assert b"dovetail" not in answered(port, sent)
        token = (files / "token").read_text()
        assert token not in shown
        assert files.stat().st_mode & 0o077 == 0
        assert {(files / name).stat().st_mode & 0o077 for name in ("token", "ca.key")} == {0}
        head = (files / "head").read_text().strip()
        env = environment(files, files, head.partition(":")[0])
        for lacking in (
            {"RAY_AUTH_MODE": "disabled"},
            {"RAY_AUTH_TOKEN_PATH": "/dev/null", "RAY_AUTH_TOKEN": "0" * 64},
        ):
            plan = RayPlan(address=head, open=True)
            with pytest.raises(UnsupportedError, match="the cluster requires its token"):
                RayFinder(bench.home / "intruder", plan, {**env, **lacking}).start()
            joins = subprocess.run(
                ray_start("127.0.0.2", bench.home / "r", f"--address={head}"),
                env={**env, **lacking},
                capture_output=True,
                timeout=LIMIT_S,
            )
            assert joins.returncode != 0
        bench.wait_for(bench.submit("true"), "finished")


def rays(home):
    """Return the processes of Ray, on the head and on nodes."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it may end meanwhile
            if re.search(r"/ray/core/|ray::|dashboard", " ".join(process.cmdline())) and str(
                home
            ) in process.environ().get("RAY_AUTH_TOKEN_PATH", ""):
                found.append(process)
    return found


def listening(process):
    found = process.net_connections("tcp")
    return [(one.laddr.ip, one.laddr.port) for one in found if one.status == "LISTEN"]


def answered(where, sent):
    """Return the answer of a port to some bytes."""
    with socket.create_connection(where, 5) as connection:
        connection.settimeout(2)
        with suppress(OSError):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(4096)
    return b""


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
