"""The two phases of a gang, by hand: three nodes, rank 0 on b."""

import pytest

from dovetail.executor.nodes import gangs as two_phases
from dovetail.executor.nodes.gangs import Gangs
from dovetail.executor.pools.parts import Part, Rendezvous
from tests.executor.local_runs import a_run

MEETING = Rendezvous("10.0.0.2", 20_000)
RUN = a_run("true", gpus=("b/0", "a/0", "c/0", "a/1"))
PARTS = {"a": Part(RUN, (1, 3)), "b": Part(RUN, (0,)), "c": Part(RUN, (2,))}


class Told(Gangs):
    """Gangs that keep what nodes were told."""

    def __init__(self):
        self.orders = []
        super().__init__(lambda node, order: self.orders.append((node, order)))

    def since(self):
        """Return what nodes were told since the last time."""
        orders, self.orders = self.orders, []
        return [(node, order.kind) for node, order in orders]

    def prepared(self, *nodes):
        for node in nodes:
            self.note_prepared(RUN.id, node, MEETING)
        return self.since()


@pytest.fixture
def gangs():
    made = Told()
    made.begin(RUN.id, PARTS)
    assert made.since() == [("b", "prepare")]
    return made


ALL = ("a", "b", "c")


def test_the_node_of_rank_0_prepares_first_and_says_where_the_gang_meets(gangs):
    gangs.note_prepared(RUN.id, "b", MEETING)
    assert {order.part.rendezvous for _, order in gangs.orders} == {MEETING}
    assert gangs.since() == [("a", "prepare"), ("c", "prepare")]


def test_all_are_told_to_start_once_the_last_is_prepared(gangs):
    gangs.prepared("b")
    assert gangs.prepared("c") == []
    assert gangs.prepared("a") == [(node, "commit") for node in ALL]


def test_news_that_comes_twice_changes_nothing(gangs):
    gangs.prepared("b")
    assert gangs.prepared("b", "c", "c") == []
    assert len(gangs.prepared("a")) == 3
    assert gangs.prepared("a") == []


@pytest.mark.parametrize("prepared", [(), ("b",), ("b", "c")])
def test_until_then_all_can_be_given_up_and_nothing_starts_afterwards(gangs, prepared):
    gangs.prepared(*prepared)
    assert gangs.give_up(RUN.id, "why")
    assert gangs.since() == [(node, "abort") for node in ALL]
    assert gangs.prepared("a") == []
    assert not gangs.give_up(RUN.id, "again")


def test_after_that_nothing_is_given_up(gangs):
    gangs.prepared("b", "c", "a")
    assert not gangs.give_up(RUN.id, "too late")
    assert gangs.since() == []
    assert [*gangs.hopeless(lambda node: True)] == []


def test_no_gang_starts_while_one_of_its_nodes_does_not_answer(gangs):
    gangs.doubt("c")
    gangs.doubt("d")
    assert gangs.prepared("b", "a", "c") == [("a", "prepare"), ("c", "prepare")]
    assert gangs.is_open(RUN.id)
    gangs.trust("c")
    assert gangs.since() == [(node, "commit") for node in ALL]


def test_an_agent_that_died_with_a_part_at_its_gates_is_known_until_the_gang_starts(gangs):
    gangs.prepared("b", "c")
    assert gangs.lost_prepared("a") == []
    assert gangs.lost_prepared("c") == [RUN.id]
    gangs.prepared("a")
    assert gangs.lost_prepared("c") == []


def test_one_that_was_told_to_start_by_an_earlier_controller_goes_on():
    gangs = Told()
    gangs.go_on(RUN.id, PARTS)
    assert gangs.since() == [(node, "commit") for node in ALL]


def test_one_whose_node_is_silent_or_slow_is_hopeless(gangs, monkeypatch):
    assert [*gangs.hopeless(lambda node: False)] == []
    assert [*gangs.hopeless(lambda node: node == "c")] == [(RUN.id, "c does not answer")]
    gangs.prepared("b")
    late_s = two_phases.boot_s() + 46.0
    monkeypatch.setattr(two_phases, "boot_s", lambda: late_s)
    told = "it was not prepared within 45 s on a, c"
    assert [*gangs.hopeless(lambda node: False)] == [(RUN.id, told)]
