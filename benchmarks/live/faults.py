"""The fault campaign of live mode: faults injected on purpose, and what must survive them.

    python benchmarks/live/faults.py [--pool simulated|cpu] [--seed 0] [--rounds 60] [FAULT ...]

Every service is a process of its own, and every SIGKILL a real one. With ``--pool cpu`` jobs are
real processes too. After each run: no acknowledged job is lost, none is started twice (by the
starts that its ranks recorded), no process is left, and the journal can be read.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from invariants import violations
from load import (
    ME,
    Client,
    CommandOf,
    Deed,
    ShellCommand,
    StuckError,
    UntilCommand,
    deeds,
    left_behind,
    noted_starts,
    points_of,
    simulated_command,
    simulated_starts,
    spec_of,
    truth,
    verdict,
)
from service_process import LONGEST_S, Cores, ServiceGoneError, ServiceProcess, Setup, Simulated

from dovetail.executor.jobs.journal import JOURNAL, read_events, read_state_machine
from dovetail.executor.jobs.journal_lock import JournalError
from dovetail.executor.live.errors import BusyError
from dovetail.executor.pools.pool import NodePool
from dovetail.executor.system.directories import LOCK

_YEAR_S: Final = 365 * 86400.0
_FLOOD: Final = 10_000
_LONG: Final = 60
"""From so many rounds on, services are killed at every point, and 10,000 jobs flood one."""


@dataclass(frozen=True)
class Kind:
    """A kind of pool that the campaign is run on.

    Attributes
    ----------
    name : str
        Of the pool.
    make_pool : callable
        As in ``Setup``.
    brief_s : float
        How long a brief job runs.
    """

    name: str
    make_pool: Callable[[Path], NodePool]
    brief_s: float

    def command(self, directory: Path) -> CommandOf:
        """Return how a deed is written as a command."""
        if self.name == "simulated":
            return simulated_command
        return ShellCommand(directory / "starts")

    def starts(self, directory: Path) -> list[str]:
        """Return a line for each start of a rank."""
        if self.name == "simulated":
            return simulated_starts(directory)
        return noted_starts(directory / "starts")


SIMULATED: Final = Kind("simulated", Simulated(truth()), brief_s=0.1)
CPU: Final = Kind("cpu", Cores(), brief_s=0.3)


@dataclass
class Tally:
    """What one kind of fault came to.

    Attributes
    ----------
    runs, deaths, jobs, starts : int
        Times it was tried, services that were killed, jobs that were accepted, and ranks that
        were started.
    notes : Counter
        What else is worth counting.
    wrong : list of str
        What should not have been.
    """

    runs: int = 0
    deaths: int = 0
    jobs: int = 0
    starts: int = 0
    notes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add what another run came to."""
        self.runs += other.runs
        self.deaths += other.deaths
        self.jobs += other.jobs
        self.starts += other.starts
        self.notes += other.notes
        self.wrong += other.wrong


@contextmanager
def state_directory() -> Iterator[Path]:
    """Yield a fresh directory; nothing of it is left."""
    directory = Path(tempfile.mkdtemp(prefix="dovetail-faults-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def settled(
    client: Client, kind: Kind, directory: Path, todo: Sequence[Deed], forgetful: bool = False
) -> Tally:
    """Let all jobs end, and say what came of it; ``forgetful`` as in ``verdict``."""
    try:
        client.settle()
    except StuckError as error:
        return Tally(1, client.deaths, len(todo), 0, wrong=[str(error)])
    starts = kind.starts(directory)
    wrong = verdict(directory, client.acknowledged, todo, starts, forgetful)
    return Tally(1, client.deaths, len(todo), len(starts), wrong=wrong)


# The faults.


def killed(kind: Kind, kills: Sequence[int]) -> Tally:
    """Kill services one after another, each at its point; the one after them lives."""
    with state_directory() as directory:
        todo = deeds(kind.brief_s)
        setup = Setup(directory, kind.make_pool)
        client = Client(setup, todo, kind.command(directory), kills)
        tally = settled(client, kind, directory, todo)
        died = [line.removeprefix("died ") for line in points_of(directory) if "died" in line]
        tally.notes.update(died)
        tally.wrong = [f"killed {' and '.join(died)}: {wrong}" for wrong in tally.wrong]
        return tally


def killed_at_every_point(kind: Kind, step: int = 1) -> Tally:
    """Kill the service once at each point of its life, or at every ``step``-th."""
    total = Tally()
    for point in range(1, 10_000, step):
        tally = killed(kind, [point])
        total.add(tally)
        if not tally.deaths:
            return total
    return total


def killed_again_and_again(kind: Kind, draw: random.Random, times: int) -> Tally:
    """Kill one service after another at random points, soon after its start or later."""
    total = Tally()
    for _ in range(times):
        total.add(killed(kind, [draw.randint(1, draw.choice((6, 60))) for _ in range(5)]))
    return total


def killed_at_any_time(kind: Kind, draw: random.Random, times: int) -> Tally:
    """Kill services from outside, after random times: within a transaction, say."""
    total = Tally()
    for _ in range(times):
        with state_directory() as directory:
            todo = deeds(kind.brief_s)
            client = Client(Setup(directory, kind.make_pool), todo, kind.command(directory))
            for _ in range(5):
                until = time.monotonic() + draw.uniform(0.0, 4 * kind.brief_s)
                while time.monotonic() < until:
                    client.step()
                client.restart()
            total.add(settled(client, kind, directory, todo))
    return total


def disk_full(kind: Kind) -> Tally:
    """Fill the disk while jobs run: requests are refused, jobs run on, and all go on later."""
    with state_directory() as directory:
        first, later = Deed("first", 4 * kind.brief_s), Deed("later", kind.brief_s)
        command = kind.command(directory)
        client = Client(Setup(directory, kind.make_pool), [first], command)
        while not _begun(client):
            client.step()
        client.service.ask("fill_disk")
        wrong = [] if _refused(client, later, command) else ["a job was accepted on a full disk"]
        wrong += [] if _refused(client, later, command) else ["a job was accepted on a full disk"]
        time.sleep(5 * kind.brief_s)
        until = time.monotonic() + LONGEST_S
        while not client.service.ask("service").trouble:
            if time.monotonic() > until:
                wrong.append("the service says nothing of its full disk")
                break
            time.sleep(kind.brief_s)
        client.service.ask("free_disk")
        client.add(later)
        tally = settled(client, kind, directory, [first, later])
        tally.notes["requests refused"] += 2
        tally.wrong += wrong
        return tally


def _begun(client: Client) -> bool:
    """Return whether a job runs, or has run: on a busy machine it may be over when one looks."""
    return any(view.started_s is not None for view in client.service.ask("jobs", True))


def _refused(client: Client, deed: Deed, command: CommandOf) -> bool:
    try:
        client.service.ask("submit", [spec_of(deed, command)], ME)
    except BusyError:
        return True
    return False


def jobs_killed(kind: Kind, draw: random.Random, kills: int) -> Tally:
    """Kill processes of jobs, and those that guard them, while the service lives (``cpu``)."""
    with state_directory() as directory:
        again = {"retries": 2 * kills}
        todo = [
            Deed(f"sturdy-{k}", math.inf, starts=(1, kills + 1), fields=again) for k in range(4)
        ]
        enough = directory / "enough"
        command = UntilCommand(directory / "starts", enough)
        client = Client(Setup(directory, kind.make_pool), todo, command)
        killed = 0
        while killed < kills and not client.step():
            victims = left_behind(directory)
            if victims and draw.random() < 0.2:
                with suppress(ProcessLookupError):
                    os.kill(draw.choice(victims), signal.SIGKILL)
                    killed += 1
        enough.touch()
        tally = settled(client, kind, directory, todo)
        tally.notes["processes killed"] += killed
        return tally


def clock_set(kind: Kind, shift_s: float) -> Tally:
    """Set the time of day while jobs run, and kill the service: another reads the new time."""
    with state_directory() as directory:
        todo = (
            *deeds(kind.brief_s),
            Deed("patient", 6 * kind.brief_s, fields={"walltime_s": 60.0}),
        )
        client = Client(Setup(directory, kind.make_pool), todo, kind.command(directory))
        while not _begun(client):
            client.step()
        client.service.ask("set_clock", shift_s)
        for _ in range(20):
            client.step()
        client.setup = replace(client.setup, shift_s=shift_s)
        client.restart()
        tally = settled(client, kind, directory, todo)
        times = [entry.event.at_s for entry in read_events(directory)]
        if times != sorted(times):
            tally.wrong.append("the journal's clock went back")
        return tally


def journal_cut(kind: Kind, draw: random.Random) -> Tally:
    """Kill the service and cut its log short, as a disk that lied about what it had written."""
    with state_directory() as directory:
        todo = deeds(kind.brief_s)
        setup = Setup(directory, kind.make_pool)
        client = Client(setup, todo, kind.command(directory), [draw.randint(3, 100)])
        with suppress(ServiceGoneError):
            while not client.ask_for_all():
                pass
        client.service.kill()
        events = _events(directory)
        log = directory / f"{JOURNAL}-wal"
        size = log.stat().st_size if log.exists() else 0
        if size:
            with log.open("r+b") as file:
                file.truncate(draw.randint(size // 2, size - 1))
        # The number of events that were on that disk is as old as they are.
        (directory / LOCK).unlink()
        left = _events(directory)
        client.begin_anew()
        tally = settled(client, kind, directory, todo, forgetful=True)
        tally.notes["events lost"] += events - left
        return tally


def _events(directory: Path) -> int:
    """Return how many events are in a journal; a log cut before the first one leaves none."""
    try:
        return read_state_machine(directory).sequence
    except JournalError:
        return 0


def two_services(kind: Kind) -> Tally:
    """Start a second service in the directory of the first: it is refused in one line."""
    with state_directory() as directory:
        todo = deeds(kind.brief_s)
        setup = Setup(directory, kind.make_pool)
        client = Client(setup, todo, kind.command(directory))
        wrong = []
        for _ in range(3):
            client.step()
            try:
                ServiceProcess(setup).kill()
                wrong.append("a second service was let in")
            except JournalError as error:
                if str(client.service.pid) not in str(error) or "\n" in str(error):
                    wrong.append(f"not one line with the pid: {error}")
        tally = settled(client, kind, directory, todo)
        tally.notes["services refused"] += 3
        tally.wrong += wrong
        return tally


def garbage(kind: Kind, draw: random.Random, pieces: int) -> Tally:
    """Send nonsense to the service's socket while jobs run, and leave in the midst of requests."""
    with state_directory() as directory:
        todo = deeds(kind.brief_s)
        path = directory / "api.sock"
        setup = Setup(directory, kind.make_pool, socket=path)
        client = Client(setup, todo, kind.command(directory))
        for _ in range(pieces):
            _send(path, _nonsense(draw))
            client.step()
        answer = _send(
            path, b"GET /openapi.json HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n", True
        )
        tally = settled(client, kind, directory, todo)
        tally.notes["pieces of garbage"] += pieces
        if not answer.startswith(b"HTTP/1.1 200"):
            tally.wrong.append(f"it does not answer any more: {answer[:100]!r}")
        if tally.deaths:
            tally.wrong.append("the service died of it")
        return tally


def _nonsense(draw: random.Random) -> bytes:
    noise = draw.randbytes(draw.choice((1, 100, 100_000)))
    body = b"POST /v1/jobs HTTP/1.1\r\nHost: d\r\nContent-Type: application/json\r\n"
    return draw.choice(
        (
            noise,
            b"GET /" + noise,
            body + b"Content-Length: 1000000\r\n\r\n" + noise,
            body + f"Content-Length: {len(noise)}\r\n\r\n".encode() + noise,
            body + b"Content-Length: -5\r\n\r\n{}",
            body + b"Content-Length: 4\r\n\r\n[[[[",
        )
    )


def _send(path: Path, data: bytes, listen: bool = False) -> bytes:
    """Send data to a socket, and return what comes back if it is to be listened to."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LONGEST_S)
        connection.connect(str(path))
        # A server that does not understand a request may hang up before its end.
        with suppress(OSError):
            connection.sendall(data)
        return connection.recv(1000) if listen else b""


def flood(kind: Kind, jobs: int) -> Tally:
    """Submit very many jobs from 64 threads at once, and kill the service in the midst."""
    with state_directory() as directory:
        setup = Setup(directory, kind.make_pool)
        command = kind.command(directory)
        specs = [spec_of(Deed(f"flood-{k}", kind.brief_s), command) for k in range(jobs)]
        calls = [([spec], ME) for spec in specs]
        service = ServiceProcess(setup)
        accepted = directory / "accepted"
        service.tell("at_once", "submit", calls, accepted)
        while len(noted_starts(accepted)) < jobs // 2:
            time.sleep(0.002)
        service.kill()
        again = ServiceProcess(setup)
        there = {view.name for view in again.ask("jobs", True)}
        missing = [call for call in calls if call[0][0].name not in there]
        began = time.monotonic()
        again.ask("at_once", "submit", missing, accepted)
        took_s = time.monotonic() - began
        again.ask("at_once", "cancel", [(name, ME) for name in noted_starts(accepted)], accepted)
        while again.ask("jobs"):
            time.sleep(0.05)
        again.stop()
        tally = _flooded(kind, directory, jobs, set(noted_starts(accepted)))
        tally.notes["submissions a second"] = round(len(missing) / took_s)
        return tally


def _flooded(kind: Kind, directory: Path, jobs: int, accepted: set[str]) -> Tally:
    machine, starts = read_state_machine(directory), kind.starts(directory)
    names = {job.spec.name for job in machine.jobs.values()}
    lost, twice = accepted - machine.jobs.keys(), len(starts) - len(set(starts))
    tally = Tally(1, 1, len(machine.jobs), len(starts))
    tally.wrong += [f"{len(lost)} jobs were acknowledged and are lost"] if lost else []
    tally.wrong += (
        [] if len(names) == len(machine.jobs) == jobs else ["not every job is there once"]
    )
    tally.wrong += [f"{twice} ranks were started twice"] if twice else []
    tally.wrong += [f"journal: {violation}" for violation in violations(machine)]
    tally.wrong += [f"process {pid} is an orphan" for pid in left_behind(directory)]
    return tally


# The campaign.


def campaign(kind: Kind, seed: int, rounds: int) -> dict[str, Callable[[], Tally]]:
    """Return every fault by its name; those that are drawn share the rounds, others come once."""
    draw = random.Random(seed)
    short = rounds < _LONG
    times = rounds // (4 if kind is CPU else 3)
    faults = {
        "service killed at every point": lambda: killed_at_every_point(kind, 13 if short else 1),
        "killed again and again": lambda: killed_again_and_again(kind, draw, times),
        "killed at any time": lambda: killed_at_any_time(kind, draw, times),
        "disk full": lambda: disk_full(kind),
        "clock a year ahead": lambda: clock_set(kind, _YEAR_S),
        "clock a year back": lambda: clock_set(kind, -_YEAR_S),
        "journal cut short": lambda: repeated(times, lambda: journal_cut(kind, draw)),
        "two services": lambda: two_services(kind),
        "garbage on the socket": lambda: garbage(kind, draw, 20 if short else 300),
        "flood": lambda: flood(kind, 300 if short else _FLOOD),
    }
    if kind is CPU:
        faults["jobs killed"] = lambda: repeated(times, lambda: jobs_killed(kind, draw, 3))
    return faults


def repeated(times: int, fault: Callable[[], Tally]) -> Tally:
    """Return what a fault comes to in several runs."""
    total = Tally()
    for _ in range(times):
        total.add(fault())
    return total


def main() -> None:
    """Run the campaign and print its counts; exit with status 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pool", choices=("simulated", "cpu"), default="simulated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rounds", type=int, default=60, help="of the faults that are drawn at random"
    )
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="part of a name; default: all")
    options = parser.parse_args()
    kind = CPU if options.pool == "cpu" else SIMULATED
    wrong = 0
    print(f"{'fault':<32}{'runs':>6}{'killed':>8}{'jobs':>8}{'starts':>8}{'wrong':>7}{'s':>8}")
    for name, fault in campaign(kind, options.seed, options.rounds).items():
        if options.faults and not any(part in name for part in options.faults):
            continue
        began = time.monotonic()
        tally = fault()
        took = f"{time.monotonic() - began:.1f}"
        counts = f"{tally.runs:>6}{tally.deaths:>8}{tally.jobs:>8}{tally.starts:>8}"
        print(f"{name:<32}{counts}{len(tally.wrong):>7}{took:>8}", flush=True)
        for note, count in tally.notes.items():
            print(f"    {note}: {count}")
        for what in tally.wrong:
            print(f"  WRONG {what}")
        wrong += len(tally.wrong)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
