"""Jobs that broke a gSLA together are not paired again, by the state machine or a policy."""

from __future__ import annotations

import pytest

from dovetail.executor.jobs import events
from dovetail.executor.jobs import state_machine as rules
from dovetail.executor.jobs.journal import Journal
from dovetail.executor.jobs.state_machine import TransitionError
from dovetail.executor.live.beliefs import Source
from dovetail.executor.live.rounds.deciding import refusal
from dovetail.instances.datasets import Measurement
from dovetail.solver.policies import policy_named
from tests.executor.live.test_policy_view import MODEL, known_story, put, start, together, world_of

from .telling import Story


def separate(story, slowed, other, slowdown=1.6, gsla=1.3, shares=(None, None), tail=False):
    """Stop ``other`` for the sake of ``slowed``, as the watch does; it waits again."""
    story.stop(other)
    story.tell(
        events.Separated,
        runs=(slowed.run.id, other.run.id),
        gpu_model=MODEL,
        workloads=tuple(f"ann/{job.spec.workload}" for job in (slowed, other)),
        shares=shares,
        gsla=gsla,
        slowdown=slowdown,
        tail=tail,
    )
    for rank in range(other.spec.workers):
        story.ended(other, rank=rank)


def measured_together(story, first, second, slowdown, p99=None):
    measurement = Measurement(
        workloads=tuple(f"ann/{job.spec.workload}" for job in (first, second)),
        gpu_model=MODEL,
        slowdown=slowdown,
        p99=p99,
    )
    runs = (first.run.id, second.run.id)
    story.tell(events.Measured, runs=runs, gpu="g0", measurement=measurement, window_s=60.0)


def pair(story, *gpus):
    """Return a vision and a speech job that share their devices."""
    gpus = gpus or ("g0",)
    count = len(gpus)
    first = story.running(*gpus, workload="vision", workers=count, gsla=1.3)
    return first, story.running(*gpus, workload="speech", workers=count)


@pytest.mark.parametrize("gpus", [("g0",), ("g0", "g1")])
def test_separated_jobs_are_never_placed_together_again(gpus):
    story = known_story()
    first, second = pair(story, *gpus)
    separate(story, first, second)
    with pytest.raises(TransitionError, match="j1 on g0 was separated from it"):
        story.place(second, *gpus)
    if len(gpus) == 1:
        story.place(second, "g1")


def test_it_is_remembered_in_the_journal_and_in_its_checkpoints(tmp_path):
    story = Story()
    first, second = pair(story)
    separate(story, first, second)
    with Journal(tmp_path) as journal:
        journal.append(story.happened)
        assert journal.replay() == story.machine
        journal.checkpoint(story.machine, every=1)
    with Journal(tmp_path) as journal:
        again = journal.replay()
    assert again == story.machine
    assert again.are_apart(first.id, second.id)
    assert len(again.broken) == 1


def test_jobs_are_forgotten_once_one_is_over_and_workloads_are_not():
    story = known_story()
    first, second = pair(story)
    separate(story, first, second)
    story.ended(first)
    assert story.machine.apart == []
    assert len(story.machine.broken) == 1


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(rules, "KEPT_APART", 2)
    story = known_story()
    host = story.running("g0", workload="vision", gsla=1.3)
    for _ in range(4):
        separate(story, host, story.running("g0", workload="speech"))
    assert story.machine.apart == [("j1", "j4"), ("j1", "j5")]
    assert len(story.machine.broken) == 2


def test_a_measurement_of_others_that_keeps_the_gsla_lets_workloads_together_again():
    story = known_story()
    first, second = pair(story)
    other, third = pair(story, "g1")
    measured_together(story, third, other, (1.0, 1.2))
    separate(story, first, second)
    measured_together(story, first, second, (1.2, 1.0))  # their own last window
    measured_together(story, other, third, (1.4, 1.0))  # the gSLA is 1.3
    assert len(story.machine.broken) == 1
    measured_together(story, third, other, (1.0, 1.3))
    assert story.machine.broken == []
    assert story.machine.are_apart(first.id, second.id)


def test_only_a_tail_that_keeps_the_gsla_refutes_one_that_broke_it():
    story = known_story()
    first, second = pair(story)
    other, third = pair(story, "g1")
    separate(story, first, second, tail=True)
    measured_together(story, other, third, (1.0, 1.0))
    measured_together(story, other, third, (1.0, 1.0), p99=(None, 1.1))
    measured_together(story, other, third, (1.0, 1.0), p99=(1.4, None))  # the gSLA is 1.3
    assert len(story.machine.broken) == 1
    measured_together(story, third, other, (1.0, 1.4), p99=(None, 1.2))
    assert story.machine.broken == []


@pytest.mark.parametrize("measured", [True, False])
def test_policies_see_which_jobs_were_separated(measured):
    # What was seen comes before both what was measured earlier and what was declared.
    story = known_story()
    before = [together("vision", "speech", (1.1, 1.1))] if measured else []
    declared = None if measured else {"assumed": {"pair": 1.1}}
    view = world_of(story, *before, rules=declared)
    first = story.submit(workload="vision", gsla=1.9)
    second = story.submit(workload="speech")
    view.renew(story.at_s)
    for job in (first, second):
        put(story, view, job, "g0")
    separate(story, first, second, slowdown=2.5, gsla=1.9)
    other = story.submit(workload="speech")
    strict = story.submit(workload="vision", gsla=1.9)
    easy = story.submit(workload="vision")
    view.renew(story.at_s)
    assert "no entry lets" in refusal(view, [start(view, second, "g0")], {})
    assert "job j1: gsla: slowdown 2.5" in refusal(view, [start(view, other, "g0")], {})
    put(story, view, second, "g1")
    assert f"job {strict.id}: gsla: slowdown 2.5" in refusal(view, [start(view, strict, "g1")], {})
    assert refusal(view, [start(view, easy, "g1")], {}) is None
    assert {"ann/vision (j1, gSLA)", "ann/speech (j2)"} <= {*view.instance().workloads}
    assert policy_named("dovetail").decide(view.state).starts


def test_a_table_believes_no_less_than_what_broke_a_gsla():
    story = known_story()
    view = world_of(story, together("vision", "speech", (1.1, 1.1)))
    first, second = pair(story)
    separate(story, first, second, slowdown=None, gsla=1.3)
    view.renew(story.at_s)
    table = view.beliefs.of_workloads.table(("ann/vision", "ann/speech"), (MODEL,), ((None, None),))
    stalled = table.after(story.machine.broken)
    assert stalled.belief(MODEL, (None, None), "ann/vision", "ann/speech").source == "broke a gSLA"
    assert stalled.source[0, 0, 1, 0] == Source.MEASURED
    separate(story, first, story.running("g1", workload="speech"), slowdown=1.2, gsla=1.3)
    broken = table.after(story.machine.broken[1:])
    assert broken.belief(MODEL, (None, None), "ann/vision", "ann/speech").upper > 1.3
