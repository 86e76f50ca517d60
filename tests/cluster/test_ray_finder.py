"""The options of the pool of a Ray cluster, and its messages without a cluster."""

import socket
import sys

import pytest

from dovetail.cluster.messages import AgentCallError
from dovetail.cluster.options import KILLS, RayPlan, ray_plan
from dovetail.cluster.ray_agent import agents_directory, warnings
from dovetail.cluster.ray_driver import selected_nodes
from dovetail.cluster.ray_finder import RayFinder
from dovetail.instances.errors import InputError, UnsupportedError

from .conftest import needs_ray


def test_options_and_the_pool_with_its_own_options_last():
    text = (
        "10.0.0.1:6379,label=team:vision,lease=30,directory=/var/d,pool=cpu:devices=1,shares=quota"
    )
    assert ray_plan(text) == RayPlan(
        address="10.0.0.1:6379",
        label="team:vision",
        lease_s=30.0,
        directory="/var/d",
        pool="cpu:devices=1,shares=quota",
    )
    assert ray_plan("head:6379") == RayPlan(address="head:6379", pool="gpu", lease_s=15.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be ray:HOST:PORT, got ''"),
        ("auto", "must be ray:HOST:PORT, got 'auto'"),
        (
            "h:1,color=red",
            "must be one of label, resource, directory, lease, open, pool, got 'color'",
        ),
        ("h:1,lease=soon", "lease must be seconds, 5 or more, got 'soon'"),
        ("h:1,open=maybe", "open must be yes or no, got 'maybe'"),
        ("h:1,label=x", "label must be KEY:VALUE, got 'x'"),
        ("h:1,directory=here", "directory must be a path that begins with /, got 'here'"),
        ("h:1,pool=tpu", "must be one of cpu, gpu, got 'tpu'"),
    ],
)
def test_invalid_options_are_refused_in_one_line(text, message):
    with pytest.raises(InputError) as error:
        ray_plan(text)
    assert str(error.value) == f"--pool: {message}"


def entry(name, *, alive=True, resources=None, **labels):
    return {
        "NodeID": f"id-{name}",
        "Alive": alive,
        "NodeManagerHostname": name,
        "NodeManagerAddress": "10.0.0.9",
        "Resources": {"CPU": 4.0} if resources is None else resources,
        "Labels": labels,
    }


def names(plan, *table):
    return [(node.name, node.info.rack) for node in selected_nodes(table, plan)]


def test_nodes_are_chosen_by_label_and_resource_and_named_by_label_or_host():
    head, dead = entry("head", resources={}), entry("h1", alive=False)
    plain, labelled = entry("h2"), entry("h3", node="n3", rack="r1", team="vision")
    table = (head, dead, plain, labelled)
    cpu = RayPlan(address="h:1", pool="cpu")
    assert names(cpu, *table) == [("h2", None), ("n3", "r1")]
    assert names(cpu._replace(label="team:vision"), *table) == [("n3", "r1")]
    assert names(cpu._replace(pool="gpu"), *table) == []
    special = entry("h4", resources={"dovetail": 1.0})
    assert names(cpu._replace(resource="dovetail"), *table, special) == [("h4", None)]


def test_calls_fail_at_once_while_there_is_no_driver(tmp_path):
    answer = RayFinder(tmp_path, RayPlan(address="10.0.0.1:6379")).call("n1", "exchange", "{}")
    with pytest.raises(AgentCallError, match=r"^Ray at 10\.0\.0\.1:6379: its driver is being "):
        answer.result(0)


def test_agents_have_a_directory_unless_one_is_named(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert str(agents_directory(None)) == "/s/dovetail/agents"
    assert str(agents_directory("/d")) == "/d"


def test_a_node_on_which_ray_kills_the_shims_of_jobs_is_reported(monkeypatch):
    monkeypatch.delenv(KILLS, raising=False)
    assert KILLS in warnings()[0]
    monkeypatch.setenv(KILLS, "false")
    assert warnings() == []


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnsupportedError, match=r"pip install './dovetail\[ray\]'"):
        RayFinder(tmp_path, RayPlan(address="127.0.0.1:1")).start()


@needs_ray
@pytest.mark.usefixtures("shadowed")
def test_a_cluster_that_does_not_answer_is_reported_in_one_line(tmp_path, caplog):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UnsupportedError) as error:
            RayFinder(tmp_path, RayPlan(address=address)).start()
    assert str(error.value) == f"Ray at {address}: [Errno 111] Connection refused"
    assert caplog.messages == []
