"""The pool of a Ray cluster, for real: a head, three nodes, the service, and what comes and goes.

The devices are processor cores. Times are printed (``pytest -s``); none is asserted beyond what
must hold. What is lost for good is in ``test_ray_faults``.
"""

import json
import shutil
import signal
import sys
import time
import tomllib
from pathlib import Path

import pytest

from dovetail.instances._version import VERSION
from tests.executor.waiting import wait_until

from .network import signal_all
from .ray_cluster import AMPLE_S, HEAD, OPEN, Gang, timed
from .tutorial_load import came_of, tutorial_jobs
from .witness import assert_one_after_the_other, copies

STRANGER = """
import socket, subprocess
listening = subprocess.run(["ss", "-ltnH"], capture_output=True, text=True).stdout.split()
ports = {words.rpartition(":")[2] for words in listening if ":" in words} - {"*"}
for port in sorted(ports):
    for said in (b"POST /exchange HTTP/1.1\\r\\n\\r\\n", b'{"id": 1}\\n' + bytes(1000)):
        with socket.create_connection(("10.77.0.2", int(port)), 5) as one:
            one.settimeout(5)
            one.sendall(said)
            one.shutdown(socket.SHUT_WR)
            try:
                told = one.recv(4096)
            except OSError:
                told = b""
            print(told if b"dovetail" in told or b"incarnation" in told else "nothing")
"""

pytestmark = [pytest.mark.alone, pytest.mark.slow]


@pytest.fixture(autouse=True)
def ample(ray):
    if ray.lease_s != AMPLE_S:
        ray.restart()


def finished_undisturbed(gang, pids):
    """Assert that the same processes run on, and that the job comes to its end in them."""
    assert gang.view.pids == pids
    assert gang.beats() == set(pids)
    assert gang.finish().runs == 1
    assert_one_after_the_other(gang.folder, gang.id)
    assert [copy.rank for copy in sorted(copies(gang.folder, gang.id), key=rank_of)] == [
        *range(gang.workers)
    ]


def rank_of(copy):
    return copy.rank


def test_a_gang_over_the_nodes_runs_with_its_submitters_environment(ray):
    show = "env | grep -E '^(OMP_NUM_THREADS|CUDA_VISIBLE_DEVICES|WORLD_SIZE|RANK|MARK)=' | sort"
    ray.cluster.env["MARK"] = "mine"
    told = ray.call("submit", "--wait", "--workers", "3", "--", "sh", "-c", show)
    assert told.returncode == 0, (told.stderr, ray.log())
    with ray.client() as client:
        for rank in range(3):
            logged = b"".join(client.log(told.stdout.split(":")[0], rank)).decode()
            assert logged.split() == ["MARK=mine", f"RANK={rank}", "WORLD_SIZE=3"]


def test_the_tutorials_twelve_jobs_run_as_gangs_over_the_nodes(ray):
    folder = ray.directory / "tutorial"
    folder.mkdir()
    with ray.client() as client:
        begun_s = time.monotonic()
        over = [client.wait(job) for job in client.submit(tutorial_jobs(folder))]
    print(f"\nthe tutorial's twelve jobs: {time.monotonic() - begun_s:.1f} s")
    assert {(job.state, job.runs, set(job.statuses) == {0}) for job in over} == {
        ("finished", 1, True)
    }
    came = came_of(folder, ray.directory)
    assert len(over) == 12
    assert came.starts == came.expected
    assert came.starts.total() == sum(job.workers for job in over)
    assert came.over_nodes == sum(job.workers > 1 for job in over)
    assert came.shared > 0


def test_no_token_is_shown_and_none_is_written_for_the_user(ray):
    shown = "".join(ray.cluster.network.processes().values()) + ray.log()
    assert ray.cluster.token not in shown
    assert not (ray.cluster.directory / "home/.ray").exists()


@pytest.mark.parametrize(
    "lacking",
    [
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_TOKEN_PATH": "/dev/null", "RAY_AUTH_TOKEN": "0" * 64},
        pytest.param({"RAY_USE_TLS": "0"}, marks=pytest.mark.long),  # Ray knocks for 40 s
    ],
)
def test_a_service_without_token_or_certificate_is_refused(ray, lacking, tmp_path):
    refused = ray.serve_elsewhere(tmp_path, f"ray:{HEAD},pool=cpu", **lacking)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"dovetail: Ray at {HEAD}: ")
    assert len(refused.stderr.splitlines()) == 1


def test_a_stranger_at_the_ports_of_a_node_learns_nothing(ray):
    """Whatever he says, no port of Ray or of an agent answers him with a word of ours."""
    told = ray.cluster.network.run(1, sys.executable, "-c", STRANGER).splitlines()
    assert len(told) > 1
    assert set(told) == {"nothing"}


def test_a_cluster_without_a_token_is_refused_unless_that_is_asked_for(ray, tmp_path):
    host = ray.cluster.network.add()
    head = ray.cluster.start_open_head(host)
    try:
        refused = ray.serve_elsewhere(tmp_path, f"ray:{head},pool=cpu", **OPEN)
        assert refused.returncode == 2
        assert "lets everybody in who reaches it" in refused.stderr
        assert "RAY_AUTH_MODE=token" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    finally:
        ray.cluster.network.send(signal.SIGKILL, host)


def test_racks_come_from_labels(ray):
    known = ray.directory / "nodes/known"
    racks = {path.stem: json.loads(path.read_text())["rack"] for path in known.iterdir()}
    assert racks == {"n1": "r1", "n2": "r1", "n3": "r2"}


def test_jobs_outlive_a_service_that_is_killed(ray):
    gang = Gang(ray, "killed", 3).wait_for_start()
    pids = gang.view.pids
    begun_s = time.monotonic()
    ray.restart()
    wait_until(lambda: gang.view.pids == pids, ray.log())
    print(f"\nservice killed until the next has its jobs: {time.monotonic() - begun_s:.1f} s")
    finished_undisturbed(gang, pids)


def test_a_killed_agent_comes_back_and_takes_its_jobs_up(ray):
    gang = Gang(ray, "agent", 3).wait_for_start()
    pids, old = gang.view.pids, ray.cluster.agent(2)
    ray.cluster.kill_agent(2)
    timed("agent killed until there is another", lambda: ray.cluster.has_agent(2, old))
    wait_until(lambda: ray.usable() == {"n1", "n2", "n3"}, ray.log())
    finished_undisturbed(gang, pids)


@pytest.mark.long
def test_a_raylet_that_is_started_anew_within_the_lease_costs_no_job(ray):
    gang = Gang(ray, "again", 3).wait_for_start()
    pids, old = gang.view.pids, ray.cluster.agent(3)
    begun_s = time.monotonic()
    ray.cluster.kill_raylet(3)
    ray.cluster.start_node(3)
    wait_until(lambda: ray.cluster.has_agent(3, old), ray.log())
    print(f"\nraylet killed until the next's agent is reached: {time.monotonic() - begun_s:.1f} s")
    wait_until(lambda: ray.usable() == {"n1", "n2", "n3"}, ray.log())
    finished_undisturbed(gang, pids)


@pytest.mark.long
def test_a_node_that_stands_still_for_less_than_the_lease_costs_no_job(ray):
    """Its raylet goes on, or Ray would take the node for dead."""
    gang = Gang(ray, "still", 3).wait_for_start()
    pids = gang.view.pids
    still = [p for p, line in ray.cluster.network.processes(2).items() if "/ray/core/" not in line]
    signal_all(still, signal.SIGSTOP)
    timed("node is frozen until its rank is lost", lambda: gang.view.state == "lost")
    signal_all(still, signal.SIGCONT)
    timed("it goes on until its rank is found again", lambda: gang.view.state != "lost")
    finished_undisturbed(gang, pids)


@pytest.mark.long
def test_a_head_with_storage_may_die_and_come_back(ray):
    gang = Gang(ray, "head", 2).wait_for_start()
    pids = gang.view.pids
    ray.cluster.kill_head()
    assert Gang(ray, "meanwhile", 1).wait_for_start().finish().runs == 1
    # A service that starts meanwhile has its agents as soon as the head is back.
    ray.restart()
    ray.cluster.start_head()
    timed(
        "head started until a service from before has its jobs",
        lambda: gang.view.pids == pids and len(ray.usable()) == 3,
    )
    old = ray.cluster.agent(1)
    ray.cluster.kill_agent(1)
    timed(
        "agent killed under a new head until there is another",
        lambda: ray.cluster.has_agent(1, old),
    )
    finished_undisturbed(gang, pids)


@pytest.mark.long
def test_a_node_that_joins_is_used_and_one_of_the_same_name_is_told(ray):
    cluster, hosts = ray.cluster, [ray.cluster.network.add() for _ in range(2)]
    begun_s = time.monotonic()
    cluster.start_node(hosts[0], "n4")
    wait_until(lambda: "n4" in ray.usable(), ray.log())
    print(f"\nfresh node, from `ray start` until it is used: {time.monotonic() - begun_s:.1f} s")
    with ray.client() as client:
        job = {"command": ["true"], "workload": "w", "cwd": "/", "workers": 4}
        over = client.wait(*client.submit([job]))
    assert (over.state, over.runs) == ("finished", 1)
    assert {gpu.partition("/")[0] for gpu in over.gpus} == {"n1", "n2", "n3", "n4"}
    cluster.start_node(hosts[1], "n4")
    told = "n4: two nodes of Ray have this name: start each with a label, --labels=node=NAME"
    wait_until(lambda: told in ray.log(), ray.log())
    cluster.network.send(signal.SIGKILL, *hosts)
    timed("the fresh node killed until it is missed", lambda: "n4" not in ray.usable())


def another_version(folder):
    """Return a folder in which Dovetail has another version than this one."""
    root = Path(__file__).parents[3]
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    for package, path in sorted(settings["package-dir"].items()):
        copy = folder / package.replace(".", "/")
        shutil.copytree(root / path, copy, dirs_exist_ok=True)
    (folder / "dovetail/instances/_version.py").write_text('VERSION = "99"\n')
    return folder


@pytest.mark.long
def test_agents_of_another_version_are_replaced_once_nothing_runs(ray, tmp_path):
    gang = Gang(ray, "version", 1).wait_for_start()
    (busy,) = (int(node[1:]) for node in gang.nodes())
    old = {k: ray.cluster.agent(k) for k in (1, 2, 3)}

    def replaced(k):
        try:
            return ray.cluster.agent(k) != old[k]
        except LookupError:
            return False

    ray.restart(PYTHONPATH=str(another_version(tmp_path)))
    wait_until(lambda: all(replaced(k) for k in old if k != busy), ray.log())
    assert not replaced(busy)
    finished_undisturbed(gang, gang.view.pids)
    wait_until(lambda: replaced(busy), ray.log())
    told = f"n{busy}: its agent was started with other options; replaced once nothing runs"
    assert told in ray.log()
    assert f"its agent runs Dovetail {VERSION}, this service 99" in ray.log()
    ray.restart()
