"""Rounds on tables: prices prove no more than they can."""

import itertools

import numpy as np
import pytest

from dovetail.solver.policies import direct
from dovetail.solver.policies.joins import Joins, There


def _tables(seed):
    """Return random tables: one host with some GPUs, and jobs of one GPU."""
    draw = np.random.default_rng(seed)
    jobs, gpus = int(draw.integers(3, 6)), int(draw.integers(2, 4))
    gain = draw.uniform(0, 10, (1, 1, jobs))
    lost = -draw.uniform(0, 10, gain.shape) * draw.choice([0.3, 1, 2])
    alone = draw.uniform(0, 8, jobs)
    pair = np.triu(draw.uniform(-2, 14, (jobs, jobs)), 1)
    pair[np.tril_indices(jobs)] = -np.inf
    worth, none = gain + lost, np.zeros(jobs)
    there = There(**dict.fromkeys(There._fields, np.array([gpus])))
    joins = Joins(np.zeros(1), gain, 0 * gain, lost, none, none, 0 * gain, 0 * gain)
    beside = direct._Beside(there, joins, worth, worth[0], np.zeros((1, jobs), dtype=int))
    on_idle = direct._OnIdle(0.0, none, alone, alone, pair, *[np.zeros(0)] * 4)
    return beside, on_idle


def _best(beside, on_idle):
    """Return the largest worth of a plan with one idle GPU, by trying all."""
    gain, lost = beside.joins.gain[0, 0], beside.joins.lost[0, 0]
    jobs, best = range(len(gain)), 0.0
    for use in itertools.chain.from_iterable(itertools.combinations(jobs, k) for k in (0, 1, 2)):
        worth = [0.0, on_idle.alone[use[0]] if use else 0.0, on_idle.pair[use] if use else 0.0]
        rest = [job for job in jobs if job not in use]
        for count in range(int(beside.there.gpus[0]) + 1):
            for some in itertools.combinations(rest, count):
                more = gain[list(some)].sum() + lost[list(some)].min(initial=0.0)
                best = max(best, float(worth[len(use)]) + more)
    return best


# In the first two, the best plan has two jobs on the host's GPUs, and prices leave a gap.
@pytest.mark.parametrize("seed", [2315, 3676, *range(40)])
def test_a_plan_is_proven_only_if_no_more_jobs_of_a_host_add_to_it(seed):
    beside, on_idle = _tables(seed)
    plan = direct._best(beside, on_idle, 1)
    assert plan is not None
    if direct._parts_are_proven(beside, plan):
        assert plan.value == pytest.approx(_best(beside, on_idle))
