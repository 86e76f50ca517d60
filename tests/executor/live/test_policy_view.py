"""The state of policies and the instance, compared with the state machine behind them."""

from __future__ import annotations

import contextlib
import math
import random

import numpy as np
import pytest

from dovetail import check, solve
from dovetail.executor.jobs import events
from dovetail.executor.jobs.state_machine import TransitionError
from dovetail.executor.jobs.states import HOLDING, JobState
from dovetail.executor.live.beliefs import CONFIDENCE, Beliefs
from dovetail.executor.live.job_beliefs import workload_name
from dovetail.executor.live.rounds.deciding import (
    CannotStartError,
    in_groups,
    place,
    refusal,
    reservations,
)
from dovetail.executor.live.rounds.fair_share import MOST_IN_ROUND
from dovetail.executor.live.rounds.policy_view import PolicyView
from dovetail.executor.live.rounds.previews import needs_shares
from dovetail.instances._record import IDLE
from dovetail.instances.datasets import DataSet, Measurement, SoloProfile
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Cluster
from dovetail.instances.metrics import Metrics
from dovetail.solver.policies import Start, policy_named
from dovetail.solver.policies.draft import Draft

from .fate import random_event
from .offered import offer, view_of
from .telling import ANN, BOB, GPUS, Story, spec
from .test_beliefs import LAW

MODEL = "A100"
PARTS = {"vision": (0.5, 0.2), "speech": (0.9, 0.2), "text": (0.7, 0.5)}


def cluster(gpus=GPUS, **rules):
    devices = [{"id": gpu, "model": MODEL, "memory_mib": 40000} for gpu in gpus]
    return Cluster.from_data({"nodes": [{"id": "n0", "gpus": devices}], "uncapped": True, **rules})


def repository(*measurements, owners=(ANN, BOB), throughput=10.0, memory_mib=8000.0):
    profiles = [
        SoloProfile(
            workload=f"{owner.name}/{name}",
            gpu_model=MODEL,
            metrics=Metrics(sm_active=sm, dram_active=dram, pcie_rx_bytes_s=0.0),
            throughput=throughput,
            memory_mib=memory_mib,
        )
        for owner in owners
        for name, (sm, dram) in PARTS.items()
    ]
    return DataSet(name="test", profiles=tuple(profiles), measurements=measurements)


def together(first, second, slowdown, share=None):
    return Measurement(
        workloads=(f"ann/{first}", f"ann/{second}"),
        gpu_model=MODEL,
        share=share,
        slowdown=slowdown,
    )


def world_of(story, *measurements, rules=None, **options):
    beliefs = Beliefs(repository(*measurements))
    return view_of(story.machine, cluster(**(rules or {})), beliefs, **options)


def known_story():
    story = Story()
    for owner in (ANN, BOB):
        for name in PARTS:
            story.know(name, owner)
    return story


def drain(story, gpu, on=True):
    story.tell(events.DrainChanged, gpus=(gpu,), on=on, by="root")


def seen(view, live):
    """Return a job as policies see it."""
    return next(
        job
        for job in (*view.state.pending.values(), *view.state.running.values())
        if job.id == live.id
    )


def start(view, live, *gpus, shares=None):
    places = tuple(view.state.machines.gpu_ids.index(gpu) for gpu in gpus)
    return Start(seen(view, live), places, shares)


def put(story, view, live, *gpus, shares=None):
    """Start a job as the service does, and let all its ranks run."""
    (placed,) = place(view, [start(view, live, *gpus, shares=shares)], {})
    story.tell(type(placed), run=placed.run, profiling=placed.profiling)
    for rank in range(live.spec.workers):
        story.started(live, rank)
        story.ready(live, rank)
    view.renew(story.at_s)


def test_two_users_workloads_of_one_name_are_two():
    assert workload_name(spec("vision", ANN)) == "ann/vision"
    assert workload_name(spec("vision", BOB)) == "bob/vision"


def test_names_too_long_for_a_record_end_in_a_digest_and_stay_apart():
    long = ["x" * 190 + end for end in "ab"]
    names = [workload_name(spec(name)) for name in long]
    assert len(set(names)) == 2
    assert max(map(len, names)) <= 160


def test_jobs_wait_and_run_where_the_brain_has_them():
    story = known_story()
    waiting, running = story.submit(), story.submit(workload="speech")
    view = world_of(story)
    put(story, view, running, "g1")
    assert [job.id for job in view.state.pending.values()] == [waiting.id]
    assert [job.id for job in view.state.running.values()] == [running.id]
    assert [[job.id for job in on] for on in view.state.residents] == [[], [running.id], []]
    assert view.state.idle_count == [2]


def test_an_unknown_workload_starts_alone_and_is_profiled():
    story = known_story()
    first, known, second = story.submit(workload="new"), story.submit(), story.submit(workload="x")
    view = world_of(story)
    put(story, view, first, "g0")
    assert first.state is JobState.PROFILING
    assert "no entry lets" in refusal(view, [start(view, known, "g0")], {})
    put(story, view, known, "g1")
    assert "no entry lets" in refusal(view, [start(view, second, "g1")], {})
    with pytest.raises(CannotStartError, match=f"{second.id} cannot start"):
        place(view, [start(view, second, "g1")], {})


def test_what_could_not_be_profiled_runs_alone_and_is_not_profiled_again():
    story = known_story()
    job = story.submit(workload="new")
    job.alone_only = "reports no progress"
    view = world_of(story)
    (placed,) = place(view, [start(view, job, "g0")], {})
    assert not placed.profiling


@pytest.mark.parametrize("trouble", ["stopping", "lost", "drained", "sick"])
def test_no_job_joins_one_that_is_ending_or_a_device_that_takes_none(trouble):
    story = known_story()
    running, waiting = story.submit(), story.submit()
    view = world_of(story)
    put(story, view, running, "g0")
    assert refusal(view, [start(view, waiting, "g0")], {}) is None
    tell = {
        "stopping": lambda: story.cancel(running),
        "lost": lambda: story.lost(running),
        "drained": lambda: drain(story, "g0"),
        "sick": lambda: story.tell(events.DeviceSick, gpu="g0", reason="xid 79"),
    }
    tell[trouble]()
    view.renew(story.at_s)
    assert refusal(view, [start(view, waiting, "g0")], {}) is not None
    assert [job.id for job in view.state.residents[place_of(view, "g0")]] == [running.id]
    assert running.id in view.instance().jobs_by_id


def place_of(view, gpu):
    return view.state.machines.gpu_ids.index(gpu)


def view_with_a_drained_device():
    """Return the view of three idle devices, of which g1 is being drained, and the jobs."""
    story = known_story()
    jobs = [story.submit() for _ in range(6)]
    view = world_of(story)
    assert not view.renew(story.at_s)
    drain(story, "g1")
    assert view.renew(story.at_s)
    return view, jobs


def gpus_that_a_policy_takes(name, view):
    """Return the GPUs on which a policy would start jobs."""
    decided = policy_named(name).decide(view.state)
    return {view.state.machines.gpu_ids[gpu] for one in decided.starts for gpu in one.gpus}


def test_an_idle_device_that_takes_no_jobs_is_never_offered():
    view, jobs = view_with_a_drained_device()
    assert sum(view.state.idle_count) == 2
    assert "g1 is being drained" in refusal(view, [start(view, jobs[0], "g1")], {})
    assert set(view.instance().places) == {"g0", "g2"}
    for name in ("fifo", "castor", "sjf-ffs", "dovetail"):
        assert "g1" not in gpus_that_a_policy_takes(name, view)


def test_a_job_on_a_device_that_is_gone_is_hidden_and_holds_its_other_devices():
    story = known_story()
    gang, other = story.submit(workers=2), story.submit()
    story.place(gang, "g1", "g2")
    story.start("g0", "g1")
    view = view_of(story.machine, cluster(("g0", "g1")), Beliefs(repository()))
    assert not view.state.running
    assert refusal(view, [start(view, other, "g0")], {}) is None
    assert "has no GPU g1" in refusal(view, [start(view, other, "g1")], {})
    assert set(view.instance().places) == {"g0"}


def test_measured_pairs_are_seen_with_a_bound_and_predictions_are_kept_too():
    story = known_story()
    story.submit(), story.submit(workload="speech")
    view = world_of(story, together("vision", "speech", (1.2, 1.4)))
    state = view.state
    a, b = (state.names.index(f"ann/{name}") for name in ("vision", "speech"))
    assert state.has_seen((0, 0, a, b))
    assert state.believed is state.predicted
    assert state.believed.slowdown[0, 0, a, b] == 1.2 < state.believed.upper[0, 0, a, b]
    # As of a and b in test_beliefs.
    assert state.believed.prior.slowdown[0, 0, b, a] == pytest.approx(LAW)


def test_the_measured_power_of_pairs_is_seen_by_policies_and_plans():
    story = known_story()
    story.submit(), story.submit(workload="speech")
    pair = together("vision", "speech", (1.2, 1.4))
    view = world_of(story, *(pair.replace(power_w=power_w) for power_w in (200.0, 240.0, None)))
    a, b = (view.state.names.index(f"ann/{name}") for name in ("vision", "speech"))
    power_w = view.state.predicted.power_w
    assert power_w[0, 0, a, b] == power_w[0, 0, b, a] == 220.0
    assert math.isnan(power_w[0, 0, a, a])
    powers = {entry.pair: entry.power_w for entry in view.instance().slowdowns}
    names = view.state.names
    assert powers[names[min(a, b)], names[max(a, b)]] == 220.0
    assert powers[names[a], names[a]] is None


def test_the_rate_is_the_one_with_the_co_runners():
    story = known_story()
    first, second = story.submit(), story.submit(workload="speech")
    view = world_of(story, together("vision", "speech", (1.25, 1.6)))
    put(story, view, first, "g0")
    assert seen(view, first).rate == 1.0
    put(story, view, second, "g0")
    assert (seen(view, first).rate, seen(view, second).rate) == (1 / 1.25, 1 / 1.6)
    mine = view.beliefs.belief(first.id, second.id, "g0")
    theirs = view.beliefs.belief(second.id, first.id, "g0")
    assert (mine.slowdown, theirs.slowdown) == (1.25, 1.6)
    assert mine.source == "measured once"


def test_work_done_is_added_up_with_changing_co_runners():
    story = known_story()
    first, second = story.submit(estimate_s=100.0), story.submit(workload="speech")
    view = world_of(story, together("vision", "speech", (1.25, 1.6)))
    put(story, view, first, "g0")
    alone_from = story.at_s
    put(story, view, second, "g0")
    # Alone until the other was placed (10 s with an idle start), then at 1 / 1.25.
    shared_from = view.state.now
    view.renew(shared_from + 50.0)
    done = seen(view, first).done(view.state.now)
    assert done == pytest.approx((shared_from - alone_from) + 50.0 / 1.25, abs=1.01)
    assert seen(view, first).remaining(view.state.now) == pytest.approx(100.0 - done)


def test_progress_that_a_job_reports_beats_what_is_believed():
    story = known_story()
    job = story.submit()
    view = world_of(story)
    put(story, view, job, "g0")
    # It is read some time after the state was renewed last.
    read_s = view.state.now + 60.0
    view.note_progress(job.id, 200.0, 1000.0, read_s)
    # 10 iterations/s alone: 20 s done of 100 s.
    view.renew(read_s)
    assert seen(view, job).remaining(view.state.now) == pytest.approx(80.0)
    view.renew(read_s + 5.0)
    assert seen(view, job).remaining(view.state.now) == pytest.approx(75.0)


def test_a_job_without_estimate_is_believed_to_last_as_its_workload_did():
    story = known_story()
    first = story.submit()
    view = world_of(story)
    put(story, view, first, "g0")
    story.at_s += 500.0
    story.ended(first)
    lasted = story.at_s - first.history[-2].at_s
    second = story.submit()
    view.renew(story.at_s)
    assert seen(view, second).work_s == lasted
    assert view_of(story.machine, cluster(), view.beliefs.of_workloads).state.pending[
        second.sequence
    ].work_s == (lasted)


def test_users_that_may_not_share_are_distinguished():
    story = known_story()
    ann, bob = story.submit(), story.submit(owner=BOB)

    def sharing(same_user):
        return None if same_user else "two users"

    view = world_of(story, sharing=sharing)
    put(story, view, ann, "g0")
    assert (
        refusal(view, [start(view, bob, "g0")], {})
        == f"{bob.id} and {ann.id} may not share: two users"
    )
    a, b = (seen(view, job).workload for job in (ann, bob))
    assert (0, a, b) in view.state.clashes
    assert (0, a, a) not in view.state.clashes


def test_only_allowed_shares_have_beliefs():
    story = known_story()
    story.submit(), story.submit()
    rules = {"shares": [30, 50, 70]}
    view = world_of(story, rules=rules, allowed=lambda library, model: (50,))
    table = view.state.predicted
    known = {
        caps for k, caps in enumerate(table.caps) if not math.isnan(table.slowdown[0, k, 0, 0])
    }
    assert known == {(None, None), (50, 50)}
    job = next(iter(story.machine.queued.values()))
    assert "30 % is not known to compute right" in refusal(
        view, [start(view, job, "g0", shares=(30,))], {}
    )


def test_where_shares_are_reservations_only_pairs_with_a_share_each_have_beliefs():
    story = known_story()
    story.submit(), story.submit()
    measured = together("vision", "speech", (1.0, 1.0))
    view = world_of(story, measured, rules={"shares": [25, 50, 75]}, reserves=True)
    table = view.state.predicted
    known = {caps for k, caps in enumerate(table.caps) if not np.isnan(table.slowdown[0, k]).all()}
    assert known == {(50, 50), (25, 75), (75, 25)}
    declared = {"assumed": {"pair": 1.1}, "shares": [50]}
    view = world_of(story, rules=declared, reserves=True)
    assert np.isnan(view.state.predicted.slowdown[0, table.caps.index((None, None))]).all()


def isolated_jobs(story):
    chat = story.submit(workload="speech", isolation="blocks", priority="latency", gsla=1.3)
    return chat, story.submit(workload="vision", isolation="blocks")


def test_a_job_may_run_in_the_idle_time_of_a_latency_job_of_its_user_if_both_may_be_isolated():
    story = known_story()
    chat, train = isolated_jobs(story)
    plain = story.submit(workload="vision")
    other = story.submit(owner=BOB, workload="vision", isolation="blocks")
    story.submit(workload="text", priority="latency", gsla=1.1)
    measured = together("speech", "vision", (1.02, 2.0), (None, IDLE))
    view = world_of(story, measured, rules={"shares": ["idle"]})
    put(story, view, chat, "g0")
    assert chat.run.isolated
    for job in (plain, other):
        assert refusal(view, [start(view, job, "g0", shares=(IDLE,))], {})
    put(story, view, train, "g0", shares=(IDLE,))
    assert train.run.isolated
    assert view.beliefs.belief(train.id, chat.id, "g0").slowdown == 2.0
    assert view.instance().slowdowns


@pytest.mark.parametrize(("tail", "joins"), [(1.1, True), (1.29, False)])
def test_several_jobs_run_in_the_idle_time_of_one_where_its_tail_with_each_allows_it(tail, joins):
    story = known_story()
    chat = story.submit(workload="speech", isolation="blocks", priority="latency", gsla=1.3)
    train = story.submit(workload="vision", isolation="blocks", estimate_s=1e5)
    other = story.submit(workload="text", isolation="blocks", estimate_s=10.0)
    measured = [
        together("speech", name, (1.01, 2.0), (None, IDLE)).replace(p99=(p99, None))
        for name, p99 in (("vision", 1.02), ("text", tail))
    ]
    plain = together("vision", "text", (1.5, 1.5))
    rules = {"shares": ["idle"], "max_jobs_per_gpu": 3}
    view = world_of(story, *measured, plain, rules=rules)
    put(story, view, chat, "g0")
    put(story, view, train, "g0", shares=(IDLE,))
    assert (refusal(view, [start(view, other, "g0", shares=(IDLE,))], {}) is None) is joins
    for gpu in GPUS:
        drain(story, gpu, on=gpu != "g0")
    view.renew(story.at_s)
    found = policy_named("dovetail").decide(view.state).starts
    assert [one.shares for one in found] == [(IDLE,)] * joins
    if joins:
        put(story, view, other, "g0", shares=(IDLE,))
        assert seen(view, train).rate == pytest.approx(1 / 4)
        story.ended(chat)
        view.renew(story.at_s)
        # Both go on whole, as they were measured so, and none with a gSLA joins them.
        assert seen(view, train).rate == pytest.approx(1 / 1.5)
        assert view.instance().jobs
        chats = {"workload": "speech", "isolation": "blocks", "priority": "latency"}
        second = story.submit(**chats, gsla=1.3)
        view.renew(story.at_s)
        assert refusal(view, [start(view, second, "g0")], {})


def test_a_job_that_is_not_isolated_any_more_gets_no_other_into_its_idle_time():
    story = known_story()
    chat, train = isolated_jobs(story)
    measured = together("speech", "vision", (1.02, 2.0), (None, IDLE))
    view = world_of(story, measured, rules={"shares": ["idle"]})
    put(story, view, chat, "g0")
    story.tell(events.IsolationLost, run=chat.run.id, reason="r")
    view.renew(story.at_s)
    assert refusal(view, [start(view, train, "g0", shares=(IDLE,))], {})


def test_a_latency_job_joins_one_that_runs_already_and_that_is_whole_again_afterwards():
    story = known_story()
    chat, train = isolated_jobs(story)
    measured = together("speech", "vision", (1.02, 2.0), (None, IDLE))
    plain = together("speech", "vision", (1.9, 1.3)).replace(p99=(4.5, 1.3))
    view = world_of(story, measured, plain, rules={"shares": ["idle"]})
    put(story, view, train, "g0")
    assert train.run.isolated
    assert train.run.share_on("g0") is None
    assert seen(view, train).rate == 1.0
    for gpu in GPUS:
        drain(story, gpu, on=gpu != "g0")
    view.renew(story.at_s)
    (found,) = policy_named("dovetail").decide(view.state).starts
    view.enter(found)
    assert seen(view, train).rate == pytest.approx(1 / 2)
    view = world_of(story, measured, plain, rules={"shares": ["idle"]})
    put(story, view, chat, "g0")
    assert train.run.share_on("g0") == IDLE
    assert seen(view, train).rate == pytest.approx(1 / 2)
    assert seen(view, chat).rate == pytest.approx(1 / 1.02)
    story.ended(chat)
    view.renew(story.at_s)
    assert train.run.share_on("g0") is None
    assert seen(view, train).rate == 1.0


def test_a_latency_job_joins_none_that_has_lost_its_isolation():
    story = known_story()
    chat, train = isolated_jobs(story)
    measured = together("speech", "vision", (1.02, 2.0), (None, IDLE))
    view = world_of(story, measured, rules={"shares": ["idle"]})
    put(story, view, train, "g0")
    assert refusal(view, [start(view, chat, "g0")], {}) is None
    story.tell(events.IsolationLost, run=train.run.id, reason="r")
    view.renew(story.at_s)
    assert refusal(view, [start(view, chat, "g0")], {})
    assert train.state is JobState.RUNNING


def test_one_that_ran_behind_another_and_is_not_isolated_any_more_gets_no_co_runner_at_all():
    story = known_story()
    chat, train = isolated_jobs(story)
    measured = together("speech", "vision", (1.02, 2.0), (None, IDLE))
    view = world_of(story, measured, rules={"shares": ["idle"]})
    put(story, view, chat, "g0")
    put(story, view, train, "g0", shares=(IDLE,))
    story.ended(chat)
    story.tell(events.IsolationLost, run=train.run.id, reason="r")
    view.renew(story.at_s)
    assert train.state is JobState.RUNNING
    (job,) = (job for job in view.instance().jobs if job.id == train.id)
    assert job.share is None
    second = story.submit(workload="speech", isolation="blocks", priority="latency", gsla=1.3)
    view.renew(story.at_s)
    assert refusal(view, [start(view, second, "g0")], {})


def test_a_pair_may_start_at_caps_without_solo_throughput():
    story = known_story()
    jobs = [story.submit(), story.submit()]
    view = world_of(story, rules={"shares": [50], "start_capped": True})
    pair = [start(view, job, "g0", shares=(50,)) for job in jobs]
    assert "throughput at 100 and 50 must be known" in refusal(view, [pair[0]], {})
    placed = place(view, pair, {})
    assert [one.run.seats[0].share for one in placed] == [50, 50]


def test_of_those_that_start_together_all_start_or_none():
    story = known_story()
    vision, speech, other = story.submit(gsla=1.3), story.submit(workload="speech"), story.submit()
    view = world_of(story, together("vision", "speech", (1.4, 1.4)))
    groups = in_groups(
        [start(view, vision, "g0"), start(view, other, "g1"), start(view, speech, "g0")]
    )
    assert [[one.job.id for one in group] for group in groups] == [["j1", "j2"], ["j3"]]
    with pytest.raises(CannotStartError, match=r"j1, j2 cannot start: job j1: gsla: "):
        place(view, groups[0], {})
    assert len(view.state.pending) == 3
    assert not any(view.state.residents)
    assert [one.run.id for one in place(view, groups[1], {})] == ["j3.1"]


def test_a_workload_whose_library_is_unproven_gets_no_share_and_others_keep_theirs():
    story = known_story()
    proven, unproven = story.submit(), story.submit(workload="speech")

    def load(workload):
        story.tell(events.LibrarySeen, uid=ANN.uid, workload=workload, library="proven")

    def allowed(library, model):
        return (50,) if library == "proven" else ()

    load("vision")
    view = world_of(story, rules={"shares": [50]}, allowed=allowed)
    table = view.state.predicted
    half, one = table.caps_place[50, 50], table.caps_place[None, 50]
    a, b = (seen(view, job).workload for job in (proven, unproven))
    assert not math.isnan(table.slowdown[0, half, a, a])
    assert math.isnan(table.slowdown[0, half, a, b])
    assert math.isnan(table.slowdown[0, one, a, b])
    assert not view.renew(story.at_s)
    load("speech")
    assert view.renew(story.at_s)
    assert not math.isnan(view.state.predicted.slowdown[0, half, a, b])


def test_a_gsla_is_held_against_the_bound_of_the_measured():
    story = known_story()
    first, second = story.submit(gsla=1.3), story.submit(workload="speech")
    view = world_of(story, together("vision", "speech", (1.2, 1.4)))
    put(story, view, first, "g0")
    # 1.2 was measured, and its bound is 1.325.
    assert f"{first.id}: gsla: slowdown 1.325" in refusal(view, [start(view, second, "g0")], {})


def test_a_pair_that_was_never_measured_without_caps_shares_at_a_split():
    story = known_story()
    first, second = story.submit(), story.submit(workload="speech")
    known, like = story.submit(workload="text"), story.submit(gsla=9.0)
    measured = together("vision", "text", (1.2, 1.4))
    view = world_of(story, measured, rules={"shares": [50], "uncapped": False})
    view.renew(story.at_s)
    halves = [start(view, job, "g0", shares=(50,)) for job in (first, second)]
    assert refusal(view, halves, {}) is None
    # Neither job has a gSLA, and still an estimate is no reason to share without caps.
    assert "no entry lets" in refusal(view, [start(view, job, "g0") for job in (first, second)], {})
    # Measured so, with and without a gSLA.
    assert refusal(view, [start(view, job, "g0") for job in (first, known)], {}) is None
    assert refusal(view, [start(view, job, "g0") for job in (like, known)], {}) is None


def test_without_shares_unmeasured_pairs_wait_unless_the_owner_lets_them_share():
    story = known_story()
    jobs = [story.submit(), story.submit(workload="speech")]
    for uncapped, refused in ((False, True), (True, False)):
        view = world_of(story, rules={"uncapped": uncapped})
        view.renew(story.at_s)
        why = refusal(view, [start(view, job, "g0") for job in jobs], {})
        assert (why is not None and "no entry lets" in why) == refused


def test_a_gsla_needs_a_bound():
    """Where the owner lets jobs share without caps on an estimate, its bound holds for a gSLA."""
    story = known_story()
    easy, second = story.submit(workload="text"), story.submit(workload="speech")
    like = story.submit(gsla=9.0)
    view = world_of(story, together("vision", "text", (1.2, 1.4)))
    view.renew(story.at_s)
    put(story, view, second, "g0")
    assert refusal(view, [start(view, easy, "g0")], {}) is None
    assert "gsla: slowdown" in refusal(view, [start(view, like, "g0")], {})
    put(story, view, like, "g1")
    assert refusal(view, [start(view, easy, "g1")], {}) is None


def story_of(view, story, **changes):
    """Return a job that has been submitted, and that policies see."""
    job = story.submit(**changes)
    view.renew(story.at_s)
    return job


def test_plans_of_a_round_and_jobs_that_share_say_where_slowdowns_are_from():
    story = known_story()
    jobs = [story.submit(), story.submit(workload="speech"), story.submit(workload="text")]
    view = world_of(story, together("vision", "speech", (1.2, 1.4)))
    sources = {frozenset(e.pair): e.source for e in view.instance().slowdowns}
    names = [f"ann/{name}" for name in ("vision", "speech", "text")]
    assert sources[frozenset(names[:2])] == "measured"
    assert sources[frozenset(names[1:])] == sources[frozenset(names[2:])] == "estimate"
    # The law of MPS has a bound, so that no plan says that its estimates have none.
    law = [e for e in view.instance().slowdowns if e.source == "estimate"]
    assert all(e.confidence == CONFIDENCE for e in law if e.upper)
    assert any(e.upper for e in law)
    for job in jobs[:2]:
        put(story, view, job, "g0")
    there, back = view.beliefs.predicted([job.run for job in jobs[:2]], "g0")
    assert (there.words, back.words) == ("measured once", "measured once")
    assert view.beliefs.upper(jobs[0].id, view.machine.residents()) > 1.2
    story.ended(jobs[0])
    view.renew(story.at_s)
    put(story, view, jobs[2], "g0")
    there, _ = view.beliefs.predicted([job.run for job in jobs[1:]], "g0")
    assert there.words == "estimate: law of MPS, from solo profiles"
    assert view.beliefs.upper(jobs[1].id, view.machine.residents()) > there.slowdown


def test_the_gsla_of_a_latency_critical_job_is_held_against_its_measured_tail():
    story = known_story()
    late = story.submit(gsla=1.5, priority="latency")
    batch = story.submit(workload="speech", gsla=1.5)
    measured = together("vision", "speech", (1.2, 1.2)).replace(p99=(1.9, None))
    view = world_of(story, measured)
    put(story, view, late, "g0")
    assert f"{late.id}: gsla: slowdown 2.098" in refusal(view, [start(view, batch, "g0")], {})
    assert not view.state.tails_kept(
        0, [view.state.sharer(seen(view, job), None, 0) for job in (late, batch)]
    )
    (entry,) = [e for e in view.instance().slowdowns if len({*e.workloads}) == 2]
    tails = dict(zip(entry.workloads, entry.p99, strict=True))
    bounds = dict(zip(entry.workloads, entry.upper, strict=True))
    assert sorted(tails.values()) == pytest.approx([1.325, 2.098], abs=1e-3)
    assert min(tails.values()) in bounds.values()
    # A batch job of the same workload is held against the bound on its slowdown.
    other = story.submit(gsla=1.5)
    view.renew(story.at_s)
    put(story, view, other, "g1")
    assert refusal(view, [start(view, batch, "g1")], {}) is None


def test_memory_that_an_owner_names_counts_and_becomes_the_limit():
    story = known_story()
    large, small = story.submit(memory_mib=32001.0), story.submit()
    view = world_of(story)
    (placed,) = place(view, [start(view, large, "g0")], {})
    assert placed.run.seats[0].memory_mib == 32001.0
    assert "g0: memory: " in refusal(view, [start(view, small, "g0")], {})


def test_a_percentage_is_of_the_device_on_which_the_job_starts():
    # The devices offer 39,000 and 19,000 MiB; 300 of a worker's memory are its process's.
    story = known_story()
    jobs = [story.submit(memory_percent=p) for p in (50, 33.333, 50.01, 50)]
    gigs = story.submit(memory_mib=19000.0)
    devices = [{"id": f"g{k}", "model": MODEL, "memory_mib": 40000 - 20000 * k} for k in range(2)]
    rules = {"reserve_mib": 1000, "per_process_mib": 300, "uncapped": True}
    beliefs = Beliefs(repository(together("vision", "vision", (1.1, 1.1))))
    on = Cluster.from_data({"nodes": [{"id": "n0", "gpus": devices}], **rules})
    view = view_of(story.machine, on, beliefs)
    half, third, more, other = jobs
    needs = [view.state.workloads[seen(view, job).workload].memory_percent for job in jobs]
    assert needs == [50, 33.34, 50.01, 50]
    limits = {
        (job.id, gpu): place(view, [start(view, job, gpu)], {})[0].run.seats[0].memory_mib
        for job, gpu in ((half, "g0"), (third, "g1"))
    }
    assert limits == pytest.approx({(half.id, "g0"): 19200.0, (third.id, "g1"): 6033.27})
    # 19,500 MiB of g0 and 12,665.4 of g1 are left; 19,008 + 300 are what the last one needs.
    assert "g0: memory: " in refusal(view, [start(view, more, "g0")], {})
    assert refusal(view, [start(view, more, "g1")], {}) is None
    assert refusal(view, [start(view, gigs, "g0")], {}) is None
    assert "g1: memory: " in refusal(view, [start(view, gigs, "g1")], {})
    assert refusal(view, [start(view, other, "g0")], {}) is None


def test_jobs_that_run_alone_differ_by_no_percentage():
    story = known_story()
    view = world_of(story)
    for percent in (10, 50, 100):
        story.submit(workload="new", memory_percent=percent)
    view.renew(story.at_s)
    assert view.state.names == ("alone",)


def test_a_job_has_memory_in_mib_or_in_per_cent():
    with pytest.raises(InputError, match=r"^memory_percent: must not be given with memory_mib"):
        spec(memory_mib=100.0).replace(memory_percent=10)
    with pytest.raises(InputError, match=r"^memory_percent: must be <= 100, got 101"):
        spec().replace(memory_percent=101)
    changed = spec(memory_mib=100.0).changed({"memory_percent": 10.0})
    assert (changed.memory_mib, changed.memory_percent) == (None, 10.0)
    changed = changed.changed({"memory_mib": 200.0})
    assert (changed.memory_mib, changed.memory_percent) == (200.0, None)


def test_declared_slowdowns_hold_until_a_pair_is_measured():
    rules = {"assumed": {"pair": 1.3}, "shares": [50], "uncapped": False}
    for measured, gsla, refused in (
        ((), 1.35, None),
        ((), 1.25, "gsla: slowdown 1.3 > 1.25"),
        ([together("vision", "speech", (1.5, 1.5))], 1.35, "gsla: slowdown "),
        ([together("vision", "speech", (1.01, 1.01))], 1.35, None),
        ([together("vision", "speech", None)], 1.35, "no entry lets"),
    ):
        story = known_story()
        first, second = story.submit(), story.submit(workload="speech", gsla=gsla)
        unknown = story.submit(workload="new", memory_mib=100.0)
        view = world_of(story, *measured, rules=rules)
        put(story, view, first, "g0")
        assert not needs_shares(view.beliefs, second)
        why = refusal(view, [start(view, second, "g0")], {})
        assert why is None if refused is None else refused in why
        # Nothing is declared of what has no profile: nobody would see that it is wrong.
        assert "no entry lets" in refusal(view, [start(view, unknown, "g0")], {})
        instance = view.instance()
        assert instance.cluster.assumed is None
        sources = {entry.source for entry in instance.slowdowns if entry.share is None}
        known = {"measured"} if measured and measured[0].slowdown else set()
        assert sources - {None} == {"assumed", *known}


def test_declared_sets_share_without_shares():
    rules = {"assumed": {"pair": 1.25, "sets": "product"}, "max_jobs_per_gpu": 3}
    rules |= {"shares": [50], "uncapped": False}
    story = known_story()
    names = ("vision", "speech", "text")
    first, second, third = (story.submit(workload=name, gsla=1.6) for name in names)
    strict = story.submit(workload="text", gsla=1.5)
    view = world_of(story, rules=rules)
    put(story, view, first, "g0")
    put(story, view, second, "g0")
    assert "gsla: slowdown 1.562" in refusal(view, [start(view, strict, "g0")], {})
    assert Draft(view.state).has_room(0, seen(view, third))
    put(story, view, third, "g0")
    assert seen(view, third).rate == pytest.approx(1 / 1.25**2)
    instance = view.instance()
    assert instance.cluster.assumed.sets == "product"
    plan = solve(instance).plan
    assert check(instance, plan).violations == ()
    # A set that was measured comes before the rule, and a pair within it counts, too.
    view = world_of(story, together("vision", "speech", (1.5, 1.5)), rules=rules)
    assert view.state.products
    assert seen(view, third).rate == pytest.approx(1 / 1.25**2)
    assert seen(view, first).rate == pytest.approx(1 / (1.25 * 1.5))


def test_what_ran_once_fits_however_wide_the_bound_on_its_next_run():
    story = known_story()
    job, other = story.submit(), story.submit()
    beliefs = Beliefs(repository(memory_mib=36000.0))
    assert beliefs.workload("ann/vision", (MODEL,)).memory_mib > 40000
    view = view_of(story.machine, cluster(), beliefs)
    put(story, view, job, "g0")
    assert "g0: memory: " in refusal(view, [start(view, other, "g0")], {})


def test_categories_are_in_the_order_in_which_their_jobs_were_submitted():
    story = known_story()
    asked = [(name, owner) for name in ("text", "vision", "speech") for owner in (BOB, ANN)]
    for name, owner in asked:
        story.submit(workload=name, owner=owner)
    view = world_of(story)
    assert list(view.state.names) == [f"{owner.name}/{name}" for name, owner in asked]


def test_a_flood_of_unknown_workloads_makes_one_category():
    story = known_story()
    view = world_of(story)
    for k in range(50):
        story.submit(workload=f"new {k}", memory_mib=100.0 + k)
    view.renew(story.at_s)
    assert view.state.names == ("alone",)
    assert len(view.state.pending) == 50


@pytest.mark.parametrize(
    ("gpu", "shares", "message"),
    [
        (-1, None, "'j1' on a GPU that is not there"),
        (9, None, "'j1' on a GPU that is not there"),
        (0, (150,), "the check failed: ValidationError"),
        ("g0", None, "the check failed: TypeError"),
    ],
)
def test_a_start_that_is_nonsense_is_refused(gpu, shares, message):
    story = known_story()
    story.submit()
    view = world_of(story)
    (job,) = view.state.pending.values()
    with pytest.raises(CannotStartError, match=message):
        place(view, [Start(job, (gpu,), shares)], {})
    assert view.state.pending


def test_beliefs_that_are_learned_make_another_state():
    story = known_story()
    story.submit(), story.submit(workload="speech")
    view = world_of(story)
    assert not view.renew(story.at_s)
    view.beliefs.of_workloads = Beliefs(repository(together("vision", "speech", (1.2, 1.4))))
    before = view.state
    assert view.renew(story.at_s)
    assert view.state is not before
    assert view.state.believed.seen.any()
    assert not before.believed.seen.any()


def test_a_start_that_the_brain_never_hears_of_is_taken_back():
    story = known_story()
    job = story.submit()
    view = world_of(story)
    place(view, [start(view, job, "g0")], {})
    assert not view.state.pending
    view.renew(story.at_s + 1.0)
    assert seen(view, job).phase == "pending"
    assert not any(view.state.residents)


def test_the_instance_can_be_solved_and_its_plan_passes_the_checker():
    story = known_story()
    jobs = [story.submit(workload=name, gsla=1.8) for name in PARTS for _ in range(2)]
    story.submit(workload="new")
    view = world_of(story, together("vision", "text", None))
    put(story, view, jobs[0], "g0")
    posed = view.instance()
    plan = solve(posed).plan
    assert check(posed, plan).violations == ()
    alone = [job.id for job in posed.jobs if job.workload == "alone"]
    co_runners = {a.job: a.co_runners for a in plan.assignments}
    assert all(not any(co_runners.get(name, ((),))) for name in alone)


@pytest.mark.parametrize(
    "name", ["dovetail", "dovetail:objective=energy", "castor", "sjf-ffs", "fifo"]
)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_a_policy_decides_the_brain_takes_what_the_world_lets_pass(name, seed):
    tell_the_brain_what_a_policy_decides(name, seed)


def tell_the_brain_what_a_policy_decides(name, seed):
    draw = random.Random(seed)
    story = known_story()
    view = world_of(story, together("vision", "text", None), together("text", "text", (1.1, 1.1)))
    policy = policy_named(name)
    for _ in range(25):
        happen(story, view, draw)
        if view.renew(story.at_s):
            policy = policy_named(name)
        for one in policy.decide(view.state).starts:
            if refusal(view, [one], {}) is None:
                live = story.machine.jobs[one.job.id]
                gpus = [view.state.machines.gpu_ids[gpu] for gpu in one.gpus]
                put_all(story, view, live, one)
                assert [seat.gpu for seat in live.run.seats] == gpus
        hold_against_brain(story, view)


def put_all(story, view, live, one):
    (placed,) = place(view, [one], {})
    story.tell(type(placed), run=placed.run, profiling=placed.profiling)
    for rank in range(live.spec.workers):
        story.started(live, rank)
        story.ready(live, rank)


def happen(story, view, draw):
    """Apply a random event that is possible now."""
    running = [job for job in story.machine.holding.values() if job.state is JobState.RUNNING]
    choice = draw.randrange(8)
    if choice < 4 or not running:
        name = draw.choice([*PARTS, "new"])
        story.submit(workload=name, owner=draw.choice([ANN, BOB]), workers=draw.choice([1, 1, 2]))
    elif choice < 6:
        job = draw.choice(running)
        for rank in range(job.spec.workers):
            story.ended(job, rank=rank)
    elif choice == 6:
        drain(story, draw.choice(GPUS), on=draw.random() < 0.5)
    else:
        story.cancel(draw.choice(running))


def hold_against_brain(story, view):
    view.renew(story.at_s)
    state = view.state
    residents = story.machine.residents()
    for gpu, on in zip(state.machines.gpu_ids, state.residents, strict=True):
        assert sorted(job.id for job in on) == sorted(job.id for job in residents[gpu])
        names = {workload_name(story.machine.jobs[job.id].spec) for job in on}
        assert names != {"ann/vision", "ann/text"}
        assert len(on) < 2 or not any(name.endswith("/new") for name in names)
    assert {job.id for job in state.pending.values()} == set(story.machine.queued)
    for job in state.running.values():
        assert story.machine.jobs[job.id].state in HOLDING
        assert job.rate > 0
    view.instance()


def test_a_round_reads_only_the_jobs_that_have_changed(monkeypatch):
    story = known_story()
    jobs = [story.submit() for _ in range(50)]
    view = world_of(story)
    put(story, view, jobs[0], "g0")
    read = []
    whole = PolicyView._read_job

    def noted(self, track):
        read.append(track.live.id)
        whole(self, track)

    monkeypatch.setattr(PolicyView, "_read_job", noted)
    story.ended(jobs[0])
    put(story, view, jobs[1], "g0")
    assert set(read) == {jobs[1].id}


def shown(view):
    """Return the policies' view of jobs and devices."""
    state, categories = view.state, view._made.categories
    # What a running job is believed to need is what was known when it started.
    waiting = [
        (job.id, categories[job.workload], round(job.work_s, 6)) for job in state.pending.values()
    ]
    running = [(job.id, categories[job.workload], job.gpus) for job in state.running.values()]
    residents = [[job.id for job in there] for there in state.residents]
    return waiting, running, residents, list(state.idle_count)


@pytest.mark.parametrize("seed", range(6))
def test_a_world_that_has_followed_is_one_made_anew(seed):
    rng, story = random.Random(seed), known_story()
    beliefs = Beliefs(repository())
    followed = view_of(story.machine, cluster(), beliefs)
    for _ in range(60):
        for _ in range(rng.randrange(4)):
            with contextlib.suppress(TransitionError):
                story.machine.apply(random_event(story.machine, rng))
        followed.renew(story.machine.now_s)
        pending = list(followed.state.pending.values())
        if pending and rng.random() < 0.5:
            # A start that never reaches the state machine.
            with contextlib.suppress(CannotStartError):
                place(followed, [Start(rng.choice(pending), (rng.randrange(3),))], {})
            followed.renew(story.machine.now_s)
        assert shown(followed) == shown(view_of(story.machine, cluster(), beliefs))


def racked(racks, each=2, model_of=lambda node: MODEL):
    """Return a cluster of nodes ``n0``, ``n1``, ... in these racks."""
    nodes = [
        {
            "id": f"n{k}",
            "rack": rack,
            "gpus": [
                {"id": f"n{k}/g{j}", "model": model_of(k), "memory_mib": 40000} for j in range(each)
            ],
        }
        for k, rack in enumerate(racks)
    ]
    return Cluster.from_data({"nodes": nodes})


def pool_story(cluster):
    story = Story(*(gpu.id for node in cluster.nodes for gpu in node.devices))
    story.know()
    return story


def decided(view):
    """Return the nodes of the only job that the service's policy starts."""
    (started,) = policy_named("dovetail").decide(view.state).starts
    return [view.state.machines.gpu_ids[gpu].partition("/")[0] for gpu in started.gpus]


def test_a_gang_is_put_on_few_nodes_of_few_racks():
    cluster = racked(["r0", "r1", "r0", "r1"])
    story = pool_story(cluster)
    drain(story, "n0/g0")
    story.submit(workers=4)
    view = view_of(story.machine, cluster, Beliefs(repository()))
    # Whole are n1, n2 and n3: of these, n1 and n3 are in one rack.
    assert sorted(decided(view)) == ["n1", "n1", "n3", "n3"]
    assert [(n.id, n.rack) for n in view.instance().cluster.nodes] == [
        ("n0", "r0"),
        ("n1", "r1"),
        ("n2", "r0"),
        ("n3", "r1"),
    ]
    found = solve(view.instance()).plan.assignments
    assert sorted({gpu.partition("/")[0] for gpu in found[0].gpus}) == ["n1", "n3"]


def test_a_gang_is_on_devices_of_one_model_though_another_rack_would_do():
    cluster = racked(["r0", "r0", "r1"], model_of=lambda node: ("A100", "H100", "A100")[node])
    story = pool_story(cluster)
    story.submit(workers=4)
    view = view_of(story.machine, cluster, Beliefs(repository()))
    assert sorted(decided(view)) == ["n0", "n0", "n2", "n2"]


def test_devices_that_join_take_jobs_and_those_that_run_stay_where_they_are():
    small, whole = racked(["r0"]), racked(["r0", "r0"])
    story = pool_story(small)
    running, wide = story.submit(), story.submit(workers=3)
    view = view_of(story.machine, small, Beliefs(repository()))
    put(story, view, running, "n0/g1")
    story.tell(events.DevicesChanged, gpus=tuple(gpu.id for n in whole.nodes for gpu in n.devices))
    offer(view, whole)
    view.renew(story.at_s)
    assert [[job.id for job in on] for on in view.state.residents] == [[], [running.id], [], []]
    put(story, view, wide, "n0/g0", "n1/g0", "n1/g1")
    # A node that leaves with a job on it: no other job is put there, and the others are seen.
    story.tell(events.DevicesChanged, gpus=("n0/g0", "n0/g1"))
    offer(view, small)
    view.renew(story.at_s)
    assert [[job.id for job in on] for on in view.state.residents] == [[running.id], []]
    assert [*view.state.machines.gpu_ids] == ["n0/g1", "n0/g0"]


def test_what_is_reserved_outlives_new_workloads_and_ends_with_its_devices():
    story = known_story()
    running, gang = story.submit(), story.submit(workers=2)
    view = world_of(story)
    put(story, view, running, "g1")
    policy = "dovetail:patience_s=0,patience_stretch=0"

    def reserved():
        """Let a fresh policy decide, apply its reservations, and return the reserved devices."""
        decided = policy_named(policy).decide(view.state)
        for event in reservations(view, decided.reserved, story.at_s):
            story.tell(type(event), job=event.job, gpus=event.gpus, until_s=event.until_s)
        view.renew(story.at_s)
        return story.machine.reserved[gang.id].gpus

    # Two of three are idle: it starts there at once, and is not let.
    drain(story, "g0")
    view.renew(story.at_s)
    assert reserved() == ("g2", "g1")
    until_s, reported = story.machine.reserved[gang.id].until_s, len(story.happened)
    # A workload that is new makes another state, whose devices may have other numbers.
    drain(story, "g0", on=False)
    story.submit(workload="speech")
    state = view.state
    assert view.renew(story.at_s)
    assert view.state is not state
    assert [*view.state.reserved] == [gang.sequence]
    assert view.state.reserved[gang.sequence].until_s == until_s
    assert reserved() == ("g2", "g1")
    assert len(story.happened) == reported + 2  # and nothing was reported again
    # A device that takes no more jobs ends it, and others are found.
    drain(story, "g2")
    view.renew(story.at_s)
    assert reserved() == ("g0", "g1")
    # Nothing is reserved for a job that does not wait.
    story.tell(events.CancelRequested, job=gang.id, by="ann")
    view.renew(story.at_s)
    assert view.state.reserved == {}
    assert story.machine.reserved == {}


def test_of_very_many_jobs_of_a_user_a_part_takes_part_and_that_of_another_user():
    story = known_story()
    for k in range(2 * MOST_IN_ROUND):
        made = spec(f"w{k}", nice=k % 41 - 20)
        job = story.machine.next_job_id()
        story.machine.apply(events.Submitted(at_s=story.at_s, job=job, spec=made))
    other = story.submit(owner=BOB)
    view = world_of(story)
    part = {job.id for job in view.state.pending.values()}
    assert len(part) == MOST_IN_ROUND
    assert other.id in part
    assert len(view.instance().jobs) == MOST_IN_ROUND
    # What one leaves, the next takes.
    first = next(iter(part - {other.id}))
    story.cancel(story.machine.jobs[first])
    view.renew(story.at_s)
    after = {job.id for job in view.state.pending.values()}
    assert len(after) == MOST_IN_ROUND
    assert first not in after
    assert len(after - part) == 1
