"""The service with nodes that join and nodes that are lost, with real agents and processes."""

from __future__ import annotations

import os
from contextlib import contextmanager

import pytest

from dovetail.cluster.pool import NodesPool
from dovetail.executor.jobs.journal import Journal, read_state_machine
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.service import Service
from dovetail.instances.datasets import Repository
from dovetail.instances.errors import InputError
from tests.cluster.agents import ClearedAgent
from tests.cluster.agents import finder as found
from tests.executor.live.test_service import ME, is_in, kinds, serving, spec
from tests.executor.local_runs import left_over, python
from tests.executor.waiting import wait_until

ENV = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
LEASE_S = 5.0
WAITS = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)"


@pytest.fixture
def started(tmp_path):
    """Start an agent with one device by the number of its node; all end with the test."""
    agents = []

    def start(k):
        agents.append(ClearedAgent(tmp_path / "agents", k, "cpu:devices=1"))
        return agents[-1]

    yield start
    for agent in agents:
        agent.end()


@contextmanager
def service_on(directory, finder, lease_s=600.0, find_s=20.0):
    state = directory / "service"
    state.mkdir(exist_ok=True)
    with Journal(state) as journal:
        pool = NodesPool(state, finder, lease_s, find_s)
        with serving(Service(journal, pool, Repository(state / "repository.db"))) as service:
            yield service


def job(directory, **fields):
    """Return a job that runs until a file ``go`` is there."""
    return spec().replace(command=python(WAITS), cwd=str(directory), env=ENV, **fields)


def devices(service):
    return {device.id: device.trouble for device in service.api.service().devices}


def test_jobs_run_on_while_nodes_join_and_new_jobs_start_there(started, tmp_path):
    finder = found([started(1)])
    with service_on(tmp_path, finder) as service:
        with pytest.raises(InputError, match="must be <= 1"):
            service.api.submit([job(tmp_path, workers=2)], ME)
        service.api.submit([job(tmp_path)] * 2, ME)
        wait_until(is_in(service, "j1", JobState.PROFILING))
        (pid,) = service.api.job("j1").pids
        assert devices(service) == {"n1/cpu-0": ""}
        assert service.api.job("j2").state is JobState.SUBMITTED

        finder.known = found([started(k) for k in (2, 3)]).known | finder.known
        wait_until(is_in(service, "j2", JobState.PROFILING))
        wait_until(lambda: devices(service) == {f"n{k}/cpu-0": "" for k in (1, 2, 3)})
        service.api.submit([job(tmp_path, workers=3)], ME)
        (first, second) = (service.api.job(name) for name in ("j1", "j2"))
        assert (first.pids, first.runs, first.gpus) == ((pid,), 1, ("n1/cpu-0",))
        assert second.gpus[0] in {"n2/cpu-0", "n3/cpu-0"}
    # The next service knows the same devices from its journal, and takes over all runs.
    state = tmp_path / "service"
    assert kinds(state).count("service_started") == 1
    assert kinds(state).count("devices_changed") in {1, 2}
    known = read_state_machine(state).devices
    assert {name for name, device in known.items() if device.present} == {*known}
    assert {*known} == {f"n{k}/cpu-0" for k in (1, 2, 3)}
    with service_on(tmp_path, finder) as service:
        wait_until(lambda: service.api.job("j1").pids == (pid,))
        assert service.api.job("j1").runs == 1
        (tmp_path / "go").touch()
        wait_until(is_in(service, "j3", JobState.FINISHED))
        assert {*service.api.job("j3").gpus} == {f"n{k}/cpu-0" for k in (1, 2, 3)}
        assert [view.runs for view in service.api.jobs(over=True)] == [1, 1, 1]
    assert kinds(state).count("service_started") == 2


def test_jobs_are_accepted_before_any_node_has_joined(started, tmp_path):
    agent = started(1)
    finder = found([agent])
    agents, finder.known = finder.known, {}
    finder.awaited = lambda: ["pilot 7 (PENDING: Resources)"]
    with service_on(tmp_path, finder, find_s=0.0) as service:
        service.api.submit([job(tmp_path), job(tmp_path, workers=2)], ME)
        awaited = "more devices are awaited from pilot 7 (PENDING: Resources)"
        assert service.api.service().notice == awaited
        assert awaited in service.api.explain("j1")
        assert service.api.plan().assignments == ()
        assert service.api.job("j1").state is JobState.SUBMITTED
        assert service.api.service().trouble == ""
        finder.known = agents
        wait_until(is_in(service, "j1", JobState.PROFILING))
        assert "too few devices" in service.api.explain("j2")
        # No more nodes are awaited, so it is known that there is only one device.
        finder.awaited = list
        with pytest.raises(InputError, match="must be <= 1"):
            service.api.submit([job(tmp_path, workers=2)], ME)
        assert service.api.service().trouble == ""
        service.api.cancel("j2", ME)
        (tmp_path / "go").touch()
        wait_until(is_in(service, "j1", JobState.FINISHED))
    # The journal of a service that began without devices can be read.
    with service_on(tmp_path, finder) as service:
        assert service.api.job("j1").state is JobState.FINISHED


def test_a_lost_node_ends_its_gang_everywhere_and_another_takes_its_place(started, tmp_path):
    lost, *others = agents = [started(k) for k in (1, 2, 3)]
    with service_on(tmp_path, found(agents), LEASE_S) as service:
        service.api.drain(["n3"], True, ME.replace(uid=0))
        service.api.submit([job(tmp_path, workers=2)], ME)
        wait_until(is_in(service, "j1", JobState.PROFILING))
        assert {*service.api.job("j1").gpus} == {"n1/cpu-0", "n2/cpu-0"}
        service.api.drain(["n3"], False, ME.replace(uid=0))
        pids = {*service.api.job("j1").pids}

        lost.freeze()
        wait_until(is_in(service, "j1", JobState.LOST))
        assert devices(service)["n1/cpu-0"].startswith("n1 does not answer: it has not ")
        # The other rank runs on, since the node may answer again.
        assert any(os.path.exists(f"/proc/{pid}") for pid in pids)
        # On a busy machine it may be refused once more.
        wait_until(lambda: service.api.job("j1").runs >= 2)
        wait_until(is_in(service, "j1", JobState.PROFILING))
        again = service.api.job("j1")
        assert {*again.gpus} == {"n2/cpu-0", "n3/cpu-0"}
        assert not {*again.pids} & pids
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
        assert any("its lease has lapsed" in step.why for step in again.history)
        (tmp_path / "go").touch()
        wait_until(is_in(service, "j1", JobState.FINISHED))
        # Its owner allowed no retry: a lost node is no fault of the job's.
        assert service.api.job("j1").runs >= 2
        service.api.submit([job(tmp_path, workers=3)], ME)
        reasons = service.api.explain("j2").splitlines()
        why = "n1/cpu-0 takes no jobs: n1 does not answer: "
        assert any(reason.startswith(why) for reason in reasons)
    homes = [home for agent in others for home in (agent.state / "homes").glob("*")]
    wait_until(lambda: not any(left_over(home) for home in homes))
