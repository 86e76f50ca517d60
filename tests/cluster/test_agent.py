"""The answers of an agent to one and to several controllers."""

import asyncio
import os
from contextlib import contextmanager

import pytest

from dovetail.cluster.agent import Agent, started
from dovetail.cluster.fence import FencedError
from dovetail.cluster.messages import AgentRequest, Want
from dovetail.executor.pools.opening import opener
from dovetail.executor.pools.runs.files import whole
from dovetail.instances.errors import InputError
from tests.executor.local_runs import a_run, cleared

NOBODY = 65534


@contextmanager
def an_agent(directory):
    made = Agent(directory, opener("cpu:devices=1,shares=none", directory), "127.0.0.1")
    try:
        yield made
    finally:
        made.pool.close()


def asked(**fields):
    return AgentRequest(**{"home": "h", "epoch": 1, "lease_s": 15.0, **fields})


def answered(agent, **fields):
    return agent.call("exchange", asked(**fields).model_dump_json())


def test_of_two_services_the_first_has_the_node_until_its_lease_lapses(tmp_path):
    async def both():
        with an_agent(tmp_path) as agent:

            async def renewed(answer, lease_s, **more):
                own = {"incarnation": answer.incarnation, "renew_s": answer.clock_s}
                return await agent.exchange(asked(lease_s=lease_s, **own, **more))

            first = await agent.exchange(asked())
            await renewed(first, 0.5)
            while (await answered(agent, home="g"))[0] != "answer":
                await asyncio.sleep(0.02)
            again = await agent.exchange(asked(home="g"))
            assert again.clock_s >= first.clock_s + 0.5
            await renewed(again, 600.0, home="g")
            with pytest.raises(FencedError, match="a controller with another state directory"):
                await agent.exchange(asked())

    asyncio.run(both())


def test_unwanted_runs_are_reported_and_end_once_the_controller_has_resumed_its_own(
    tmp_path,
):
    async def change_controllers():
        with an_agent(tmp_path) as agent:

            async def ask(answer, **fields):
                known = {"incarnation": answer.incarnation, "renew_s": answer.clock_s}
                return await agent.exchange(asked(**known, **fields))

            want = Want(part=whole(a_run("exec sleep 600")), phase="launch")
            answer = await ask(await agent.exchange(asked()), version=2, wants=(want,))
            while not answer.state or len(answer.state.ranks) < 2:
                answer = await ask(answer, version=2, seen=answer.version, wait_s=30.0)
            assert [event.kind for event in answer.state.ranks] == ["rank_started", "rank_ready"]

            first = await agent.exchange(asked(epoch=2))
            none = {"epoch": 2, "wants": ()}
            answer = await ask(first, version=2, keep_others=True, **none)
            assert [part.run.id for part in answer.state.unwanted] == ["j1.1"]
            assert len(answer.state.ranks) == 2
            answer = await ask(answer, version=3, **none)
            while answer.state is None or answer.state.ranks or answer.state.unwanted:
                answer = await ask(answer, epoch=2, version=3, seen=answer.version, wait_s=30.0)

    with cleared(tmp_path / "homes" / "h"):
        asyncio.run(change_controllers())


def test_a_request_waits_for_news_until_the_next_request_at_most(tmp_path):
    async def overtake():
        with an_agent(tmp_path) as agent:
            first = await agent.exchange(asked())
            known = {"incarnation": first.incarnation, "seen": first.version}
            waits = asyncio.create_task(agent.exchange(asked(**known, wait_s=30.0)))
            await asyncio.sleep(0)
            newer = await agent.exchange(asked(**known, version=1, wants=()))
            assert (await waits).wanted == newer.wanted == 1

    asyncio.run(overtake())


def refusal(directory):
    """Return why no agent starts in a directory."""
    with pytest.raises(InputError) as refused:
        started(directory, opener("cpu:devices=1,shares=none", directory), "127.0.0.1")
    return str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("below", [".", "new/below"])
def test_a_directory_that_another_user_has_made_is_refused(tmp_path, below):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    why = f"{theirs}: must belong to user 0, got one of user {NOBODY}"
    assert refusal(theirs / below) == why
    assert list(theirs.iterdir()) == []


def test_a_world_writable_directory_is_refused(tmp_path):
    tmp_path.chmod(0o1777)
    assert refusal(tmp_path) == f"{tmp_path}: must not be writable by everybody, got mode 1777"
    assert list(tmp_path.iterdir()) == []
