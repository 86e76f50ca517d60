"""``dovetail page``: in front of a socket, for its user alone; and through ssh."""

from __future__ import annotations

import getpass
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import webbrowser
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from dovetail.live.page.command import opened
from tests.api.live.services import job, limited, served
from tests.executor.waiting import LIMIT_S, wait_until

DESCRIPTORS = 256


@contextmanager
def paged(service, *options, env=None, before=None):
    """Run ``dovetail page``; yield its process and its link. ``before`` is called in it first."""
    command = [sys.executable, "-m", "dovetail", "page", *options]
    named = {} if service is None else {"DOVETAIL_SERVICE": str(service)}
    with subprocess.Popen(
        command,
        env={**os.environ, **named, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
    ) as process:
        try:
            yield process, process.stdout.readline().strip().rpartition(" ")[2]
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def test_the_page_is_for_who_has_the_link(live):
    live.client.submit([job(command=["train", "work_s=600"])] * 3)
    with paged(live.socket) as (process, link):
        base = link.partition("/enter/")[0]
        own = {"Origin": base}
        with httpx.Client(base_url=base, timeout=LIMIT_S) as client:
            assert client.get("/").status_code == 403
            assert client.get("/enter/nonsense").status_code == 403
            assert client.get("/static/page.js").status_code == 403
            entered = client.get(link)
            assert "HttpOnly" in entered.headers["set-cookie"]
            assert "SameSite=Strict" in entered.headers["set-cookie"]
            assert "j1" in client.get("/").text
            assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
            assert client.get("/v1/jobs").status_code == 404
            assert client.post("/jobs/j3/hold").status_code == 403
            assert client.post("/jobs/j3/hold", headers=own).status_code == 303
            assert live.client.job("j3").held
            assert client.get("/jobs/j77").status_code == 404
            with client.stream("GET", "/events", params={"page": "/jobs/j3"}) as events:
                lines = (line for line in events.iter_lines() if line.startswith("data: "))
                assert "held" in next(lines)
                live.client.release("j3")
                assert any("released" in line or "hold" in line for line in lines)
            feed = live.answering.state.pages.feed
            wait_until(lambda: feed._viewers == 0)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=LIMIT_S) == 0
        assert process.stderr.read() == ""


def test_a_page_outlives_its_service_and_says_so(short_path):
    options = ("--pool", "simulated:library:lab", "--listen", "127.0.0.1:0")
    with (
        served(short_path, *options) as (service, _),
        paged(short_path / "api.sock") as (page, link),
    ):
        # Nobody looks at this output, so that no link to log in is left in it.
        line = service.stdout.readline()
        assert "dovetail page prints a link" in line
        assert "/login/" not in line
        base = link.partition("/enter/")[0]
        with httpx.Client(base_url=base, timeout=LIMIT_S) as client:
            client.get(link)
            assert client.get("/").status_code == 200
            (short_path / "api.sock").rename(short_path / "gone.sock")
            answer = client.get("/")
            assert answer.status_code == 502
            assert "no service answers at" in answer.text
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            (short_path / "gone.sock").rename(short_path / "api.sock")
            with client.stream("GET", "/events", params={"page": "/"}) as events:
                lines = events.iter_lines()
                assert next(lines) == "retry: 2000"
                service.kill()
                # What has broken off is not taken for the whole.
                with pytest.raises(httpx.RemoteProtocolError):
                    list(lines)
            page.send_signal(signal.SIGINT)
            assert page.wait(timeout=LIMIT_S) == 0
            assert page.stderr.read() == ""


def test_it_ends_without_a_word_while_a_page_is_looked_at(live):
    with paged(live.socket) as (process, link):
        base = link.partition("/enter/")[0]
        with httpx.Client(base_url=base, timeout=LIMIT_S) as client:
            client.get(link)
            with client.stream("GET", "/events", params={"page": "/"}) as events:
                lines = events.iter_lines()
                assert next(lines) == "retry: 2000"
                process.send_signal(signal.SIGINT)
                list(lines)
        assert process.wait(timeout=LIMIT_S) == 0
        assert process.stderr.read() == ""


def test_others_cannot_occupy_a_page_or_write_to_its_terminal(live):
    few = limited(resource.RLIMIT_NOFILE, DESCRIPTORS, DESCRIPTORS)
    with paged(live.socket, before=few) as (process, link), ExitStack() as stack:
        address = ("127.0.0.1", int(link.split(":")[2].partition("/")[0]))
        others = [stack.enter_context(socket.create_connection(address)) for _ in range(400)]
        with httpx.Client(base_url=link.partition("/enter/")[0], timeout=LIMIT_S) as client:
            assert client.get(link).status_code == 200
            for raw in others[-20:]:
                with suppress(OSError):
                    raw.sendall(b"nonsense\r\n\r\n")
            assert client.get("/jobs").status_code == 200
            cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        head = f"POST /jobs/j1/hold HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookies}\r\n"
        head += "Sec-Fetch-Site: same-origin\r\n"
        with socket.create_connection(address) as mine:
            mine.sendall(f"{head}Content-Length: 9\r\n\r\nbroken".encode())
        with socket.create_connection(address) as mine:
            mine.settimeout(LIMIT_S)
            mine.sendall(f"{head}Content-Length: 9999\r\n\r\n{'x' * 9999}".encode())
            assert mine.recv(100).startswith(b"HTTP/1.1 404")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=LIMIT_S) == 0
        assert process.stderr.read() == ""


def test_a_browser_gets_no_secret_that_others_can_read(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(webbrowser, "open", shown.append)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with opened("http://127.0.0.1:1/enter/x7y8z9"):
        (url,) = shown
        file = Path(url.removeprefix("file://"))
        assert "x7y8z9" not in url
        assert "/enter/x7y8z9" in file.read_text()
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert not file.exists()


@pytest.mark.parametrize(
    ("options", "service", "line"),
    [
        ((), "/nowhere/api.sock", "no service answers at /nowhere/api.sock"),
        ((), "http://127.0.0.1:1", "DOVETAIL_SERVICE: must be a socket"),
        (("--remote-socket", "/x"), None, "--remote-socket: has an effect only with --ssh"),
        (("--port", "70000"), None, "must be a whole number >= 1 and < 65536"),
        (("--ssh", "no-such-host.invalid"), None, "ssh no-such-host.invalid: "),
        (("--ssh=-oProxyCommand=touch x",), None, "ssh -oProxyCommand=touch x: "),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, options, service, line):
    if "ssh" in str(options) and shutil.which("ssh") is None:
        pytest.skip("no ssh")
    env = {} if service is None else {"DOVETAIL_SERVICE": service}
    done = subprocess.run(
        [sys.executable, "-m", "dovetail", "page", *options],
        env={**os.environ, "DOVETAIL_HOME": str(tmp_path), **env},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=tmp_path,
    )
    assert done.returncode != 0
    assert line in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "x").exists()


@contextmanager
def ssh_server(folder):
    """Run an ssh server of this user; yield an ``ssh`` that knows it as ``far``."""
    program = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
    if program is None or shutil.which("ssh") is None:
        pytest.skip("no sshd to connect to")
    for name in ("host", "mine"):
        made = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
        subprocess.run(made, check=True)
    shutil.copy(folder / "mine.pub", folder / "authorized")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nPermitRootLogin yes\n"
    )
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)
    server = subprocess.Popen(
        [program, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL
    )
    tools = folder / "tools"
    tools.mkdir()
    (folder / "config").write_text(
        f"Host far\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {folder}/mine\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
        f"  UserKnownHostsFile {folder}/known\n  LogLevel ERROR\n"
    )
    (tools / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    (tools / "ssh").chmod(0o755)
    try:

        def answers():
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                return False
            return True

        wait_until(answers)
        yield {"PATH": f"{tools}:{os.environ['PATH']}"}
    finally:
        server.terminate()
        server.wait(timeout=LIMIT_S)


def test_the_page_of_a_far_service_through_ssh(live, tmp_path):
    with ssh_server(tmp_path) as env:
        live.client.submit([job(name="far away")])
        options = ("--ssh", "far", "--remote-socket", live.socket)
        with paged(None, *options, env=env) as (process, link):
            with httpx.Client(base_url=link.partition("/enter/")[0], timeout=LIMIT_S) as client:
                client.get(link)
                assert "far away" in client.get("/jobs").text
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=LIMIT_S) == 0
            assert process.stderr.read() == ""
        with paged(None, "--ssh", "far", env=env) as (process, _):
            assert process.wait(timeout=LIMIT_S) != 0
            assert process.stderr.read().count("\n") == 1


def test_two_commands_give_a_service_with_its_page(short_path):
    """On a terminal, the service prints a link that lets its own user in once."""
    reading, writing = os.openpty()
    command = (sys.executable, "-m", "dovetail", "serve", "--pool", "simulated:library:lab")
    env = {**os.environ, "DOVETAIL_HOME": str(short_path)}
    listen = ("--listen", "127.0.0.1:0")
    with subprocess.Popen([*command, *listen], env=env, stdout=writing) as process:
        os.close(writing)
        try:
            with open(reading, "rb") as terminal:
                assert b"serving" in terminal.readline()
                link = terminal.readline().decode().split()[-1]
                with httpx.Client(timeout=LIMIT_S) as client:
                    base = link.partition("/login/")[0]
                    assert client.get(f"{base}/").headers["location"] == "/login"
                    assert client.get(f"{base}/v1/service").status_code == 401
                    assert client.get(link).status_code == 200
                    assert "Nothing needs attention" in client.get(f"{base}/").text
                    # The link is void now.
                    assert client.get(link).status_code == 403
                    own = {"Origin": base}
                    assert client.post(f"{base}/logout", headers=own).status_code == 303
                    assert client.get(f"{base}/").status_code == 303
        finally:
            process.terminate()
            process.wait(timeout=LIMIT_S)
