"""Services in the state machine: they start again when they end, and no two replicas share."""

import pytest

from dovetail.executor.jobs import checkpoint, events
from dovetail.executor.jobs.journal import Journal, read_state_machine
from dovetail.executor.jobs.live_jobs import KEPT_STEPS
from dovetail.executor.jobs.specs import JobSpec
from dovetail.executor.jobs.state_machine import TransitionError
from dovetail.executor.jobs.states import JobState
from dovetail.instances.errors import InputError
from tests.executor.live.telling import BOB, Story, spec

SERVICE = {"service": True, "priority": "latency"}


@pytest.fixture
def story():
    return Story()


def start(story, job, gpu="g0"):
    story.place(job, gpu)
    story.bring_up(job)


def rested(story, job):
    return story.tell(events.RestartDue, job=job.id)


def ends(story, job, status, after_s=0.0):
    """End the present run after some seconds; return how long the service rests."""
    story.at_s += after_s
    story.ended(job, status=status)
    return None if job.again_s is None else job.again_s - story.at_s


@pytest.mark.parametrize("status", [0, 1, -9])
def test_it_starts_again_whatever_its_status(story, status):
    job = story.running("g0", **SERVICE)
    assert ends(story, job, status) == 1.0
    assert (job.state, job.barred, job.devices) == (JobState.WAITING, True, frozenset())
    assert job.why.startswith("again in 1 s after: ")
    with pytest.raises(TransitionError, match="may not start"):
        story.place(job, "g0")
    rested(story, job)
    start(story, job)
    assert (job.state, job.runs, job.again_s) == (JobState.RUNNING, 2, None)


def test_its_rests_double_up_to_five_minutes_and_begin_anew_after_a_long_run(story):
    job, rests = story.running("g0", **SERVICE), []
    for _ in range(11):
        rests.append(ends(story, job, 1))
        rested(story, job)
        start(story, job)
    assert rests == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert (job.quick_ends, job.runs) == (11, 12)
    assert ends(story, job, 1, after_s=600) == 1.0
    assert job.quick_ends == 1


def test_it_is_given_up_only_as_its_retries_say(story):
    job = story.running("g0", **SERVICE, retries=2)
    for _ in range(2):
        assert ends(story, job, 1)
        rested(story, job)
        start(story, job)
    assert ends(story, job, 1) is None
    assert job.state is JobState.FAILED
    assert job.why == "3 quick ends in a row: rank 0 ended with status 1"


def test_lost_runs_and_refused_starts_never_end_it(story):
    job = story.running("g0", **SERVICE)
    for _ in range(5):
        story.lost(job)
        story.gone(job)
        rested(story, job)
        story.place(job, "g0")
        story.refused(job, later=True)
        rested(story, job)
        start(story, job)
    assert job.state is JobState.RUNNING


def test_a_cancel_ends_it_for_good_while_it_runs_or_rests(story):
    first, second = (story.running(gpu, **SERVICE) for gpu in ("g0", "g1"))
    story.cancel(first)
    story.ended(first)
    ends(story, second, 0)
    story.cancel(second)
    assert {first.state, second.state} == {JobState.CANCELLED}
    with pytest.raises(TransitionError, match="does not rest"):
        rested(story, second)


def test_a_requeued_one_starts_again_at_once(story):
    job = story.running("g0", **SERVICE)
    ends(story, job, 1)
    rested(story, job)
    start(story, job)
    story.stop(job)
    story.ended(job, status=-15)
    assert (job.barred, job.quick_ends) == (False, 0)


def test_one_that_is_held_while_it_rests_waits_for_its_release(story):
    job = story.running("g0", **SERVICE)
    ends(story, job, 1)
    story.tell(events.HoldChanged, job=job.id, on=True, by="ann")
    rested(story, job)
    assert job.barred
    story.tell(events.HoldChanged, job=job.id, on=False, by="ann")
    assert not job.barred


def test_no_two_replicas_share_a_device_and_others_may(story):
    story.know()
    first, second = (story.submit(**SERVICE, index=k, place=k) for k in range(2))
    another = story.submit(**SERVICE)
    start(story, first)
    with pytest.raises(TransitionError, match="j1 on g0 is a replica of it"):
        story.place(second, "g0")
    start(story, second, "g1")
    start(story, another)
    assert story.machine.replicas("j1") == [first, second]
    assert (another.service, story.submit(owner=BOB).service) == ("j3", "")


def test_its_history_keeps_the_beginning_and_the_end(story):
    job = story.running("g0", **SERVICE)
    for _ in range(KEPT_STEPS):
        ends(story, job, 1)
        rested(story, job)
        start(story, job)
    assert KEPT_STEPS <= len(job.history) <= 2 * KEPT_STEPS
    assert (job.history[0].why, job.history[-1].state) == ("submitted", JobState.RUNNING)


def test_it_comes_back_from_a_journal_and_from_a_checkpoint(story, tmp_path):
    job = story.running("g0", **SERVICE, probe="http://127.0.0.1:{port}/health")
    ends(story, job, 1)
    with Journal(tmp_path) as journal:
        journal.append(story.happened)
    again = read_state_machine(tmp_path)
    assert again == story.machine
    assert [*again.resting] == ["j1"]
    stored = checkpoint.StoredJob(checkpoint.job_text(job), job.spec)
    assert checkpoint.restored(checkpoint.state_text(story.machine), [stored]) == story.machine


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"priority": "batch"}, "priority: must be latency for a service, got batch"),
        ({"requeue": False}, "requeue: must be true for a service"),
        ({"walltime_s": 5.0}, "walltime_s: must not be given for a service, got 5.0"),
        ({"estimate_s": 5.0}, "estimate_s: must not be given for a service"),
        ({"checkpoint_s": 0.0}, "checkpoint_s: must not be given for a service"),
        ({"most_running": 2}, "most_running: must not be given for a service"),
        ({"probe": "http://10.0.0.1:80/"}, "probe: must be an address like http://127.0.0.1"),
        ({"probe": "https://127.0.0.1:80/"}, "probe: must be an address like http://127.0.0.1"),
        ({"probe": "http://127.0.0.1:65536/"}, "probe: must be an address like http://127.0.0.1"),
        ({"probe": "http://127.0.0.1:{port}/a b"}, "probe: must be an address like"),
        ({"probe": "true", "probe_rate": 51.0}, "probe_rate: must be <= 50"),
        ({"probe": "true", "probe_histogram": "a"}, "probe_histogram: needs an address as probe"),
        ({"probe_rate": 1.0}, "probe_rate: needs a probe, got 1.0"),
        ({"probe": "true", "progress_pattern": "(x)"}, "progress_pattern: must not be given"),
        ({"service": False, "probe": "true"}, "probe: needs a service"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(fields, message):
    data = {**spec().to_data(), **SERVICE, **fields}
    with pytest.raises(InputError) as error:
        JobSpec.from_data(data)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "probe", ["http://localhost:80", "http://[::1]:{port}/x?y=1", "curl -sf http://h/$X", "true"]
)
def test_probes_are_addresses_of_this_machine_or_commands(probe):
    assert spec(**SERVICE, probe=probe).probe == probe
