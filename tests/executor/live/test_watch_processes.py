"""The watch on real processes that really compete for one processor core."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from dovetail.executor.live import events
from dovetail.executor.live.clock import boot_s
from dovetail.executor.live.progress import hook_environment, read_progress
from dovetail.executor.live.watch import Watch, WatchOptions, watched
from tests.executor.live.telling import Story
from tests.executor.live.test_watch import Known
from tests.executor.live.waiting import wait_until

LOOP = """
import os, sys
from dovetail_progress import step
os.sched_setaffinity(0, {int(sys.argv[1])})
while True:
    sum(range(20_000))
    step()
"""
SOON = WatchOptions(
    warm_up_s=0.3, settle_s=0.3, profile_s=1.5, profile_most_s=6.0, window_s=1.5, tolerance=0.05
)


class Machine:
    """One core as a device, its processes, and the watch that looks at them."""

    def __init__(self, folder):
        self.folder = folder
        self.core = min(os.sched_getaffinity(0))
        self.story = Story("c0")
        self.watch = Watch({"c0": "cpu-1-core"}, Known(), SOON)
        self.processes = {}
        self.events = []

    def start(self, **fields):
        job = self.story.submit(memory_mib=10.0, **fields)
        alone = not self.processes
        self.story.place(job, "c0", profiling=alone)
        env = hook_environment(self.path(job.run.id), {"PATH": os.environ["PATH"]})
        command = [sys.executable, "-c", LOOP, str(self.core)]
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
        for event in self.watch.observe(brain, progress, {}, now_s, now_s):
            brain.apply(event)
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
    first = machine.start()
    wait_until(lambda: read_progress(machine.path(first.run.id)))
    before = read_progress(machine.path(first.run.id))
    wait_until(lambda: machine.found(events.Profiled), 60)
    after = read_progress(machine.path(first.run.id))
    [profiled] = machine.found(events.Profiled)
    rate = (after.iterations - before.iterations) / (after.at_s - before.at_s)
    assert profiled.profile.throughput == pytest.approx(rate, rel=0.5)
    second = machine.start(gsla=1.02)
    wait_until(lambda: machine.found(events.StopDecided), 60)
    [stop] = machine.found(events.StopDecided)
    assert (stop.run, stop.then) == (second.run.id, "wait")
    machine.processes[second.run.id].kill()
    machine.story.ended(second, status=-9)
    machine.look()
    # Two on one core: about 2; others on this machine take their part of it, too.
    measured = machine.found(events.Measured)[0].measurement
    assert measured.workloads == ("ann/vision", "ann/vision")
    assert all(1.2 < slowdown < 5 for slowdown in measured.slowdown)
