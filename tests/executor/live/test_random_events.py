"""Random events, sensible and not: the invariants hold, and the journal agrees."""

import pickle
import random
import shutil
from contextlib import suppress
from itertools import pairwise
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from benchmarks.live.invariants import violations
from dovetail.executor.jobs import events
from dovetail.executor.jobs import state_machine as rules
from dovetail.executor.jobs.journal import JOURNAL, Journal, read_events, read_state_machine
from dovetail.executor.jobs.state_machine import StateMachine, TransitionError
from dovetail.executor.jobs.states import HOLDING, OVER, TRANSITIONS
from tests.executor.live.fate import random_event
from tests.executor.live.telling import GPUS

STARTED = events.ServiceStarted(at_s=1.0, boot="b", pool="test", gpus=GPUS, version="1")


def applied(machine, event):
    """Apply an event, and check that it changes nothing where it is refused."""
    saved = pickle.dumps(machine)  # five times as fast as a deep copy
    try:
        return machine.apply(event)
    except TransitionError:
        before = pickle.loads(saved)
        before.sequence, before.now_s = machine.sequence, machine.now_s
        assert machine == before
        return ()


def brought_to_an_end(machine):
    """Yield events that end every job: ends of all processes, and cancels of the rest.

    A job that could not come to its end so would be lost.
    """
    for job in list(machine.holding.values()):
        for rank in range(len(job.ranks)):
            yield events.RankGone(at_s=machine.now_s, run=job.run.id, rank=rank, reason="a reboot")
    assert not any(job.state in HOLDING for job in machine.jobs.values())
    for job in [*machine.queue(), *machine.barred.values()]:
        yield events.CancelRequested(at_s=machine.now_s, job=job.id, by="root")
    assert all(job.state in OVER for job in machine.jobs.values())


class Machine(RuleBasedStateMachine):
    """A state machine with its journal, fed random events, restarted and killed at any time."""

    def __init__(self):
        super().__init__()
        self.folder = mkdtemp(prefix="dovetail-")
        self.journal = Journal(self.folder)
        self.machine = self.journal.replay()
        self.tell([STARTED])

    def tell(self, batch):
        self.journal.append(batch)
        for event in batch:
            applied(self.machine, event)

    @rule(seed=st.integers(0, 2**64), count=st.integers(1, 30))
    def something_happens(self, seed, count):
        rng = random.Random(seed)
        for _ in range(count):
            self.tell([random_event(self.machine, rng)])

    @rule(seed=st.integers(0, 2**64), count=st.integers(0, 5))
    def much_happens_at_once(self, seed, count):
        rng = random.Random(seed)
        self.tell([random_event(self.machine, rng) for _ in range(count)])

    @rule()
    def checkpoint(self):
        self.journal.checkpoint(self.machine, every=1)

    @rule(back_s=st.sampled_from([-1.0, 0.0, 5.0, 1e9]))
    def compact(self, back_s):
        self.journal.compact(self.machine, self.machine.now_s - back_s)

    @rule()
    def restart(self):
        self.journal.close()
        self.journal = Journal(self.folder)
        assert self.journal.replay() == self.machine
        assert self.journal.sequence == self.machine.sequence

    @rule()
    def killed_now_it_would_leave_the_same(self):
        copy = mkdtemp(prefix="dovetail-")
        try:
            for name in (JOURNAL, f"{JOURNAL}-wal"):
                shutil.copy(f"{self.folder}/{name}", copy)
            with Journal(copy) as journal:
                assert journal.replay() == self.machine
        finally:
            shutil.rmtree(copy)

    @invariant()
    def what_holds_of_every_brain(self):
        assert violations(self.machine) == ()

    def teardown(self):
        for event in brought_to_an_end(self.machine):
            self.tell([event])
        assert violations(self.machine) == ()
        assert read_state_machine(self.folder) == self.machine
        assert self.journal.sequence == self.machine.sequence
        known = [entry.sequence for entry in read_events(self.folder)]
        assert known == sorted(known)
        self.journal.close()
        shutil.rmtree(self.folder)


def run(examples, steps):
    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None),
    )


@pytest.mark.parametrize("kept", [3, rules.KEPT_OVER])
def test_a_journal_is_replayed(kept, monkeypatch):
    monkeypatch.setattr(rules, "KEPT_OVER", kept)
    run(examples=10, steps=12)


@pytest.mark.long
@pytest.mark.parametrize("kept", [3, rules.KEPT_OVER])
def test_a_long_journal_is_replayed(kept, monkeypatch):
    monkeypatch.setattr(rules, "KEPT_OVER", kept)
    run(examples=100, steps=30)


def states_after(seeds, steps, apply):
    """Yield state machines that have seen random events."""
    for seed in range(seeds):
        rng, machine = random.Random(seed), StateMachine()
        machine.apply(STARTED)
        for _ in range(steps):
            apply(machine, random_event(machine, rng))
        yield machine


def checked(machine, event):
    applied(machine, event)
    assert violations(machine) == ()


def unchecked(machine, event):
    with suppress(TransitionError):
        machine.apply(event)


def ways_of(machine):
    return {
        (before.state, after.state)
        for job in machine.jobs.values()
        for before, after in pairwise(job.history)
    }


def test_every_transition_of_the_table_happens_and_no_other():
    wanted = {(state, after) for state, ways in TRANSITIONS.items() for after in ways}
    seen = set()
    for machine in states_after(1000, 100, unchecked):
        seen |= ways_of(machine)
        if seen >= wanted:
            break
    assert seen == wanted


@pytest.mark.parametrize("seeds", [40, pytest.param(2000, marks=pytest.mark.long)])
def test_what_holds_of_every_state(seeds):
    for machine in states_after(seeds, 100, checked):
        for event in brought_to_an_end(machine):
            machine.apply(event)
