"""The watch, given made-up progress second by second (no process runs here)."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace

import pytest

from dovetail.executor.jobs import events
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.beliefs import Belief, Source
from dovetail.executor.live.live import JobCounts, LastReading
from dovetail.executor.live.observation.tracks import WatchOptions
from dovetail.executor.live.observation.watch import RunWatch
from dovetail.executor.pools.pool import Progress, Usage
from dovetail.executor.pools.progress_hook.dovetail_progress import bucket_of
from dovetail.instances.datasets import SoloProfile
from dovetail.instances.instance import Cluster
from tests.executor.live.telling import BOB, Story

OPTIONS = WatchOptions()
BOOT_S = -1000.0
"""The boot clock less the service's."""


class Known:
    """Profiles by workload and model, and one belief of everything."""

    def __init__(self, *profiles):
        self.profiles = {(p.workload, p.gpu_model, p.workers): p for p in profiles}
        self.asked = []
        self.cluster = Cluster(nodes=())

    def alone(self, spec, gpu_model):
        return self.profiles.get((f"{spec.owner.name}/{spec.workload}", gpu_model, spec.workers))

    def described(self, spec, gpu_model):
        return self.profiles.get((f"{spec.owner.name}/{spec.workload}", gpu_model, 1))

    def upper(self, job, residents):
        return None

    def neighbours(self, gpus):
        return {"g0", "g1", "g2"} - set(gpus)

    def predicted(self, runs, gpu):
        self.asked.append(([run.id for run in runs], gpu))
        figures = [1.0 + k / 10 for k in range(1, len(runs) + 1)]
        return tuple(Belief(one, one, "made up", Source.ANALYTIC) for one in figures)


def live_of(machine, pool, models, beliefs):
    """Return what a watch reads of the service."""
    devices = SimpleNamespace(models=models)
    return SimpleNamespace(
        machine=machine,
        pool=pool,
        devices=devices,
        beliefs=beliefs,
        readings=LastReading(),
        counted=JobCounts(),
    )


def profile(workload, throughput, workers=1, **changes):
    return SoloProfile(
        workload=workload,
        gpu_model="M",
        throughput=throughput,
        workers=workers,
        memory_mib=500.0,
        **changes,
    )


class Scene:
    """A story whose runs do iterations at given rates, seen by a watch once a second.

    It is the pool of its watch.
    """

    gate = None

    def __init__(self, *profiles, options=OPTIONS, gpus=("g0", "g1", "g2")):
        self.story = Story(*gpus)
        self.known = Known(*profiles)
        self.options = options
        self.watch = self.new_watch()
        self.rates = {}
        self.done = {}
        self.latencies = {}
        self.reported = {}
        self.total = None
        self.used_mib = {}
        self.joules = 0.0
        self.metrics = {"sm_active": 0.5}
        self.events = []

    def new_watch(self):
        return self.watch_of(dict.fromkeys(self.story.machine.devices, "M"))

    def watch_of(self, models):
        """Return a watch over devices of these models."""
        live = live_of(self.story.machine, self, models, self.known)
        self.readings = live.readings
        return RunWatch(live, self.options, 1.0)

    @property
    def now_s(self):
        return self.story.at_s

    def start(self, workload, *gpus, profiling=False, share=None, rate=None, **fields):
        """Submit, place and start a job, whose ranks do ``rate`` iterations a second each."""
        job = self.story.submit(workload=workload, workers=len(gpus), **fields)
        self.story.place(job, *gpus, share=share, profiling=profiling)
        for rank in range(len(gpus)):
            self.story.ready(job, rank)
        self.rates[job.run.id] = [rate] * len(gpus)
        self.done[job.run.id] = [0.0] * len(gpus)
        return job

    def live(self, seconds):
        """Let time pass; return the events of the watch, each applied at once."""
        found = []
        for _ in range(seconds):
            self.story.at_s += 1.0
            self.joules += 200.0
            for run, done in self.done.items():
                self.done[run] = [
                    n + (rate or 0) for n, rate in zip(done, self.rates[run], strict=True)
                ]
            for event in self.observe():
                self.story.happened.append(event)
                self.story.machine.apply(event)
                found.append(event)
        self.events += found
        return found

    def reported_latencies(self, run):
        reported = self.reported.setdefault(run, Counter())
        reported.update(map(bucket_of, self.latencies.get(run, ())))
        return tuple(sorted(reported.items()))

    @property
    def boot_s(self):
        return self.now_s + BOOT_S

    def observe(self):
        return self.watch.sample(self.now_s, self.boot_s)

    def reading(self, run):
        return self.readings.now[run]

    def progress(self, run):
        latencies = self.reported_latencies(run)
        return [
            None if rate is None else Progress(done, self.boot_s, self.total, latencies)
            for done, rate in zip(self.done[run], self.rates[run], strict=True)
        ]

    def usage(self):
        return {
            gpu: Usage(self.boot_s, 900.0, self.joules, self.metrics, "made up", self.used_mib)
            for gpu in self.story.machine.devices
        }

    def library(self, run):
        return ""

    def only(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


# Profiles.


def test_a_steady_run_alone_gets_a_profile_a_minute_after_its_warm_up():
    scene = Scene()
    job = scene.start("vision", "g0", profiling=True, rate=4.0)
    assert scene.live(70) == []
    [found] = scene.live(5)
    assert isinstance(found, events.Profiled)
    assert found.run == "j1.1"
    assert found.profile.workload == "ann/vision"
    assert found.profile.gpu_model == "M"
    assert found.profile.throughput == pytest.approx(4.0)
    assert found.profile.power_w == pytest.approx(200.0)  # 200 J a second
    assert found.profile.memory_mib == 900.0  # of the device, which it has for itself
    assert found.profile.metrics.sm_active == pytest.approx(0.5)
    assert found.profile.source == "live; rate ±0.0% over 60 s; made up"
    assert job.state is JobState.RUNNING
    assert scene.live(400) == []


def test_a_record_says_how_many_devices_of_its_node_were_busy():
    scene = Scene()
    scene.start("speech", "g1", rate=2.0)
    scene.start("vision", "g0", profiling=True, rate=4.0)
    scene.live(80)
    [found] = scene.only(events.Profiled)
    busy = "; 1 other device of the node busy; "
    assert found.profile.source == f"live; rate ±0.0% over 60 s{busy}made up"


def test_warm_up_is_not_part_of_a_profile():
    scene = Scene()
    job = scene.start("vision", "g0", profiling=True, rate=0.2)
    scene.live(9)
    scene.rates[job.run.id] = [4.0]
    scene.live(66)
    [found] = scene.only(events.Profiled)
    assert found.profile.throughput == pytest.approx(4.0)


def test_an_unsteady_rate_is_waited_for():
    scene = Scene()
    job = scene.start("vision", "g0", profiling=True, rate=1.0)
    scene.live(60)
    scene.rates[job.run.id] = [4.0]
    assert scene.live(40) == []
    scene.live(40)
    [found] = scene.only(events.Profiled)
    assert found.profile.throughput == pytest.approx(4.0)


def test_a_rate_that_never_settles_is_taken_with_its_noise():
    scene = Scene()
    job = scene.start("vision", "g0", profiling=True, rate=1.0)
    for k in range(32):
        scene.rates[job.run.id] = [1.0 + 3.0 * (k % 2)]
        scene.live(10)
    [found] = scene.only(events.Profiled)
    assert found.at_s - job.history[-1].at_s <= OPTIONS.profile_most_s
    assert 1.0 <= found.profile.throughput <= 4.0
    assert "±" in found.profile.source
    assert "±0.0%" not in found.profile.source


def test_a_run_without_progress_reports_never_shares():
    scene = Scene()
    job = scene.start("vision", "g0", profiling=True)
    assert scene.live(299) == []
    [found] = scene.live(3)
    assert isinstance(found, events.ProfileFailed)
    assert found.reason == "it reported no progress in 300 s; see docs/howto/report-progress.md"
    assert job.alone_only == found.reason
    assert scene.live(300) == []


def test_too_few_iterations_are_no_profile():
    scene = Scene()
    scene.start("vision", "g0", profiling=True, rate=0.01)
    scene.live(400)
    [found] = scene.events
    assert isinstance(found, events.ProfileFailed)
    assert found.reason == "its rate is unknown: fewer than 5 iterations in 300 s"


def test_the_pool_s_word_on_a_run_s_memory_comes_first():
    scene = Scene()
    scene.used_mib = {"j1.1": 640.0}
    scene.start("vision", "g0", profiling=True, rate=4.0)
    scene.live(30)
    scene.used_mib = {"j1.1": 610.0}
    scene.live(50)
    [found] = scene.only(events.Profiled)
    assert found.profile.memory_mib == 640.0


def test_a_gang_s_profile_is_that_of_its_slowest_rank():
    scene = Scene()
    job = scene.start("vision", "g0", "g1", profiling=True, rate=4.0)
    scene.rates[job.run.id] = [4.0, 3.0]
    scene.live(80)
    [found] = scene.only(events.Profiled)
    assert found.profile.throughput == pytest.approx(3.0)
    assert found.profile.workers == 2
    assert found.profile.power_w == pytest.approx(200.0)  # of one device


def test_a_run_that_ends_early_is_profiled_by_what_was_seen():
    scene = Scene()
    job = scene.start("vision", "g0", profiling=True, rate=4.0)
    scene.live(40)
    scene.story.ended(job)
    [found] = scene.live(1)
    assert isinstance(found, events.Profiled)
    assert found.profile.throughput == pytest.approx(4.0)
    assert ("ann", "vision") not in scene.story.machine.profiled
    assert (job.spec.owner.uid, "vision") in scene.story.machine.profiled


def test_a_run_that_ends_at_once_or_fails_is_no_profile():
    scene = Scene()
    short = scene.start("vision", "g0", profiling=True, rate=4.0)
    scene.live(15)
    scene.story.ended(short)
    broken = scene.start("speech", "g0", profiling=True, rate=4.0)
    scene.live(60)
    scene.story.ended(broken, status=3)
    scene.live(5)
    assert scene.events == []


def test_a_watch_after_a_restart_takes_a_profile_up_again():
    scene = Scene()
    scene.start("vision", "g0", profiling=True, rate=4.0)
    scene.live(50)
    scene.watch = scene.new_watch()
    assert scene.live(69) == []
    [found] = scene.live(6)
    assert found.profile.throughput == pytest.approx(4.0)


def test_another_process_of_a_job_begins_to_count_anew():
    scene = Scene()
    job = scene.start("vision", "g0", profiling=True, rate=4.0)
    scene.live(40)
    scene.done[job.run.id] = [0.0]
    scene.rates[job.run.id] = [2.0]
    scene.live(90)
    [found] = scene.only(events.Profiled)
    assert found.profile.throughput == pytest.approx(2.0)


# Runs that share.


def pair(scene, first=1.6, second=1.0, shares=(50, 40), **fields):
    """Start two known jobs on one device, which do so many iterations a second."""
    scene.story.know("vision")
    scene.story.know("speech", owner=BOB)
    a = scene.start("vision", "g0", share=shares[0], rate=first)
    b = scene.start("speech", "g0", share=shares[1], rate=second, owner=BOB, **fields)
    return a, b


KNOWN = (profile("ann/vision", 2.0), profile("bob/speech", 1.5))


def test_runs_together_are_measured_a_window_at_a_time():
    scene = Scene(*KNOWN)
    pair(scene)
    assert scene.live(69) == []
    [found] = scene.live(6)
    assert isinstance(found, events.Measured)
    assert found.runs == ("j1.1", "j2.1")
    assert found.gpu == "g0"
    assert found.measurement.workloads == ("ann/vision", "bob/speech")
    assert found.measurement.share == (50, 40)
    # Alone 2.0 and 1.5 a second, here 1.6 and 1.0.
    assert found.measurement.slowdown == pytest.approx((1.25, 1.5))
    assert found.measurement.power_w == pytest.approx(200.0)
    assert found.predicted == (1.1, 1.2)
    assert found.window_s == pytest.approx(60.0, abs=2)
    assert scene.known.asked == [(["j1.1", "j2.1"], "g0")]
    # The next two windows take two and four minutes.
    assert len(scene.live(114)) == 0
    assert len(scene.live(4)) == 1
    assert len(scene.live(234)) == 0
    [third] = scene.live(8)
    assert third.window_s == pytest.approx(240.0, abs=2)


def test_what_is_seen_of_a_run_is_on_show():
    scene = Scene(*KNOWN)
    scene.used_mib = {"j1.1": 640.0}
    scene.total = 5000.0
    pair(scene)
    scene.live(60)
    found = scene.reading("j1.1")
    assert found.iterations == pytest.approx(96.0)
    assert found.rate == pytest.approx(1.6)
    assert found.slowdown == pytest.approx(1.25)
    assert (found.predicted, found.predicted_by) == (1.1, "estimate without a bound: made up")
    assert (found.total, found.solo_rate, found.memory_used_mib) == (5000.0, 2.0, 640.0)


def test_a_window_begins_anew_when_a_job_leaves_or_joins():
    scene = Scene(*KNOWN)
    a, b = pair(scene)
    scene.live(15)
    scene.story.ended(b)
    scene.rates["j1.1"] = [2.0]
    scene.live(200)
    assert scene.events == []
    scene.rates["j1.1"] = [0.5]
    scene.start("speech", "g0", share=40, rate=1.2, owner=BOB)
    scene.live(80)
    [found] = scene.events
    assert found.runs == ("j1.1", "j3.1")
    assert found.measurement.slowdown == pytest.approx((4.0, 1.25))
    assert a.state is JobState.RUNNING


def test_a_window_that_its_runs_cut_short_counts_from_a_quarter_on():
    scene = Scene(*KNOWN)
    _, b = pair(scene)
    scene.live(40)
    scene.story.ended(b)
    [found] = scene.live(1)
    assert found.measurement.slowdown == pytest.approx((1.25, 1.5))
    assert 15 <= found.window_s < 60


def test_without_the_rate_alone_nothing_is_measured():
    scene = Scene(KNOWN[0])
    pair(scene, gsla=1.01)
    assert scene.live(400) == []
    assert scene.reading("j2.1").slowdown is None
    assert scene.reading("j2.1").rate == pytest.approx(1.0)


def test_a_noisy_pair_is_looked_at_longer():
    scene = Scene(*KNOWN)
    a, _ = pair(scene)
    rng = random.Random(1)
    for k in range(27):
        scene.rates[a.run.id] = [rng.uniform(0.5, 2.5)]
        scene.live(10)
        if k < 22:
            assert scene.events == []
    [found] = scene.events
    assert found.window_s >= 4 * OPTIONS.window_s
    assert "±0.0%" not in found.measurement.source


@pytest.mark.parametrize(("shares", "mode"), [((None, None), "time_sliced"), ((50, 40), "mps")])
def test_what_is_measured_without_mps_is_of_time_slices(shares, mode):
    # Runs with caps have outlived a service that had MPS.
    scene = Scene(*KNOWN)
    scene.known.cluster = Cluster(sharing="time_sliced", nodes=())
    pair(scene, shares=shares)
    scene.live(300)
    measured = [event for event in scene.events if isinstance(event, events.Measured)]
    assert {event.measurement.mode for event in measured} == {mode}


def test_the_slowdown_of_a_gang_with_two_partners_is_not_attributed():
    scene = Scene(*KNOWN, profile("ann/wide", 2.0, workers=2))
    scene.story.know("wide")
    scene.story.know("vision")
    scene.story.know("speech", owner=BOB)
    scene.start("wide", "g0", "g1", rate=1.0)
    scene.start("vision", "g0", rate=1.6)
    scene.start("speech", "g1", rate=1.0, owner=BOB)
    assert scene.live(300) == []
    assert scene.reading("j1.1").slowdown == pytest.approx(2.0)


def test_a_gang_with_one_partner_is_measured_once():
    wide = (profile("ann/wide", 2.0, workers=2), profile("bob/wide", 3.0, workers=2))
    scene = Scene(*wide)
    scene.story.know("wide")
    scene.story.know("wide", owner=BOB)
    scene.start("wide", "g0", "g1", rate=1.0)
    scene.start("wide", "g0", "g1", rate=2.0, owner=BOB)
    scene.live(80)
    [found] = scene.events
    assert found.measurement.slowdown == pytest.approx((2.0, 1.5))


def test_a_gang_that_has_its_other_devices_for_itself_is_measured():
    scene = Scene(KNOWN[0], profile("ann/wide", 2.0, workers=2))
    scene.story.know("wide")
    scene.story.know("vision")
    scene.start("wide", "g0", "g1", rate=1.0)
    scene.start("vision", "g1", rate=1.6)
    scene.live(80)
    [found] = scene.events
    assert (found.gpu, found.measurement.slowdown) == ("g1", pytest.approx((2.0, 1.25)))


def test_memory_that_grows_is_learned():
    scene = Scene(*KNOWN)
    scene.used_mib = {"j1.1": 505.0, "j2.1": 400.0}
    pair(scene)
    scene.live(20)
    assert scene.events == []  # one per cent over the mark is not news
    scene.used_mib = {"j1.1": 600.0, "j2.1": 400.0}
    [found] = scene.live(10)
    assert isinstance(found, events.Profiled)
    assert found.run == "j1.1"
    assert found.profile.memory_mib == 600.0
    assert found.profile.throughput == 2.0


# The gSLA.


def test_a_run_alone_at_another_rate_than_its_profile_is_profiled_again_once():
    scene = Scene(profile("ann/a", 2.0))
    scene.start("a", "g0", rate=3.0, memory_mib=500.0)
    scene.used_mib = {"j1.1": 400.0}
    assert scene.live(int(OPTIONS.warm_up_s) + 59) == []
    (found,) = scene.live(300)
    assert (found.kind, found.profile.throughput) == ("profiled", pytest.approx(3.0))
    assert scene.reading("j1.1").solo_rate == pytest.approx(3.0)


def test_a_new_profile_keeps_what_is_known_of_the_kernels():
    kernels = {"kernels_s": 1000.0, "kernel_full": 0.5, "sm_active": 0.9}
    scene = Scene(profile("ann/vision", 4.0, metrics=kernels))
    scene.start("vision", "g0", rate=5.0)
    scene.used_mib = {"j1.1": 400.0}
    (found,) = scene.live(200)
    described = found.profile.metrics
    assert described.kernels_s == pytest.approx(1250.0)
    assert (described.kernel_full, described.sm_active) == (0.5, 0.5)


def test_a_gang_has_the_kernels_that_one_worker_is_known_to_have():
    scene = Scene(profile("ann/vision", None, metrics={"kernels_s": 1000.0}))
    scene.start("vision", "g0", "g1", profiling=True, rate=4.0)
    (found,) = scene.live(200)
    assert (found.profile.workers, found.profile.metrics.kernels_s) == (2, 1000.0)


def test_a_run_alone_near_its_profile_is_left_at_that():
    scene = Scene(profile("ann/a", 2.0))
    scene.start("a", "g0", rate=2.15)
    assert scene.live(400) == []


def test_a_capped_run_says_nothing_of_the_rate_alone():
    scene = Scene(profile("ann/a", 2.0))
    scene.start("a", "g0", rate=1.0, share=50)
    assert scene.live(400) == []


def test_a_run_that_co_runners_make_much_faster_has_a_wrong_profile_and_no_measurement():
    scene = Scene(*KNOWN)
    pair(scene, first=3.0)
    assert scene.live(400) == []  # 2 / 3 = 0.67
    assert scene.reading("j1.1").slowdown == pytest.approx(2 / 3)


def test_the_newer_of_a_pair_that_breaks_a_gsla_waits_again():
    scene = Scene(*KNOWN)
    a, b = pair(scene, second=0.9, gsla=1.5)  # slowed 1.67
    scene.live(80)
    [measured, stop, separated] = scene.events
    assert isinstance(measured, events.Measured)
    assert isinstance(stop, events.StopDecided)
    assert isinstance(separated, events.Separated)
    assert (stop.run, stop.then) == (b.run.id, "wait")
    assert separated.runs == (b.run.id, a.run.id)
    assert separated.gsla == 1.5
    assert separated.slowdown == pytest.approx(1.67, abs=0.01)
    assert stop.reason == "j2 was slowed by a factor of 1.67, its gSLA is 1.5"
    assert a.state is JobState.RUNNING
    assert b.state is JobState.STOPPING
    assert scene.live(200) == []


def test_the_newer_stops_for_the_older_one_s_gsla_and_fails_where_it_may_not_wait():
    scene = Scene(*KNOWN)
    scene.story.know("vision")
    scene.story.know("speech", owner=BOB)
    scene.start("vision", "g0", rate=1.0, gsla=1.5)  # slowed 2.0
    b = scene.start("speech", "g0", rate=1.5, owner=BOB, requeue=False)
    scene.live(80)
    [stop] = scene.only(events.StopDecided)
    assert (stop.run, stop.then) == (b.run.id, "fail")
    assert stop.reason.startswith("j1 was slowed by a factor of 2.00")


def test_a_gang_is_separated_from_all_it_may_have_been_slowed_by():
    scene = Scene(profile("ann/speech", 2.0), profile("ann/vision", 4.0, workers=2))
    scene.story.know("vision")
    scene.story.know("speech")
    first = scene.start("speech", "g0", rate=1.5, share=40)
    second = scene.start("speech", "g1", rate=1.5, share=50)
    gang = scene.start("vision", "g0", "g1", rate=1.0, gsla=1.5, share=50)
    scene.live(80)
    assert scene.only(events.Measured) == []  # its co-runners differ
    found = scene.only(events.Separated)
    assert {pair.runs for pair in found} == {
        (gang.run.id, first.run.id),
        (gang.run.id, second.run.id),
    }
    assert [pair.shares for pair in found if pair.runs[1] == first.run.id] == [(50, 40)]
    assert gang.state is JobState.STOPPING
    assert scene.story.machine.are_apart(first.id, gang.id)
    assert not scene.story.machine.are_apart(first.id, second.id)


def test_what_a_noisy_breach_showed_is_learned():
    scene = Scene(*KNOWN)
    _, b = pair(scene, gsla=1.5)
    rng = random.Random(2)
    for _ in range(12):
        scene.rates[b.run.id] = [rng.uniform(0.2, 0.8)]
        scene.live(10)
    [stop, _, measured] = scene.events
    assert isinstance(stop, events.StopDecided)
    assert isinstance(measured, events.Measured)
    assert measured.measurement.slowdown[1] > 1.5


def test_a_short_breach_is_borne():
    scene = Scene(*KNOWN)
    pair(scene, second=1.2, gsla=1.5)
    scene.live(100)
    scene.rates["j2.1"] = [0.1]
    scene.live(20)
    scene.rates["j2.1"] = [1.2]
    scene.live(200)
    assert scene.only(events.StopDecided) == []


def test_a_breach_within_the_noise_is_none():
    scene = Scene(*KNOWN)
    pair(scene, gsla=1.5)
    for k in range(9):
        scene.rates["j2.1"] = [0.6 if k % 2 else 1.3]  # slowed 1.58 on average
        scene.live(10)
    assert scene.only(events.StopDecided) == []


def test_a_run_stalled_by_its_co_runner_breaks_its_gsla():
    scene = Scene(*KNOWN)
    pair(scene, second=1.4, gsla=1.5)
    scene.live(100)
    # No iteration: the file keeps saying when the last one ended.
    scene.rates["j2.1"] = [None]
    scene.live(590)
    assert scene.only(events.StopDecided) == []
    scene.live(20)
    [stop] = scene.only(events.StopDecided)
    assert stop.reason == "j2 has done no iteration with co-runners for 600 s"
    assert scene.only(events.Measured)[-1].measurement.failed


def test_no_co_runner_is_stopped_for_a_job_that_is_slow_alone():
    scene = Scene(*KNOWN)
    scene.story.know("vision")
    scene.start("vision", "g0", rate=0.5, gsla=1.1)
    assert scene.live(300) == []
    assert scene.reading("j1.1").slowdown == pytest.approx(4.0)


def test_a_device_that_left_the_pool_with_a_run_on_it_harms_nothing():
    scene = Scene(*KNOWN)
    job = scene.start("vision", "g0", profiling=True, rate=4.0)
    scene.watch = scene.watch_of({})
    scene.live(30)
    assert scene.reading(job.run.id).rate == pytest.approx(4.0)


def test_thousands_of_samples_are_thinned_and_the_rate_stays():
    scene = Scene(*KNOWN)
    pair(scene)
    scene.live(5000)
    assert scene.reading("j1.1").slowdown == pytest.approx(1.25)
    assert len(scene.watch._tracks.runs["j1.1"].samples) <= 2048


# Tail latencies.


def latencies(usual_s, late_s=None, count=20):
    """Return ``count`` latencies of one second, one in twenty of them ``late_s``."""
    late = [late_s] * (count // 20) if late_s else []
    return [*late, *[usual_s] * (count - len(late))]


SERVED = (profile("ann/vision", 2.0, latency_p99_s=0.020), profile("bob/speech", 1.5))


def latency_pair(scene, tail_s, rate=1.9, priority="latency", gsla=1.5, count=20):
    """Start a job whose p99 alone is 20 ms, here ``tail_s``, and one that reports no latency."""
    scene.story.know("vision")
    scene.story.know("speech", owner=BOB)
    a = scene.start("vision", "g0", rate=rate, priority=priority, gsla=gsla)
    b = scene.start("speech", "g0", rate=1.4, owner=BOB)
    scene.latencies[a.run.id] = latencies(0.010, tail_s, count)
    return a, b


def test_a_profile_has_the_p99_of_its_time_and_waits_for_enough_latencies():
    scene = Scene()
    job = scene.start("vision", "g0", profiling=True, rate=4.0)
    scene.latencies[job.run.id] = [5.0]  # while it warms up
    scene.live(10)
    scene.latencies[job.run.id] = [0.010, 0.030, 0.010, 0.010]
    scene.live(115)
    assert scene.only(events.Profiled) == []  # four a second make 500 in 125 s
    scene.live(15)
    [found] = scene.only(events.Profiled)
    assert found.profile.latency_p99_s == pytest.approx(0.030, rel=0.03)
    assert found.profile.throughput == pytest.approx(4.0)


def test_a_profile_with_too_few_latencies_has_none():
    scene = Scene()
    job = scene.start("vision", "g0", profiling=True, rate=4.0)
    scene.latencies[job.run.id] = [0.010]
    scene.live(305)
    [found] = scene.only(events.Profiled)
    assert found.profile.latency_p99_s is None


def test_a_run_alone_gives_its_profile_the_p99_that_it_lacks():
    scene = Scene(profile("ann/vision", 2.0))
    scene.story.know("vision")
    job = scene.start("vision", "g0", rate=2.0, memory_mib=500.0)
    scene.used_mib = {job.run.id: 500.0}
    scene.latencies[job.run.id] = latencies(0.010, 0.040)
    scene.live(300)
    [found] = scene.only(events.Profiled)
    assert found.profile.latency_p99_s == pytest.approx(0.040, rel=0.03)


def test_the_growth_of_the_p99_is_measured_for_jobs_that_report_latencies():
    scene = Scene(*SERVED)
    latency_pair(scene, 0.050, gsla=None)
    scene.live(80)
    [found] = scene.only(events.Measured)
    assert found.measurement.slowdown == pytest.approx((2.0 / 1.9, 1.5 / 1.4))
    growth, none = found.measurement.p99
    assert growth == pytest.approx(2.5, rel=0.03)
    assert none is None


@pytest.mark.parametrize(
    ("known", "count"), [(KNOWN, 20), (SERVED, 0), (SERVED, 1)], ids=["alone", "none", "few"]
)
def test_without_a_p99_on_either_side_there_is_no_growth(known, count):
    scene = Scene(*known)
    latency_pair(scene, None, count=count)
    scene.live(80)
    [found] = scene.only(events.Measured)
    assert found.measurement.p99 is None


def test_a_latency_job_is_over_its_gsla_by_its_p99_alone():
    scene = Scene(*SERVED)
    a, b = latency_pair(scene, 0.050)  # the mean is slowed 1.05
    scene.live(80)
    [stop] = scene.only(events.StopDecided)
    assert stop.run == b.run.id
    assert stop.reason.startswith("j1's p99 latency grew by a factor of 2.5")
    assert stop.reason.endswith(", its gSLA is 1.5")
    [separated] = scene.only(events.Separated)
    assert separated.runs == (a.run.id, b.run.id)
    assert separated.slowdown == pytest.approx(2.5, rel=0.03)
    assert separated.tail
    [measured] = scene.only(events.Measured)
    assert measured.measurement.p99[0] == pytest.approx(2.5, rel=0.03)


def test_a_p99_within_the_gsla_is_all_that_a_latency_job_asks_for():
    scene = Scene(*SERVED)
    latency_pair(scene, 0.025, rate=1.0)  # the mean is slowed 2.0
    scene.live(400)
    assert scene.only(events.StopDecided) == []


def test_a_p99_within_noise_stops_no_job():
    scene = Scene(*SERVED)
    # Twelve in a thousand are late: that one in a hundred is may be luck.
    a, _ = latency_pair(scene, None)
    for second in range(100):
        late = [0.5] * (second % 4 == 0)
        scene.latencies[a.run.id] = [*late, *[0.010] * (20 - len(late))]
        scene.live(1)
    [measured] = scene.only(events.Measured)
    assert measured.measurement.p99[0] > 20
    assert scene.only(events.StopDecided) == []


@pytest.mark.parametrize(
    ("known", "priority", "stops"),
    [(SERVED, "batch", 0), (KNOWN, "latency", 0), (SERVED, "latency", 1)],
    ids=["batch job", "not measured alone", "latency job"],
)
def test_the_mean_counts_where_no_p99_does(known, priority, stops):
    scene = Scene(*known)
    latency_pair(scene, 0.050, priority=priority)
    scene.live(80)
    assert len(scene.only(events.StopDecided)) == stops
    scene = Scene(*known)
    latency_pair(scene, 0.050, priority=priority, rate=1.0)  # the mean is slowed 2.0
    scene.live(80)
    [separated] = scene.only(events.Separated)
    assert separated.tail == bool(stops)


# Services.

SERVICE = {"priority": "latency", "service": True, "gsla": 1.5}


def test_what_joined_a_service_is_stopped_even_if_the_service_started_last():
    scene = Scene(*SERVED)
    scene.story.know("vision")
    scene.story.know("speech", owner=BOB)
    batch = scene.start("speech", "g0", rate=1.4, owner=BOB)
    served = scene.start("vision", "g0", rate=2.0, **SERVICE)
    scene.latencies[served.run.id] = latencies(0.010, 0.050)
    scene.live(60)
    reading = scene.reading(served.run.id)
    assert (reading.p99_s, reading.p99_alone_s) == (pytest.approx(0.050, rel=0.03), 0.020)
    assert reading.slowdown == pytest.approx(2.5, rel=0.03)
    assert reading.requests_per_s == pytest.approx(20.0, rel=0.05)
    scene.live(20)
    [stop] = scene.only(events.StopDecided)
    assert (stop.run, stop.then) == (batch.run.id, "wait")
    [separated] = scene.only(events.Separated)
    assert separated.runs == (served.run.id, batch.run.id)


def test_a_batch_job_that_may_not_start_again_is_not_stopped_for_a_service_that_came_later():
    scene = Scene(*SERVED)
    scene.story.know("vision")
    scene.story.know("speech", owner=BOB)
    scene.start("speech", "g0", rate=1.4, owner=BOB, requeue=False)
    served = scene.start("vision", "g0", rate=2.0, **SERVICE)
    scene.latencies[served.run.id] = latencies(0.010, 0.050)
    scene.live(80)
    [stop] = scene.only(events.StopDecided)
    assert (stop.run, stop.then) == (served.run.id, "wait")


@pytest.mark.parametrize("requests", [0.0, 0.1])
def test_a_service_without_requests_breaks_no_promise_and_has_no_p99(requests):
    scene = Scene(*SERVED)
    scene.story.know("vision")
    scene.story.know("speech", owner=BOB)
    served = scene.start("vision", "g0", rate=2.0, **SERVICE)
    scene.latencies[served.run.id] = [0.010] * 2
    scene.live(20)
    scene.start("speech", "g0", rate=1.4, owner=BOB)
    scene.rates[served.run.id], scene.latencies[served.run.id] = [requests], []
    scene.live(1000)
    assert scene.only(events.StopDecided) == []
    assert scene.only(events.Measured) == []
    reading = scene.reading(served.run.id)
    assert (reading.p99_s, reading.slowdown, reading.requests_per_s) == (None, None, 0.0)


def test_a_service_that_hangs_has_the_p99_of_its_failed_probes_and_is_separated_by_it():
    scene = Scene(*SERVED)
    scene.story.know("vision")
    scene.story.know("speech", owner=BOB)
    served = scene.start("vision", "g0", rate=20.0, probe="true", **SERVICE)
    scene.latencies[served.run.id] = [0.010] * 20
    batch = scene.start("speech", "g0", rate=1.4, owner=BOB)
    scene.live(90)
    assert scene.reading(served.run.id).p99_s == pytest.approx(0.010, rel=0.03)
    assert scene.only(events.StopDecided) == []
    # The page keeps the time of the last answer, and gets the latencies of probes that fail.
    stuck = scene.progress(served.run.id)[0]
    usual = scene.progress

    def hanging(run):
        counts = scene.reported_latencies(run)
        return [stuck._replace(latencies=counts)] if run == served.run.id else usual(run)

    scene.progress = hanging
    scene.latencies[served.run.id] = []
    scene.live(10)
    assert not scene.reading(served.run.id).ready
    scene.latencies[served.run.id] = [10.0] * 20
    scene.live(5)
    [stop] = scene.only(events.StopDecided)
    assert stop.run == batch.run.id
    assert stop.reason.startswith("j1's p99 latency grew by a factor of 5")
    # Sixteen windows later, nothing of the time before is left, and it hangs all the same.
    scene.live(1000)
    assert scene.reading(served.run.id).p99_s == pytest.approx(10.0, rel=0.03)
    assert not scene.reading(served.run.id).ready


def test_the_time_for_the_profile_of_a_service_begins_with_its_first_answer():
    scene = Scene()
    served = scene.start("vision", "g0", profiling=True, probe="true", **SERVICE)
    assert scene.live(1000) == []  # its server loads a large model
    assert served.state is JobState.PROFILING
    scene.rates[served.run.id] = [20.0]
    scene.latencies[served.run.id] = latencies(0.010, 0.040)
    assert scene.live(60) == []
    [found] = scene.live(20)
    assert found.profile.throughput == pytest.approx(20.0)
    assert found.profile.latency_p99_s == pytest.approx(0.040, rel=0.03)
    assert served.state is JobState.RUNNING


def test_without_latencies_in_the_last_window_no_p99_is_shown():
    scene = Scene(*SERVED)
    scene.story.know("vision")
    served = scene.start("vision", "g0", rate=20.0, probe="true", **SERVICE)
    scene.latencies[served.run.id] = [0.010] * 20
    scene.live(600)
    assert scene.reading(served.run.id).p99_s is not None
    # The prober is no more, and its page stays as it was.
    stuck = scene.progress(served.run.id)
    scene.progress = lambda run: stuck
    scene.live(70)
    reading = scene.reading(served.run.id)
    assert (reading.p99_s, reading.slowdown, reading.requests_per_s) == (None, None, 0.0)
    assert not reading.ready


def test_a_service_whose_probes_are_not_answered_has_broken_its_promise():
    scene = Scene(*SERVED)
    scene.story.know("vision")
    scene.story.know("speech", owner=BOB)
    served = scene.start("vision", "g0", rate=2.0, probe="true", **SERVICE)
    batch = scene.start("speech", "g0", rate=1.4, owner=BOB)
    scene.live(20)
    assert scene.reading(served.run.id).ready
    # The page keeps the time of the last answer.
    stuck = scene.progress(served.run.id)
    usual = scene.progress
    scene.progress = lambda run: stuck if run == served.run.id else usual(run)
    scene.live(10)
    assert not scene.reading(served.run.id).ready
    scene.live(600)
    [stop] = scene.only(events.StopDecided)
    assert stop.run == batch.run.id
    assert "has done no iteration with co-runners" in stop.reason
