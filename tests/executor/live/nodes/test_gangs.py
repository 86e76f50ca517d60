"""The two phases of a gang, by hand: three nodes, rank 0 on b."""

import pytest

from dovetail.executor.live.nodes.gangs import Gang
from dovetail.executor.live.pools.parts import Meeting, Part
from tests.executor.live.local_runs import a_run

MEETING = Meeting("10.0.0.2", 20_000)


@pytest.fixture
def gang():
    run = a_run("true", gpus=("b/0", "a/0", "c/0", "a/1"))
    parts = {"a": Part(run, (1, 3)), "b": Part(run, (0,)), "c": Part(run, (2,))}
    return Gang(parts, due_s=60.0)


def told(orders):
    return [(each.node, each.order.kind) for each in orders]


def test_the_node_of_rank_0_prepares_first_and_says_where_the_gang_meets(gang):
    assert told(gang.begin()) == [("b", "prepare")]
    orders = gang.note_prepared("b", MEETING)
    assert told(orders) == [("a", "prepare"), ("c", "prepare")]
    assert {each.order.part.meeting for each in orders} == {MEETING}


def test_all_are_told_to_start_once_the_last_is_prepared(gang):
    gang.begin()
    gang.note_prepared("b", MEETING)
    assert gang.note_prepared("c", MEETING) == []
    assert told(gang.note_prepared("a", MEETING)) == [
        ("a", "commit"),
        ("b", "commit"),
        ("c", "commit"),
    ]


def test_news_that_comes_twice_changes_nothing(gang):
    gang.begin()
    gang.note_prepared("b", MEETING)
    assert gang.note_prepared("b", MEETING) == []
    gang.note_prepared("c", MEETING)
    assert gang.note_prepared("c", MEETING) == []
    assert len(gang.note_prepared("a", MEETING)) == 3
    assert gang.note_prepared("a", MEETING) == []


@pytest.mark.parametrize("prepared", [(), ("b",), ("b", "c")])
def test_until_then_all_can_be_given_up_and_nothing_starts_afterwards(gang, prepared):
    gang.begin()
    for node in prepared:
        gang.note_prepared(node, MEETING)
    assert told(gang.give_up("why")) == [("a", "abort"), ("b", "abort"), ("c", "abort")]
    assert gang.note_prepared("a", MEETING) == []
    assert gang.give_up("again") == []


def test_after_that_nothing_is_given_up(gang):
    gang.begin()
    for node in ("b", "c", "a"):
        gang.note_prepared(node, MEETING)
    assert gang.give_up("too late") == []


def test_a_part_whose_agent_was_restarted_has_to_be_prepared_again(gang):
    gang.begin()
    gang.note_prepared("b", MEETING)
    gang.note_prepared("c", MEETING)
    gang.prepared.discard("c")
    assert gang.note_prepared("a", MEETING) == []
    assert len(gang.note_prepared("c", MEETING)) == 3
