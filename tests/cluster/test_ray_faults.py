"""Nodes of a real Ray cluster that are lost, and when their jobs run elsewhere.

Every rank records when it runs (``witness``), so that no two runs of a job may overlap. Times are
printed (``pytest -s``) for ``docs/evidence/nodes.md``.
"""

import signal
import time

import pytest

from dovetail.cluster.lease import LEASE_S
from tests.executor.waiting import wait_until

from .conftest import running_ray
from .network import signal_all
from .ray_cluster import Gang, timed
from .witness import assert_one_after_the_other, copies

pytestmark = pytest.mark.alone

LONG = pytest.mark.long


def cut(network, host):
    network.cut(host)
    return lambda: network.mend(host)


def freeze(network, host):
    """Stop every process of a host: raylet, agent, shims and jobs."""
    network.send(signal.SIGSTOP, host)
    return lambda: network.send(signal.SIGCONT, host)


def kill(network, host):
    network.send(signal.SIGKILL, host)
    return lambda: None


def kill_raylet(network, host):
    raylets = [p for p, line in network.processes(host).items() if "raylet/raylet " in line]
    signal_all(raylets, signal.SIGKILL)
    return lambda: None


@pytest.mark.parametrize(
    ("fault", "lease_s"),
    [
        pytest.param(cut, 5, marks=LONG),
        pytest.param(cut, LEASE_S, marks=LONG),
        pytest.param(freeze, LEASE_S, marks=LONG),
        pytest.param(kill, LEASE_S, marks=LONG),
        pytest.param(kill_raylet, LEASE_S, marks=LONG),
    ],
)
def test_the_gang_of_a_lost_node_is_ended_and_runs_again_elsewhere(ray, fault, lease_s):
    cluster, what = ray.cluster, f"{fault.__name__}, lease of {lease_s:g} s"
    if lease_s != ray.lease_s:
        ray.restart(lease_s)
    # A lease of the service before may still run, so recovery may take longer at first.
    gang = Gang(ray, f"{fault.__name__}-{lease_s:g}", 2, stubborn=True).wait_for_start()
    first, lost = gang.view.run, gang.nodes()[1]
    host = int(lost[1:])
    old = cluster.agent(host)
    undo = fault(cluster.network, host)
    timed(f"{what}: until the node is missed", lambda: lost not in ray.usable())
    timed(f"{what}: missed until the gang runs elsewhere", lambda: gang.started(first))
    assert lost not in gang.nodes()
    undone_s = boot_s()
    undo()
    if fault is cut and lease_s < LEASE_S:
        # Ray would end it as well, 11 s later.
        cluster.kill_raylet(host)
    timed(f"{what}: undone until the raylet has ended", lambda: cluster.raylet(host) is None)
    begun_s = time.monotonic()
    cluster.start_node(host)
    # A thawed agent answers for some seconds, until Ray ends it.
    wait_until(lambda: cluster.has_agent(host, old) and lost in ray.usable(), ray.log())
    print(f"\n{what}: from `ray start` until the node is used: {time.monotonic() - begun_s:.1f} s")
    wait_until(lambda: gang.beats() == set(gang.pids), ray.log())
    assert gang.finish().runs >= 2
    assert_one_after_the_other(gang.folder, gang.id, frozen=fault is freeze)
    former = [copy for copy in copies(gang.folder, gang.id) if copy.run == first]
    late_s = max(copy.last_s for copy in former) - undone_s
    print(f"\n{what}: last line of the former run, after the end of the fault: {late_s:.2f} s")
    # The shim of a thawed rank kills it as soon as the shim runs.
    assert late_s < 10


def boot_s():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@LONG
def test_without_storage_a_dead_head_ends_all_nodes_but_no_job_is_lost():
    with running_ray(2, stored=False) as ray:
        ray.restart(LEASE_S)
        gang = Gang(ray, "unstored", 2).wait_for_start()
        first = gang.view.run
        ray.cluster.kill_head()
        timed("head killed until all nodes are missed", lambda: not ray.usable())
        timed("missed until no process of the job runs", lambda: not ray.cluster.left_of_jobs())
        ray.cluster.start()
        timed("cluster restarted until all nodes are used", lambda: ray.usable() == {"n1", "n2"})
        gang.wait_for_start(first)
        assert gang.finish().runs >= 2
        assert_one_after_the_other(gang.folder, gang.id)
