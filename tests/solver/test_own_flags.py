"""A user's own objective with the properties of built-in ones is solved and proven as they are."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from dovetail import JobValues, solve
from dovetail.formulations.completion import forecast
from dovetail.formulations.values import shortens_mean_completion
from dovetail.instances.errors import InputError, UnsupportedError
from dovetail.instances.generate import generate
from dovetail.solver.verification import verify
from tests.data import small
from tests.strategies import Shape, random_instance


class Rate(JobValues):
    """``throughput``."""

    proportional = True
    by_kind = True


class Soon(JobValues):
    """``jct``."""

    judged_by = "jct"
    reads_remaining = True
    pairs_only = True
    by_kind = True
    category = "jct"
    rule = "the two would end no earlier on average than one after the other"

    def gain(self, job, slowdown, model):
        left = self.round.jobs.remaining_s[job]
        return super().gain(job, slowdown, model) / np.where(left > 0, left, 1.0)

    def may_share(self, rows):
        jobs, alone = self.round.jobs, self.round.variants.slowdown_factor[rows.variant]
        left, running = jobs.remaining_s[rows.job], jobs.running[rows.job]
        return shortens_mean_completion(rows.slowdown, alone, left, running)


class Thrift(JobValues):
    """``energy``."""

    judged_by = "energy"
    two_stage = True
    ratio = True
    by_kind = True

    def gain(self, job, slowdown, model):
        jobs = self.round.jobs
        return np.maximum(jobs.workers, jobs.holds)[job] * super().gain(job, slowdown, model)


class Saved(JobValues):
    """``completion``, with every gain read from the forecast again."""

    judged_by = "completion"
    reads_remaining = True
    grouped = True
    relative = True
    by_kind = True
    category = "completion"
    rule = "they would end later than the forecast end of all jobs alone"

    def __init__(self, compiled):
        super().__init__(compiled)
        jobs, self.queue = compiled.jobs, forecast(compiled)
        self.until = self.queue.prices.until
        self.left = {model: jobs.remaining_s / compiled.speed[model] for model in compiled.models}
        self.due, self.rent = np.zeros(len(compiled)), np.zeros(len(compiled))
        waits = np.flatnonzero(~jobs.running)
        fastest = np.min([self.left[model] for model in compiled.models], axis=0)
        start, self.due[waits] = self.queue.start_s, self.queue.start_s + fastest[waits]
        self.rent[waits] = jobs.workers[waits] * (self.until(self.due[waits]) - self.until(start))
        for job, (gpus, _, _) in jobs.held.items():
            model = compiled.models[compiled.machines.model[gpus[0]]]
            self.due[job] = compiled.slowdown_now[job] * self.left[model][job]
        self.by_itself = np.where(jobs.running, 0.0, self.weight * self.due + self.rent)

    def gain(self, job, slowdown, model):
        return self._saved(job, slowdown * self.left[model][job])

    def gains(self, rows):
        return self._saved(rows.job, self._ends(rows))

    def value(self, rows):
        end, runs = self._ends(rows), self.round.jobs.running[rows.job]
        last, free = end.max(axis=1), np.where(runs, end, 0.0).max(axis=1)
        idle = self.until(last) - self.until(np.minimum(last, self.queue.claimed_s))
        price = np.where(runs.any(axis=1), self.until(last) - self.until(free), idle)
        latest = self.queue.last_s * (1 + 1e-9)
        counts = (end > latest) & (~runs | (self.due[rows.job] <= latest))
        late = counts.any(axis=1) & (end.shape[1] > 1) & ~runs.all(axis=1)
        return np.where(late, np.nan, -np.maximum(price, 0.0))

    def _saved(self, job, end):
        held = self.round.jobs.holds[job] * (self.until(self.due[job]) - self.until(end))
        return self.weight[job] * (self.due[job] - end) + self.rent[job] + held

    def _ends(self, rows):
        compiled, jobs, job = self.round, self.round.jobs, rows.job
        of_model = np.array([self.left[model] for model in compiled.models])
        left = of_model[compiled.classes.model[rows.gpu_class][:, None], job]
        whole, runs = rows.slowdown * left, jobs.running[job]
        if job.shape[1] != 2:
            return whole
        first = whole.min(axis=1, keepdims=True)
        rest = np.maximum(0.0, left - first / rows.slowdown)
        end = np.minimum(
            whole, first + rest * compiled.slowdowns_alone(job, rows.variant, rows.share)
        )
        alike = compiled.classes.alike[rows.gpu_class][:, None]
        spread = ~runs & (jobs.workers[job] > alike)
        return np.where(spread | runs.all(axis=1, keepdims=True), whole, end)


LIKE = {Rate: "throughput", Soon: "jct", Thrift: "energy", Saved: "completion"}
SHAPE = Shape(jobs=5, gpus=3, sets=False, power=True, gains=True)
SHAPES = (
    replace(SHAPE, models=False, memory=False, running=False),
    replace(SHAPE, models=False, memory=False, gangs=False),
    replace(SHAPE, models=False, memory=False, whole=False),
    SHAPE,
    replace(SHAPE, sets=True, gangs=False),
)


def solved(instance, objective, **options):
    """Return all that a result says apart from the name of the objective and the time."""
    try:
        result = solve(instance, objective, **options)
    except UnsupportedError as refusal:
        return str(refusal)
    plan, name = result.plan, result.plan.objective.name
    checked = verify(instance, result, None if isinstance(objective, str) else objective)
    rows = [row.to_data() for row in plan.assignments]
    reasons = [(row.job, row.reason.replace(name, "it")) for row in plan.waiting]
    proof = getattr(getattr(result.proof, "func", result.proof), "__name__", None)
    figures = pytest.approx((result.objective, result.bound), rel=1e-9)
    said = plan.solver, plan.notes, plan.status, plan.tie_break, proof, checked
    return rows, reasons, said, figures


def same(instance, own, **options):
    found, expected = (solved(instance, each, **options) for each in (own, LIKE[own]))
    if isinstance(found, str):
        assert found == expected
        return
    *what, figures = found
    *as_built_in, known = expected
    unjudged = (f"the plan's python:{__name__}.{own.__name__} was not checked",)
    rows, reasons, (solver, notes, *said) = what
    kept = tuple(note for note in notes if not note.startswith(unjudged))
    assert [rows, reasons, (solver, kept, *said)] == as_built_in
    assert figures.expected == known


@pytest.mark.parametrize("own", LIKE)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("solver", ["auto", "matching", "highs"])
def test_small_rounds_are_solved_and_proven_alike(own, seed, solver):
    shape = SHAPES[seed % len(SHAPES)]
    same(random_instance(Random(f"flags {seed}"), shape), own, solver=solver)


@pytest.mark.parametrize("own", LIKE)
def test_larger_rounds_are_solved_and_proven_alike(own):
    same(generate(16, seed=2, gpus=6, running=0.3, gang_sharing="whole"), own)
    same(generate(24, seed=3, gpus=9, shares=(30, 50, 70), gangs=False), own)


def test_large_rounds_of_pairs_are_matched_on_tables():
    same(generate(140, seed=4, gpus=60, shares=(), gangs=False), Rate, explain=False)


def test_running_jobs_may_move_alike():
    for own in LIKE:
        same(generate(10, seed=5, gpus=4, running=0.5, gangs=False), own, preempt=True)


class Square(JobValues):
    """Not in proportion to the slowdown: two jobs at a middle speed are worth less than a fast."""

    def gain(self, job, slowdown, model):
        return super().gain(job, slowdown, model) / slowdown


def test_a_large_round_is_not_matched_on_tables_if_gains_are_not_proportional():
    instance = generate(120, seed=1, gpus=70, shares=(), gangs=False)
    result = solve(instance, Square, explain=False)
    other = solve(instance, Square, "highs", explain=False)
    assert result.objective == pytest.approx(other.objective, rel=1e-6)
    assert result.status == other.status == "optimal"
    assert verify(instance, result, Square).certificate == "checked"


class Proportional(Square):
    proportional = True


class Alike(JobValues):
    by_kind = True

    def gain(self, job, slowdown, model):
        return super().gain(job, slowdown, model) * (1 + job)


class Single(JobValues):
    ratio = True


class Judged(JobValues):
    judged_by = "mine"


class Called(JobValues):
    category = "mine"


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (Proportional, "proportional must be False: a gain is not in proportion to the slowdown"),
        (Alike, "by_kind must be False: equal jobs gain differently"),
        (Single, "two_stage must be True if ratio is"),
        (Judged, "judged_by must be one of throughput, slowdown, .*, got 'mine'"),
        (Called, "category must be one of jct, completion, objective, got 'mine'"),
    ],
)
def test_a_class_that_says_what_it_is_not_is_refused(own, message):
    jobs = [{"id": name, "workload": "a"} for name in "ij"]
    instance = small(jobs, [{"pair": ["a", "a"], "slowdown": [1.5, 1.5], "power_w": 9}])
    instance = instance.replace(
        workloads={name: w.replace(power_w=5.0) for name, w in instance.workloads.items()}
    )
    with pytest.raises(UnsupportedError, match=f"{own.__name__}: {message}"):
        solve(instance, own)


def test_the_fields_that_a_class_needs_are_asked_for_in_its_name():
    instance = small([{"id": "j"}])
    with pytest.raises(InputError, match=rf"objective python:{__name__}.Soon needs this field"):
        solve(instance, Soon)
    with pytest.raises(InputError, match=rf"objective python:{__name__}.Thrift needs this field"):
        solve(instance, Thrift)


class Patient(JobValues):
    """No two jobs may share."""

    def may_share(self, rows):
        return np.zeros(len(rows), dtype=bool)


def test_reasons_name_the_rule_of_a_class():
    pair = {"pair": ["a", "b"], "slowdown": [1.1, 1.1]}
    jobs = [{"id": name, "workload": name} for name in "ab"]
    result = solve(small(jobs, [pair], gpus=1), Patient)
    (waiting,) = result.plan.waiting
    assert waiting.reason.startswith("objective: ")
    assert "the objective does not let them share" in waiting.reason
