"""Who may ask an agent, and what those can do who may not."""

import http.client
import itertools
import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from dovetail.executor.live.clock import boot_s
from dovetail.executor.live.nodes import agent as agent_of_a_node
from dovetail.executor.live.nodes import channel, serving
from dovetail.executor.live.nodes.agent import Agent
from dovetail.executor.live.nodes.finding import NodeAddress
from dovetail.executor.live.nodes.hosting import opener
from dovetail.executor.live.nodes.messages import Attach, Exchange, Launch
from dovetail.executor.live.nodes.serving import MOST_BYTES, MOST_CONNECTIONS, AgentServer
from tests.executor.live.local_runs import a_run, cleared
from tests.executor.live.waiting import LIMIT_S, wait_until

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


@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("GET", "/log?run=x"), ("POST", "/x")])
def test_what_is_no_question_is_refused_in_one_line(address, method, path):
    connection = connected(address)
    connection.request(method, path, headers=KNOWN)
    response = connection.getresponse()
    assert response.status in (400, 404)
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


def test_of_two_services_the_first_has_the_node_until_its_lease_lapses(address):
    first, second = connected(address), connected(address)

    def renewed(connection, told, lease_s, **who):
        own = {"incarnation": told["incarnation"], "renew_s": told["clock_s"], "lease_s": lease_s}
        return exchange(connection, turn=2, **own, **who)[0]

    told = exchange(first)[1]
    assert renewed(first, told, 1.0) == 200
    wait_until(lambda: exchange(second, home="g")[0] == 200)
    again = exchange(second, home="g", turn=1)[1]
    assert again["clock_s"] >= told["clock_s"] + 1.0
    assert renewed(second, again, 600.0, home="g") == 200
    refused = {"error": "a controller with another state directory has this node"}
    assert exchange(first, turn=3) == (409, refused)
    first.close()
    second.close()


def test_who_attaches_is_told_all_at_once(tmp_path, monkeypatch):
    """What is not told with what is kept counts as not there."""
    monkeypatch.setattr(agent_of_a_node, "MOST_NEWS", 1)
    agent = Agent(tmp_path, opener("cpu:devices=1,shares=none", tmp_path), "127.0.0.1")
    turns = itertools.count(1)

    def asked(*orders, **more):
        fields = {"home": "h", "epoch": 1, "turn": next(turns), "lease_s": 15.0, **more}
        return agent.exchange(Exchange(orders=orders, **fields))

    with cleared(tmp_path / "homes" / "h"):
        first = asked()
        known = {"incarnation": first.incarnation, "renew_s": first.clock_s}
        asked(Launch(number=1, run=a_run("exec sleep 600")), **known)
        wait_until(lambda: [one.number for one in asked(**known, seen=1).news] == [2])
        told = asked(Attach(number=2, parts=()), **known, seen=1)
        assert [part.run.id for part in told.beyond] == ["j1.1"]
        assert [one.event.kind for one in told.news] == ["rank_started", "rank_ready"]
        agent.close()


def test_an_agent_that_ends_tells_nobody_that_another_controller_has_its_node(tmp_path):
    """Who is told so concludes nothing, though the lease lapse and the node never come back."""
    agent = Agent(tmp_path, opener("cpu:devices=1,shares=none", tmp_path), "127.0.0.1")
    server = AgentServer(agent, TOKEN, ("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with closing(connected(server.server_address)) as one, ThreadPoolExecutor() as asking:
        known = {"incarnation": exchange(one)[1]["incarnation"]}
        told = asking.submit(exchange, one, **known, turn=1, wait_s=2.0)
        wait_until(lambda: agent._turn == 1)
        agent.close()
        assert told.result() == (500, {"error": "the agent ends"})
        assert exchange(one, **known, turn=2) == (500, {"error": "the agent ends"})
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_connection_that_the_agent_has_ended_is_not_used_again(address, monkeypatch):
    monkeypatch.setattr(serving._Handler, "timeout", 0.3)
    monkeypatch.setattr(channel, "FRESH_S", 0.1)
    asked = {"home": "h", "epoch": 1, "lease_s": 15.0}
    bell, taken = os.eventfd(0), 0
    with closing(channel.Channel(NodeAddress(*address, TOKEN))) as link:
        for turn in range(1, 4):
            link.ask(Exchange(turn=turn, **asked))
            for call in link.ready(bell):
                link.take(call)
                taken += 1
            time.sleep(0.6)
    os.close(bell)
    assert taken == 3


def test_a_connection_that_takes_no_request_is_closed(address):
    where = NodeAddress(*address, TOKEN)
    with closing(channel.Channel(where)) as link, closing(connected(address)) as broken:
        broken.connect()
        broken.sock.shutdown(socket.SHUT_WR)
        link._idle.append((broken, boot_s()))
        with pytest.raises(BrokenPipeError):
            link.ask(Exchange(turn=1, home="h", epoch=1, lease_s=15.0))
        assert broken.sock is None


def test_a_log_is_no_way_to_other_files(address):
    connection = connected(address)
    assert exchange(connection)[0] == 200
    for run in ("..", "../..", "x/../../token", "%2e%2e"):
        connection.request("GET", f"/log?run={run}&rank=0", headers=KNOWN)
        response = connection.getresponse()
        told = json.loads(response.read())
        assert (response.status, set(told)) in [(400, {"error"}), (404, {"error"})]
        connection.close()
