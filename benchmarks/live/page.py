"""What the page costs: first paint, an event to the screen, and 100 viewers against none.

    python benchmarks/live/page.py [--viewers 100] [--rounds 3]

The service runs in a process of its own, on a simulated pool of eight devices with fifty jobs. Ends
of jobs alternate between no viewers and many, so that both see the same machine. Needs Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))

from dovetail.executor.jobs.states import HOLDING, JobState
from dovetail.live.client import Client
from tests.api.browser import Browser, browser

ENDS = 4
"""Jobs that are ended in each round, with and without viewers."""

PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
WATCH = """(() => { window.seen = 0; new MutationObserver(() => {
  if (document.body.innerText.includes('held by')) window.seen ||= Date.now();
}).observe(document.body, {subtree: true, childList: true, characterData: true});
return true })()"""


@contextmanager
def service() -> Iterator[tuple[psutil.Process, str, str, str]]:
    """Run the service; yield its process, its address, a token, and its socket."""
    program = Path(__file__).with_name("page_service.py")
    with subprocess.Popen(
        [sys.executable, str(program), "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            url, token, where = re.match(r"(\S+) \(token (\w+)\); socket (\S+)", line).groups()
            yield psutil.Process(process.pid), url, token, where
        finally:
            process.terminate()


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


@contextmanager
def viewers(where: str, count: int) -> Iterator[list[int]]:
    """Let viewers look while the block runs; yield the bytes that they took."""
    stop, taken = threading.Event(), [0]
    thread = threading.Thread(target=lambda: asyncio.run(look(where, count, stop, taken)))
    thread.start()
    time.sleep(2)
    try:
        yield taken
    finally:
        stop.set()
        thread.join()


def ends(client: Client) -> tuple[list[float], list[float]]:
    """End jobs; return the seconds of each decision, and from each end to the next start."""
    decided, started = [], []
    for _ in range(ENDS):
        running = next(job for job in client.jobs() if job.state is JobState.RUNNING)
        before = {job.id for job in client.jobs() if job.state in HOLDING}
        client.cancel(running.id, 0.0)
        while not (new := {j.id for j in client.jobs() if j.state in HOLDING} - before):
            time.sleep(0.02)
        ended_s = client.wait(running.id).ended_s
        begun = [s.at_s for s in client.job(min(new)).history if s.state is JobState.STARTING]
        started.append(begun[-1] - ended_s)
        decided.append(client.service().decide_s)
        time.sleep(0.5)
    return decided, started


def painted(tab: Browser, url: str, token: str) -> list[float]:
    """Return the milliseconds to the first paint of ten loads."""
    tab.look(1280)
    tab.goto(f"{url}/login")
    tab.value(f"document.getElementById('token').value = '{token}'")
    tab.value("document.forms[0].submit()")
    tab.until("location.pathname === '/' && document.readyState === 'complete'")
    found = []
    for _ in range(10):
        tab.goto("about:blank#")
        tab.send("Network.clearBrowserCache")
        tab.send("Page.navigate", url=url + "/")
        found.append(tab.until(PAINT))
    return found


def seen(tab: Browser, client: Client, url: str) -> list[float]:
    """Return the milliseconds from a request that changes a job until the page shows it."""
    job = client.jobs()[-1].id
    found = []
    for _ in range(10):
        tab.goto(f"{url}/jobs/{job}")
        tab.until("document.getElementById('live').textContent === 'live'")
        time.sleep(1.3)
        tab.value(WATCH)
        asked_s = time.time()
        client.hold(job)
        found.append(tab.until("window.seen") - 1000 * asked_s)
        client.release(job)
    return found


def line(name: str, found: list[float], scale: float = 1.0) -> str:
    """Return median and maximum."""
    return f"{name}: median {scale * statistics.median(found):.1f}, max {scale * max(found):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--viewers", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with service() as (process, url, token, where), Client(where) as client:
        time.sleep(15)
        with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as tab:
            print(line("first paint, ms", painted(tab, url, token)))
            print(line("an event to the screen, ms", seen(tab, client, url)))
        without: tuple[list[float], list[float]] = [], []
        beside: tuple[list[float], list[float]] = [], []
        cpu = {0: 0.0, options.viewers: 0.0}
        wall = {0: 0.0, options.viewers: 0.0}
        sent = 0
        for _ in range(options.rounds):
            for count, into in ((0, without), (options.viewers, beside)):
                with viewers(where, count) as taken:
                    used = process.cpu_times()
                    began_s = time.monotonic()
                    for kind, figures in zip(into, ends(client), strict=True):
                        kind.extend(figures)
                    now = process.cpu_times()
                    cpu[count] += now.user + now.system - used.user - used.system
                    wall[count] += time.monotonic() - began_s
                sent += taken[0]
        for name, figures in (("without viewers", without), (f"{options.viewers} viewers", beside)):
            print(line(f"{name}: a decision, ms", figures[0], 1000.0))
            print(line(f"{name}: from an end to the next start, ms", figures[1], 1000.0))
        for count in cpu:
            print(f"{count} viewers: {cpu[count] / wall[count]:.0%} of a core")
        print(
            json.dumps({"bytes a viewer a second": sent / options.viewers / wall[options.viewers]})
        )
        print(f"load of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
