"""The prober of a service: open-loop probes of real servers and commands."""

import os
import socket
import threading
import time
from contextlib import closing, contextmanager

import pytest

from dovetail.executor.live.observation.records import tail_of
from dovetail.executor.pools.progress_hook import dovetail_progress
from dovetail.executor.pools.runs.progress import PAGE_BYTES, read_progress
from dovetail.executor.pools.shim import prober
from dovetail.executor.pools.shim.prober import Prober, Report, ServersHistogram, client_of

OK = b"HTTP/1.0 200 OK\r\n\r\nfine"


@contextmanager
def server(answer):
    """Answer one request after the other; ``answer`` is called with the number of each."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)

    def serve():
        number = 0
        while True:
            try:
                with closing(listening.accept()[0]) as line:
                    line.recv(4096)
                    line.sendall(answer(number))
            except OSError:
                if listening.fileno() < 0:
                    return
            number += 1

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/health"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page"
    path.write_bytes(bytes(PAGE_BYTES))
    file = os.open(path, os.O_RDWR)
    yield path, file
    os.close(file)


def probed(how, page, until, per_s=100.0, histogram=None):
    """ProbeUnderWay until something is true of the report, and return that."""
    report = Report(dovetail_progress, page[1], histogram)
    with prober_of(client_of(how, {"PATH": os.defpath, "A": "1"}), per_s, report) as running:
        end_s = time.monotonic() + 60
        while not until(report):
            running.turn()
            assert time.monotonic() < end_s
    return report


@contextmanager
def prober_of(begin, per_s, report):
    running = Prober(begin, per_s, report)
    try:
        yield running
    finally:
        for probe in running._due:
            probe.close()


def counted(report):
    return {k: count for k, count in enumerate(report.counts) if count}


def test_answers_are_iterations_and_latencies_in_the_page(page):
    def written(_):
        found = read_progress(str(page[0]))
        return found is not None and found.iterations >= 10

    with server(lambda _: OK) as how:
        probed(how, page, written)
    found = read_progress(str(page[0]))
    assert sum(count for _, count in found.latencies) == found.iterations


def test_a_stall_is_in_the_p99_as_long_as_it_lasted(page):
    """Of the probes due in a stall of S seconds, each waits for the rest of it.

    So at r probes a second, r (S - x) of them take longer than x; of N = r T in all, one in a
    hundred is above x = S - T / 100. A client that waits for each answer would have one long one.
    """
    per_s, stalled = 200.0, []

    def stalling(number):
        if number == 100:
            began_s = time.monotonic()
            time.sleep(0.6)
            stalled.append(time.monotonic() - began_s)
        return OK

    began_s = time.monotonic()
    with server(stalling) as how:
        report = probed(how, page, lambda report: report.answered >= 600, per_s)
    whole_s = time.monotonic() - began_s
    tail = tail_of(counted(report))
    width = 2 ** (1 / 32)
    assert tail.p99_s * width >= stalled[0] - whole_s / 100 - 1 / per_s
    above = sum(n for k, n in counted(report).items() if dovetail_progress.latency_at(k) >= 0.3)
    assert above >= per_s * (stalled[0] - 0.3 * width) - 2


def test_what_fails_before_the_first_answer_is_not_counted_and_then_as_the_longest(page):
    def late(number):
        return OK if number == 5 else b"HTTP/1.1 503 Busy\r\n\r\n"

    with server(late) as how:
        report = probed(how, page, lambda report: sum(report.counts) >= 4)
    last = dovetail_progress.bucket_of(prober.LONGEST_S)
    assert report.answered == 1
    assert counted(report)[last] == sum(report.counts) - 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "the answer has status 404"),
        (b"SSH-2.0-OpenSSH\r\n", "the answer is not HTTP"),
        (b"", "the answer is not HTTP"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 5000, "the answer has over 1000 bytes"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "the answer ended early"),
        (b"HTTP/1.0 200 OK\r\nContent-Type: text/pl", "the answer ended early"),
    ],
)
def test_why_a_probe_fails_is_said_once_in_the_output(page, answer, said, monkeypatch, capfd):
    monkeypatch.setattr(prober, "MOST_BYTES", 1000)
    seen = []
    with server(lambda number: seen.append(number) or answer) as how:
        report = probed(how, page, lambda _: len(seen) > 5)
    assert report.answered == 0
    assert capfd.readouterr().err == f"[dovetail: probe: {said}]\n"


def test_an_answer_of_a_given_length_need_not_be_followed_by_the_end_of_the_connection(page):
    """A server that keeps connections open has answered all the same."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine"
    kept = []
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:

        def serve():
            while len(kept) < 20:
                kept.append(listening.accept()[0])
                kept[-1].recv(4096)
                kept[-1].sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        how = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        report = probed(how, page, lambda report: report.answered >= 20)
        thread.join(10)
    for line in kept:
        line.close()
    longest = max(counted(report))
    assert dovetail_progress.latency_at(longest) < prober.LONGEST_S / 2


def test_a_server_that_hangs_is_in_the_page_while_it_hangs(page, monkeypatch):
    """It accepts connections and answers nothing any more: each probe counts as the longest."""
    monkeypatch.setattr(prober, "LONGEST_S", 0.3)
    ends = threading.Event()

    def hanging(number):
        if number >= 10:
            ends.wait(60)
        return OK

    with server(hanging) as how:
        last, found = dovetail_progress.bucket_of(prober.LONGEST_S), []

        def seen(_):
            found.append(read_progress(str(page[0])))
            return found[-1] is not None and dict(found[-1].latencies).get(last, 0) >= 10

        report = probed(how, page, seen, 50.0)
        ends.set()
    assert found[-1].iterations == report.answered == 10


def test_no_server_is_no_answer(page, capfd):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    turns = []
    probed(f"http://127.0.0.1:{port}", page, lambda _: turns.append(0) or len(turns) > 5)
    assert "Connection refused" in capfd.readouterr().err


@pytest.mark.parametrize(("command", "answers"), [("test $A = 1", True), ("exit 3", False)])
def test_a_command_answers_by_ending_well(page, command, answers, capfd):
    turns = []
    report = probed(command, page, lambda report: turns.append(0) or len(turns) > 30)
    assert (report.answered > 0) is answers
    assert answers or "the command ended with status 3" in capfd.readouterr().err


def test_a_command_that_hangs_is_killed(page, monkeypatch, tmp_path):
    monkeypatch.setattr(prober, "LONGEST_S", 0.3)
    turns = []
    probed(
        f"echo $$ >> {tmp_path}/pids; sleep 99 & wait",
        page,
        lambda _: turns.append(0) or len(turns) > 9,
        5,
    )
    first = int((tmp_path / "pids").read_text().split()[0])
    assert not os.path.exists(f"/proc/{first}")


def test_probes_are_not_caught_up_with_after_a_long_pause(page, monkeypatch):
    seen = []
    with server(lambda number: seen.append(number) or OK) as how:
        report = Report(dovetail_progress, page[1])
        with prober_of(client_of(how, {}), 10.0, report) as running:
            running._next_s -= 3600.0
            running.turn()
    assert len(seen) <= 2


VLLM = """\
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_sum{{engine="0",model_name="m"}} 5.5
vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.1",model_name="m"}} {a}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.2",model_name="m"}} {b}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf",model_name="m"}} {c}
vllm:time_to_first_token_seconds_bucket{{engine="1",le="0.1",model_name="m"}} 1.0
vllm:time_to_first_token_seconds_bucket{{engine="1",le="0.2",model_name="m"}} 1.0
vllm:time_to_first_token_seconds_bucket{{engine="1",le="+Inf",model_name="m"}} 1.0
vllm:time_to_first_token_seconds_count{{engine="0",model_name="m"}} {c}
another_bucket{{le="0.1"}} 7
"""


def shown(a, b, c):
    return VLLM.format(a=a, b=b, c=c).encode()


def test_a_servers_histogram_gives_what_is_new_in_it():
    histogram = ServersHistogram("vllm:time_to_first_token_seconds")
    assert histogram.read(shown(100.0, 150.0, 150.0)) == []
    new = histogram.read(shown(110.0, 260.0, 261.0))
    assert len(new) == 10 + 100 + 1
    assert sum(latency <= 0.1 for latency in new) == 10
    middle = sorted(latency for latency in new if 0.1 < latency <= 0.2)
    # Spread evenly over the bucket: the k-th of a hundred is near its place.
    assert all(abs(one - (0.1 + 0.001 * k)) < 0.005 for k, one in enumerate(middle))
    assert 0.2 < max(new) <= 0.4
    assert histogram.read(shown(110.0, 260.0, 261.0)) == []
    # The server has started again: all it shows is new, also what another engine has kept.
    assert sum(latency <= 0.1 for latency in histogram.read(shown(3.0, 3.0, 3.0))) == 4


@pytest.mark.parametrize(
    "text", [b"", b"a 1\n", b'a_bucket{le="x"} 1\n', b'a_bucket{le="1"} NaN\n']
)
def test_an_answer_without_it_has_failed(text):
    with pytest.raises(ValueError, match=r"histogram a|NaN|'x'"):
        ServersHistogram("a").read(text)


def test_scrapes_are_iterations_and_the_servers_requests_the_latencies(page):
    def answer(number):
        return OK.removesuffix(b"fine") + shown(0, 100 * number, 100 * number)

    name = "vllm:time_to_first_token_seconds"
    with server(answer) as how:
        report = probed(how, page, lambda report: report.answered >= 7, histogram=name)
    assert sum(report.counts) == 100 * (report.answered - 1)
    assert 0.19 < tail_of(counted(report)).p99_s < 0.21
