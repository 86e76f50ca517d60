"""What an agent answers to whom."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from dovetail.executor.nodes import agent as agent_of_a_node
from dovetail.executor.nodes.agent import Agent
from dovetail.executor.nodes.calls import said_by
from dovetail.executor.nodes.fence import FencedError
from dovetail.executor.nodes.messages import Answer, Attach, Exchange, Launch
from dovetail.executor.pools.opening import opener
from tests.executor.local_runs import a_run, cleared
from tests.executor.waiting import wait_until


@pytest.fixture
def agent(tmp_path):
    made = Agent(tmp_path, opener("cpu:devices=1,shares=none", tmp_path), "127.0.0.1")
    yield made
    made.close()


def asked(**fields):
    return Exchange(**{"home": "h", "epoch": 1, "lease_s": 15.0, **fields})


def told(agent, **fields):
    return said_by(agent, "exchange", asked(**fields).model_dump_json())


def test_of_two_services_the_first_has_the_node_until_its_lease_lapses(agent):
    def renewed(answer, lease_s, **who):
        own = {"incarnation": answer.incarnation, "renew_s": answer.clock_s, "lease_s": lease_s}
        return agent.exchange(asked(turn=2, **own, **who))

    first = agent.exchange(asked())
    renewed(first, 1.0)
    wait_until(lambda: told(agent, home="g").kind == "answer")
    again = agent.exchange(asked(home="g", turn=1))
    assert again.clock_s >= first.clock_s + 1.0
    renewed(again, 600.0, home="g")
    with pytest.raises(FencedError, match="a controller with another state directory has this"):
        agent.exchange(asked(turn=3))


def test_who_attaches_is_told_all_at_once(agent, tmp_path, monkeypatch):
    """What is not told with what is kept counts as not there."""
    monkeypatch.setattr(agent_of_a_node, "MOST_NEWS", 1)
    turns = itertools.count(1)

    def ask(*orders, **more):
        return agent.exchange(asked(orders=orders, turn=next(turns), **more))

    with cleared(tmp_path / "homes" / "h"):
        first = ask()
        known = {"incarnation": first.incarnation, "renew_s": first.clock_s}
        ask(Launch(number=1, run=a_run("exec sleep 600")), **known)
        wait_until(lambda: [one.number for one in ask(**known, seen=1).news] == [2])
        answer = ask(Attach(number=2, parts=()), **known, seen=1)
        assert [part.run.id for part in answer.beyond] == ["j1.1"]
        assert [one.event.kind for one in answer.news] == ["rank_started", "rank_ready"]


def test_an_agent_that_ends_tells_nobody_that_another_controller_has_its_node(agent):
    """Who is told so concludes nothing, though the lease lapse and the node never come back."""
    incarnation = Answer.model_validate_json(told(agent).text).incarnation
    with ThreadPoolExecutor() as asking:
        waits = asking.submit(told, agent, incarnation=incarnation, turn=1, wait_s=30.0)
        wait_until(lambda: agent._turn == 1)
        agent.close()
        assert waits.result() == ("error", "the agent ends")
    assert told(agent, incarnation=incarnation, turn=2) == ("error", "the agent ends")
