"""The watch on real processes that really wait for each other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from dovetail.executor.live import events
from dovetail.executor.live.clock import boot_s
from dovetail.executor.live.progress import hook_environment, read_progress
from dovetail.executor.live.watch import Watch, WatchOptions, watched
from tests.executor.live.telling import Story
from tests.executor.live.test_watch import Known, profile
from tests.executor.live.waiting import wait_until

LOOP = """
import fcntl, sys, time
from dovetail_progress import step
device = open(sys.argv[1], "w")
while True:
    fcntl.flock(device, fcntl.LOCK_EX)
    time.sleep(0.010)
    fcntl.flock(device, fcntl.LOCK_UN)
    time.sleep(0.005)
    step()
"""
"""A step: 10 ms with the device, 5 ms without it.

Two of them wait for each other for 5 ms a step: they are slowed 20 / 15 = 1.33. All of it is
sleep, so that what else the machine does hardly counts, as it would where they compute.
"""

SOON = WatchOptions(
    warm_up_s=0.3, settle_s=0.3, profile_s=1.5, profile_most_s=6.0, window_s=1.5, tolerance=0.05
)


SERVER = """
import fcntl, sys, time
from dovetail_progress import latency, step
device = open(sys.argv[1], "w")
while True:
    came_s = time.perf_counter()
    fcntl.flock(device, fcntl.LOCK_EX)
    time.sleep(0.002)
    fcntl.flock(device, fcntl.LOCK_UN)
    latency(time.perf_counter() - came_s)
    step()
    time.sleep(0.003)
"""
"""A request: 2 ms with the device; 3 ms later comes the next."""

HOG = """
import fcntl, sys, time
from dovetail_progress import step
device = open(sys.argv[1], "w")
while True:
    fcntl.flock(device, fcntl.LOCK_EX)
    time.sleep(0.100)
    fcntl.flock(device, fcntl.LOCK_UN)
    time.sleep(0.200)
    step()
"""
"""A step: 100 ms with the device, 200 ms without it.

Of the 40 requests or fewer that are served in 200 ms, one waits for 100 ms: 2.5 % of them or more.
The server's rate falls by a third, its 99th percentile grows many times.
"""

SERVING = replace(SOON, profile_most_s=20.0, window_s=5.0)
"""Time enough for 500 requests."""


class Machine:
    """A file that one process locks at a time as a device, and the watch that looks at them."""

    def __init__(self, folder):
        self.folder = folder
        self.story = Story("c0")
        self.watch = Watch({"c0": "cpu-1-core"}, Known(), SOON)
        self.processes = {}
        self.seen = []
        self.events = []

    def start(self, program=LOOP, **fields):
        job = self.story.submit(memory_mib=10.0, **fields)
        alone = not self.processes
        self.story.place(job, "c0", profiling=alone)
        env = hook_environment(self.path(job.run.id), {"PATH": os.environ["PATH"]})
        command = [sys.executable, "-c", program, self.path("device")]
        self.processes[job.run.id] = subprocess.Popen(command, env=env)
        self.story.ready(job)
        return job

    def path(self, run):
        return str(self.folder / run)

    def look(self):
        """Observe once; return what has been found since the beginning."""
        now_s = boot_s()
        self.story.at_s = now_s
        brain = self.story.brain
        progress = {run: [read_progress(self.path(run))] for run in watched(brain)}
        self.seen.append(progress)
        for event in self.watch.observe(brain, progress, {}, now_s, now_s):
            brain.apply(event)
            self.events.append(event)
        time.sleep(0.05)
        return self.events

    def rate(self, job, seconds):
        """Return the iterations a second that a job did in the last so many seconds."""
        told = [seen[job.run.id][0] for seen in self.seen if seen[job.run.id][0] is not None]
        last = told[-1]
        first = next(one for one in told if one.at_s >= last.at_s - seconds)
        return (last.iterations - first.iterations) / (last.at_s - first.at_s)

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
    first = machine.start()
    wait_until(lambda: machine.found(events.Profiled), 60)
    [profiled] = machine.found(events.Profiled)
    rate = machine.rate(first, SOON.profile_s)
    assert profiled.profile.throughput == pytest.approx(rate, rel=0.2)
    second = machine.start(gsla=1.02)
    wait_until(lambda: machine.found(events.StopDecided), 60)
    [stop] = machine.found(events.StopDecided)
    assert (stop.run, stop.then) == (second.run.id, "wait")
    machine.processes[second.run.id].kill()
    machine.story.ended(second, status=-9)
    machine.look()
    measured = machine.found(events.Measured)[0].measurement
    assert measured.workloads == ("ann/vision", "ann/vision")
    assert all(1.1 < slowdown < 2 for slowdown in measured.slowdown)


def test_a_server_whose_p99_breaks_its_gsla_is_freed_of_who_delays_it(machine):
    hog_alone = profile("ann/hog", 1 / 0.3).replace(gpu_model="cpu-1-core")
    machine.watch = Watch({"c0": "cpu-1-core"}, Known(hog_alone), SERVING)
    server = machine.start(SERVER, workload="server", priority="latency", gsla=3.0)
    wait_until(lambda: machine.found(events.Profiled), 60)
    [profiled] = machine.found(events.Profiled)
    assert profiled.profile.latency_p99_s >= 0.002
    machine.story.know("hog")
    hog = machine.start(HOG, workload="hog")
    wait_until(lambda: machine.found(events.StopDecided), 60)
    [stop], [separated] = machine.found(events.StopDecided), machine.found(events.Separated)
    assert stop.run == hog.run.id
    assert separated.runs == (server.run.id, hog.run.id)
    assert separated.tail
    assert separated.slowdown > separated.gsla == 3.0
    machine.processes[hog.run.id].kill()
    machine.story.ended(hog, status=-9)
    machine.look()
    growth, none = machine.found(events.Measured)[0].measurement.p99
    assert growth > 3.0
    assert none is None
