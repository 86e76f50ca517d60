"""The pool of a real Ray cluster with three nodes: access, restarts, and nodes that join.

The devices are processor cores. Times are printed (``pytest -s``) for
``docs/evidence/nodes.md``. Nodes that are lost for good are in ``test_ray_faults``.
"""

import json
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

from dovetail.instances._version import VERSION
from dovetail.live.client import IncompleteLogError
from tests.executor.waiting import wait_until

from .network import signal_all
from .ray_cluster import AMPLE_S, HEAD, OPEN, Gang, timed
from .tutorial_load import outcome_of, tutorial_jobs
from .witness import assert_one_after_the_other, copies

INTRUDER = """
import socket, subprocess
listening = subprocess.run(["ss", "-ltnH"], capture_output=True, text=True).stdout.split()
ports = {words.rpartition(":")[2] for words in listening if ":" in words} - {"*"}
for port in sorted(ports):
    for sent in (b"POST /exchange HTTP/1.1\\r\\n\\r\\n", b'{"id": 1}\\n' + bytes(1000)):
        with socket.create_connection(("10.77.0.2", int(port)), 5) as one:
            one.settimeout(5)
            one.sendall(sent)
            one.shutdown(socket.SHUT_WR)
            try:
                answer = one.recv(4096)
            except OSError:
                answer = b""
            print(answer if b"dovetail" in answer or b"incarnation" in answer else "nothing")
"""

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def ample(ray):
    if ray.lease_s != AMPLE_S:
        ray.restart()


def log_of(client, job, rank):
    """Return the output of a rank, once its node answers: on a busy machine it may take a while."""

    read = []

    def answered():
        with suppress(IncompleteLogError):
            read.append(b"".join(client.log(job, rank)).decode())
        return read

    wait_until(answered)
    return read[0]


def finished_undisturbed(gang, pids):
    """Assert that the same processes run on until the job ends."""
    view = gang.view
    assert view.pids == pids
    assert gang.beats() == set(pids)
    assert gang.finish().runs == view.runs
    assert_one_after_the_other(gang.folder, gang.id)
    mine = [copy for copy in copies(gang.folder, gang.id) if copy.run == view.run]
    assert [copy.rank for copy in sorted(mine, key=rank_of)] == [*range(gang.workers)]


def rank_of(copy):
    return copy.rank


def test_a_gang_over_the_nodes_runs_with_its_submitters_environment(ray):
    show = "env | grep -E '^(OMP_NUM_THREADS|CUDA_VISIBLE_DEVICES|WORLD_SIZE|RANK|MARK)=' | sort"
    ray.cluster.env["MARK"] = "mine"
    done = ray.call("submit", "--wait", "--workers", "3", "--", "sh", "-c", show)
    assert done.returncode == 0, (done.stderr, ray.log())
    with ray.client() as client:
        for rank in range(3):
            logged = log_of(client, done.stdout.split(":")[0], rank)
            assert logged.split() == ["MARK=mine", f"RANK={rank}", "WORLD_SIZE=3"]


def test_the_tutorials_twelve_jobs_run_as_gangs_over_the_nodes(ray):
    folder = ray.directory / "tutorial"
    folder.mkdir()
    with ray.client() as client:
        begun_s = time.monotonic()
        over = [client.wait(job) for job in client.submit(tutorial_jobs(folder))]
    print(f"\nthe tutorial's twelve jobs: {time.monotonic() - begun_s:.1f} s")
    assert {(job.state, set(job.statuses) == {0}) for job in over} == {("finished", True)}
    outcome = outcome_of(folder, ray.directory)
    assert len(over) == 12
    assert outcome.starts == outcome.expected
    assert outcome.starts.total() == sum(job.workers for job in over)
    assert outcome.over_nodes == sum(job.workers > 1 for job in over)


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


def test_no_port_of_a_node_answers_an_intruder(ray):
    """No port of Ray or of an agent reveals anything of Dovetail."""
    answers = ray.cluster.network.run(1, sys.executable, "-c", INTRUDER).splitlines()
    assert len(answers) > 1
    assert set(answers) == {"nothing"}


def test_a_cluster_without_a_token_is_refused(ray, tmp_path):
    host = ray.cluster.network.add()
    head = ray.cluster.start_open_head(host)
    try:
        refused = ray.serve_elsewhere(tmp_path, f"ray:{head},pool=cpu", **OPEN)
        assert refused.returncode == 2
        assert "admits every connection" in refused.stderr
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


def test_a_killed_agent_is_restarted_and_takes_over_its_jobs(ray):
    gang = Gang(ray, "agent", 3).wait_for_start()
    pids, old = gang.view.pids, ray.cluster.agent(2)
    ray.cluster.kill_agent(2)
    timed("agent killed until there is another", lambda: ray.cluster.has_agent(2, old))
    wait_until(lambda: ray.usable() == {"n1", "n2", "n3"}, ray.log())
    finished_undisturbed(gang, pids)


@pytest.mark.long
def test_a_raylet_that_is_restarted_within_the_lease_costs_no_job(ray):
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
def test_a_node_that_is_frozen_for_less_than_the_lease_keeps_its_job(ray):
    """The raylet runs on, or Ray would declare the node dead."""
    gang = Gang(ray, "frozen", 3).wait_for_start()
    pids = gang.view.pids
    frozen = [p for p, line in ray.cluster.network.processes(2).items() if "/ray/core/" not in line]
    signal_all(frozen, signal.SIGSTOP)
    timed("node is frozen until its rank is lost", lambda: gang.view.state == "lost")
    signal_all(frozen, signal.SIGCONT)
    timed("it is thawed until its rank is found again", lambda: gang.view.state != "lost")
    finished_undisturbed(gang, pids)


@pytest.mark.long
def test_a_head_with_storage_may_be_killed_and_restarted(ray):
    gang = Gang(ray, "head", 2).wait_for_start()
    pids = gang.view.pids
    ray.cluster.kill_head()
    Gang(ray, "meanwhile", 1).wait_for_start().finish()
    # A service that is started without a head reaches its agents soon after the head is back.
    ray.restart()
    ray.cluster.start_head()
    timed(
        "head restarted until a service that was started before it has its jobs",
        lambda: gang.view.pids == pids and len(ray.usable()) == 3,
    )
    old = ray.cluster.agent(1)
    ray.cluster.kill_agent(1)
    timed(
        "agent killed under a restarted head until there is another",
        lambda: ray.cluster.has_agent(1, old),
    )
    finished_undisturbed(gang, pids)


@pytest.mark.long
def test_a_node_that_joins_is_used_and_a_second_one_of_its_name_is_reported(ray):
    cluster, hosts = ray.cluster, [ray.cluster.network.add() for _ in range(2)]
    begun_s = time.monotonic()
    cluster.start_node(hosts[0], "n4")
    wait_until(lambda: "n4" in ray.usable(), ray.log())
    print(f"\nnew node, from `ray start` until it is used: {time.monotonic() - begun_s:.1f} s")
    with ray.client() as client:
        job = {"command": ["true"], "workload": "w", "cwd": "/", "workers": 4}
        over = client.wait(*client.submit([job]))
    assert over.state == "finished"
    assert {gpu.partition("/")[0] for gpu in over.gpus} == {"n1", "n2", "n3", "n4"}
    cluster.start_node(hosts[1], "n4")
    note = "n4: two Ray nodes have this name: start each with a label, --labels=node=NAME"
    wait_until(lambda: note in ray.log(), ray.log())
    cluster.network.send(signal.SIGKILL, *hosts)
    timed("the new node killed until it is missed", lambda: "n4" not in ray.usable())


FINDER = """
import sys, time
from pathlib import Path
from dovetail.cluster.options import ray_plan
from dovetail.cluster.ray_finder import RayFinder
finder = RayFinder(Path(sys.argv[1]), ray_plan(sys.argv[2]))
finder.start()
for _ in range(3000):
    print(*finder.nodes(), flush=True)
    time.sleep(0.1)
"""


def test_a_node_that_ray_names_no_more_is_dropped(ray, tmp_path):
    cluster, host = ray.cluster, ray.cluster.network.add()
    finder = cluster.network.inside(
        0, sys.executable, "-c", FINDER, str(tmp_path), f"{HEAD},pool=cpu"
    )
    with subprocess.Popen(finder, env=cluster.env, stdout=subprocess.PIPE, text=True) as process:
        try:
            cluster.start_node(host, "n4")
            while "n4" not in (named := process.stdout.readline()):
                assert named, "it joins"
            cluster.network.send(signal.SIGKILL, host)
            while "n4" in (named := process.stdout.readline()):
                pass
            assert {*named.split()} >= {"n1", "n2", "n3"}, "it is dropped, and no other"
        finally:
            process.kill()


def another_version(folder):
    """Return a folder with a copy of Dovetail that has another version."""
    root = Path(__file__).parents[2]
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
    note = f"n{busy}: its agent has other options, and is replaced once nothing runs on it"
    assert note in ray.log()
    assert f"its agent runs Dovetail {VERSION}, this service 99" in ray.log()
    ray.restart()
