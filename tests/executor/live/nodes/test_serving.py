"""Who may ask an agent that serves HTTP, and what those can do who may not."""

import http.client
import json
import socket
import threading

import pytest

from dovetail.executor.live.nodes.agent import Agent
from dovetail.executor.live.nodes.hosting import opener
from dovetail.executor.live.nodes.serving import MOST_BYTES, MOST_CONNECTIONS, AgentServer
from tests.executor.live.waiting import LIMIT_S

TOKEN = "a-token-of-the-tests"
KNOWN = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def address(tmp_path):
    agent = Agent(tmp_path, opener("cpu:devices=1,shares=none", tmp_path), "127.0.0.1")
    server = AgentServer(agent, TOKEN, ("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address
    server.shutdown()
    thread.join()
    agent.close()
    server.server_close()


def connected(address):
    return http.client.HTTPConnection(*address, timeout=LIMIT_S)


def exchange(connection, **fields):
    body = json.dumps({"version": 2, "home": "h", "epoch": 1, "lease_s": 15.0, **fields})
    connection.request("POST", "/exchange", body, KNOWN)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", TOKEN, "Bearer \xe9"])
def test_without_the_token_nothing_is_told_and_no_body_read(address, authorization):
    connection = connected(address)
    connection.putrequest("POST", "/exchange")
    connection.putheader("Content-Length", str(MOST_BYTES))
    if authorization is not None:
        connection.putheader("Authorization", authorization)
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 401
    assert json.loads(response.read()) == {"error": "the token is not this agent's"}
    connection.close()


@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("POST", "/x")])
def test_what_is_no_question_is_refused_in_one_line(address, method, path):
    connection = connected(address)
    connection.request(method, path, headers=KNOWN)
    response = connection.getresponse()
    assert response.status in (404, 501)
    assert set(json.loads(response.read())) == {"error"}
    connection.close()


@pytest.mark.parametrize(
    ("said", "status"),
    [(b"DELETE / HTTP/1.1\r\n\r\n", b"501"), (b"GET / HTTP/1.1\r\nx:" + b"y" * 70_000, b"431")],
)
def test_whoever_speaks_otherwise_learns_nothing_of_this_machine(address, said, status):
    with socket.create_connection(address, timeout=LIMIT_S) as stranger:
        stranger.sendall(said)
        told = b"".join(iter(lambda: stranger.recv(4096), b""))
    assert told.startswith(b"HTTP/1.1 " + status)
    assert b"Python" not in told
    assert told.endswith(b"}")


def test_a_larger_body_than_there_can_be_is_not_read(address):
    connection = connected(address)
    connection.putrequest("POST", "/exchange")
    connection.putheader("Content-Length", str(MOST_BYTES + 1))
    connection.putheader("Authorization", f"Bearer {TOKEN}")
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_strangers_who_say_nothing_keep_nobody_out(address):
    controller = connected(address)
    assert exchange(controller)[0] == 200
    strangers = [socket.create_connection(address) for _ in range(2 * MOST_CONNECTIONS)]
    assert exchange(controller)[0] == 200, "who has been let in stays"
    late = connected(address)
    assert exchange(late)[0] == 200, "and who knows the token is let in"
    strangers[0].settimeout(LIMIT_S)
    assert strangers[0].recv(1) == b"", "the oldest of the strangers had to go"
    for connection in (*strangers, controller, late):
        connection.close()
