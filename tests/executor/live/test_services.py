"""Services on the live service: restarts on a virtual clock, replicas, and real servers."""

from __future__ import annotations

import os
import pwd
import signal
import socket
from pathlib import Path

import pytest

from dovetail.executor.jobs.specs import Owner
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.errors import RefusedError
from dovetail.executor.live.rounds import deciding
from dovetail.executor.pools.shim.kernel import every_process
from dovetail.instances.errors import InputError
from tests.executor.live.test_service import ME, OTHER, is_in, service_in, spec
from tests.executor.live.test_service_cpu import ENV, service_on_cores
from tests.executor.local_runs import cleared, python
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
        sleeps = spec(owner=owner, env=ENV, grace_s=0.0, probe="true", **SERVICE)
        service.api.submit([sleeps.replace(command=("sleep", "1000"))], owner)
        wait_until(is_ready(service, "j1"))
        token = service.api.job("j1").run.encode()
        probers = [
            stat.pid
            for stat in every_process()
            if Path(f"/proc/{stat.pid}/comm").read_text() == "dovetail-probe\n"
            and token in Path(f"/proc/{stat.pid}/environ").read_bytes()
        ]
        assert len(probers) == 1
        status = Path(f"/proc/{probers[0]}/status").read_text()
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
