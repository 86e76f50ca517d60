"""Limits on connections: no client blocks others merely by connecting."""

from __future__ import annotations

import os
import resource
import socket
from contextlib import ExitStack, suppress

import pytest

from dovetail.executor.jobs.states import JobState
from dovetail.live.client import Client
from dovetail.live.http import connections
from dovetail.live.http.connections import ConnectionLimits, Peer
from tests.api.live.services import ME, OTHER, TOKENS, job, limited, served, service_here
from tests.executor.waiting import LIMIT_S

DESCRIPTORS = 256


def test_no_user_takes_the_room_of_others():
    limits = ConnectionLimits(1024)
    mine, root = Peer("users", 1000), Peer("administrators", 0)
    assert sum(limits.enter(mine) for _ in range(1100)) == 64
    assert sum(limits.enter(Peer("users", uid)) for uid in range(2000, 3000)) == 256 - 64
    assert sum(limits.enter(root) for _ in range(1100)) == 256
    assert not limits.enter(mine)
    limits.leave(mine)
    assert limits.enter(mine)


def test_strangers_are_never_refused_and_the_oldest_ends():
    limits, ended = ConnectionLimits(1024), []
    for k in range(200):
        limits.receive(k, lambda k=k: ended.append(k))
    assert ended == [*range(72)]
    for k in range(72, 200):
        limits.forget(k)
    for k in range(200, 328):
        limits.receive(k, lambda k=k: ended.append(k))
    assert len(ended) == 72
    assert limits.enter(Peer("users", 1000))


def answered(raw):
    """Return all that comes until the other end hangs up."""
    raw.settimeout(LIMIT_S)
    return b"".join(iter(lambda: raw.recv(65536), b""))


@pytest.mark.parametrize(
    "head", [b"", b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n", b"GET /v1/service HTTP/1.1\r\n"]
)
def test_a_client_that_does_not_finish_a_head_is_disconnected(short_path, monkeypatch, head):
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    monkeypatch.setattr(connections, "STRANGER_S", 0.2)
    with service_here(short_path, short_path / "api.sock") as live:
        host, port = live.url.removeprefix("http://").split(":")
        with ExitStack() as stack:
            local = stack.enter_context(socket.socket(socket.AF_UNIX))
            local.connect(live.socket)
            remote = stack.enter_context(socket.create_connection((host, int(port))))
            for raw in (local, remote):
                raw.sendall(head)
            assert answered(local) == answered(remote) == b""
        assert live.client.submit([job()]) == ("j1",)


def test_a_client_that_waits_for_an_answer_is_not_disconnected(short_path, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    with service_here(short_path, short_path / "api.sock") as live:
        live.client.submit([job()])
        assert live.client.job("j1", wait_s=1.0).id == "j1"


def test_two_lengths_of_one_body_are_refused(live):
    """If a proxy used the other length, the rest would become another client's request."""
    hidden = b"GET /v1/service HTTP/1.1\r\nHost: x\r\n\r\n"
    head = b"POST /v1/drain HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(hidden)
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(live.socket)
        raw.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden)
        answer = answered(raw)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"got both" in answer


def test_of_a_user_with_a_token_so_many_connections_are_open(short_path, monkeypatch):
    with service_here(short_path, short_path / "api.sock") as live:
        host, port = live.url.removeprefix("http://").split(":")
        head = (
            f"GET /v1/service HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS[OTHER]}\r\n\r\n"
        )
        monkeypatch.setattr(ConnectionLimits, "enter", lambda self, peer: peer.uid == os.geteuid())
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(head.encode())
            raw.settimeout(LIMIT_S)
            assert raw.recv(65536).startswith(b"HTTP/1.1 503 ")
        assert live.mine.service().jobs == {}


def test_idle_connections_leave_descriptors_for_jobs(short_path, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{ME} {TOKENS[ME]}\n")
    tokens.chmod(0o600)
    options = ("--pool", "cpu:devices=1", "--listen", "127.0.0.1:0", "--tokens", tokens)
    with ExitStack() as stack:
        few = limited(resource.RLIMIT_NOFILE, DESCRIPTORS, DESCRIPTORS)
        _, greeting = stack.enter_context(served(short_path, *options, before=few))
        port = int(greeting.rpartition("TCP port ")[2])
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(2 * DESCRIPTORS)
        ]
        # The first have ended for the last, and a user with a token is not refused for any.
        with suppress(ConnectionError):
            assert answered(idle[0]) == b""
        remote = stack.enter_context(Client(f"http://127.0.0.1:{port}", TOKENS[ME]))
        assert remote.service().pool == "cpu"
        for _ in range(DESCRIPTORS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert remote.jobs() == []
        client = stack.enter_context(Client(str(short_path / "api.sock")))
        (name,) = client.submit([job(command=["sh", "-c", "ulimit -n"])])
        assert client.wait(name).state is JobState.FINISHED
        assert not any("lost" in step.why for step in client.job(name).history)
        assert b"".join(client.log(name)) == f"{DESCRIPTORS}\n".encode()
