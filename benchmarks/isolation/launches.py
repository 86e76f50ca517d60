"""What the gate of the interception library costs and gives, on a stand-in with a real clock.

    python benchmarks/isolation/launches.py [--seconds 3] [--repeats 2] [--realtime]

NOT A GPU: ``stand_in/driver.c`` takes the place of NVIDIA's driver, and threads that of streams.
The library, the scheduler and the processes are real. A wait, a write and an event take the
microsecond that the library assumes of a GPU. Printed are, once for each repeat:

- *opened*: from the end of a latency-critical kernel of 20 microseconds, as the GPU has written it,
  until the gate of a best-effort process is open;
- *rate*: a best-effort process's launches a second of kernels of known times, as a part of its rate
  without the library, while a latency-critical process has joined and launches nothing (of windows
  of 20 ms, one that only a tenth exceed: others on the machine hold some up);
- *at load*: kernels begun between requests, each of 20 kernels, as a part of what would begin there
  without the library;
- *turnaround*: from a request until the best-effort kernels in flight have ended.

Requests at whose begin the best-effort process's stream had not yet got to the gate, as others had
its core, are left out of the turnaround and counted; those next to which it was more than 3
microseconds late are left out of the rate.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.isolation.interception import environment, find_compiler, library
from dovetail.isolation.server import status

HERE = Path(__file__).parent / "stand_in"
KERNEL, WAIT, _WRITE, _EVENT, NOTE, OPENED = range(6)
SHORT, MIXED = (5, 10, 15, 20, 30), (5, 10, 15, 20, 30, 40, 50)
LATE_S, BLOCKED_S, WINDOW_S = 3e-6, 1.5e-6, 0.02
Log = NDArray[np.float64]


class StandIn:
    """The stand-in driver and its client, built into a folder, and a scheduler there.

    Parameters
    ----------
    folder : Path
        The folder, whose path has to be short.
    realtime : bool
        Whether clients run at real-time priorities, which only root may set: other programs of the
        machine then do not hold them up.
    """

    def __init__(self, folder: Path, realtime: bool = False) -> None:
        self._folder, self._realtime, self._logs = folder, realtime, 0
        compiler = find_compiler() or "cc"
        shared = [compiler, "-O2", "-fPIC", "-shared", "-Wl,-Bsymbolic"]
        made = folder / "libcuda.so.1"
        subprocess.run([*shared, "-o", made, HERE / "driver.c", "-lpthread"], check=True)
        command = [compiler, "-O2", "-o", folder / "client", HERE / "client.c", "-ldl", "-lm"]
        subprocess.run(command, check=True)
        self._library = library(folder)

    @contextmanager
    def scheduler(self) -> Iterator[None]:
        """Run a scheduler of the library."""
        command = [sys.executable, "-m", "dovetail.isolation.server", str(self._folder / "s")]
        with subprocess.Popen(command) as ran:
            try:
                while not self._answers():
                    time.sleep(0.01)
                yield
            finally:
                ran.kill()

    def _answers(self) -> bool:
        try:
            return bool(status(self._folder / "s"))
        except OSError:
            return False

    def start(
        self, priority: str, seconds: float, pause_us: float, kernels_us: Sequence[int], **more: str
    ) -> Client:
        """Start a client: ``plain``, or with the library ``latency`` or ``best-effort``."""
        self._logs += 1
        log = self._folder / f"log{self._logs}"
        given = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self._folder),
            "STAND_IN_LOG": str(log),
            **more,
        }
        if priority == "latency":
            given |= environment(self._library, self._folder / "s", "latency", given)
        elif priority == "best-effort":
            given |= environment(self._library, self._folder / "s", "best-effort", given)
        numbers = map(str, (seconds, pause_us, *kernels_us))
        command = [str(self._folder / "client"), *numbers]
        if self._realtime:
            command = ["chrt", "-r", "2" if priority == "latency" else "1", *command]
        return Client(subprocess.Popen(command, env=given), log)


class Client:
    """A client that runs, and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    def end(self) -> None:
        """End it without its log."""
        self._process.kill()
        self._process.wait()

    def log(self) -> Log:
        """Wait for its end, and return its rows, as ``driver.c`` describes them."""
        if self._process.wait():
            raise SystemExit("a client of the stand-in has failed")
        return np.fromfile(self._log).reshape(-1, 4)


def counts(log: Log) -> Log:
    """Return how many kernels ended in each window, by the clock of their stream."""
    ends = log[log[:, 0] == KERNEL, 2]
    windows = np.arange(ends[0] + WINDOW_S, ends[-1], WINDOW_S)
    return np.diff(np.searchsorted(ends, windows)).astype(float)


def rate(log: Log) -> float:
    """Return kernels a second, in a window in which the machine did not keep them up."""
    found = counts(log)
    return float(np.percentile(found, 90)) / WINDOW_S if len(found) else math.nan


def opened(stand_in: StandIn, seconds: float) -> Log:
    """Return the times from the end of a kernel until the gate was open."""
    with stand_in.scheduler():
        guarded = stand_in.start("best-effort", seconds + 1, 1e5, (5,))
        watching = stand_in.start("latency", seconds, 500, (20,), STAND_IN_WATCH="1")
        log = watching.log()
        guarded.log()
    found = log[log[:, 0] == OPENED]
    return (found[:, 2] - found[:, 1])[len(found) // 10 :]


def idle_rate(stand_in: StandIn, seconds: float, kernels_us: Sequence[int]) -> float:
    """Return the part of its rate at which a best-effort process runs while nothing is asked."""
    plain = rate(stand_in.start("plain", seconds, 0, kernels_us).log())
    with stand_in.scheduler():
        # It launches one kernel, and pauses to the end.
        joined = stand_in.start("latency", 1e-3, 1e9, (5,))
        time.sleep(0.2)
        gated = rate(stand_in.start("best-effort", seconds, 0, kernels_us).log())
        joined.end()
    return gated / plain if plain else math.nan


class AtLoad(NamedTuple):
    """A best-effort process next to requests.

    Attributes
    ----------
    load : float
        The part of the time that requests take.
    part : float
        The rate between requests as a part of that without the library.
    turnarounds : array
        How long kernels went on after each request, seconds.
    left_out : int
        The requests without a turnaround, as the process's stream was late.
    """

    load: float
    part: float
    turnarounds: Log
    left_out: int


def at_load(stand_in: StandIn, seconds: float, kernels_us: Sequence[int]) -> AtLoad:
    """Run a best-effort process next to requests of 20 kernels."""
    plain = rate(stand_in.start("plain", seconds, 0, kernels_us).log())
    with stand_in.scheduler():
        requests = stand_in.start("latency", seconds + 1, 600, (20,) * 20, STAND_IN_SLEEPS="1")
        time.sleep(0.3)
        log = stand_in.start("best-effort", seconds, 0, kernels_us).log()
        asked = requests.log()
    asked = asked[asked[:, 0] == NOTE]
    rows = log[(log[:, 0] == KERNEL) | (log[:, 0] == WAIT)]
    asked = asked[(asked[:, 1] > rows[0, 1] + 0.1) & (asked[:, 2] < rows[-1, 2] - 0.1)]
    if len(asked) < 2:
        return AtLoad(math.nan, math.nan, np.empty(0), 0)
    load = float((asked[:, 2] - asked[:, 1]).sum() / (asked[-1, 2] - asked[0, 1]))
    late = np.cumsum((rows[:, 0] == KERNEL) & (rows[:, 3] - rows[:, 2] > LATE_S))
    kernels = np.cumsum(rows[:, 0] == KERNEL)
    blocked = np.flatnonzero((rows[:, 0] == WAIT) & (rows[:, 2] - rows[:, 1] > BLOCKED_S))
    found, left_out, begun, idle_s = [], 0, 0, 0.0
    for before, (_, since, until, _) in itertools.pairwise(asked):
        first, last = np.searchsorted(rows[:, 1], (before[2], since))
        # The first wait that this request ends, or that ends behind it.
        stop = np.searchsorted(rows[blocked, 2], since)
        if stop == len(blocked) or rows[blocked[stop], 1] > until:
            continue
        wait = blocked[stop]
        is_late = rows[wait, 3] - rows[wait, 1] > LATE_S
        if rows[wait, 1] < since and is_late:
            # A GPU would have looked before the request, and may have gone on.
            left_out += 1
        else:
            found.append(max(0.0, float(rows[wait, 1]) - since))
        if late[wait - 1] == late[max(first - 1, 0)]:
            begun += int(kernels[last - 1] - kernels[max(first - 1, 0)])
            idle_s += since - before[2]
    part = begun / idle_s / plain if idle_s and plain else math.nan
    return AtLoad(load, part, np.array(found), left_out)


def quantiles(seconds: Log) -> str:
    """Return the median, 90 and 99 % in microseconds."""
    if not len(seconds):
        return "none"
    return " ".join(f"{1e6 * q:8.1f}" for q in np.percentile(seconds, (50, 90, 99)))


def main() -> None:
    """Print a table a repeat."""
    parser = argparse.ArgumentParser(description="the gate on a stand-in, not a GPU")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--realtime", action="store_true", help="as root: at real-time priorities")
    given = parser.parse_args()
    print("STAND-IN with a real clock, not a GPU; times in microseconds")
    with tempfile.TemporaryDirectory(prefix="dv-") as folder:
        stand_in = StandIn(Path(folder), given.realtime)
        for repeat in range(given.repeats):
            busy = os.getloadavg()[0]
            print(f"repeat {repeat + 1}, {os.cpu_count()} cores, load average {busy:.1f}")
            times = opened(stand_in, given.seconds)
            print(f"  opened, 50 90 99 %     {quantiles(times)}  ({len(times)})", flush=True)
            for kernels in ((5,), (16,), (20,), (50,), MIXED):
                part = idle_rate(stand_in, given.seconds, kernels)
                print(f"  rate, {kernels!s:30} {part:.3f}", flush=True)
            for kernels in (SHORT, MIXED):
                found = at_load(stand_in, given.seconds, kernels)
                print(f"  at load {found.load:.2f}, {kernels!s:30} {found.part:.3f}")
                print(
                    f"    turnaround           {quantiles(found.turnarounds)}"
                    f"  ({len(found.turnarounds)}, left out {found.left_out})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
