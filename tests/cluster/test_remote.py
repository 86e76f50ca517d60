"""A node as its controller knows it: versions, names of devices, clocks."""

import pytest

from dovetail.cluster.fence import Mark, raise_epoch
from dovetail.cluster.lease import RemoteLease
from dovetail.cluster.messages import AgentAnswer, AgentFacts, NodeState
from dovetail.cluster.remote import Remote, parts_of
from dovetail.executor.jobs.events import RankEnded
from dovetail.executor.pools.pool import Progress
from dovetail.executor.pools.runs.files import Part
from dovetail.instances.instance import Cluster, Gpu, Node
from tests.executor.local_runs import a_run

MARK = Mark(home="h", epoch=1)
FACTS = AgentFacts(
    agent="a",
    pool="cpu",
    notice="",
    cluster=Cluster(nodes=(Node(id="x", gpus=(Gpu(id="0", model="m", memory_mib=1.0),)),)),
)
RUN = a_run("true", gpus=("0",))


def answer(incarnation="i", wanted=0, **more):
    fields = {"clock_s": 1000.0, "until_s": 0.0, "facts": FACTS, **more}
    return AgentAnswer(incarnation=incarnation, wanted=wanted, **fields)


@pytest.fixture
def node():
    remote = Remote("n1", RemoteLease(15.0, 0.0))
    remote.take_in(answer(version=7), 10.0, 10.0)
    return remote


def asked(remote, resumed=True):
    call, request = remote.request(MARK, 1.0, watch=False, resumed=resumed, keep_others=False)
    assert remote.call is call
    return request


def phases(remote):
    wants = asked(remote).wants
    return None if wants is None else [want.phase for want in wants]


def test_wants_are_sent_until_the_agent_has_them(node):
    assert asked(node, resumed=False).wants is None
    node.want(Part(RUN, (0,)), phase="launch")
    assert phases(node) == phases(node) == ["launch"]
    node.take_in(answer(wanted=node.version), 11.0, 11.0)
    assert phases(node) is None
    node.want(Part(RUN, (0,)), phase="stop", grace_s=1.0)
    assert phases(node) == ["stop"]
    node.take_in(answer("another"), 12.0, 12.0)
    assert not node.attached
    assert phases(node) == ["stop"]
    node.release(RUN.id)
    assert phases(node) == []


def test_a_request_that_waits_for_news_is_replaced_by_one_with_wants(node):
    node.take_in(answer(wanted=node.version), 11.0, 11.0)
    assert asked(node).wait_s == 1.0
    assert not node.askable
    node.want(Part(RUN, (0,)), phase="launch")
    assert node.askable
    assert asked(node).wait_s == 0.0
    assert not node.askable


def test_another_agent_never_starts_runs_that_the_last_one_may_have_started(node):
    for phase in ("launch", "prepare", "commit", "abort", "keep"):
        node.want(Part(RUN.model_copy(update={"id": phase}), (0,)), phase=phase)
    node.displace()
    assert phases(node) == ["stop", "stop", "stop", "abort", "keep"]


def test_the_request_names_the_version_that_was_seen(node):
    assert asked(node).seen == 7
    node.take_in(answer(version=9), 11.0, 11.0)
    assert asked(node).seen == 9


def test_the_controller_s_names_of_devices_begin_with_the_node(node):
    assert [gpu.id for gpu in node.devices()] == ["n1/0"]
    run = a_run("true", gpus=("n1/0", "n2/0"))
    inside = parts_of(run)["n1"]
    assert [seat.gpu for seat in inside.run.seats] == ["0", "n2/0"]
    assert node.outside(inside) == Part(run, (0,))


def test_times_are_the_controller_s(node):
    # The node's clock was at 1000 s when it was 10 s here, and stays 990 s ahead.
    node.take_in(answer(progress={"j1.1": (Progress(5.0, 1003.0), None)}), 14.0, 14.0)
    assert node.progress["j1.1"] == [Progress(5.0, 13.0), None]
    ended = RankEnded(at_s=0.0, run="j1.1", rank=0, status=0, ended_s=1001.0)
    node.take_in(answer(state=NodeState(ranks=(ended,))), 14.0, 14.0)
    assert node.rank_log.status("j1.1", 0).end.ended_s == 11.0


def test_epochs_of_controllers_rise_and_last(tmp_path):
    marks = [raise_epoch(tmp_path / "c.json") for _ in range(3)]
    assert [mark.epoch for mark in marks] == [1, 2, 3]
    assert len({mark.home for mark in marks}) == 1
