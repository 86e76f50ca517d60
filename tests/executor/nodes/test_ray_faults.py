"""Nodes of a Ray cluster that are lost: what their jobs do, and when these run elsewhere.

Every rank bears witness (``witness``): where a job runs again, nothing of the run before has a
process any more. Times are printed (``pytest -s``).
"""

import signal
import time

import pytest

from dovetail.executor.nodes.lease import LEASE_S
from tests.executor.waiting import wait_until

from .conftest import running_ray
from .network import signal_all
from .ray_cluster import Gang, timed
from .witness import assert_one_after_the_other, copies, runs_of

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
def test_a_node_that_is_lost_ends_its_gang_which_runs_once_more_elsewhere(ray, fault, lease_s):
    cluster, what = ray.cluster, f"{fault.__name__}, lease of {lease_s:g} s"
    if lease_s != ray.lease_s:
        ray.restart(lease_s)
    # What was promised by the service before holds, too, so the new lease is longer at first.
    gang = Gang(ray, f"{fault.__name__}-{lease_s:g}", 2, stubborn=True).wait_for_start()
    lost = gang.nodes()[1]
    host = int(lost[1:])
    old = cluster.agent(host)
    undo = fault(cluster.network, host)
    timed(f"{what}: until the node is missed", lambda: lost not in ray.usable())
    timed(f"{what}: missed until the gang runs elsewhere", lambda: gang.started(runs=2))
    assert lost not in gang.nodes()
    undone_s = boot_s()
    undo()
    if fault is cut and lease_s < LEASE_S:
        # Ray would end it by itself, 11 s later.
        cluster.kill_raylet(host)
    timed(f"{what}: undone until the raylet has ended", lambda: cluster.raylet(host) is None)
    begun_s = time.monotonic()
    cluster.start_node(host)
    # An agent that thaws answers, too, until Ray ends it some seconds later.
    wait_until(lambda: cluster.has_agent(host, old) and lost in ray.usable(), ray.log())
    print(f"\n{what}: from `ray start` until the node is used: {time.monotonic() - begun_s:.1f} s")
    assert gang.beats() == set(gang.pids)
    assert gang.finish().runs == 2
    assert_one_after_the_other(gang.folder, gang.id, frozen=fault is freeze)
    late_s = max(copy.last_s for copy in runs_of(copies(gang.folder, gang.id))[0]) - undone_s
    print(f"\n{what}: last line of the former run, after the end of the fault: {late_s:.2f} s")
    # What thaws is killed by its shim as soon as that runs.
    assert late_s < 10


def boot_s():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@LONG
def test_a_dead_head_that_kept_nothing_takes_the_nodes_with_it_but_no_job_is_lost():
    with running_ray(2, stored=False) as ray:
        ray.restart(LEASE_S)
        gang = Gang(ray, "unstored", 2).wait_for_start()
        ray.cluster.kill_head()
        timed("head killed until all nodes are missed", lambda: not ray.usable())
        timed("missed until no process of the job runs", lambda: not ray.cluster.left_of_jobs())
        ray.cluster.start()
        timed("cluster started until it is back", lambda: ray.usable() == {"n1", "n2"})
        gang.wait_for_start(runs=2)
        assert gang.finish().runs == 2
        assert_one_after_the_other(gang.folder, gang.id)
