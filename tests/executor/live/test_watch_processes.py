"""The watch on real processes, whose rates are the same on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from dovetail.executor.jobs import events
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.live.observation.watch import RunWatch
from dovetail.executor.pools.runs.progress import hook_environment, read_progress
from dovetail.executor.system.clock import boot_s
from tests.executor.live.telling import Story
from tests.executor.live.test_watch import Known, live_of, profile
from tests.executor.waiting import wait_until

LOOP = """
import os, sys, time
import dovetail_progress
shared, alone_s, together_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
dovetail_progress.INTERVAL_S = 0
due_s = time.monotonic()
while True:
    due_s += together_s if os.path.exists(shared) else alone_s
    time.sleep(max(0.0, due_s - time.monotonic()))
    dovetail_progress.step()
"""
"""Each step is due at its moment, alone or together: a late one does not delay the next."""

SERVER = """
import itertools, os, sys, time
import dovetail_progress
shared, every_s = sys.argv[1], float(sys.argv[2])
dovetail_progress.INTERVAL_S = 0
due_s = time.monotonic()
for k in itertools.count():
    due_s += every_s
    time.sleep(max(0.0, due_s - time.monotonic()))
    dovetail_progress.latency(0.100 if os.path.exists(shared) and k % 40 == 0 else 0.002)
    dovetail_progress.step()
"""
"""Requests of 2 ms; together, 2.5 % of them take 100 ms."""

SOON = WatchOptions(
    warm_up_s=0.3, settle_s=0.3, profile_s=1.5, profile_most_s=120.0, window_s=1.5, tolerance=0.05
)


SERVING = replace(SOON, window_s=5.0)
"""Time enough for 500 requests."""


class Machine:
    """A device, processes on it that know whether they share it, and the watch on them.

    It is the pool of its watch.
    """

    gate = None

    def __init__(self, folder):
        self.folder = folder
        self.story = Story("c0")
        self.watch_with(Known(), SOON)
        self.processes = {}
        self.events = []

    def watch_with(self, known, options):
        live = live_of(self.story.machine, self, {"c0": "cpu-1-core"}, known)
        self.watch = RunWatch(live, options, 1.0)

    def progress(self, run):
        return [read_progress(self.path(run))]

    def usage(self):
        return {}

    def library(self, run):
        return ""

    def start(self, program, *paces_s, **fields):
        job = self.story.submit(memory_mib=10.0, **fields)
        alone = not self.processes
        self.story.place(job, "c0", profiling=alone)
        if not alone:
            (self.folder / "shared").touch()
        env = hook_environment(self.path(job.run.id), {"PATH": os.environ["PATH"]})
        command = [sys.executable, "-c", program, self.path("shared"), *map(str, paces_s)]
        self.processes[job.run.id] = subprocess.Popen(command, env=env)
        self.story.ready(job)
        return job

    def path(self, run):
        return str(self.folder / run)

    def look(self):
        """Observe once; return all findings since the beginning."""
        now_s = boot_s()
        self.story.at_s = now_s
        for event in self.watch.sample(now_s, now_s):
            self.story.machine.apply(event)
            self.events.append(event)
        time.sleep(0.05)
        return self.events

    def found(self, kind):
        return [event for event in self.look() if isinstance(event, kind)]


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    yield made
    for process in made.processes.values():
        process.kill()
        process.wait()


def test_a_loop_is_profiled_alone_then_slowed_by_another_then_freed_of_it(machine):
    machine.start(LOOP, 0.015, 0.020)
    wait_until(lambda: machine.found(events.Profiled))
    [profiled] = machine.found(events.Profiled)
    assert profiled.profile.throughput == pytest.approx(1 / 0.015, rel=0.1)
    second = machine.start(LOOP, 0.015, 0.020, gsla=1.02)
    wait_until(lambda: machine.found(events.StopDecided))
    [stop] = machine.found(events.StopDecided)
    assert (stop.run, stop.then) == (second.run.id, "wait")
    machine.processes[second.run.id].kill()
    machine.story.ended(second, status=-9)
    machine.look()
    measured = machine.found(events.Measured)[0].measurement
    assert measured.workloads == ("ann/vision", "ann/vision")
    assert measured.slowdown == pytest.approx((4 / 3, 4 / 3), rel=0.1)


def test_a_server_whose_p99_breaks_its_gsla_loses_its_co_runner(machine):
    hog_alone = profile("ann/hog", 1 / 0.3).replace(gpu_model="cpu-1-core")
    machine.watch_with(Known(hog_alone), SERVING)
    server = machine.start(SERVER, 0.005, workload="server", priority="latency", gsla=3.0)
    wait_until(lambda: machine.found(events.Profiled))
    [profiled] = machine.found(events.Profiled)
    assert profiled.profile.latency_p99_s == pytest.approx(0.002, rel=0.05)
    machine.story.know("hog")
    hog = machine.start(LOOP, 0.3, 0.3, workload="hog")
    wait_until(lambda: machine.found(events.StopDecided))
    [stop], [separated] = machine.found(events.StopDecided), machine.found(events.Separated)
    assert stop.run == hog.run.id
    assert separated.runs == (server.run.id, hog.run.id)
    assert separated.tail
    assert separated.slowdown > separated.gsla == 3.0
    machine.processes[hog.run.id].kill()
    machine.story.ended(hog, status=-9)
    machine.look()
    growth, none = machine.found(events.Measured)[0].measurement.p99
    assert growth == pytest.approx(50, rel=0.1)
    assert none is None
