"""Services on the live service: restarts on a virtual clock, replicas, and real servers."""

from __future__ import annotations

import math
import os
import pwd
import random
import re
import signal
import socket
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.live.invariants import violations
from dovetail.executor.jobs.journal import read_events
from dovetail.executor.jobs.specs import Owner
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import QUEUED, JobState
from dovetail.executor.live.errors import RefusedError
from dovetail.executor.live.observation import records
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.live.promises import Promise, promise_of
from dovetail.executor.live.requests.admission import AdmissionLimits
from dovetail.executor.live.rounds import deciding
from dovetail.executor.pools.shim.kernel import descendants, stat_of
from dovetail.instances.datasets import Measurement, Repository, SoloProfile
from dovetail.instances.errors import InputError
from tests.executor.live.test_replayed_day import _known
from tests.executor.live.test_service import ME, OTHER, is_in, service_in, spec
from tests.executor.live.test_service_cpu import ENV, job, service_on_cores
from tests.executor.live.virtual import served
from tests.executor.local_runs import cleared, python
from tests.executor.simulation.worlds import world
from tests.executor.waiting import wait_until

SERVER = """
import http.server, os, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["DOVETAIL_PORT"])), Handler).serve_forever()
"""
SERVICE = {"service": True, "priority": "latency"}


@pytest.fixture
def directory(tmp_path):
    with cleared(tmp_path):
        yield tmp_path


def server(directory, **fields):
    probe = {"probe": "http://127.0.0.1:{port}/health", "probe_rate": 20.0}
    return spec().replace(
        command=python(SERVER),
        cwd=str(directory),
        env=ENV,
        grace_s=5.0,
        **SERVICE,
        **probe,
        **fields,
    )


def is_ready(service, job, after=""):
    def look():
        view = service.api.job(job)
        return view.ready and view.run != after

    return look


def answers(view):
    with socket.create_connection(("127.0.0.1", view.port), timeout=10) as line:
        line.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return line.recv(100).startswith(b"HTTP/1.0 200")


def test_a_killed_server_is_started_again_and_survives_the_service(directory):
    with service_on_cores(directory) as service:
        service.api.submit([server(directory)], ME)
        wait_until(is_ready(service, "j1"))
        first = service.api.job("j1")
        assert answers(first)
        assert first.address == f"{first.node}:{first.port}"
        os.kill(first.pids[0], signal.SIGKILL)
        wait_until(is_ready(service, "j1", after=first.run))
        second = service.api.job("j1")
        assert second.restarts == second.quick_ends > 0
        assert second.port != first.port
        assert any("again in 1 s after: rank 0 was killed" in step.why for step in second.history)
    assert answers(second)
    with service_on_cores(directory) as service:
        wait_until(is_ready(service, "j1"))
        again = service.api.job("j1")
        assert (again.pids, again.port) == (second.pids, second.port)
        wait_until(lambda: (service.api.job("j1").requests_per_s or 0) > 0)
        service.api.requeue("j1", ME)
        wait_until(is_ready(service, "j1", after=again.run))
        assert service.api.job("j1").quick_ends == 0
        service.api.cancel("j1", ME)
        wait_until(is_in(service, "j1", JobState.CANCELLED))
        assert service.api.job("j1").address == ""


def test_a_server_that_stops_answering_is_not_ready(directory):
    with service_on_cores(directory) as service:
        service.api.submit([server(directory)], ME)
        wait_until(is_ready(service, "j1"))
        os.kill(service.api.job("j1").pids[0], signal.SIGSTOP)
        wait_until(lambda: service.api.job("j1").ready is False)
        assert service.api.job("j1").state in (JobState.PROFILING, JobState.RUNNING)
        os.kill(service.api.job("j1").pids[0], signal.SIGCONT)
        wait_until(is_ready(service, "j1"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs of others")
def test_probes_run_as_the_jobs_user(directory):
    nobody = pwd.getpwnam("nobody")
    owner = Owner(name="nobody", uid=nobody.pw_uid, gid=nobody.pw_gid)
    with service_on_cores(directory) as service:
        sleeps = spec(owner=owner, env=ENV, grace_s=0.0, probe="true", probe_rate=0.5, **SERVICE)
        service.api.submit([sleeps.replace(command=("sleep", "1000"))], owner)
        wait_until(is_ready(service, "j1"))
        (pid,) = service.api.job("j1").pids
        (prober,) = (stat.pid for stat in descendants(stat_of(pid).parent) if stat.pid != pid)
        status = Path(f"/proc/{prober}/status").read_text()
        uid = next(line for line in status.splitlines() if line.startswith("Uid:"))
        assert uid.split()[1:] == [str(nobody.pw_uid)] * 4


def test_a_port_that_another_program_has_costs_a_restart_only(directory, monkeypatch):
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    monkeypatch.setattr(deciding, "PORTS", [port])
    with service_on_cores(directory) as service:
        service.api.submit([server(directory)], ME)
        refused = f"its port {port} is used by another program"
        wait_until(lambda: any(refused in step.why for step in service.api.job("j1").history))
        taken.close()
        wait_until(is_ready(service, "j1"))
        assert service.api.job("j1").port == port


BESIDE = """
import http.server, os, pathlib, time
busy = pathlib.Path("busy")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if busy.exists():
            time.sleep(1.5)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
address = "127.0.0.1", int(os.environ["DOVETAIL_PORT"])
http.server.ThreadingHTTPServer(address, Handler).serve_forever()
"""
"""A server that is slow while the job beside it computes, whatever the machine does."""

BATCH = """
import pathlib, signal, sys, time
busy, go = pathlib.Path("busy"), pathlib.Path("go")
def stop(*_):
    busy.unlink()
    sys.exit(1)
signal.signal(signal.SIGTERM, stop)
busy.touch()
while not go.exists():
    time.sleep(0.05)
busy.unlink()
"""


def test_a_batch_job_that_breaks_the_p99_of_a_service_is_separated_from_it(directory, monkeypatch):
    """From sharing over the broken promise to the kept one, and the batch job to its end."""
    monkeypatch.setattr(records, "LEAST_LATENCIES", 25)
    model, both = "cpu-1-core", ("me/web", "me/train")
    usual = {"gpu_model": model, "memory_mib": 100.0, "throughput": 50.0}
    alone = [SoloProfile(workload=both[0], latency_p99_s=0.5, **usual)]
    alone.append(SoloProfile(workload=both[1], **usual))
    # What was measured earlier, with other data, promises too much.
    earlier = Measurement(workloads=both, gpu_model=model, slowdown=(1.0, 1.0), p99=(1.0, None))
    Repository(directory / "repository.db").record([*alone, *[earlier] * 3])
    watching = WatchOptions(warm_up_s=0.5, settle_s=0.5, window_s=1.0)
    with service_on_cores(directory, watching, sample_s=0.2) as service:
        served = server(directory, gsla=1.5, workload="web", memory_mib=100.0)
        served = served.replace(command=python(BESIDE), probe_rate=50.0)
        service.api.submit([served], ME)
        wait_until(lambda: promise_of(service.api.job("j1")) is Promise.KEPT)
        train = job(BATCH, directory, workload="train", memory_mib=100.0)
        service.api.submit([train], ME)
        wait_until(lambda: service.api.job("j2").co_runners == (("j1",),))
        wait_until(lambda: promise_of(service.api.job("j1")) is Promise.BROKEN)
        wait_until(lambda: service.api.job("j2").state in QUEUED)
        reason = next(s.why for s in service.api.job("j2").history if s.state is JobState.STOPPING)
        assert "j1's p99 latency grew by a factor of" in reason
        wait_until(lambda: promise_of(service.api.job("j1")) is Promise.KEPT)
        web = service.api.job("j1")
        assert (web.runs, web.p99_promised_s) == (1, pytest.approx(0.75))
        assert service.api.job("j2").state in QUEUED
        (directory / "go").touch()
        service.api.cancel("j1", ME)
        wait_until(is_in(service, "j2", JobState.FINISHED))
    [apart] = [entry.event for entry in read_events(directory) if entry.event.kind == "separated"]
    assert (apart.workloads, apart.tail, apart.gsla) == (both, True, 1.5)


def replicas(count, **fields):
    made = spec(work_s=1e9, **SERVICE, **fields)
    return [made.replace(index=k, place=k) for k in range(count)]


def names(service, state=None):
    return [view.id for view in service.api.jobs() if state in (None, view.state)]


def test_replicas_are_apart_and_their_number_can_be_changed(tmp_path):
    with service_in(tmp_path) as service:
        service.api.submit(replicas(3), ME)
        wait_until(lambda: len(service.api.holding()) == 2)
        gpus = [gpu for view in service.api.holding() for gpu in view.gpus]
        assert len(set(gpus)) == 2
        wait_until(lambda: service.api.job("j3").waiting_for.startswith("a device without"))
        assert "has a replica of its service already" in service.api.explain("j3")
        assert [view.replicas for view in service.api.jobs()] == [3, 3, 3]
        service.api.edit("j1", {"replicas": 5}, ME)
        assert [(view.id, view.replica) for view in service.api.jobs()][3:] == [
            ("j4", 3),
            ("j5", 4),
        ]
        service.api.edit("j4", {"replicas": 2}, ME)
        wait_until(lambda: names(service) == ["j1", "j2"])
        service.api.edit("j2", {"replicas": 1}, ME)
        wait_until(lambda: names(service) == ["j1"])
        service.api.edit("j1", {"replicas": 2}, ME)
        assert [(view.id, view.replica) for view in service.api.jobs()] == [("j1", 0), ("j6", 1)]
        wait_until(lambda: len(service.api.holding()) == 2)


def test_a_drained_device_keeps_its_service_until_that_is_requeued(tmp_path):
    with service_in(tmp_path) as service:
        service.api.submit(replicas(1), ME)
        wait_until(lambda: service.api.holding())
        (first,) = service.api.job("j1").gpus
        service.api.drain([first], True, ME)
        service.api.submit([spec(work_s=0.1, workload="B")], ME)
        wait_until(is_in(service, "j2", JobState.FINISHED))
        assert (service.api.job("j1").gpus, service.api.job("j1").runs) == ((first,), 1)
        service.api.requeue("j1", ME)
        wait_until(lambda: (view := service.api.job("j1")).runs == 2 and view.gpus != (first,))


def test_nothing_is_said_to_start_once_a_service_has_ended(tmp_path):
    """On the simulated pool even a service reports how much work it has left."""
    with service_in(tmp_path, sample_s=0.05) as service:
        service.api.submit(replicas(2), ME)
        wait_until(lambda: len(service.api.holding()) == 2)
        service.api.submit([spec(workload="B")], ME)
        found = service.api.explain("j3")
        assert "ended" not in found
        freed = r"could start alone on n-[01] if the service j[12] were cancelled or had fewer rep"
        assert re.search(freed, found)
        wait_until(lambda: all(view.rate for view in service.api.holding()))
        hour = service.api.outlook()
        assert [(stay.by, stay.to_s) for stay in hour.stays] == [("service", math.inf)] * 2
        assert (hour.waiting, hour.why) == (("j3",), "")


def test_very_many_replicas_are_refused_before_they_are_made(tmp_path):
    limits = AdmissionLimits(waiting=10, any_user=True)
    with service_in(tmp_path, limits=limits) as service:
        service.api.submit(replicas(1, owner=OTHER), OTHER)
        with pytest.raises(RefusedError, match="other may have 10 waiting jobs"):
            service.api.edit("j1", {"replicas": 10**15}, OTHER)
        assert names(service) == ["j1"]


def test_another_number_of_replicas_is_refused_where_it_makes_no_sense(tmp_path):
    with service_in(tmp_path) as service:
        service.api.submit([spec(work_s=1e9), *replicas(1)], ME)
        with pytest.raises(InputError, match="replicas: needs a service, and j1 has an end"):
            service.api.edit("j1", {"replicas": 2}, ME)
        with pytest.raises(InputError, match="nice: cannot be combined with replicas"):
            service.api.edit("j2", {"replicas": 2, "nice": 1}, ME)
        with pytest.raises(RefusedError, match="other may not scale j2 of me"):
            service.api.edit("j2", {"replicas": 2}, OTHER)
        with pytest.raises(InputError, match=r"after\[0\]: must be a job that can finish, got j2"):
            service.api.submit([spec(after=("j2",))], ME)


# On a virtual clock.

PAIRS = [("a", "a", 1.1, 1.1), ("a", "b", 1.2, 1.1), ("b", "b", 1.1, 1.1)]


def virtual(directory, submissions, policy="dovetail", **cluster):
    """Serve jobs on simulated devices, all of whose slowdowns were measured."""
    directory.mkdir(exist_ok=True)
    view = world(slowdowns=PAIRS, **cluster)
    named = view.replace(
        workloads={k: w.replace(throughput={100: 1.0}) for k, w in view.workloads.items()}
    )
    known = _known(named)
    return served(directory, named, *known, submissions, sample_s=600.0, policy=policy)


def replayed(directory):
    """Yield each event of a journal with the state machine after it, whose invariants hold."""
    machine = StateMachine()
    for entry in read_events(directory):
        machine.apply(entry.event)
        assert violations(machine) == ()
        yield entry.event, machine


def test_rests_are_as_long_as_they_say(tmp_path):
    job = spec(work_s=5.0, workload="a", memory_mib=1024.0, retries=10, **SERVICE)
    machine, began_s = virtual(tmp_path, [(0.0, job)], gpus=1)
    placed = [event.at_s - began_s for event, _ in replayed(tmp_path) if event.kind == "placed"]
    rests = [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    wanted = [sum(rests[:k]) + 5.0 * k for k in range(11)]
    assert placed == pytest.approx(wanted, abs=0.5)
    assert machine.jobs["j1"].why == "11 quick ends in a row: every rank ended with status 0"


def mixed(rng):
    """Return services of two or three replicas among short jobs, one submission a second."""
    found, at_s = [], 0.0
    while len(found) < 24:
        workload = rng.choice("ab")
        usual = {"workload": workload, "memory_mib": 1024.0}
        if rng.random() < 0.25:
            service = {**SERVICE, "retries": 2, **usual}
            made = [
                spec(rng.uniform(20, 200), index=k, place=k, **service)
                for k in range(rng.choice([2, 3]))
            ]
        else:
            made = [spec(rng.uniform(20, 300), **usual)]
        found += [(at_s + k, each) for k, each in enumerate(made)]
        at_s += len(made) + rng.choice([0.0, 50.0])
    return found


@pytest.mark.parametrize("seed", [0, 1, pytest.param(range(2, 40), marks=pytest.mark.long)])
def test_replicas_are_apart_in_every_round_and_nothing_else_is_proposed(tmp_path, seed, caplog):
    beside = Counter()
    for k in seed if isinstance(seed, range) else [seed]:
        virtual(tmp_path / str(k), mixed(random.Random(k)), nodes=2, gpus=2)
        for event, machine in replayed(tmp_path / str(k)):
            if event.kind == "placed":
                on = machine.residents()[event.run.seats[0].gpu]
                beside[len(on), any(job.service for job in on)] += 1
    # Neither the second opinion nor the state machine had anything to refuse.
    assert "cannot start" not in caplog.text
    # Services had co-runners, so that the rule was needed.
    assert beside[2, True] > 3


@pytest.mark.parametrize("policy", ["tiresias:threshold_gpu_s=100", "dovetail"])
def test_a_service_is_stopped_for_nothing_and_starts_before_what_is_heavier(tmp_path, policy):
    """Neither for heavy jobs, nor for a gang, nor for jobs that have waited for longest."""
    usual = {"workload": "a", "memory_mib": 1024.0}
    long = spec(500.0, retries=1, **SERVICE, **usual)
    can_resume = {"checkpoint_s": 1.0, "stops_apart_s": 1.0}
    batch = [spec(300.0, weight=10.0, **can_resume, **usual) for _ in range(4)]
    gang = spec(300.0, workers=2, weight=10.0, **can_resume, **usual)
    jobs = [(0.0, batch[0]), (0.0, batch[1]), (1.0, gang), (2.0, long)]
    jobs += [(3.0 + k, each) for k, each in enumerate(batch[2:])]
    machine, _ = virtual(tmp_path, jobs, policy, gpus=2)
    service = next(job for job in machine.jobs.values() if job.service)
    placed, stopped = [], Counter()
    for event, now in replayed(tmp_path):
        if event.kind == "placed":
            placed.append(event.run.id.partition(".")[0])
        elif event.kind == "stop_decided":
            stopped[now.jobs[event.run.partition(".")[0]].service != ""] += 1
    assert stopped[True] == 0
    assert (stopped[False] > 0) == policy.startswith("tiresias")
    # It ended twice by itself.
    assert service.why == "2 quick ends in a row: every rank ended with status 0"
    assert placed.index(service.id) <= 3


def test_replicas_go_to_nodes_without_one_first(tmp_path):
    usual = {"workload": "a", "memory_mib": 1024.0, "retries": 1, **SERVICE}
    made = [spec(50.0, index=k, place=k, **usual) for k in range(3)]
    virtual(tmp_path, [(0.0, each) for each in made], nodes=3, gpus=3)
    first = [event.run.seats[0].gpu for event, _ in replayed(tmp_path) if event.kind == "placed"]
    assert len({gpu.rpartition("-")[0] for gpu in first[:3]}) == 3
