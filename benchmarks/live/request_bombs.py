"""The effect on another user of requests by which one user could take a service down.

Needs root: a separate service is started on a simulated cluster, with two users over TCP. One
sends the bombs, the other keeps asking for ``GET /v1/service``. For each bomb: the longest wait of
the other user, the CPU seconds of the service, its peak memory, and the answers.

    python benchmarks/live/request_bombs.py [--jobs 9000]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple

USERS = ("nobody", "daemon")
"""Who sends the bombs, and who asks meanwhile."""

_SETTLE_S = 2.0
_TIMEOUT_S = 300.0


class Felt(NamedTuple):
    """What a bomb did.

    Attributes
    ----------
    worst_s : float
        The longest that the other user waited for an answer.
    cpu_s : float
        CPU seconds of the service.
    peak_mib : float
        The most memory that it has had so far.
    answers : Counter of int
        HTTP statuses of the bomb's requests; 0: the connection broke.
    """

    worst_s: float
    cpu_s: float
    peak_mib: float
    answers: Counter[int]


@dataclass(frozen=True)
class Served:
    """A service in a process of its own, and its users."""

    pid: int
    port: int
    tokens: dict[str, str]

    def ask(self, user: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return status and answer of a request; status 0 where the connection breaks."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT_S)
        heads = {
            "Authorization": f"Bearer {self.tokens[user]}",
            "Content-Type": "application/json",
        }
        try:
            connection.request(method, f"/v1/{path}", body and json.dumps(body), heads)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, HTTPException):
            return 0, None
        finally:
            connection.close()

    def at_once(self, requests: list[tuple[Any, ...]]) -> Counter[int]:
        """Send requests of the bomber, all at once; return how often each status came."""
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda each=each: found.append(self.ask(USERS[0], *each)[0]))
            for each in requests
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return Counter(found)

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def peak_mib(self) -> float:
        """The most memory so far."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


@contextmanager
def served(home: Path, *options: str) -> Iterator[Served]:
    """Run ``dovetail serve`` in a directory."""
    tokens = {user: secrets.token_hex(16) for user in USERS}
    listed = home / "tokens"
    listed.write_text("".join(f"{user} {token}\n" for user, token in tokens.items()))
    listed.chmod(0o600)
    command = [sys.executable, "-m", "dovetail", "serve", "--json", "--directory", str(home)]
    command += ["--pool", "simulated:library:lab", "--socket", str(home / "api.sock")]
    command += ["--listen", "127.0.0.1:0", "--tokens", str(listed), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            text = "".join(iter(process.stdout.readline, "}\n")) + "}"
            yield Served(process.pid, json.loads(text)["port"], tokens)
        finally:
            process.terminate()
            process.wait()


class Waiting:
    """The other user, who asks again and again; keeps the longest wait."""

    def __init__(self, service: Served) -> None:
        self.waits_s: list[float] = []
        self._service, self._ending = service, threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        while not self._ending.wait(0.02):
            began = time.monotonic()
            status, _ = self._service.ask(USERS[1], "GET", "service")
            assert status == 200, status
            self.waits_s.append(time.monotonic() - began)

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()


def felt(service: Served, bomb: Callable[[], Counter[int]]) -> Felt:
    """Return what a bomb does to the service and to the other user."""
    before_s = service.cpu_s
    with Waiting(service) as other:
        time.sleep(0.3)
        answers = bomb()
        time.sleep(0.3)
    return Felt(max(other.waits_s), service.cpu_s - before_s, service.peak_mib, answers)


def different_jobs(count: int) -> list[dict[str, Any]]:
    """Return jobs that are different in all that a round looks at, and run for long."""
    return [
        {
            "command": ["train", "work_s=1000000"],
            "workload": f"w{k}",
            "cwd": "/",
            "nice": k % 41 - 20,
            "memory_mib": 10 + k % 300,
            "gsla": 1 + k % 50 / 10,
            "estimate_s": 10 + k,
            "weight": 0.1 + k % 90 / 10,
            "workers": 1 + k % 2,
            "priority": "batch" if k % 7 else "latency",
        }
        for k in range(count)
    ]


def array_bomb() -> dict[str, Any]:
    """Return a request of 1.8 MB that is 17.5 GB job by job."""
    env = {f"V{k}": "x" * 125_000 for k in range(14)}
    job = {"command": ["true"], "workload": "w", "cwd": "/", "env": env, "held": True}
    return {"jobs": [{**job, "array": list(range(10_000))}]}


def never_read(service: Served, path: str, count: int) -> Counter[int]:
    """Ask over so many connections and read nothing of the answers for a while."""
    token = service.tokens[USERS[0]]
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(count):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
            raw.sendall(head)
        time.sleep(3 * _SETTLE_S)
    return Counter()


def half_heads(service: Served, count: int) -> Counter[int]:
    """Open so many connections without a token, and send the beginning of a request."""
    with ExitStack() as stack:
        for _ in range(count):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
            raw.sendall(b"GET /v1/service HTTP/1.1\r\nX: ")
        time.sleep(_SETTLE_S)
    return Counter()


def quiet() -> Counter[int]:
    """Do nothing for a while."""
    time.sleep(_SETTLE_S)
    return Counter()


def campaign(service: Served, jobs: int) -> Iterator[tuple[str, Felt]]:
    """Yield each bomb, and what was felt of it, after one round in which nothing happens."""
    yield "nothing", felt(service, quiet)
    all_jobs = different_jobs(jobs)
    posts = [("POST", "jobs", {"jobs": all_jobs[k : k + 1000]}) for k in range(0, jobs, 1000)]
    yield f"{jobs} jobs, all different", felt(service, lambda: service.at_once(posts))
    yield "nothing, with these jobs", felt(service, quiet)
    waiting = [each["id"] for each in service.ask(USERS[0], "GET", "jobs?limit=60")[1]]
    bombs: dict[str, Callable[[], Counter[int]]] = {
        "60 explanations": lambda: service.at_once(
            [("GET", f"jobs/{name}/explanation") for name in waiting]
        ),
        "40 plans": lambda: service.at_once([("GET", "plan")] * 40),
        "100 lists": lambda: service.at_once([("GET", "jobs")] * 100),
        "60 lists, never read": lambda: never_read(service, "/v1/jobs", 60),
        "300 waiters": lambda: service.at_once([("GET", f"jobs/{waiting[0]}?wait_s=3")] * 300),
        "2,000 half heads": lambda: half_heads(service, 2000),
    }
    for name, bomb in bombs.items():
        yield name, felt(service, bomb)


def an_array(service: Served) -> Iterator[tuple[str, Felt]]:
    """Yield what was felt of the array bomb."""
    post = [("POST", "jobs", array_bomb())]
    yield "array bomb", felt(service, lambda: service.at_once(post))


def main() -> None:
    """Print a line for each bomb."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=9000)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    row = "{:<28} {:>8} {:>8} {:>9}  {}".format
    print(row("bomb", "worst s", "CPU s", "peak MiB", "answers"), flush=True)
    for jobs in (options.jobs, 0):
        with tempfile.TemporaryDirectory(prefix="dove-") as home, served(Path(home)) as service:
            for name, one in campaign(service, jobs) if jobs else an_array(service):
                figures = (f"{one.worst_s:.2f}", f"{one.cpu_s:.1f}", f"{one.peak_mib:.0f}")
                print(row(name, *figures, dict(one.answers)), flush=True)


if __name__ == "__main__":
    main()
