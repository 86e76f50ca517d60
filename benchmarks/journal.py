"""Measure the journal of live mode: making events durable, and starting after many of them.

    python benchmarks/journal.py                        a million events
    python benchmarks/journal.py --events 20000         a short form

*Appending*: 10,000 submissions, each with an environment of 40 variables (4 KB), with the number
per transaction in the first column. A client that submits one job waits for a transaction of one;
a flooded service makes all submissions that have arrived meanwhile durable together.

*Starting*: a journal of jobs that were submitted, placed, started, ready, and ended, 1,000 of
which are always waiting. It is read from its beginning, and from its last checkpoint.

The events are synthetic, the file and its ``fsync`` are real: the disk below ``--directory``
decides the first table.
"""

from __future__ import annotations

import argparse
import platform
import sqlite3
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

from dovetail.executor.jobs import events
from dovetail.executor.jobs.events import AnyEvent
from dovetail.executor.jobs.journal import JOURNAL, Journal
from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import JobSpec, Owner, Run, Seat
from dovetail.executor.jobs.state_machine import StateMachine

SUBMISSIONS = 10_000
WAITING = 1_000
GPUS = tuple(f"g{k}" for k in range(8))
ENVIRONMENT = {f"VARIABLE_{k}": f"{k:03}" + "x" * 90 for k in range(40)}
BATCH = 1_000

SPEC = JobSpec(
    command=("python", "train.py", "--epochs", "90"),
    workload="vision",
    owner=Owner(name="ann", uid=1000, gid=1000),
    cwd="/home/ann/vision",
    env=ENVIRONMENT,
)


def main() -> None:
    """Print both tables."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    options.add_argument("--events", type=int, default=1_000_000)
    options.add_argument("--directory", default=None, help="where the journals are made")
    chosen = options.parse_args()
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}\n")
    print("at a time   submissions/s   ms each transaction")
    for at_a_time in (1, 10, 100, 1_000, SUBMISSIONS):
        with folder(chosen.directory) as home:
            appending(home, at_a_time)
    with folder(chosen.directory) as home:
        starting(home, chosen.events)


def folder(directory: str | None) -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes away again."""
    return tempfile.TemporaryDirectory(prefix="dovetail-journal-", dir=directory)


def appending(home: str, at_a_time: int) -> None:
    """Print how fast submissions become durable."""
    jobs = [events.Submitted(at_s=1.0, job=f"j{k + 1}", spec=SPEC) for k in range(SUBMISSIONS)]
    with Journal(home) as journal:
        began = time.perf_counter()
        for first in range(0, SUBMISSIONS, at_a_time):
            journal.append(jobs[first : first + at_a_time])
        taken = time.perf_counter() - began
    transactions = SUBMISSIONS / at_a_time
    print(f"{at_a_time:9,}   {SUBMISSIONS / taken:13,.0f}   {taken / transactions * 1e3:19.2f}")


def starting(home: str, wanted: int) -> None:
    """Print how long a start takes after so many events, and what they cost before."""
    spent = written(home, wanted)
    size = (Path(home) / JOURNAL).stat().st_size
    print(f"\n{wanted:,} events, {size / 1e6:,.0f} MB")
    print(f"checkpoints: {spent[0]} of {spent[1]:.2f} s on average, {spent[2]:.2f} s at most")
    print_start(home, "from the last checkpoint")
    without_checkpoint(home)
    print_start(home, "from the first event")


def written(home: str, wanted: int) -> tuple[int, float, float]:
    """Write a journal; return how many checkpoints there were, their mean and longest seconds."""
    brain, taken = StateMachine(), []
    with Journal(home) as journal:
        for batch in batches(brain, wanted):
            journal.append(batch)
            began = time.perf_counter()
            if journal.checkpoint(brain):
                taken.append(time.perf_counter() - began)
    return len(taken), sum(taken) / max(len(taken), 1), max(taken, default=0.0)


def batches(brain: StateMachine, wanted: int) -> Iterator[Sequence[AnyEvent]]:
    """Yield events that the brain has taken in, up to so many."""
    batch: list[AnyEvent] = []
    for number, event in zip(range(1, wanted + 1), story(brain), strict=False):
        brain.apply(event)
        batch.append(event)
        if len(batch) == BATCH or number == wanted:
            yield batch
            batch = []


def story(brain: StateMachine) -> Iterator[AnyEvent]:
    """Yield what happens on a busy machine, for ever."""
    yield events.ServiceStarted(at_s=0.0, boot="b", pool="none", gpus=GPUS, version="1")
    yield events.WorkloadKnown(at_s=0.0, uid=SPEC.owner.uid, workload=SPEC.workload)
    for _ in range(WAITING):
        yield submitted(brain)
    running: deque[LiveJob] = deque()
    waiting = deque(brain.queue())
    for moment in map(float, count(1)):
        yield submitted(brain)
        waiting.append(next(reversed(brain.jobs.values())))
        job = waiting.popleft()
        gpu = GPUS[int(moment) % len(GPUS)]
        run = Run(id=f"{job.id}.1", job=job.id, spec=job.spec, seats=(Seat(gpu=gpu, share=50),))
        yield events.Placed(at_s=moment, run=run)
        yield events.RankStarted(at_s=moment, run=run.id, rank=0, pid=4242, pid_started=99)
        yield events.RankReady(at_s=moment, run=run.id, rank=0)
        running.append(job)
        if len(running) > 2 * len(GPUS):
            ended = running.popleft()
            yield events.RankEnded(at_s=moment, run=f"{ended.id}.1", rank=0, status=0)


def submitted(brain: StateMachine) -> AnyEvent:
    """Return the next job."""
    return events.Submitted(at_s=brain.now_s, job=brain.next_job_id(), spec=SPEC)


def print_start(home: str, whence: str) -> None:
    """Print what a start costs a process of its own."""
    with get_context("spawn").Pool(1) as pool:
        seconds, memory_mib = pool.apply(start, (home,))
    print(f"start {whence}: {seconds:.2f} s, {memory_mib:,.0f} MiB at most in the process")


def start(home: str) -> tuple[float, float]:
    """Return how many seconds a service needs to know its state, and the process's most MiB."""
    began = time.perf_counter()
    with Journal(home) as journal:
        journal.replay()
    return time.perf_counter() - began, getrusage(RUSAGE_SELF).ru_maxrss / 1024


def without_checkpoint(home: str) -> None:
    connection = sqlite3.connect(Path(home) / JOURNAL)
    with connection:
        connection.execute("DELETE FROM brain")
    connection.close()


if __name__ == "__main__":
    main()
