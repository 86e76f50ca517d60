"""One user's requests wait for each other, take bounded memory, and leave others their turn."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest

from dovetail.executor.live.errors import TooManyError
from dovetail.live import client as clients
from dovetail.live.client import Client
from dovetail.live.http import guards
from dovetail.live.http.guards import CHANGES, EVENTS, LOGS, PREVIEWS, READS, WAITS, Lane, lane_of
from tests.api.live.services import ME, OTHER, TOKENS, job
from tests.executor.waiting import LIMIT_S, wait_until


@pytest.mark.parametrize(
    ("method", "path", "query", "lane"),
    [
        ("GET", "/v1/service", b"", READS),
        ("GET", "/v1/jobs", b"over=true", READS),
        ("GET", "/v1/jobs/j1", b"", READS),
        ("GET", "/v1/jobs/j1", b"wait_s=0", READS),
        ("GET", "/v1/jobs/j1", b"wait_s=20", WAITS),
        ("GET", "/v1/jobs/j1", b"wait_s=%ff&name=%E2%80%AE&x=\xff", WAITS),
        ("GET", "/v1/jobs/j1/log", b"follow=true", LOGS),
        ("GET", "/v1/jobs/j1/explanation", b"", PREVIEWS),
        ("GET", "/v1/plan", b"", PREVIEWS),
        ("GET", "/v1/instance", b"", PREVIEWS),
        ("GET", "/metrics", b"", READS),
        ("GET", "/events", b"page=/", EVENTS),
        ("GET", "/jobs/j1", b"", READS),
        ("POST", "/jobs/j1/cancel", b"", CHANGES),
        ("HEAD", "/v1/plan", b"", PREVIEWS),
        ("POST", "/v1/jobs", b"", CHANGES),
        ("PATCH", "/v1/jobs/j1", b"", CHANGES),
    ],
)
def test_every_request_has_a_lane(method, path, query, lane):
    assert lane_of(method, path, query) == lane


class Slow:
    """Answers of a function of the service, which come once they may."""

    def __init__(self, api, name, monkeypatch):
        self.may, self.now, self.most = threading.Event(), Counter(), Counter()
        self._answer, self._lock = getattr(api, name), threading.Lock()
        monkeypatch.setattr(api, name, self)

    def __call__(self, *arguments):
        who = arguments[-1].name if arguments else ""
        with self._lock:
            self.now[who] += 1
            self.most[who] = max(self.most[who], self.now[who])
        if who == ME:
            assert self.may.wait(LIMIT_S)
        with self._lock:
            self.now[who] -= 1
        return self._answer(*arguments)


def asking(live, user, path):
    headers = {"Authorization": f"Bearer {TOKENS[user]}"}
    return httpx.get(f"{live.url}/v1/{path}", headers=headers, timeout=LIMIT_S)


@contextmanager
def at_once(count, ask):
    """Ask from so many threads; yield the list of answers, complete after the block."""
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask())) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield answers
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("path", ["jobs", "plan"])
def test_of_one_user_one_is_answered_at_a_time_and_another_user_meanwhile(live, path, monkeypatch):
    slow = Slow(live.service.api, path, monkeypatch)
    with at_once(12, lambda: asking(live, ME, path).status_code) as answers:
        wait_until(lambda: slow.now[ME])
        # Each thread that answers requests could be taken by now.
        assert [asking(live, OTHER, path).status_code for _ in range(5)] == [200] * 5
        assert asking(live, ME, "jobs/j1/log").status_code == 404
        slow.may.set()
    assert answers == [200] * 12
    assert slow.most == {ME: 1, OTHER: 1}


def test_what_is_beyond_the_line_is_refused_in_a_line_and_the_client_asks_again(live, monkeypatch):
    monkeypatch.setattr(guards, "READS", Lane(1, 2))
    slow = Slow(live.service.api, "jobs", monkeypatch)
    with at_once(8, lambda: asking(live, ME, "jobs")) as answers:
        wait_until(lambda: len(answers) == 5)
        for refused in answers:
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            assert refused.json() == {
                "kind": "too_many",
                "error": "at most 3 such requests of a user may wait for their answers",
            }
        monkeypatch.setattr(clients, "TURN_S", 0.0)
        with pytest.raises(TooManyError, match="at most 3 such requests"):
            live.mine.jobs()
        monkeypatch.setattr(clients, "TURN_S", LIMIT_S)
        with at_once(1, live.mine.jobs) as found:
            slow.may.set()
        assert found == [[]]
    assert Counter(answer.status_code for answer in answers) == {429: 5, 200: 3}


@contextmanager
def never_reading(live, count, path):
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            raw = stack.enter_context(socket.socket(socket.AF_UNIX))
            raw.connect(live.socket)
            raw.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            found.append(raw)
        yield found


def whatever_comes(raw):
    """Return what is left of an answer until the connection is cut."""
    found = b""
    with suppress(ConnectionError):
        while part := raw.recv(2**16):
            found += part
    return found


def test_answers_that_are_never_read_take_the_memory_of_one_and_end(live, monkeypatch):
    monkeypatch.setattr(guards, "TAKEN_S", 0.5)
    live.client.submit([job(held=True, name="n" * 200, array=list(range(1000)))])
    whole = len(asking(live, ME, "jobs").content)
    api, made = live.service.api, []
    jobs = api.jobs
    monkeypatch.setattr(api, "jobs", lambda *a: (made.append(1), jobs(*a))[1])
    with never_reading(live, 6, "/v1/jobs") as raws:
        wait_until(lambda: made)
        # Others have answers at once, and the next answer is made once one is given up.
        assert live.other.service().jobs == {"submitted": 1000}
        wait_until(lambda: len(made) == 6)
        # The last may still be read.
        for raw in raws:
            raw.settimeout(LIMIT_S)
        assert sum(len(whatever_comes(raw)) < whole for raw in raws) >= 5
    with Client(live.socket) as client:
        assert len(client.jobs()) == 1000
