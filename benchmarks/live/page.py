"""What the page costs: first paint, an event to the screen, and 100 viewers against none.

    python benchmarks/live/page.py [--viewers 100] [--rounds 3] [--realtime]

The service runs in a process of its own, on a simulated pool of eight devices with fifty jobs. Ends
of jobs alternate between no viewers and many, so that both see the same machine. Needs Chromium,
and about a minute and a half. What it is doing is on standard error.

With ``--realtime`` (for root), all processes have real-time priority, so that other programs of a
busy machine hardly matter.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TypeVar

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))

from dovetail.executor.jobs.states import HOLDING, JobState
from dovetail.executor.live.views import JobView
from dovetail.live.client import Client
from tests.api.browser import Browser, browser

ENDS = 4
"""Jobs that are ended in each round, with and without viewers."""

LOADS = 10
CHANGES = 10

LIMIT_S = 300
"""After this time it gives up, whatever it waits for."""

_START_S = 10.0
_END_S = 5.0

_T = TypeVar("_T")

PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
ARRIVED = "performance.getEntriesByType('navigation')[0].responseEnd"
WATCH = """(() => { window.seen = 0; new MutationObserver(() => {
  if (document.body.innerText.includes('held by')) window.seen ||= Date.now();
}).observe(document.body, {subtree: true, childList: true, characterData: true});
return true })()"""


def say(text: str) -> None:
    """Say what is going on."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def soon(ask: Callable[[], _T], within_s: float) -> _T | None:
    """Return the first answer that is true; None if there is none in time."""
    until_s = time.monotonic() + within_s
    while not (found := ask()):
        if time.monotonic() > until_s:
            return None
        time.sleep(0.05)
    return found


@contextmanager
def service() -> Iterator[tuple[psutil.Process, str, str, str]]:
    """Run the service; yield its process, its address, a token, and its socket."""
    program = Path(__file__).with_name("page_service.py")
    process = subprocess.Popen(
        [sys.executable, str(program), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"(\S+) \(token (\w+)\); socket (\S+)", line)
        assert found is not None, f"the service says {line!r}"
        yield psutil.Process(process.pid), found[1], found[2], found[3]
    finally:
        process.terminate()
        try:
            process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


async def look(where: str, count: int, stop: threading.Event, taken: list[int]) -> None:
    """Have many viewers look at the overview until told to stop."""

    async def one() -> None:
        reader, writer = await asyncio.open_unix_connection(where)
        writer.write(b"GET /events?page=/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while chunk := await reader.read(1 << 16):
            taken[0] += len(chunk)

    tasks = [asyncio.create_task(one()) for _ in range(count)]
    while not stop.is_set():
        await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def viewers(where: str, count: int) -> Iterator[list[int]]:
    """Let viewers look while the block runs; yield the bytes that they took."""
    stop, taken = threading.Event(), [0]
    thread = threading.Thread(
        target=lambda: asyncio.run(look(where, count, stop, taken)), daemon=True
    )
    thread.start()
    time.sleep(2)
    try:
        yield taken
    finally:
        stop.set()
        thread.join(_END_S)


@dataclass
class Ends:
    """What was seen while jobs were ended: seconds, bytes, and ends without a start after them."""

    decided_s: list[float] = field(default_factory=list)
    started_s: list[float] = field(default_factory=list)
    startless: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    taken: int = 0


def holding(client: Client) -> dict[str, JobView]:
    """Return the jobs on devices."""
    return {job.id: job for job in client.jobs() if job.state in HOLDING}


def end_one(client: Client, into: Ends) -> None:
    """End a job, and note when the next one starts and how long the decision took."""
    before = holding(client)
    ended = next(job for job in before.values() if job.state is JobState.RUNNING)
    # So that one waits that may take its place.
    like = {"name": ended.name, "workload": ended.workload, "memory_mib": ended.memory_mib}
    client.submit([{**like, "command": ["train", "work_s=900"], "cwd": "/", "grace_s": 0.0}])
    time.sleep(0.5)
    before = holding(client)
    client.cancel(ended.id, 0.0)
    new = soon(lambda: holding(client).keys() - before, _START_S)
    ended_s = client.job(ended.id, _END_S).ended_s
    if not new or ended_s is None:
        into.startless += 1
        return
    history = client.job(min(new)).history
    into.started_s.append(
        next(step.at_s for step in history if step.state is JobState.STARTING) - ended_s
    )
    into.decided_s.append(client.service().decide_s or 0.0)


def end_some(client: Client, process: psutil.Process, where: str, count: int, into: Ends) -> None:
    """End jobs, with viewers or without."""
    with viewers(where, count) as taken:
        used, began_s, had = process.cpu_times(), time.monotonic(), taken[0]
        for _ in range(ENDS):
            end_one(client, into)
        now = process.cpu_times()
        into.cpu_s += now.user + now.system - used.user - used.system
        into.wall_s += time.monotonic() - began_s
        into.taken += taken[0] - had


def painted(tab: Browser, url: str, token: str) -> tuple[list[float], list[float]]:
    """Return the milliseconds until the page has arrived and until its first paint, of some loads.

    Each is in a process of its own.
    """
    tab.look(1280)
    tab.goto(f"{url}/login")
    tab.value(f"document.getElementById('token').value = '{token}'")
    tab.value("document.forms[0].submit()")
    tab.until("location.pathname === '/' && document.readyState === 'complete'")
    arrived, found = [], []
    for _ in range(LOADS):
        tab.goto("about:blank#")
        tab.send("Network.clearBrowserCache")
        tab.send("Page.navigate", url=url + "/")
        found.append(tab.until(PAINT))
        arrived.append(tab.value(ARRIVED))
    return arrived, found


def seen(tab: Browser, client: Client, url: str) -> list[float]:
    """Return the milliseconds from a request that changes a job until the page shows it."""
    job = client.jobs()[-1].id
    found = []
    for _ in range(CHANGES):
        tab.goto(f"{url}/jobs/{job}")
        tab.until("document.getElementById('live').textContent === 'live'")
        time.sleep(1.3)
        tab.value(WATCH)
        asked_s = time.time()
        client.hold(job)
        found.append(tab.until("window.seen") - 1000 * asked_s)
        client.release(job)
    return found


def tell(name: str, found: Sequence[float], scale: float = 1.0) -> None:
    """Print median and maximum."""
    figures = "nothing was seen"
    if found:
        middle = scale * statistics.median(found)
        figures = f"median {middle:.1f}, max {scale * max(found):.1f}, of {len(found)}"
    print(f"{name}: {figures}", flush=True)


def gives_up(_signal: int, _frame: FrameType | None) -> None:
    """End it."""
    raise TimeoutError(f"not done after {LIMIT_S} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--viewers", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--realtime", action="store_true")
    options = parser.parse_args()
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    signal.signal(signal.SIGALRM, gives_up)
    signal.alarm(LIMIT_S)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    say("a service begins")
    with service() as (process, url, token, where), Client(where) as client:
        soon(lambda: len(holding(client)) >= 16, 15.0)
        with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as tab:
            say(f"{LOADS} loads of the overview")
            arrived, paints = painted(tab, url, token)
            tell("the whole page has arrived, ms", arrived)
            tell("first paint, ms", paints)
            say(f"{CHANGES} changes of a job")
            tell("an event to the screen, ms", seen(tab, client, url))
        seen_by = {0: Ends(), options.viewers: Ends()}
        for number in range(options.rounds):
            for count, into in seen_by.items():
                say(f"round {number + 1} of {options.rounds}: ends of jobs with {count} viewers")
                end_some(client, process, where, count, into)
        for count, into in seen_by.items():
            tell(f"{count} viewers: a decision, ms", into.decided_s, 1000.0)
            tell(f"{count} viewers: from an end to the next start, ms", into.started_s, 1000.0)
            print(f"{count} viewers: ends without a start within {_START_S:g} s: {into.startless}")
            print(f"{count} viewers: {into.cpu_s / into.wall_s:.0%} of a core")
            if count:
                print(f"bytes a viewer a second: {into.taken / count / into.wall_s:,.0f}")
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
