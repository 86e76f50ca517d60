"""A worker process, driven by lines as a campaign drives it."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading

from dovetail.measuring.workloads import WORKER
from tests.executor.waiting import LIMIT_S
from tests.pytorch import TORCH_PYTHON

WITH_TORCH = (TORCH_PYTHON, "-I")
WITHOUT_TORCH = (sys.executable, "-I", "-S")
"""Finds no PyTorch, whose import takes a second; users' workloads need none on a processor core."""


def worker_command(workload, *options, python=WITHOUT_TORCH, size="tiny", seed=1):
    """Return the command that runs a workload on the CPU."""
    command = [*python, str(WORKER), str(workload), "--device", "cpu"]
    return [*command, "--size", size, "--seed", str(seed), *options]


class Worker:
    """A worker on the CPU; its events are read as they come."""

    def __init__(self, workload, *options, before=(), python=WITHOUT_TORCH, size="tiny"):
        self.process = subprocess.Popen(
            [*before, *worker_command(workload, *options, python=python, size=size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()
        with contextlib.suppress(BrokenPipeError):  # a command that was never read
            self.process.stdin.close()

    def tell(self, command, **facts):
        self.process.stdin.write(json.dumps({"do": command, **facts}) + "\n")
        self.process.stdin.flush()

    def event(self):
        """Return the next event; None at the end."""
        line = self._lines.get(timeout=LIMIT_S)
        return json.loads(line) if line else None

    def until(self, event):
        """Return the events up to one of a name, and with it."""
        found = [self.event()]
        while found[-1]["event"] != event:
            found.append(self.event())
        return found

    def run(self, least):
        """Let it run for so many events, stop it, and return its events with the last."""
        self.tell("run")
        events = [self.event() for _ in range(least)]
        self.tell("stop")
        return events + self.until("stopped")

    def end(self):
        """Return its exit status and standard error."""
        status = self.process.wait(LIMIT_S)
        return status, self.process.stderr.read()

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")
