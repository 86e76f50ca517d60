"""Nodes that join, nodes that are known from before, and nodes that are forgotten."""

import time
from contextlib import closing

import pytest

from benchmarks.cluster.socket_agents import SocketNodes
from dovetail.cluster import pool as nodes_pool
from dovetail.cluster.known_nodes import KnownNode, write_known
from dovetail.cluster.messages import AgentFacts
from dovetail.cluster.pool import NodesPool
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Cluster, Gpu, Node
from tests.executor.local_runs import Watched, a_run
from tests.executor.waiting import wait_until

from .agents import finder as found
from .agents import start_agents


@pytest.fixture
def agents(tmp_path):
    started = start_agents(tmp_path / "agents", 2, "cpu:devices=1,shares=none")
    yield started
    for agent in started:
        agent.end()


def devices(pool):
    return [gpu.id for node in pool.cluster().nodes for gpu in node.devices]


def test_where_no_node_answers_the_pool_is_empty_and_names_those_awaited(tmp_path, agents):
    finder = found([])
    finder.known = {"n2": tmp_path}
    pool = NodesPool(tmp_path, finder, find_s=0.5)
    pool.resume([])
    assert devices(pool) == []
    assert pool.awaited == "n2 (Connection refused)"
    finder.awaited = lambda: ["pilot 7", "pilot 8", "pilot 9"]
    assert pool.awaited == "pilot 7, pilot 8, pilot 9 and 1 more"
    finder.known = found(agents[1:]).known
    wait_until(lambda: devices(pool) == ["n2/cpu-0"])
    assert pool.awaited == "pilot 7, pilot 8, pilot 9"
    pool.close()


def test_an_engine_that_fails_costs_no_events(tmp_path, agents):
    """The engine is not called while an answer is handled."""
    finder = found(agents[:1])
    pool = NodesPool(tmp_path / "home", finder)

    class Failing(dict):
        def __iter__(self):
            if pool._lock._is_owned():
                raise OSError("the engine's files cannot be read")
            return super().__iter__()

    finder.known = Failing(finder.known)
    pool.resume([])
    watched = Watched(pool)
    pool.launch(a_run("exit 3", gpus=("n1/cpu-0",)))
    assert watched.wait_for("rank_ended").status == 3
    pool.close()


def test_a_lease_that_is_too_short_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"^lease: must be 5 s or more, got 4$"):
        NodesPool(tmp_path, found([]), 4.0)


def test_a_node_that_joins_is_in_the_cluster_and_one_that_is_away_stays_in_it(tmp_path, agents):
    finder = found(agents[:1])
    pool = NodesPool(tmp_path / "home", finder)
    pool.resume([])
    assert devices(pool) == ["n1/cpu-0"]
    finder.known = found(agents).known
    wait_until(lambda: devices(pool) == ["n1/cpu-0", "n2/cpu-0"])
    pool.close()
    agents[1].kill()
    again = NodesPool(tmp_path / "home", found(agents), find_s=0.5)
    again.resume([])
    assert devices(again) == ["n1/cpu-0", "n2/cpu-0"]
    wait_until(lambda: [(e.kind, e.gpu) for e in again.poll()] == [("device_sick", "n2/cpu-0")])
    agents[1].start()
    wait_until(lambda: [(e.kind, e.gpu) for e in again.poll()] == [("device_healed", "n2/cpu-0")])
    again.close()


def test_a_node_that_is_no_longer_named_is_forgotten_once_it_is_gone(tmp_path, agents, monkeypatch):
    monkeypatch.setattr(nodes_pool, "FORGET_S", 0.5)
    finder = found(agents)
    pool = NodesPool(tmp_path / "home", finder)
    pool.resume([])
    assert devices(pool) == ["n1/cpu-0", "n2/cpu-0"]
    agents[1].kill()
    # As long as it is named, or the engine has no report of any node, it may come back.
    wait_until(lambda: any(event.kind == "device_sick" for event in pool.poll()))
    finder.known = {}
    time.sleep(1.5)
    assert devices(pool) == ["n1/cpu-0", "n2/cpu-0"]
    finder.known = found(agents[:1]).known
    wait_until(lambda: devices(pool) == ["n1/cpu-0"])
    pool.close()
    again = NodesPool(tmp_path / "home", found(agents[:1]))
    assert devices(again) == ["n1/cpu-0"]
    # It may join again, as a new one.
    agents[1].start()
    again.close()
    back = NodesPool(tmp_path / "home", found(agents))
    assert devices(back) == ["n1/cpu-0", "n2/cpu-0"]
    back.close()


def test_shares_are_those_of_the_nodes_that_answer(tmp_path):
    started = start_agents(tmp_path / "agents", 2, "cpu:devices=1")
    try:
        pool = NodesPool(tmp_path / "home", found(started))
        (model,) = {gpu.model for node in pool.cluster().nodes for gpu in node.devices}
        shares = {*pool.cluster().shares}
        wait_until(lambda: {*pool.allowed("", model)} == shares)
        pool.close()
        started[1].kill()
        again = NodesPool(tmp_path / "home", found(started), find_s=0.5)
        again.resume([])
        wait_until(lambda: {*again.allowed("", model)} == shares)
        again.close()
    finally:
        for agent in started:
            agent.end()


@pytest.mark.parametrize(
    ("modes", "sharing"),
    [
        (("mps", "mps"), "mps"),
        (("time_sliced", "time_sliced"), "time_sliced"),
        (("time_sliced", "mps"), "mps"),
    ],
)
def test_nodes_with_and_without_mps_in_one_pool_share_no_gpu(tmp_path, modes, sharing):
    known = tmp_path / "home" / "nodes" / "known"
    known.mkdir(parents=True)
    for name, mode in zip(("n1", "n2"), modes, strict=True):
        gpus = (Gpu(id="0", model="m", memory_mib=1.0),)
        shares = (50,) if mode == "mps" else ()
        cluster = Cluster(sharing=mode, shares=shares, nodes=(Node(id=name, gpus=gpus),))
        facts = AgentFacts(agent=name, pool="gpu", notice="", cluster=cluster)
        write_known(known, name, KnownNode(facts=facts))
    with closing(NodesPool(tmp_path / "home", SocketNodes({}))) as pool:
        assert devices(pool) == ["n1/0", "n2/0"]
        assert pool.cluster().sharing == sharing
        reason = pool.sharing(same_user=True)
    assert (reason is None) == (len(set(modes)) == 1)
