"""The HTTP API of a real service, over its socket and over TCP."""

from __future__ import annotations

import gc
import json
import math
import os
import pwd
import re
import socket
import stat
import subprocess
import sys
import threading
import tracemalloc
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from dovetail.cli.main import main
from dovetail.executor.jobs.specs import JobSpec, Owner
from dovetail.executor.jobs.states import OVER, JobState
from dovetail.executor.live.errors import RefusedError, UnknownJobError
from dovetail.executor.live.views import Chosen
from dovetail.instances.errors import DovetailError, InputError
from dovetail.live import client
from dovetail.live.client import Client, IncompleteLogError
from dovetail.live.http import application, guards, logs
from dovetail.live.http.faults import ServiceFailedError
from dovetail.live.places import NoServiceError
from tests.api.live.services import ME, OTHER, TOKENS, job, service_here
from tests.executor.waiting import LIMIT_S, wait_until


def state(live, name):
    return live.client.job(name).state


def runs(live, name):
    return state(live, name) in (JobState.PROFILING, JobState.RUNNING)


def test_a_job_from_submission_to_its_end(live):
    (name,) = live.client.submit([job(command=["train", "work_s=0.3"], name="first")])
    ended = live.client.wait(name)
    assert (ended.state, ended.statuses, ended.name) == (JobState.FINISHED, (0,), "first")
    assert ended.history[0].state is JobState.SUBMITTED
    assert live.client.jobs() == []
    assert [each.id for each in live.client.jobs(over=True)] == [name]


def test_the_kernel_names_the_owner(live):
    (name,) = live.client.submit([job()])
    found = live.client.job(name)
    assert (found.owner, found.uid) == (ME, os.getuid())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_at_the_socket_is_identified(short_path):
    short_path.chmod(0o755)
    other = pwd.getpwnam(OTHER)
    body = json.dumps({"jobs": [job()]}).encode()
    head = f"POST /v1/jobs HTTP/1.0\r\nContent-Length: {len(body)}\r\n"
    asked = head.encode() + b"Content-Type: application/json\r\n\r\n" + body
    script = (
        "import os, socket, sys\n"
        "uid, gid = map(int, sys.argv[2:])\n"
        "os.setgroups([]), os.setgid(gid), os.setuid(uid)\n"
        "with socket.socket(socket.AF_UNIX) as s:\n"
        "    s.connect(sys.argv[1])\n"
        "    s.sendall(sys.stdin.buffer.read())\n"
        "    print(s.recv(100))\n"
    )
    with service_here(short_path, short_path / "api.sock", everybody=True) as live:
        subprocess.run(
            [sys.executable, "-c", script, live.socket, str(other.pw_uid), str(other.pw_gid)],
            input=asked,
            check=True,
            timeout=LIMIT_S,
        )
        found = live.client.job("j1")
    assert (found.owner, found.uid) == (OTHER, other.pw_uid)


def test_a_request_may_not_name_an_owner(live):
    with pytest.raises(
        InputError, match=r"^jobs\[0\]\.owner: unknown field, known are: array, command, "
    ):
        live.client.submit([job(owner={"name": "root", "uid": 0, "gid": 0})])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": []}, r"^jobs\[0\]\.command: must have 1 or more items, got 0$"),
        ({"gsla": 0.5}, r"^jobs\[0\]\.gsla: must be >= 1, got 0.5$"),
        ({"gsl": 2.0}, r"^jobs\[0\]\.gsl: unknown field, did you mean gsla\?$"),
        ({"workers": 3}, r"workers: must be <= 2"),
        ({"progress_pattern": "("}, r"^jobs\[0\]\.progress_pattern: must be a regular"),
        ({"progress_pattern": "(a{99999999999999999999})"}, r"progress_pattern: must be a regular"),
        ({"env": {"A=B": "a"}}, r"env\['A=B'\]: must be a variable's name"),
        ({"env": {"A": "a\0"}}, r"env\.A: must be a variable's name"),
        ({"cwd": "/\0"}, r"cwd: must not contain NUL characters"),
        ({"env": {"A": "a" * 2**17}}, r"^env\.A: must have less than 131072 bytes, got 131074$"),
        ({"env": {f"A{k}": "a" * 125_000 for k in range(16)}}, r"^env: must have at most 1966080 "),
    ],
)
def test_a_bad_job_is_reported_in_one_line(live, change, message):
    with pytest.raises(InputError, match=message):
        live.client.submit([job(**change)])


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"command": ["a", "\ud800"]}, "command[1]"),
        ({"cwd": "/\udfff"}, "cwd"),
        ({"env": {"A": "\ud800"}}, "env.A"),
        ({"env": {"\ud800": "a"}}, "env["),
        ({"name": "\ud800"}, "name"),
        ({"progress_pattern": "(\ud800)"}, "progress_pattern"),
    ],
)
def test_half_a_character_is_refused(live, change, path):
    with httpx.Client(transport=httpx.HTTPTransport(uds=live.socket)) as raw:
        answer = raw.post("http://d/v1/jobs", content=json.dumps({"jobs": [job(**change)]}))
    message = answer.json()["error"]
    assert answer.status_code == 422
    assert message.startswith(f"jobs[0].{path}")
    assert "must be text of whole Unicode characters" in message
    assert live.client.submit([job()]) == ("j1",)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda: b'{"jobs": [' + b"{}," * 13_000 + b"{}]}", "jobs[0]"),
        (
            lambda: b'{"jobs": [' + b"{}," * 2_700_000 + b"{}]}",
            "must have at most 40000 mappings and lists",
        ),
        (lambda: b"[" * 8_000_000, "must have at most 40000 mappings and lists"),
        (lambda: b"[" * 30_000 + b"]" * 30_000, "must be JSON"),
        (lambda: b'{"jobs": [' + b"9" * 8_000_000 + b"]}", "must be JSON"),
        (lambda: b'"' + b'\\"' * 4_000_000, "must be JSON"),
        (
            lambda: b'{"jobs": [{' + b", ".join(b'"%x": 1' % k for k in range(300_000)) + b"}]}",
            "must be Submissions, breaks its rules 30000",
        ),
        (lambda: b'{"jobs": [{"command": [' + b"1," * 1_000_000 + b"1]}]}", "jobs[0].command"),
        (lambda: b'{"gpus": [' + b"1," * 1_000_000 + b"1]}", "gpus: unknown field"),
    ],
)
def test_a_large_body_is_refused_in_little_memory(live, body, message):
    peaks = []
    made = application.parsed

    def measured(record, raw):
        tracemalloc.start()
        try:
            return made(record, raw)
        finally:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(application, "parsed", measured)
        with httpx.Client(transport=httpx.HTTPTransport(uds=live.socket)) as raw:
            answer = raw.post("http://d/v1/jobs", content=body(), timeout=300)
    assert (answer.status_code, answer.json()["kind"]) == (422, "input")
    assert answer.json()["error"].startswith(message)
    assert peaks < [200 * 2**20]
    assert live.client.submit([job()]) == ("j1",)


def test_what_is_wrong_with_one_request_ends_no_other(live):
    """A job that passes all checks and cannot be journalled fails alone."""
    broken = Owner.model_construct(name="\ud800", uid=0, gid=0)
    spec = JobSpec.model_construct(command=("a",), workload="w", owner=broken, cwd="/", env={})
    with pytest.raises(ValueError, match="surrogates not allowed"):
        live.service.api.submit([spec], broken)
    assert live.client.submit([job()]) == ("j1",)


def test_many_jobs_are_accepted_all_or_none(live):
    assert live.client.submit([job(), job()]) == ("j1", "j2")
    with pytest.raises(InputError):
        live.client.submit([job(), job(workers=3)])
    assert len(live.client.jobs()) == 2


def test_another_user_may_look_and_no_more(live):
    (name,) = live.mine.submit([job()])
    assert live.other.job(name).owner == ME
    with pytest.raises(RefusedError, match=f"{OTHER} may not cancel {name} of {ME}"):
        live.other.cancel(name)
    with pytest.raises(RefusedError, match="may not read the log"):
        b"".join(live.other.log(name))
    with pytest.raises(RefusedError, match="only an administrator"):
        live.other.drain([])
    assert state(live, name) not in OVER


def test_a_public_log_is_readable_by_all_users(live):
    (name,) = live.mine.submit([job(public_log=True)])
    wait_until(lambda: runs(live, name))
    assert b"simulated: started" in b"".join(live.other.log(name))


def test_a_user_cancels_what_is_his(live):
    (name,) = live.other.submit([job()])
    assert live.other.job(name).owner == OTHER
    live.other.cancel(name)
    assert live.other.wait(name).state is JobState.CANCELLED


def test_a_cancel_may_shorten_the_grace(live):
    (name,) = live.other.submit([job(command=["train", "work_s=60", "deaf=1"], grace_s=600.0)])
    wait_until(lambda: runs(live, name))
    live.other.cancel(name)
    assert state(live, name) is JobState.STOPPING
    for wrong in (-1.0, math.nan):
        with pytest.raises(InputError, match="grace_s"):
            live.mine.cancel(name, wrong)
    live.mine.cancel(name, 0.0)
    assert live.other.wait(name).state is JobState.CANCELLED


def test_an_unknown_job(live):
    for ask in (live.client.job, live.client.cancel, live.client.explain):
        with pytest.raises(UnknownJobError, match="no job 'j7'"):
            ask("j7")
    with pytest.raises(DovetailError, match=r"Not Found: GET /v1/jobs/\.\./service"):
        live.client.job("../service")


def test_names_that_are_no_text_are_refused_in_one_line(live):
    rule = "must be text of whole Unicode characters, got 'j\\udcff'"
    with pytest.raises(InputError, match=re.escape(f"job: {rule}")):
        live.client.job("j\udcff")
    with pytest.raises(InputError, match=re.escape(f"user: {rule}")):
        live.client.jobs(chosen=Chosen(user="j\udcff"))


def test_drained_devices_take_no_jobs(live):
    service = live.client.drain(["n0-0"])
    assert [bool(device.trouble) for device in service.devices] == [True, False]
    service = live.client.drain([], on=False)
    assert [device.trouble for device in service.devices] == ["", ""]
    with pytest.raises(InputError, match=r"gpus\[0\]: must be one of n0, n0-0, n0-1, got 'n1'"):
        live.client.drain(["n1"])


def test_a_log_is_followed_until_the_job_is_over(live):
    (name,) = live.client.submit([job(command=["train", "work_s=0.8"])])
    lines = b"".join(live.client.log(name, follow=True)).decode().splitlines()
    assert lines[0].startswith("simulated: started")
    assert lines[-1] == "simulated: ended with status 0"
    assert state(live, name) is JobState.FINISHED
    assert b"".join(live.client.log(name, lines=1)) == b"simulated: ended with status 0\n"


def test_a_log_that_may_lack_output_is_printed_and_said_to(live, monkeypatch, capsys):
    (name,) = live.client.submit([job(command=["train", "work_s=0.1"])])
    wait_until(lambda: state(live, name) is JobState.FINISHED)
    whole = b"".join(live.client.log(name))
    pool = live.service.live.pool
    monkeypatch.setattr(pool, "log_lack", lambda run, rank: "nöde 1 does not answer")
    chunks = live.client.log(name)
    assert next(chunks) == whole
    with pytest.raises(IncompleteLogError, match="may be missing: nöde 1 does not answer"):
        next(chunks)
    monkeypatch.setattr(logs, "_LACK_S", 0.5)
    assert b"".join(live.client.log(name, follow=True)) == whole
    monkeypatch.setenv("DOVETAIL_SERVICE", live.client.service_name)
    monkeypatch.setenv("DOVETAIL_TOKEN", TOKENS[ME])
    assert main(["logs", name, "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["text"].encode() == whole
    assert "nöde 1" in shown["missing"]


def test_a_log_in_whose_place_is_another_file_is_refused(live, short_path):
    (name,) = live.client.submit([job()])
    wait_until(lambda: runs(live, name))
    log = Path(live.service.api.log_path(name, 0, Owner(name="root", uid=0, gid=0)))
    os.link(log, short_path / "another")
    for asked in ({}, {"lines": 3}, {"follow": True}):
        with pytest.raises(RefusedError, match="is not the log that was made for the job"):
            b"".join(live.client.log(name, **asked))


def test_a_token_is_not_kept(live, short_path):
    secret = {"DOVETAIL_TOKEN": TOKENS[ME], "A": "b"}
    (name,) = live.client.submit([job(env=secret)])
    assert live.service.live.machine.jobs[name].spec.env == {"A": "b"}


def test_others_see_nothing_of_what_jobs_of_a_private_service_are(short_path):
    secret = {
        "command": ["SECRETprogram", "work_s=60", "SECRETword"],
        "cwd": "/SECRETfolder",
        "env": {"A": "SECRETvalue"},
        "workload": "SECRETworkload",
        "name": "SECRETname",
        "output": "SECRETout",
        "error": "/SECRETerr",
    }
    with service_here(short_path, short_path / "api.sock", private=True) as live:
        # It cannot start, which the reason says: the simulated pool does not know its workload.
        started = live.mine.submit([job(**secret), job(**secret, held=True), job(**secret)])
        (known,) = live.mine.submit([job(name="SECRETname", array=[3], estimate_s=60.0)])
        (own,) = live.other.submit([job(command=["mine"], workload="bert")])
        wait_until(lambda: live.mine.job("j1").state in OVER)
        assert "SECRET" in str(live.mine.job("j1"))
        paths = ["jobs?over=true", "service", "instance", "plan", "jobs?name=SECRETname&over=true"]
        paths += [f"jobs/{name}" for name in (*started, known, own)]
        paths += [f"jobs/{name}/explanation" for name in (*started, known, own)]
        with live_http(live, OTHER) as http:
            answers = {path: http.get(f"/v1/{path}") for path in paths}
            answers["metrics"] = http.get("/metrics")
        for path, answer in answers.items():
            assert "SECRET" not in answer.text, path
            assert f"{ME}/" not in answer.text, path
        refused = [path for path, answer in answers.items() if answer.status_code == 403]
        assert refused == [f"jobs/{name}/explanation" for name in (*started, known)]
        assert {answer.status_code for path, answer in answers.items() if path not in refused} == {
            200
        }
        assert answers["jobs?name=SECRETname&over=true"].json() == []
        # Its user and administrators see all of it.
        for client in (live.client, live.mine):
            assert client.job("j2").command == tuple(secret["command"])
            assert "SECRETname" in {each.name for each in client.jobs()}
        assert live.other.job(own).command == live.client.job(own).command == ("mine",)


def test_a_private_service_tells_what_is_wrong_to_administrators_only(short_path):
    drift = "ann/secret with ben/bert on SimGPU drifts"
    with service_here(short_path, short_path / "api.sock", private=True) as live:
        assert live.other.service().trouble == ""
        live.service.live.troubles.report("a pair", DovetailError(drift))
        assert live.mine.service().trouble == drift
        assert live.other.service().trouble == "something is wrong, and administrators see what"
        with live_http(live, OTHER) as http:
            assert "something is wrong" in http.get("/").text
            for path in ("/", "/plan", "/gpus", "/metrics", "/v1/service"):
                assert "secret" not in http.get(path).text
            assert "dovetail_in_trouble 1.0" in http.get("/metrics").text


def live_http(live, user):
    return httpx.Client(base_url=live.url, headers={"Authorization": f"Bearer {TOKENS[user]}"})


def test_lists_are_read_page_by_page_and_have_the_beginning_of_commands(live, monkeypatch):
    long = ["train", "work_s=60", "x" * 5000]
    names = live.client.submit([job(held=True, command=long, array=list(range(2300)))])
    with live_http(live, ME) as http:
        page = http.get("/v1/jobs").json()
        assert [each["id"] for each in page] == [*names[-1000:]]
        assert max(len(" ".join(each["command"])) for each in page) == 200
        assert http.get("/v1/jobs?limit=1001").status_code == 422
        assert len(http.get("/v1/jobs").content) < 1_500_000
    assert [each.id for each in live.client.jobs()] == [*names]
    some = live.client.jobs(chosen=Chosen(limit=1500, before="j2001"))
    assert [each.id for each in some] == [*names[500:2000]]
    assert live.client.jobs(chosen=Chosen(limit=0)) == []
    assert live.client.job(names[0]).command == tuple(long)


def test_the_limit_of_memory_and_what_is_used_are_two_things(live):
    (name,) = live.client.submit([job(memory_mib=6000.0)])
    wait_until(lambda: live.client.job(name).memory_used_mib)
    found = live.client.job(name)
    assert (found.memory_mib, found.memory_used_mib) == (6000.0, 5000.0)


def test_many_waiters_for_a_job_cost_one_look(live, monkeypatch):
    (name,) = live.client.submit([job()])
    looks = []
    look = live.service.api.is_over
    monkeypatch.setattr(live.service.api, "is_over", lambda job: (looks.append(job), look(job))[1])
    answers = []

    def ask():
        with Client(live.socket) as client:
            answers.append(client.job(name, wait_s=60).state)

    threads = [threading.Thread(target=ask) for _ in range(30)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(looks) > 40)
    live.client.cancel(name)
    for thread in threads:
        thread.join()
    assert answers == [JobState.CANCELLED] * 30


def test_concurrent_requests_share_a_costly_plan(live, monkeypatch):
    from dovetail.executor.live.rounds import previews
    from dovetail.executor.live.rounds.deciding import Decider

    live.client.submit([job()])
    made = []
    monkeypatch.setattr(previews, "_COSTLY_S", 0.0)
    monkeypatch.setattr(previews, "REST", 1e6)
    choose = Decider.choose
    monkeypatch.setattr(Decider, "choose", lambda self: (made.append(1), choose(self))[1])
    first = live.client.plan()
    live.client.submit([job()])
    assert [live.client.plan() for _ in range(5)] == [first] * 5
    assert len(made) == 1
    live.client.drain([])
    (later,) = live.client.submit([job()])
    assert "take no jobs" in live.client.explain(later)


def test_waiting_ends_after_its_time(live):
    (name,) = live.client.submit([job()])
    assert live.client.job(name, wait_s=0.3).state not in OVER


def test_the_socket_is_its_users_alone(live):
    assert stat.S_IMODE(Path(live.socket).stat().st_mode) == 0o600


def test_over_tcp_nothing_is_answered_without_a_token(live):
    tokens = (None, "", "Bearer", f"Bearer {'0' * 32}", "Basic abc", TOKENS[ME])
    for path in ("/v1/jobs", "/metrics", "/openapi.json", "/nothing"):
        for token in tokens:
            headers = {} if token is None else {"Authorization": token}
            answer = httpx.get(live.url + path, headers=headers)
            assert (answer.status_code, answer.json()["kind"]) == (401, "token"), (path, token)
            message = "over TCP a token is needed" if token is None else "this token is not known"
            assert answer.json()["error"].startswith(message)


def test_the_api_describes_itself(live):
    headers = {"Authorization": f"Bearer {TOKENS[ME]}"}
    described = httpx.get(f"{live.url}/openapi.json", headers=headers).json()
    assert {"/v1/jobs", "/v1/jobs/{job}", "/v1/jobs/{job}/log", "/v1/plan"} <= set(
        described["paths"]
    )
    fields = described["components"]["schemas"]["Submission"]["properties"]
    assert "command" in fields
    assert "owner" not in fields


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff" * 5000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000,
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n\xff{[",
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/jobs/%00%ff/log?rank=-1&lines=x HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n\r\n",
    ],
)
def test_garbage_on_the_socket_is_harmless(live, garbage, caplog):
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(LIMIT_S)
        raw.connect(live.socket)
        raw.sendall(garbage)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(65536):
            pass
    assert live.client.submit([job()]) == ("j1",)
    assert not caplog.records


@pytest.mark.parametrize(
    ("asked", "status", "message"),
    [
        ("jobs?over=maybe", 422, "over: must be true or false, got 'maybe'"),
        ("jobs?limit=few", 422, "limit: must be a whole number, got 'few'"),
        ("jobs?within_s=long", 422, "within_s: must be a number, got 'long'"),
        ("jobs?state=held", 422, "state: must be 'submitted', 'waiting', "),
        ("job", 404, "Not Found: GET /v1/job"),
    ],
)
def test_an_address_that_breaks_a_rule(live, asked, status, message):
    with httpx.Client(transport=httpx.HTTPTransport(uds=live.socket)) as raw:
        answer = raw.get(f"http://d/v1/{asked}")
    assert answer.status_code == status
    assert answer.json()["error"].startswith(message)


def test_bodies_that_are_no_jobs(live):
    with httpx.Client(transport=httpx.HTTPTransport(uds=live.socket), base_url="http://d") as raw:
        answers = {
            body: raw.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
            for body in ("", "[]", "7", '{"jobs": {}}', '{"jobs": []}', "{", '{"jobs": [NaN]}')
        }
    for body, answer in answers.items():
        assert answer.status_code == 422, body
        assert answer.json()["kind"] == "input", body
        assert "\n" not in answer.json()["error"], body
    assert live.client.jobs() == []


def test_a_body_beyond_all_measure_is_refused(live, monkeypatch):
    monkeypatch.setattr(guards, "MOST_BODY_BYTES", 1000)
    with httpx.Client(transport=httpx.HTTPTransport(uds=live.socket), base_url="http://d") as raw:
        answer = raw.post("/v1/jobs", content=json.dumps({"jobs": [job(name="n" * 2000)]}))
    assert (answer.status_code, answer.json()["kind"]) == (413, "http")
    assert live.client.jobs() == []


def test_many_clients_at_once_lose_nothing(live):
    found = []

    def ask():
        with Client(live.socket) as client:
            for _ in range(5):
                found.extend(client.submit([job()]))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(f"j{k}" for k in range(1, 41))


def message_from(connection):
    """Return a whole message of HTTP, in however many packets it comes."""
    found = b""
    while b"\r\n\r\n" not in found:
        if not (more := connection.recv(65536)):
            return found
        found += more
    length = int(re.search(rb"content-length: (\d+)", found, re.I)[1])
    whole = found.index(b"\r\n\r\n") + 4 + length
    while len(found) < whole and (more := connection.recv(65536)):
        found += more
    return found


class Forgetful:
    """Passes requests on to a service's socket, and loses the answers of the first connections."""

    def __init__(self, service, path, losses):
        self.service, self.losses = service, losses
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen()
        threading.Thread(target=self.relay, daemon=True).start()

    def relay(self):
        while True:
            try:
                asking, _ = self.listening.accept()
            except OSError:
                return
            with asking, socket.socket(socket.AF_UNIX) as asked:
                asked.connect(self.service)
                request = message_from(asking)
                if not request:
                    continue
                asked.sendall(request)
                answer = message_from(asked)
                self.losses -= 1
                if self.losses < 0:
                    asking.sendall(answer)


def test_an_answer_that_was_lost_is_asked_for_again_and_nothing_runs_twice(
    live, short_path, monkeypatch
):
    monkeypatch.setattr(client, "RETRY_S", LIMIT_S)
    relay = Forgetful(live.socket, short_path / "relay.sock", losses=2)
    try:
        with Client(str(short_path / "relay.sock")) as relayed:
            assert relayed.submit([job(), job()]) == ("j1", "j2")
    finally:
        relay.listening.close()
    assert len(live.client.jobs()) == 2


def test_a_user_s_own_key_is_used_once(live):
    with Client(live.socket) as again:
        assert live.client.submit([job()], "k") == again.submit([job()], "k") == ("j1",)
    with pytest.raises(InputError, match="key: must be new"):
        live.client.submit([job(workload="bert")], "k")
    assert live.other.submit([job()], "k") == ("j2",)


# httpcore leaves the socket open on which it could not connect.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_follower_does_not_keep_the_service_from_ending_and_is_notified(short_path):
    seen, errors = [], []

    def follow():
        with Client(str(short_path / "api.sock")) as client:
            try:
                seen.extend(client.log("j1", follow=True))
            except NoServiceError as error:
                errors.append(str(error))

    thread = threading.Thread(target=follow)
    with service_here(short_path, short_path / "api.sock") as live:
        (name,) = live.client.submit([job(command=["train", "work_s=600"])])
        wait_until(lambda: runs(live, name))
        thread.start()
        wait_until(lambda: seen)
    thread.join(timeout=LIMIT_S)
    assert not thread.is_alive()
    assert errors == [f"the service at {short_path}/api.sock ended before j1"]
    gc.collect()


# httpcore leaves the socket open on which it could not connect.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_service_answers(short_path):
    path = short_path / "api.sock"
    for _ in range(2):
        with Client(str(path)) as client, pytest.raises(NoServiceError, match="no service answers"):
            client.jobs()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path)) if not path.exists() else None
    gc.collect()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>welcome</html>", "is not a service of this version"),
        (b"[]", "is not a service of this version"),
        (b'{"jobs": []}', "is not a service of this version"),
        (b'{"ids": ["j7"], "more": 1}', ""),
    ],
)
def test_something_else_may_answer_and_a_proxy_may_have_a_folder(body, message):
    asked = []

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(201)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/dovetail/"
        with Client(url, "t" * 20) as client:
            if message:
                with pytest.raises(ServiceFailedError, match=message):
                    client.submit([job()])
            else:
                assert client.submit([job()]) == ("j7",)
        server.shutdown()
    assert asked == ["/dovetail/v1/jobs"]
