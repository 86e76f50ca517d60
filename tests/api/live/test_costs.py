"""What one user asks for costs the service, and other users, no more than a bound."""

import json
import os
import secrets
import shutil
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from benchmarks.live import request_bombs
from tests.api.live.services import ME, OTHER, served

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root's service has users with limits"
)

MOST_GROWTH_MIB = 400
"""By all that one user may have in a service, at any moment."""


class Asking:
    """Requests of one user over TCP."""

    def __init__(self, port, token):
        self.port, self._token = port, token

    def ask(self, method, path, body=None, timeout_s=300.0):
        connection = HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        heads = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            connection.request(method, f"/v1/{path}", body and json.dumps(body), heads)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


def job(**changes):
    return {"command": ["true"], "workload": "w", "cwd": "/", "held": True, **changes}


def peak_mib(process, what="VmHWM"):
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def disk_mib(folder):
    return sum(path.stat().st_size for path in folder.glob("journal.db*")) / 2**20


@contextmanager
def service(home, *options):
    tokens = {user: secrets.token_hex(16) for user in (ME, OTHER)}
    listed = home / "tokens"
    listed.write_text("".join(f"{user} {token}\n" for user, token in tokens.items()))
    listed.chmod(0o600)
    common = ("--json", "--pool", "simulated:library:lab", "--socket", home / "api.sock")
    tcp = ("--listen", "127.0.0.1:0", "--tokens", listed)
    with served(home, *common, *tcp, *options) as (process, line):
        # Its start reads what is in the journal.
        text = line + "".join(iter(process.stdout.readline, "}\n")) + "}"
        port = json.loads(text)["port"]
        yield process, Asking(port, tokens[OTHER]), Asking(port, tokens[ME])


@pytest.fixture
def home(short_path):
    yield short_path
    shutil.rmtree(short_path / "runs", ignore_errors=True)


ENVIRONMENT = {f"V{k}": "x" * 125_000 for k in range(14)}
LONG = ["true", "y" * 90_000]


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("bombs", ["an_array", "campaign"])
def test_another_user_hardly_feels_the_bombs(home, bombs):
    """By the clock, but against what the same requests take while nothing else happens."""
    with request_bombs.served(home) as service:
        found = dict(
            request_bombs.campaign(service, 1000)
            if bombs == "campaign"
            else request_bombs.an_array(service)
        )
        found["nothing, at the end"] = request_bombs.felt(service, request_bombs.quiet)
    usual_s = max(one.worst_s for name, one in found.items() if "nothing" in name)
    for name, one in found.items():
        assert one.worst_s < 1 + 5 * usual_s, (name, one, usual_s)
        assert one.peak_mib < 700, (name, one)
        assert set(one.answers) <= {200, 201, 429}, (name, one)


class TestProductOfLimits:
    def test_of_an_array_and_its_environment(self, home):
        with service(home) as (process, bob, root):
            bob.ask("GET", "service")
            before = peak_mib(process)
            status, found = bob.ask(
                "POST", "jobs", {"jobs": [job(env=ENVIRONMENT, array=list(range(10_000)))]}
            )
            assert status == 201, found
            assert len(found["ids"]) == 10_000
            assert peak_mib(process) - before < MOST_GROWTH_MIB
            assert disk_mib(home) < 60
            assert bob.ask("GET", "jobs/j5000")[1]["state"] == "submitted"
            assert root.ask("GET", "service")[0] == 200
        with service(home) as (process, bob, _):
            # And so after a restart, with all of it read from the journal.
            assert bob.ask("GET", "jobs/j10000")[1]["state"] == "submitted"
            assert peak_mib(process) - before < MOST_GROWTH_MIB
            status, found = bob.ask("POST", "jobs", {"jobs": [job(array=[0])]})
            assert status == 403
            assert "may have 10000 waiting jobs" in found["error"]

    def test_of_many_jobs_with_words_of_their_own(self, home):
        with service(home, "--user-mib", "32") as (process, bob, _):
            bob.ask("GET", "service")
            before = peak_mib(process)
            answers = [
                bob.ask("POST", "jobs", {"jobs": [job(env={**ENVIRONMENT, "K": str(k)})]})
                for k in range(20)
            ]
            assert [status for status, _ in answers] == [201] * 19 + [403]
            assert answers[-1][1]["error"].startswith(
                f"{OTHER} may have 32 MiB for commands and environments of jobs not over, has 31."
            )
            assert peak_mib(process) - before < MOST_GROWTH_MIB
            # Edits are charged, too.
            edits = [bob.ask("PATCH", f"jobs/j{k}", {"command": LONG}) for k in range(1, 6)]
            assert (edits[0][0], edits[-1][0]) == (200, 403)
            assert bob.ask("PATCH", "jobs/j5", {"nice": 3})[0] == 200
            assert bob.ask("POST", "jobs/j6/cancel")[0] == 200
            assert bob.ask("POST", "jobs", {"jobs": [job(env=ENVIRONMENT)]})[0] == 201
