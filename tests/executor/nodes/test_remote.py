"""What a controller makes of one node's answers: orders and events by number, names, clocks."""

import pytest

from dovetail.executor.jobs.events import RankEnded, RankGone, RankStarted
from dovetail.executor.nodes.fence import Fence, FencedError, Mark, raise_epoch
from dovetail.executor.nodes.lease import Lease
from dovetail.executor.nodes.messages import Answer, Facts, Launch, News, Release, Stop
from dovetail.executor.nodes.remote import Remote, parts_of
from dovetail.executor.pools.parts import Part
from dovetail.executor.pools.pool import Progress
from dovetail.instances.instance import Cluster, Gpu, Node
from tests.executor.local_runs import a_run

MARK = Mark(home="h", epoch=1)
FACTS = Facts(
    agent="a",
    pool="cpu",
    notice="",
    cluster=Cluster(nodes=(Node(id="x", gpus=(Gpu(id="0", model="m", memory_mib=1.0),)),)),
)


def answer(incarnation="i", done=0, **more):
    told = {"clock_s": 1000.0, "until_s": 0.0, "facts": FACTS, **more}
    return Answer(incarnation=incarnation, done=done, **told)


@pytest.fixture
def node():
    remote = Remote("n1", Lease(15.0, 0.0))
    remote.take_in(answer(), 10.0, 10.0)
    return remote


def asked(remote):
    return remote.request(MARK, 1.0, watch=False)[1]


def kinds(remote):
    return [order.kind for order in asked(remote).orders]


def test_orders_are_repeated_until_they_are_done(node):
    run = a_run("true", gpus=("0",))
    node.order(Launch(run=run))
    node.order(Stop(part=Part(run, (0,)), grace_s=1.0))
    assert node.urgent
    assert kinds(node) == kinds(node) == ["launch", "stop"]
    assert not node.urgent
    node.take_in(answer(done=1), 11.0, 11.0)
    assert kinds(node) == ["stop"]
    node.take_in(answer(done=2), 12.0, 12.0)
    assert not node.waiting


def test_an_agent_that_was_restarted_is_told_all_that_still_holds(node):
    run = a_run("true", gpus=("0",))
    node.parts[run.id] = Part(run, (0,))
    node.take_up()
    node.order(Launch(run=run))
    node.take_in(answer(done=2), 11.0, 11.0)
    assert node.attached
    assert not node.waiting
    node.take_in(answer("another"), 12.0, 12.0)
    assert not node.attached
    assert kinds(node) == ["attach", "launch"]
    assert [order.number for order in asked(node).orders] == [1, 2]


def test_events_that_come_twice_are_taken_in_once(node):
    event = RankStarted(at_s=0.0, run="j1.1", rank=0)
    news = (News(number=1, event=event),)
    assert node.take_in(answer(news=news), 11.0, 11.0) == [event]
    assert node.take_in(answer(news=news), 12.0, 12.0) == []
    assert asked(node).seen == 1


def test_a_run_that_is_released_before_it_is_over_is_known_until_it_is(node):
    run = a_run("true", gpus=("0",))
    started = RankStarted(at_s=0.0, run=run.id, rank=0)
    node.take_in(answer(news=(News(number=1, event=started),)), 11.0, 11.0)
    node.order(Release(run=run.id))
    node.take_in(answer(done=1, progress={run.id: (None,)}), 12.0, 12.0)
    node.forget_released()
    assert not node.rank_log.over(run.id, 0)
    assert run.id in node.rank_log.statuses
    gone = RankGone(at_s=0.0, run=run.id, rank=0, reason="its lease lapsed")
    node.take_in(answer(done=1, news=(News(number=2, event=gone),)), 13.0, 13.0)
    node.forget_released()
    assert (node.rank_log.statuses, node.progress, node.standing) == ({}, {}, {})


def test_devices_have_the_node_s_name_outside_and_their_own_inside(node):
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
    (told,) = node.take_in(answer(news=(News(number=1, event=ended),)), 14.0, 14.0)
    assert told.ended_s == 11.0


class TestFence:
    def test_epochs_rise_and_last(self, tmp_path):
        marks = [raise_epoch(tmp_path / "c.json") for _ in range(3)]
        assert [mark.epoch for mark in marks] == [1, 2, 3]
        assert len({mark.home for mark in marks}) == 1

    def test_a_newer_one_is_let_in_and_an_older_one_never_again(self, tmp_path):
        fence = Fence(tmp_path / "f.json")
        assert fence.admit(Mark(home="h", epoch=2), held=False)
        assert not fence.admit(Mark(home="h", epoch=2), held=True)
        assert fence.admit(Mark(home="h", epoch=3), held=True)
        with pytest.raises(FencedError, match="newer controller"):
            Fence(tmp_path / "f.json").admit(Mark(home="h", epoch=2), held=False)

    def test_another_home_comes_in_only_when_nothing_is_kept(self, tmp_path):
        fence = Fence(tmp_path / "f.json")
        fence.admit(Mark(home="h", epoch=9), held=False)
        with pytest.raises(FencedError, match="another state directory"):
            fence.admit(Mark(home="g", epoch=1), held=True)
        assert fence.admit(Mark(home="g", epoch=1), held=False)
