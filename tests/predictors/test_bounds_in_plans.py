"""Bounds in plans of the engine."""

from __future__ import annotations

import numpy as np

from dovetail.instances.checking.checker import check
from dovetail.instances.generate import generate
from dovetail.instances.slowdowns.entry import SlowdownEntry
from dovetail.predictors.fitted.bounds import calibrate
from dovetail.predictors.fitted.planned import BLIND
from dovetail.predictors.fitted.standing import KNOWN
from dovetail.solver.rounds import solve
from tests.predictors.population import of_matrices


def hidden_truth(seed):
    """Return a synthetic round with a job of each workload, and its slowdowns as a matrix."""
    instance = generate(40, seed=seed, workloads=40, gangs=False, shares=(), gpus=20)
    names = list(instance.workloads)
    truth = np.full((40, 40), np.nan)
    for entry in instance.slowdowns:
        a, b = (names.index(name) for name in entry.workloads)
        truth[a, b], truth[b, a] = entry.slowdown
    jobs = [
        job.replace(workload=name, gsla=None)
        for job, name in zip(instance.jobs, names, strict=True)
    ]
    return instance.replace(jobs=tuple(jobs)), truth


def planned(instance, prediction, upper, gsla):
    """Return the pairs of workloads that share in the engine's plan, in both orders."""
    names = list(instance.workloads)
    entries = [
        SlowdownEntry(
            pair=(names[a], names[b]),
            slowdown=(prediction[a, b], prediction[b, a]),
            upper=(upper[a, b], upper[b, a]),
        )
        for a in range(40)
        for b in range(a, 40)
    ]
    jobs = tuple(job.replace(gsla=gsla) for job in instance.jobs)
    with_predictions = instance.replace(jobs=jobs, slowdowns=tuple(entries))
    plan = solve(with_predictions).plan
    assert check(with_predictions, plan).violations == ()
    workload = {job.id: names.index(job.workload) for job in jobs}
    return [
        (workload[found.job], workload[others[0]])
        for found in plan.assignments
        for others in found.co_runners or ()
        if others
    ]


def predicted(truth, draw):
    """Return predictions that are off by 5 % each, equal for the two jobs of a self-pair."""
    noise = 0.05 * draw.standard_normal(truth.shape)
    return truth * (1 + noise)


def test_engine_keeps_promises_that_blind_bounds_break():
    kept = {"blind": [], "corrected": []}
    for seed in range(3):
        _, truth = hidden_truth(seed)
        draw = np.random.default_rng(seed)
        one = of_matrices(truth, predicted(truth, draw))
        bounds = {
            "blind": calibrate(one.rows, one.known, one.new, settings=(BLIND,)),
            "corrected": calibrate(one.rows, one.known, one.new, rounds=3),
        }
        for other in (10 + seed, 20 + seed):
            instance, unseen = hidden_truth(other)
            prediction = predicted(unseen, draw)
            for name, calibration in bounds.items():
                upper = calibration.upper(prediction, KNOWN, 0.9)
                for gsla in (None, 1.5):
                    pairs = planned(instance, prediction, upper, gsla)
                    kept[name] += [unseen[pair] <= upper[pair] for pair in pairs]
    assert min(map(len, kept.values())) > 200
    assert np.mean(kept["blind"]) < 0.86
    assert np.mean(kept["corrected"]) >= 0.88
