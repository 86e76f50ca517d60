"""The life of a job, event by event."""

import json
from copy import deepcopy

import pytest

from dovetail.executor.jobs import checkpoint, events
from dovetail.executor.jobs import state_machine as rules
from dovetail.executor.jobs.commands import Launch, Pause, Release, StopRun
from dovetail.executor.jobs.live_jobs import RankState
from dovetail.executor.jobs.specs import Seat
from dovetail.executor.jobs.state_machine import MOST_LOSSES, TransitionError
from dovetail.executor.jobs.states import HOLDING, OVER, QUEUED, TRANSITIONS, JobState
from dovetail.instances._record import IDLE
from tests.executor.live.telling import BOB, Story, run_of, spec


@pytest.fixture
def story():
    return Story()


def states(job):
    return [str(step.state) for step in job.history]


class TestAJobsWay:
    def test_alone_measured_and_finished(self, story):
        job = story.submit()
        assert story.place(job, "g1", profiling=True) == (Launch(job.run),)
        assert story.started(job) == ()
        story.ready(job)
        assert job.state is JobState.PROFILING
        story.profiled(job)
        assert job.state is JobState.RUNNING
        assert story.ended(job) == (Release("j1.1"),)
        assert states(job) == ["submitted", "starting", "profiling", "running", "finished"]
        assert story.machine.residents() == {"g0": [], "g1": [], "g2": []}

    def test_a_profile_frees_every_job_of_the_workload_and_no_other(self, story):
        first, second = story.submit(), story.submit()
        bobs, other = story.submit(owner=BOB), story.submit(workload="text")
        story.place(first, "g0", profiling=True)
        story.bring_up(first)
        story.profiled(first)
        assert [job.state for job in (second, bobs, other)] == ["waiting", "submitted", "submitted"]

    def test_a_profile_that_came_while_it_started_needs_no_other(self, story):
        job = story.submit()
        story.place(job, "g0", profiling=True)
        story.know()
        story.bring_up(job)
        assert job.state is JobState.RUNNING

    def test_a_profile_that_failed_lets_it_run_alone_for_good(self, story):
        job, other = story.running("g0", workload="text"), story.submit()
        story.place(other, "g1", profiling=True)
        story.bring_up(other)
        story.tell(events.ProfileFailed, run=other.run.id, reason="reports no progress")
        assert (other.state, other.alone_only) == (JobState.RUNNING, "reports no progress")
        third = story.submit(workload="text")
        with pytest.raises(TransitionError, match="g1 is being used alone"):
            story.place(third, "g1")
        story.know()
        with pytest.raises(TransitionError, match="g1 is being used alone"):
            story.place(third, "g1")
        assert job.state is JobState.RUNNING

    def test_a_failed_profile_after_a_known_one_changes_nothing(self, story):
        job = story.running("g0")
        story.tell(events.ProfileFailed, run=job.run.id, reason="too late")
        assert job.alone_only == ""

    def test_it_ends_before_anyone_saw_it_ready(self, story):
        job = story.submit()
        story.place(job, "g0", profiling=True)
        assert story.ended(job) == (Release("j1.1"),)
        assert job.state is JobState.FINISHED

    def test_the_queue_is_in_the_order_of_submission(self, story):
        first, second = story.running("g0", retries=1), story.submit()
        story.ended(first, status=1)
        assert story.machine.queue() == [first, second]


class TestIsolation:
    @pytest.fixture
    def pair(self, story):
        story.know()
        story.know("text")
        first = story.submit(priority="latency")
        story.tell(events.Placed, run=run_of(first, ("g0",)).replace(isolated=True))
        story.bring_up(first)
        second = story.submit(workload="text", requeue=False)
        run = run_of(second, ("g0",), share=IDLE).replace(isolated=True)
        story.tell(events.Placed, run=run)
        return first, second

    def test_a_job_in_the_idle_time_of_one_that_is_not_isolated_is_stopped(self, story, pair):
        first, second = pair
        story.bring_up(second)
        commands = story.tell(events.IsolationLost, run=first.run.id, reason="r")
        assert [type(command) for command in commands] == [StopRun]
        assert (first.state, first.unisolated) == (JobState.RUNNING, "r")
        story.ended(second, status=-15)
        assert (second.state, second.unisolated) == (JobState.FAILED, "")
        assert second.why == f"{first.id} is not isolated: r"

    def test_one_that_has_not_run_waits_even_if_it_may_not_be_started_again(self, story, pair):
        first, second = pair
        story.tell(events.IsolationLost, run=first.run.id, reason="r")
        refused = {"rank": 0, "reason": "it was stopped before it was started"}
        story.tell(events.RankRefused, run=second.run.id, **refused)
        assert second.state is JobState.WAITING

    def test_one_that_could_not_start_isolated_is_not_isolated_next_time(self, story, pair):
        _, second = pair
        story.tell(events.IsolationLost, run=second.run.id, reason="no library")
        refused = {"rank": 0, "reason": "it is not isolated", "later": True}
        story.tell(events.RankRefused, run=second.run.id, **refused)
        assert (second.state, second.unisolated) == (JobState.WAITING, "no library")

    def test_one_that_is_isolated_again_may_lead_again(self, story, pair):
        first, second = pair
        story.bring_up(second)
        story.tell(events.IsolationLost, run=first.run.id, reason="r")
        assert not first.leads("g0")
        story.tell(events.IsolationRegained, run=first.run.id)
        assert (first.unisolated, first.leads("g0")) == ("", True)

    def test_one_alone_runs_on(self, story, pair):
        first, second = pair
        story.bring_up(second)
        story.ended(first)
        story.tell(events.IsolationLost, run=second.run.id, reason="r")
        assert second.state is JobState.RUNNING


class TestGangs:
    def test_all_ranks_must_run_and_all_must_end(self, story):
        job = story.submit(workers=3)
        story.place(job)
        story.started(job, 0)
        story.ready(job, 0)
        story.ready(job, 1)
        assert job.state is JobState.STARTING
        story.ready(job, 2)
        assert job.state is JobState.RUNNING
        assert story.ended(job, rank=1) == ()
        assert story.ended(job, rank=0) == ()
        assert job.state is JobState.RUNNING
        assert story.ended(job, rank=2) == (Release("j1.1"),)
        assert job.state is JobState.FINISHED

    def test_it_ended_with_its_last_rank_however_late_that_is_known(self, story):
        story.know()
        job = story.submit(workers=3)
        story.place(job)
        for rank in range(3):
            story.ready(job, rank)
        began_s = job.since_s
        story.at_s += 100.0
        for rank, ended_s in enumerate([began_s + 5.0, began_s + 9.0, began_s - 7.0]):
            story.ended(job, rank=rank, ended_s=ended_s)
        assert job.since_s == began_s + 9.0

    def test_a_rank_that_ends_well_while_others_start_is_not_waited_for(self, story):
        job = story.submit(workers=2)
        story.place(job)
        story.ended(job, rank=0)
        assert job.state is JobState.STARTING
        story.ready(job, 1)
        assert job.state is JobState.RUNNING

    def test_the_first_trouble_is_blamed_not_what_the_stop_did(self, story):
        job = story.running(workers=2)
        assert story.ended(job, status=3, rank=1) == (StopRun("j1.1", 30.0),)
        story.ended(job, status=-15, rank=0)
        assert (job.state, job.why) == (JobState.FAILED, "rank 1 ended with status 3")

    def test_a_refused_rank_stops_the_others(self, story):
        job = story.submit(workers=2)
        story.place(job)
        story.started(job, 0)
        assert story.refused(job, 1) == (StopRun("j1.1", 30.0),)
        assert story.machine.residents()["g1"] == [job]
        assert story.ended(job, status=-15, rank=0) == (Release("j1.1"),)
        assert (job.state, job.why) == (JobState.FAILED, "cannot start: no port")

    def test_all_refused_is_one_failure(self, story):
        job = story.submit(workers=2, retries=1)
        story.place(job)
        story.refused(job, 0)
        story.refused(job, 1)
        assert (job.state, job.failures) == (JobState.SUBMITTED, 1)

    def test_a_rank_that_has_run_cannot_be_refused(self, story):
        job = story.running()
        with pytest.raises(TransitionError, match=r"rank 0 of j1\.1 has run"):
            story.refused(job)
        assert job.state is JobState.RUNNING


class TestPauses:
    def pause(self, story, job, on=True):
        return story.tell(events.PauseChanged, job=job.id, on=on, by="ann")

    def test_it_keeps_its_device_and_goes_on(self, story):
        job = story.running()
        assert self.pause(story, job) == (Pause("j1.1", True),)
        assert (job.state, job.why) == (JobState.PAUSED, "paused by ann")
        assert story.machine.residents()["g0"] == [job]
        assert story.machine.outstanding() == (Pause("j1.1", True),)
        assert self.pause(story, job, False) == (Pause("j1.1", False),)
        assert job.state is JobState.RUNNING
        # The service may have been killed before it could say so.
        assert story.machine.outstanding() == (Pause("j1.1", False),)

    def test_one_that_is_measured_is_measured_again(self, story):
        job = story.submit()
        story.place(job, profiling=True)
        story.bring_up(job)
        self.pause(story, job)
        self.pause(story, job, False)
        assert job.state is JobState.PROFILING

    def test_it_is_found_again_as_it_was(self, story):
        job = story.running()
        self.pause(story, job)
        story.lost(job)
        story.started(job)
        assert job.state is JobState.PAUSED
        story.ended(job, status=-9)
        assert job.state is JobState.FAILED

    def test_its_next_run_runs(self, story):
        job = story.running()
        self.pause(story, job)
        assert story.stop(job) == (StopRun("j1.1", 30.0),)
        story.ended(job, status=-15)
        story.place(job)
        story.bring_up(job)
        assert job.state is JobState.RUNNING

    def test_what_does_not_run_is_not_paused(self, story):
        job = story.submit()
        with pytest.raises(TransitionError, match="does not run"):
            self.pause(story, job)

    def test_one_that_is_held_while_it_runs_waits_for_its_release(self, story):
        job = story.running()
        story.tell(events.HoldChanged, job=job.id, on=True, by="ann")
        assert job.state is JobState.RUNNING
        story.stop(job)
        story.ended(job, status=-15)
        assert (job.state, [*story.machine.barred]) == (JobState.WAITING, ["j1"])


class TestEdits:
    def edit(self, story, job, **changes):
        spec = job.spec.replace(**changes)
        return story.tell(events.Edited, job=job.id, spec=spec.replace(env={}), by="ann")

    def test_it_starts_as_it_is_then_with_its_own_environment(self, story):
        job = story.submit(env={"A": "b"})
        self.edit(story, job, command=("other",), workers=2, nice=4)
        assert (job.spec.command, job.spec.workers, job.spec.env) == (("other",), 2, {"A": "b"})
        story.place(job)
        assert (job.run.spec, len(job.ranks)) == (job.spec, 2)

    def test_another_workload_has_another_profile(self, story):
        job = story.submit()
        story.know()
        assert job.state is JobState.WAITING
        self.edit(story, job, workload="text")
        assert (job.state, job.why) == (JobState.SUBMITTED, "edited by ann")
        self.edit(story, job, workload="vision")
        assert job.state is JobState.WAITING

    def test_a_checkpoint_has_it_and_one_of_before_has_what_was_submitted(self, story):
        job = story.submit(env={"A": "b"})
        submitted = job.spec
        self.edit(story, job, nice=4)
        text = checkpoint.job_text(job)
        whole = checkpoint.state_text(story.machine)

        def of(text):
            machine = checkpoint.restored(whole, [checkpoint.StoredJob(text, submitted)])
            return machine.jobs["j1"].spec

        assert of(text) == job.spec
        assert (
            of(json.dumps({k: v for k, v in json.loads(text).items() if k != "spec"})) == submitted
        )

    def test_what_is_reserved_for_it_is_no_longer(self, story):
        job = story.submit()
        story.tell(events.Reserved, job=job.id, gpus=("g0",), until_s=9.0)
        self.edit(story, job, workers=2)
        assert story.machine.reserved == {}

    def test_what_runs_and_what_is_fixed_stays(self, story):
        job = story.submit()
        for changes in ({"owner": BOB}, {"after": ("j1",)}, {"held": True}, {"index": 3}):
            with pytest.raises(TransitionError, match="cannot be edited"):
                self.edit(story, job, **changes)
        story.place(job)
        with pytest.raises(TransitionError, match="does not wait"):
            self.edit(story, job, nice=1)
        story.bring_up(job)
        story.stop(job)
        story.ended(job)
        with pytest.raises(TransitionError, match="the workers of j1 cannot be edited"):
            self.edit(story, job, workers=2)
        self.edit(story, job, nice=1)
        assert job.run.spec.nice == 1


class TestArrays:
    def array(self, story, most=2, jobs=5):
        story.know()
        return [story.submit(index=k, place=k, most_running=most) for k in range(jobs)]

    def test_so_many_compete_and_the_next_follows_each_that_ends(self, story):
        jobs = self.array(story)
        assert [*story.machine.queued] == ["j1", "j2"]
        story.place(jobs[1])
        assert [*story.machine.queued] == ["j1"]
        story.bring_up(jobs[1])
        story.ended(jobs[1])
        assert [*story.machine.queued] == ["j1", "j3"]
        story.cancel(jobs[0])
        assert [*story.machine.queued] == ["j3", "j4"]
        assert jobs[3].competes_since_s == story.at_s

    def test_one_that_is_started_again_keeps_its_place(self, story):
        jobs = self.array(story)
        story.place(jobs[0])
        story.bring_up(jobs[0])
        story.stop(jobs[0])
        story.ended(jobs[0])
        assert {*story.machine.queued} == {"j1", "j2"}

    def test_one_that_is_held_makes_room_and_queues_up_again(self, story):
        jobs = self.array(story)
        story.tell(events.HoldChanged, job="j1", on=True, by="ann")
        assert {*story.machine.queued} == {"j2", "j3"}
        story.tell(events.HoldChanged, job="j1", on=False, by="ann")
        assert jobs[0].crowded
        story.cancel(jobs[1])
        assert {*story.machine.queued} == {"j1", "j3"}

    def test_others_are_nothing_to_it(self, story):
        self.array(story, jobs=2)
        story.submit()
        self.array(story, most=1, jobs=2)
        assert {*story.machine.queued} == {"j1", "j2", "j3", "j4"}


class TestStops:
    def test_stopped_for_another_it_waits_though_it_exited_with_0(self, story):
        job = story.running()
        assert story.stop(job) == (StopRun("j1.1", 30.0),)
        story.ended(job, status=0)
        assert (job.state, job.why, job.failures) == (JobState.WAITING, "too slow", 0)
        assert story.place(job, "g2") == (Launch(job.run),)
        assert job.run.id == "j1.2"

    def test_stopped_for_its_walltime_it_fails_though_it_exited_with_0(self, story):
        job = story.running(retries=5)
        story.stop(job, then="fail")
        story.ended(job, status=0)
        assert (job.state, job.why) == (JobState.FAILED, "too slow")

    def test_while_it_measures_itself(self, story):
        job = story.submit()
        story.place(job, profiling=True)
        story.bring_up(job)
        story.stop(job)
        story.ended(job, status=-9)
        assert job.state is JobState.SUBMITTED

    def test_while_it_starts(self, story):
        job = story.submit()
        story.place(job)
        assert story.stop(job) == (StopRun("j1.1", 30.0),)
        assert story.refused(job) == (Release("j1.1"),)
        assert job.state is JobState.SUBMITTED

    def test_while_it_is_lost(self, story):
        job = story.running()
        story.lost(job)
        assert story.stop(job) == (StopRun("j1.1", 30.0),)
        story.gone(job)
        assert (job.state, job.losses) == (JobState.WAITING, 0)

    def test_a_stop_does_not_excuse_a_failure_that_came_first(self, story):
        job = story.running(workers=2)
        story.ended(job, status=1, rank=0)
        assert story.stop(job) == ()
        story.ended(job, status=-15, rank=1)
        assert job.state is JobState.FAILED

    def test_a_second_stop_changes_nothing(self, story):
        job = story.running()
        story.stop(job, then="wait")
        assert story.stop(job, then="fail") == ()
        story.ended(job, status=-15)
        assert job.state is JobState.WAITING

    def test_of_a_run_that_is_over(self, story):
        job = story.running()
        story.ended(job)
        assert story.stop(job) == ()
        assert job.state is JobState.FINISHED

    def test_a_job_that_may_not_be_started_again_is_not_stopped_to_wait(self, story):
        job = story.running(requeue=False)
        with pytest.raises(TransitionError, match="j1 may not be started again"):
            story.stop(job, then="wait")
        assert story.stop(job, then="fail") == (StopRun("j1.1", 30.0),)


class TestCancelling:
    def test_waiting(self, story):
        job = story.submit()
        assert story.cancel(job) == ()
        assert (job.state, job.why) == (JobState.CANCELLED, "cancelled by ann")

    @pytest.mark.parametrize("status", [0, 1, -9])
    def test_running(self, story, status):
        job = story.running(retries=3)
        assert story.cancel(job) == (StopRun("j1.1", 30.0),)
        assert story.machine.residents()["g0"] == [job]
        story.ended(job, status=status)
        assert job.state is JobState.CANCELLED

    def test_starting_before_it_was_launched(self, story):
        job = story.submit()
        story.place(job)
        story.cancel(job)
        story.refused(job)
        assert job.state is JobState.CANCELLED

    def test_lost(self, story):
        job = story.running()
        story.lost(job)
        assert story.cancel(job) == (StopRun("j1.1", 30.0),)
        assert job.state is JobState.STOPPING
        story.gone(job)
        assert job.state is JobState.CANCELLED

    def test_while_it_is_stopped_to_wait(self, story):
        job = story.running()
        story.stop(job, then="wait")
        assert story.cancel(job) == (StopRun("j1.1", 30.0),)
        story.ended(job, status=0)
        assert job.state is JobState.CANCELLED

    def test_sooner_than_its_grace(self, story):
        job = story.running()
        assert story.cancel(job) == (StopRun("j1.1", 30.0),)
        assert story.cancel(job, by="root", grace_s=0.0) == (StopRun("j1.1", 0.0),)
        assert story.machine.outstanding() == (StopRun("j1.1", 0.0),)

    def test_never_later_than_its_grace(self, story):
        assert story.cancel(story.running(), grace_s=600.0) == (StopRun("j1.1", 30.0),)

    def test_twice_and_after_its_end(self, story):
        job = story.running()
        story.cancel(job)
        story.cancel(job)
        story.ended(job, status=-15)
        assert story.cancel(job, by="root") == ()
        assert job.why == "cancelled by ann"


class TestAStopThatTheJournalHasLost:
    """The files of a run say that it was asked to end: it has not finished, nor failed."""

    @pytest.mark.parametrize("status", [0, 3, -15])
    def test_a_job_that_may_starts_again(self, story, status):
        job = story.running()
        story.ended(job, status, asked=True)
        assert job.state is JobState.WAITING
        assert job.why == "again after: rank 0 was asked to end, and the journal does not say why"
        assert (job.losses, job.failures) == (1, 0)

    def test_another_has_failed(self, story):
        job = story.running(requeue=False)
        story.ended(job, asked=True)
        assert job.state is JobState.FAILED
        assert job.why == "rank 0 was asked to end, and the journal does not say why"

    def test_what_the_journal_knows_counts(self, story):
        cancelled, stopped = story.running("g0"), story.running("g1")
        story.cancel(cancelled)
        story.stop(stopped, then="fail")
        for job in (cancelled, stopped):
            story.ended(job, asked=True)
        assert [cancelled.state, stopped.state] == [JobState.CANCELLED, JobState.FAILED]
        assert stopped.why == "too slow"


class TestFailures:
    def test_again_as_often_as_it_may(self, story):
        job = story.submit(retries=2)
        story.know()
        for _ in range(2):
            story.place(job)
            story.ended(job, status=1)
            assert job.state is JobState.WAITING
        story.place(job)
        story.ended(job, status=1)
        assert (job.state, job.runs, job.failures) == (JobState.FAILED, 3, 3)

    def test_unobserved_ends_are_no_failures_but_have_a_limit(self, story):
        job = story.submit()
        for _ in range(MOST_LOSSES):
            story.place(job)
            story.gone(job)
            assert job.state is JobState.SUBMITTED
        story.place(job)
        story.gone(job)
        assert (job.state, job.failures) == (JobState.FAILED, 0)

    def test_an_unobserved_end_is_the_last_of_a_job_that_may_not_be_requeued(self, story):
        job = story.running(requeue=False, retries=4)
        story.gone(job)
        assert job.state is JobState.FAILED

    def test_what_cannot_be_started_yet_waits_but_not_for_ever(self, story):
        job = story.submit(requeue=False)
        for _ in range(MOST_LOSSES):
            story.place(job)
            story.refused(job, later=True)
            assert job.state is JobState.SUBMITTED
        story.place(job)
        story.refused(job, later=True)
        assert (job.state, job.failures) == (JobState.FAILED, 0)
        assert job.why == "cannot start: no port"

    def test_a_gang_of_which_one_rank_crashed_and_one_is_gone_has_failed(self, story):
        job = story.running(workers=2)
        story.ended(job, status=1, rank=1)
        story.gone(job, rank=0)
        assert (job.failures, job.losses) == (1, 0)


class TestLostRanks:
    def test_its_devices_stay_busy_and_it_runs_on_when_found(self, story):
        job = story.running("g0", "g1", workers=2)
        story.lost(job, 1)
        assert job.state is JobState.LOST
        assert story.machine.residents() == {"g0": [job], "g1": [job], "g2": []}
        # The process that was proven to run under its cap does so for life.
        story.started(job, 1)
        assert job.state is JobState.RUNNING

    def test_found_before_it_was_proven_it_goes_on_starting(self, story):
        job = story.submit()
        story.place(job)
        story.started(job)
        story.lost(job)
        story.started(job)
        assert job.state is JobState.STARTING
        story.ready(job)
        assert job.state is JobState.RUNNING

    def test_found_again_it_goes_on_measuring(self, story):
        job = story.submit()
        story.place(job, profiling=True)
        story.bring_up(job)
        story.lost(job)
        story.ready(job)
        assert job.state is JobState.PROFILING

    def test_all_must_be_found(self, story):
        job = story.running(workers=2)
        story.lost(job, 0)
        story.lost(job, 1)
        story.ready(job, 0)
        assert job.state is JobState.LOST
        story.ended(job, rank=1)
        assert job.state is JobState.RUNNING

    def test_a_crash_of_another_rank_stops_the_lost_one(self, story):
        job = story.running(workers=2)
        story.lost(job, 0)
        assert story.ended(job, status=1, rank=1) == (StopRun("j1.1", 30.0),)
        story.lost(job, 0)
        assert job.state is JobState.STOPPING

    def test_the_others_run_on_until_it_is_proven_gone(self, story):
        job = story.running(workers=3)
        assert story.lost(job, 2) == ()
        assert story.gone(job, 2) == (StopRun("j1.1", 30.0),)
        assert job.state is JobState.STOPPING
        story.ended(job, status=-15, rank=0)
        assert story.ended(job, status=-15, rank=1) == (Release("j1.1"),)
        assert job.state is JobState.WAITING
        assert (job.failures, job.losses) == (0, 1)
        assert job.why == "again after: rank 2: another boot"

    @pytest.mark.parametrize("failed_first", [True, False])
    def test_others_that_failed_since_they_missed_it_are_not_to_blame(self, story, failed_first):
        job = story.running(workers=2)
        steps = [lambda: story.ended(job, status=1, rank=1), lambda: story.lost(job, 0)]
        for step in steps if failed_first else reversed(steps):
            step()
        story.gone(job, 0)
        assert job.state is JobState.WAITING
        assert (job.failures, job.losses) == (0, 1)

    def test_one_that_was_found_again_is_no_excuse(self, story):
        job = story.running(workers=2)
        story.lost(job, 0)
        story.started(job, 0)
        story.ended(job, status=1, rank=1)
        story.ended(job, status=-15, rank=0)
        assert (job.state, job.failures, job.losses) == (JobState.FAILED, 1, 0)

    def test_it_ended_after_all(self, story):
        job = story.running()
        story.lost(job)
        story.ended(job)
        assert job.state is JobState.FINISHED


class TestNewsToldAgain:
    """A pool reports all its findings anew after a restart."""

    def test_of_a_running_job(self, story):
        job = story.running(workers=2)
        before = states(job)
        for rank in (0, 1):
            assert story.started(job, rank) == ()
            assert story.ready(job, rank) == ()
        assert states(job) == before

    def test_the_pid_is_taken_when_it_comes_late(self, story):
        job = story.submit()
        story.place(job)
        story.ready(job)
        story.started(job, pid=123)
        assert (job.ranks[0].pid, job.ranks[0].state) == (123, RankState.READY)

    def test_of_a_job_that_is_over(self, story):
        job = story.running()
        story.ended(job)
        for news in (story.started, story.ready, story.ended, story.lost, story.gone):
            assert news(job) == ()
        assert job.state is JobState.FINISHED

    def test_an_end_is_counted_once(self, story):
        job = story.running(workers=2, retries=9)
        story.ended(job, status=1, rank=0)
        assert story.ended(job, status=1, rank=0) == ()
        story.ended(job, status=-15, rank=1)
        assert job.failures == 1

    def test_of_an_earlier_run_says_nothing_of_the_present_one(self, story):
        job = story.running(retries=1)
        story.ended(job, status=1)
        story.place(job)
        story.bring_up(job)
        for event, fields in (
            (events.RankEnded, {"rank": 0, "status": 1}),
            (events.RankLost, {"rank": 0, "reason": "late"}),
            (events.RankRefused, {"rank": 0, "reason": "late"}),
            (events.StopDecided, {"reason": "late", "then": "fail"}),
        ):
            assert story.tell(event, run="j1.1", **fields) == ()
        assert job.state is JobState.RUNNING

    def test_measurements_of_an_earlier_run_are_kept(self, story):
        job, other = story.running("g0"), story.running("g0")
        run = job.run
        story.ended(job)
        assert job.run == run
        story.measured(job, other)
        assert list(story.machine.unrecorded) == [story.machine.sequence]


class TestWhatIsRefused:
    def test_a_second_place_for_a_running_job(self, story):
        job = story.running()
        with pytest.raises(TransitionError, match="j1 is placed while it is running; submitted"):
            story.place(job, "g1")

    def test_a_run_of_another_number_or_specification(self, story):
        job = story.submit()
        run = run_of(job, ("g0",))
        with pytest.raises(TransitionError, match=r"run 'j1.7' is not 'j1.1'"):
            story.tell(events.Placed, run=run.replace(id="j1.7"))
        with pytest.raises(TransitionError, match=r"j1.1 is not what was submitted"):
            story.tell(events.Placed, run=run.replace(spec=spec("text")))

    def test_co_runners_for_a_workload_without_a_profile(self, story):
        known = story.running("g0")
        unknown = story.submit(workload="text")
        with pytest.raises(TransitionError, match="g0 is being used alone"):
            story.place(unknown, "g0")
        story.place(unknown, "g1")
        late = story.submit()
        with pytest.raises(TransitionError, match="g1 is being used alone"):
            story.place(late, "g1")
        story.place(late, "g0")
        assert story.machine.residents()["g0"] == [known, late]

    def test_devices_that_take_nothing(self, story):
        job = story.submit()
        story.tell(events.DeviceSick, gpu="g0", reason="has fallen off the bus")
        story.tell(events.DrainChanged, gpus=("g1",), on=True, by="root")
        story.start("g0", "g1")
        for gpu, why in (
            ("g0", "has fallen off the bus"),
            ("g1", "is being drained by root"),
            ("g2", "is not in the pool"),
        ):
            with pytest.raises(TransitionError, match=f"{gpu} {why}"):
                story.place(job, gpu)
        story.tell(events.DeviceHealed, gpu="g0")
        assert story.place(job, "g0") == (Launch(job.run),)

    @pytest.mark.parametrize("run", ["j1.2", "j1.0", "j1", "j9.1", "j1.x", "j1.-1"])
    def test_news_of_runs_that_never_were(self, story, run):
        story.running()
        with pytest.raises(TransitionError):
            story.tell(events.RankEnded, run=run, rank=0, status=0)

    def test_news_of_ranks_and_devices_that_never_were(self, story):
        story.running()
        with pytest.raises(TransitionError, match=r"j1\.1 has no rank 1"):
            story.tell(events.RankEnded, run="j1.1", rank=1, status=0)
        with pytest.raises(TransitionError, match="no device 'g9'"):
            story.tell(events.DeviceSick, gpu="g9", reason="?")

    def test_a_second_job_of_the_same_id(self, story):
        story.submit()
        with pytest.raises(TransitionError, match="the next job is 'j2', not 'j1'"):
            story.tell(events.Submitted, job="j1", spec=spec())

    def test_changes_nothing_but_the_number_and_the_time(self, story):
        job = story.running()
        before = deepcopy(story.machine)
        with pytest.raises(TransitionError):
            story.place(job, "g1")
        before.sequence, before.now_s = before.sequence + 1, before.now_s + 1
        assert story.machine == before


class TestDevices:
    def test_one_that_left_the_pool_stays_busy_and_comes_back(self, story):
        job = story.running("g2")
        story.start("g0", "g1")
        assert story.machine.residents()["g2"] == [job]
        assert story.machine.devices["g2"].trouble == "is not in the pool"
        story.gone(job)
        story.start("g0", "g1", "g2")
        assert story.machine.devices["g2"].trouble == ""

    def test_a_drain_of_all_and_its_end(self, story):
        story.tell(events.DrainChanged, on=True, by="root")
        assert {device.drained for device in story.machine.devices.values()} == {"root"}
        story.tell(events.DrainChanged, on=False, by="root")
        assert {device.trouble for device in story.machine.devices.values()} == {""}

    def test_a_sick_or_drained_device_keeps_its_jobs(self, story):
        job = story.running("g0")
        story.tell(events.DeviceSick, gpu="g0", reason="is too hot")
        story.tell(events.DrainChanged, on=True, by="root")
        assert job.state is JobState.RUNNING


class TestAfterARestart:
    def test_what_may_not_have_been_done_is_done_again(self, story):
        starting, stopping, running = (story.submit(grace_s=7.0) for _ in range(3))
        story.know()
        story.place(starting, "g0")
        story.place(running, "g1")
        story.bring_up(running)
        story.place(stopping, "g2")
        story.cancel(stopping)
        assert story.machine.outstanding() == (Launch(starting.run), StopRun("j2.1", 7.0))

    def test_a_gang_lost_while_it_started_is_launched_to_its_end(self, story):
        job = story.submit(workers=2)
        story.place(job)
        story.lost(job, 0)
        assert story.machine.outstanding() == (Launch(job.run),)

    def test_nothing_for_jobs_whose_every_rank_was_seen(self, story):
        job = story.submit()
        story.place(job)
        story.started(job)
        assert story.machine.outstanding() == ()

    def test_records_are_kept_until_the_repository_has_them(self, story):
        job, other = story.running("g0"), story.running("g0")
        story.profiled(job)
        first = story.machine.sequence
        story.measured(job, other)
        story.tell(events.Recorded, sequence=first)
        assert list(story.machine.unrecorded) == [first + 1]
        story.tell(events.Recorded, sequence=first + 1)
        assert story.machine.unrecorded == {}


class TestWhatIsForgotten:
    @pytest.fixture(autouse=True)
    def _few(self, monkeypatch):
        monkeypatch.setattr(rules, "KEPT_OVER", 2)

    def test_jobs_that_ended_first_and_none_that_has_not(self, story):
        old = story.submit()
        first, second, third = story.running("g0"), story.running("g1"), story.running("g2")
        story.ended(second)
        story.ended(first)
        assert list(story.machine.jobs.values()) == [old, first, second, third]
        story.ended(third)
        assert list(story.machine.jobs.values()) == [old, first, third]

    def test_ids_go_on(self, story):
        for _ in range(4):
            story.cancel(story.submit())
        assert list(story.machine.jobs) == ["j3", "j4"]
        assert story.submit().id == "j5"

    def test_late_news_of_them_is_refused(self, story):
        for _ in range(3):
            story.ended(story.running("g0"))
        with pytest.raises(TransitionError, match="no job 'j1'"):
            story.tell(events.RankEnded, run="j1.1", rank=0, status=0)


class TestTheTable:
    def test_every_state_is_over_queued_or_holding(self):
        assert set(JobState) == OVER | QUEUED | HOLDING
        assert len(JobState) == len(OVER) + len(QUEUED) + len(HOLDING)

    def test_what_is_over_has_no_way_out_and_all_else_has_one(self):
        assert {state for state, ways in TRANSITIONS.items() if not ways} == OVER

    def test_a_job_that_is_over_has_no_environment_any_more(self, story):
        job, waiting = story.running(env={"A": "1"}), story.submit(env={"A": "1"})
        story.ended(job)
        story.cancel(waiting)
        assert job.run.spec is job.spec
        assert (job.spec.env, waiting.spec.env) == ({}, {})

    def test_the_specification_is_kept_once(self):
        story = Story()
        job = story.submit()
        seats = (Seat(gpu="g0"),)
        run = run_of(job, ("g0",)).replace(spec=spec(), seats=seats)
        story.tell(events.Placed, run=run)
        assert job.run.spec is job.spec


class TestWhatAJobWaitsFor:
    def test_it_starts_after_others_have_finished(self, story):
        first, second = story.running("g0"), story.submit()
        last = story.submit(after=(first.id, second.id))
        assert last.id not in story.machine.queued
        with pytest.raises(TransitionError, match="may not start"):
            story.place(last, "g2")
        story.ended(first)
        assert last.awaits == [second.id]
        story.place(second, "g1")
        story.bring_up(second)
        story.ended(second)
        assert last.id in story.machine.queued
        story.place(last, "g2")

    @pytest.mark.parametrize("end", ["fails", "is cancelled"])
    def test_it_is_cancelled_with_what_it_needs_and_so_are_those_after_it(self, story, end):
        first = story.running("g0")
        chain = [first]
        # More than the interpreter may recurse; the machine is checked after the last.
        for number in range(2, 1102):
            wanted = spec(after=(chain[-1].id,))
            story.machine.apply(events.Submitted(at_s=200.0, job=f"j{number}", spec=wanted))
            chain.append(story.machine.jobs[f"j{number}"])
        anyway = story.submit(after_any=(first.id, chain[-1].id))
        if end == "fails":
            story.ended(first, status=1)
        else:
            story.cancel(first)
            story.ended(first, status=-15)
        assert {job.state for job in chain[1:]} == {JobState.CANCELLED}
        assert chain[1].why.startswith("j1, which had to finish before it, ")
        assert anyway.state is JobState.WAITING
        assert not anyway.barred

    def test_what_was_over_before_is_not_waited_for(self, story):
        first = story.running("g0")
        story.ended(first)
        assert not story.submit(after=(first.id,), after_any=(first.id,)).barred

    def test_a_job_unknown_is_waited_for_by_none(self, story):
        with pytest.raises(TransitionError, match="no job 'j9'"):
            story.submit(after=("j9",))
        assert story.machine.jobs == {}

    def test_a_retry_is_no_end(self, story):
        first = story.running("g0", retries=1)
        last = story.submit(after=(first.id,))
        story.ended(first, status=1)
        assert last.awaits == [first.id]

    def test_a_held_job_is_kept_from_devices_and_from_competing(self, story):
        job = story.submit(held=True)
        assert (job.held, dict(story.machine.waiting)) == ("ann", {})
        story.tell(events.HoldChanged, job=job.id, on=False, by="ann")
        assert story.machine.waiting == {1000: 1}
        story.tell(events.Reserved, job=job.id, gpus=("g0",), until_s=1e9)
        story.tell(events.HoldChanged, job=job.id, on=True, by="root")
        assert (job.held, story.machine.queue(), story.machine.reserved) == ("root", [], {})
        story.know()
        assert job.state is JobState.WAITING
        story.cancel(job)
        assert story.machine.barred == {}

    def test_a_job_that_is_over_is_not_held(self, story):
        job = story.running("g0")
        story.ended(job)
        with pytest.raises(TransitionError, match="no longer waits"):
            story.tell(events.HoldChanged, job=job.id, on=True, by="ann")
