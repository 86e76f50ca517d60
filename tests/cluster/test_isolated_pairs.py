"""Isolated pairs on a node: real service, agent, jobs, scheduler, library; a made-up GPU."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
from contextlib import contextmanager, suppress

import pytest

pynvml = pytest.importorskip("pynvml", reason="needs the extra live")

from benchmarks.cluster.socket_agents import SocketNodes, serve  # noqa: E402
from dovetail.cluster.agent import Agent  # noqa: E402
from dovetail.cluster.known_nodes import merged  # noqa: E402
from dovetail.cluster.lease import RemoteLease  # noqa: E402
from dovetail.cluster.messages import AgentFacts  # noqa: E402
from dovetail.cluster.pool import NodesPool  # noqa: E402
from dovetail.cluster.remote import Remote  # noqa: E402
from dovetail.executor.jobs.journal import Journal  # noqa: E402
from dovetail.executor.jobs.journal_lock import JournalError  # noqa: E402
from dovetail.executor.jobs.states import JobState  # noqa: E402
from dovetail.executor.live.service import Service, ServiceOptions  # noqa: E402
from dovetail.executor.mps import processes  # noqa: E402
from dovetail.executor.pools import gpu_health  # noqa: E402
from dovetail.instances._record import IDLE  # noqa: E402
from dovetail.instances.datasets import Repository  # noqa: E402
from dovetail.instances.instance import Cluster, Gpu, Node  # noqa: E402
from dovetail.isolation.assemble import find_ptxas  # noqa: E402
from dovetail.isolation.schedulers import Schedulers  # noqa: E402
from tests.executor.gpus.gpu_machine import gpu_machine  # noqa: E402
from tests.executor.gpus.injected_nvml import injected  # noqa: E402
from tests.executor.live.test_service import serving  # noqa: E402
from tests.executor.live.test_service_gpu import becomes  # noqa: E402
from tests.executor.waiting import LIMIT_S, wait_until  # noqa: E402
from tests.isolation import made_up_gpu  # noqa: E402
from tests.isolation.test_service import (  # noqa: E402
    PATIENT,
    finish,
    right,
    running,
    start,
    start_isolated,
    teach,
)

pytestmark = [
    pytest.mark.skipif(find_ptxas() is None, reason="needs ptxas (extra isolation)"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


@pytest.fixture(scope="module")
def cuda(tmp_path_factory):
    return made_up_gpu.build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def machine(monkeypatch, cuda):
    """Return a machine whose GPU isolates pairs that know each other."""
    monkeypatch.setattr(gpu_health, "WATCH_S", 0.3)
    with injected() as library, gpu_machine(library) as machine:
        machine.isolation = Schedulers(machine.state / "isolation", idle_s=8.0)
        machine.cuda = cuda
        teach(machine)
        yield machine
        for process in running(machine):
            processes.kill(process, 10)


@contextmanager
def agent_of(machine, directory):
    """Run the agent of a machine in a thread, as node ``n1``."""
    ready, loops = threading.Event(), []

    async def run():
        agent = Agent(directory, lambda _: machine.pool(), "127.0.0.2")
        loops.append((asyncio.get_running_loop(), asyncio.current_task()))
        try:
            await serve(directory, {"n1": agent}, ready.set)
        except asyncio.CancelledError:
            agent.pool.close()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert ready.wait(LIMIT_S)
    try:
        yield
    finally:
        ((loop, task),) = loops
        loop.call_soon_threadsafe(task.cancel)
        thread.join(LIMIT_S)


def _journal_in(state):
    """Open a journal, as soon as no process that the agent forks here holds its lock any more."""
    opened = []

    def is_free():
        with suppress(JournalError):
            opened.append(Journal(state))
        return opened

    wait_until(is_free)
    return opened[0]


@contextmanager
def service_on(machine, directory):
    """Serve with the one node ``n1``, whose agent has this directory."""
    state = directory.parent / "service"
    state.mkdir(exist_ok=True)
    with _journal_in(state) as journal:
        pool = NodesPool(state, SocketNodes({"n1": directory}), 600.0, sample_s=0.1)
        repository = Repository(machine.state / "repository.db")
        options = ServiceOptions(watching=PATIENT, sample_s=0.1)
        with serving(Service(journal, pool, repository, options)) as service:
            yield service


def test_a_pair_on_a_node_is_isolated_again_after_its_scheduler_has_died(machine, tmp_path):
    directory = tmp_path / "agent"
    with agent_of(machine, directory), service_on(machine, directory) as service:
        chat, train = start_isolated(service, machine)
        (scheduler,) = running(machine)
        os.kill(scheduler.pid, signal.SIGKILL)
        wait_until(lambda: service.api.job(train).run == "j2.2")
        becomes(service, train, JobState.RUNNING)
        whys = [state.why for state in service.api.job(train).history]
        assert any("is not isolated: n1: the scheduler" in why for why in whys)
        assert service.api.job(chat).run == "j1.1"
        assert service.api.job(chat).unisolated == ""
        assert service.api.job(train).shares == ("idle",)
        for job, name in ((chat, "chat"), (train, "train")):
            finish(machine, name)
            becomes(service, job, JobState.FINISHED)
        assert right(machine, "j1.1")
        assert right(machine, "j2.2")


def test_a_service_that_comes_back_finds_the_pair_on_the_node(machine, tmp_path):
    directory = tmp_path / "agent"
    with agent_of(machine, directory):
        with service_on(machine, directory) as service:
            chat, train = start_isolated(service, machine)
        with service_on(machine, directory) as service:
            for job, name in ((train, "train"), (chat, "chat")):
                becomes(service, job, JobState.RUNNING)
                assert service.api.job(job).unisolated == ""
                finish(machine, name)
                becomes(service, job, JobState.FINISHED)
        assert right(machine, "j1.1")
        assert right(machine, "j2.1")


def test_where_a_node_cannot_isolate_the_jobs_run_one_after_the_other(machine, tmp_path):
    directory = tmp_path / "agent"
    with agent_of(machine, directory), service_on(machine, directory) as service:
        for library in machine.isolation.directory.glob("*.so"):
            library.unlink()
        chat, train = start(service, machine)
        becomes(service, chat, JobState.RUNNING)
        missing = "n1: the library that intercepts launches is missing"
        assert service.api.job(chat).unisolated == missing
        assert service.api.job(train).state is JobState.WAITING
        for job, name in ((chat, "chat"), (train, "train")):
            becomes(service, job, JobState.RUNNING)
            finish(machine, name)
            becomes(service, job, JobState.FINISHED)


def test_one_node_that_isolates_is_enough_for_the_share_of_idle_time():
    def node(name, *shares):
        gpu = Gpu(id="g", model="Made-up", memory_mib=1024.0)
        cluster = Cluster(shares=shares, sharing="mps", nodes=(Node(id=name, gpus=(gpu,)),))
        facts = AgentFacts(agent=name, pool="gpu", notice="", cluster=cluster)
        return Remote(name, RemoteLease(15.0, 0.0, 15.0), facts)

    both = merged([node("n1", 40, 60), node("n2", 50, IDLE)])
    assert both.shares == (40, 50, 60, IDLE)
