"""The two phases of a gang on three nodes, with rank 0 on b."""

import pytest

from dovetail.cluster import gangs as two_phases
from dovetail.cluster.gangs import Gangs
from dovetail.cluster.lease import RemoteLease
from dovetail.cluster.messages import NodeState
from dovetail.cluster.remote import Remote
from dovetail.executor.pools.runs.files import Part, Rendezvous
from tests.executor.local_runs import a_run

MEETING = Rendezvous("10.0.0.2", 20_000)
RUN = a_run("true", gpus=("b/0", "a/0", "c/0", "a/1"))
PARTS = {"a": Part(RUN, (1, 3)), "b": Part(RUN, (0,)), "c": Part(RUN, (2,))}


class ThreeNodes(Gangs):
    """Gangs over nodes whose states a test sets."""

    def __init__(self):
        self.remotes = {node: Remote(node, RemoteLease(15.0, 0.0)) for node in PARTS}
        super().__init__(
            self.remotes, lambda node, *what, **more: self.remotes[node].want(*what, **more)
        )
        for node, part in PARTS.items():
            self.remotes[node].want(part)

    def phases(self):
        return "".join(remote.wants[RUN.id].phase[0] for remote in self.remotes.values())

    def prepared(self, *nodes):
        """Let nodes report that they are prepared, and return the phases of all wants then."""
        for node in nodes:
            self.remotes[node].state = NodeState(prepared={RUN.id: MEETING})
        assert [*self.advance()] == []
        return self.phases()


@pytest.fixture
def gangs():
    made = ThreeNodes()
    made.begin(RUN.id, PARTS)
    assert made.phases() == "kpk"
    return made


def test_the_node_of_rank_0_prepares_first_and_chooses_the_rendezvous(gangs):
    assert gangs.prepared() == "kpk"
    assert gangs.prepared("b") == "ppp"
    met = [gangs.remotes[node].wants[RUN.id].part.rendezvous for node in ("a", "c")]
    assert met == [MEETING, MEETING]


def test_all_start_once_the_last_is_prepared(gangs):
    assert gangs.prepared("b", "c") == "ppp"
    assert gangs.prepared("a") == "ccc"
    assert not gangs.is_open(RUN.id)


@pytest.mark.parametrize("prepared", [(), ("b",), ("b", "c")])
def test_before_that_a_gang_can_be_given_up_and_never_starts_then(gangs, prepared):
    gangs.prepared(*prepared)
    assert gangs.give_up(RUN.id, "why")
    assert gangs.prepared("a", "b", "c") == "aaa"
    assert not gangs.give_up(RUN.id, "again")


def test_after_that_no_gang_is_given_up(gangs):
    gangs.prepared("b", "c", "a")
    gangs.remotes["a"].silent = "gone"
    assert [*gangs.advance()] == []
    assert not gangs.give_up(RUN.id, "too late")
    assert gangs.phases() == "ccc"


def test_no_gang_starts_while_one_of_its_nodes_may_have_lost_its_part(gangs):
    gangs.remotes["c"].doubted = True
    assert gangs.prepared("b", "a", "c") == "ppp"
    gangs.remotes["c"].doubted = False
    # The first state of its next agent has nothing prepared.
    gangs.remotes["c"].state = NodeState()
    assert gangs.prepared() == "ppp"
    assert gangs.prepared("c") == "ccc"


def test_a_gang_with_a_silent_or_slow_node_is_given_up(gangs, monkeypatch):
    gangs.remotes["c"].silent = "it hangs"
    assert [*gangs.advance()] == [(RUN.id, "c does not answer")]
    gangs.remotes["c"].silent = ""
    gangs.prepared("b")
    late_s = two_phases.boot_s() + 46.0
    monkeypatch.setattr(two_phases, "boot_s", lambda: late_s)
    assert [*gangs.advance()] == [(RUN.id, "it was not prepared within 45 s on a, c")]
