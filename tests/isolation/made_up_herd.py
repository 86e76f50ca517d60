"""A campaign of kills: clients on made-up GPUs, and their scheduler, end at random moments.

``python -m tests.isolation.made_up_herd TASKS SOCKET KILLS SEED`` is run with the
interception library preloaded. Clients are forked from it, and so is the scheduler, which chooses
forms at random. Those that are not killed have to finish, with the memory that their kernels leave
without a scheduler.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import signal
import sys
import time
from pathlib import Path

from dovetail.isolation.server import status
from tests.isolation.any_form import AnyForm
from tests.isolation.made_up_client import Work, work
from tests.isolation.made_up_gpu import kernels_of

CLIENTS = 3
STUCK_S = 120.0
STEP_S = 0.2
OF_SCHEDULER = 0.1


def forked(act) -> int:
    """Call a function in a forked process, whose exit status is 0 if it returned true."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os._exit(0 if act() else 1)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(2)


def answers(path: Path) -> bool:
    """Tell whether a scheduler is there."""
    try:
        return bool(status(path))
    except OSError:
        return False


class Herd:
    """The clients, the scheduler, and their exit statuses."""

    def __init__(self, tasks, path: Path, seed: int) -> None:
        self._tasks, self._path, self._rng = tasks, path, random.Random(seed)
        self._scheduler = 0
        self._clients: dict[int, float] = {}
        self.counts = dict.fromkeys(("finished", "clients killed", "schedulers killed"), 0)
        self.faults: list[str] = []

    def kill(self, kills: int) -> None:
        """Kill so many processes, and wait for the others."""
        while self.counts["clients killed"] + self.counts["schedulers killed"] < kills:
            if not self._scheduler:
                self._start_scheduler()
            while len(self._clients) < CLIENTS:
                self._start_client()
            time.sleep(self._rng.random() * STEP_S)
            self._reap()
            if self._rng.random() < OF_SCHEDULER:
                self._end(self._scheduler)
                self._scheduler = 0
                self.counts["schedulers killed"] += 1
            elif self._clients:
                victim = self._rng.choice([*self._clients])
                self._end(victim)
                del self._clients[victim]
                self.counts["clients killed"] += 1
        if not self._scheduler:
            self._start_scheduler()
        self._start_client()
        while self._clients:
            time.sleep(0.01)
            self._reap()
        until = time.monotonic() + STUCK_S
        while (left := status(self._path)["clients"]) and time.monotonic() < until:
            time.sleep(0.01)
        self.faults += [f"the scheduler has kept {one}" for one in left]
        files = len(os.listdir(f"/proc/{self._scheduler}/fd"))
        self.faults += [f"the scheduler has {files} open files"] if files > 20 else []
        self._end(self._scheduler)

    def _start_scheduler(self) -> None:
        seed = self._rng.randrange(1 << 30)
        self._scheduler = forked(lambda: AnyForm(self._path, seed).run())
        while not answers(self._path):
            time.sleep(0.001)

    def _start_client(self) -> None:
        rng = self._rng
        latency = rng.random() < 0.3
        given = Work(
            tasks=tuple(rng.sample(self._tasks, 1 if latency else 2)),
            runs=4 if latency else 2,
            seed=rng.randrange(1 << 30),
            pause_s=0.02 if latency else 0.0,
            streams=rng.choice((1, 2)),
        )
        os.environ["DOVETAIL_ISOLATION_PRIORITY"] = "latency" if latency else "best-effort"
        self._clients[forked(lambda: not work(given).wrong)] = time.monotonic()

    def _reap(self) -> None:
        for pid, since in [*self._clients.items()]:
            ended, code = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.counts["finished"] += 1
                if code:
                    self.faults.append(f"a client ended with {code}")
                del self._clients[pid]
            elif time.monotonic() > since + STUCK_S:
                self.faults.append("a client is stuck")
                self._end(pid)
                del self._clients[pid]

    def _end(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def main() -> None:
    tasks, path, kills, seed = sys.argv[1:]
    with open(tasks, "rb") as file:
        given = pickle.load(file)
    for task in given:
        kernels_of(task.image)
    herd = Herd(given, Path(path), int(seed))
    herd.kill(int(kills))
    print(json.dumps({"counts": herd.counts, "faults": herd.faults}))


if __name__ == "__main__":
    main()
