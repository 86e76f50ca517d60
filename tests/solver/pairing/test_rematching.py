"""Problems solved from the solutions of similar ones, against solving each anew."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.formulations.budget import STEPS_PER_S, Budget, OutOfTimeError, WorkClock
from dovetail.solver.pairing import match_pairs
from dovetail.solver.pairing.rematching import Rematching

from .instances import KINDS, pair_values


def lowered(rng, pair, single, jobs):
    """Lower or forbid the values of some jobs, on both sides of the matrix."""
    pair, single = pair.copy(), single.copy()
    fall = np.where(rng.random((len(jobs), len(pair))) < 0.2, np.nan, rng.integers(0, 2) / 2)
    pair[jobs] = pair[jobs] - fall
    pair[:, jobs] = pair[jobs].T
    inner = np.triu(pair[np.ix_(jobs, jobs)], 1)
    pair[np.ix_(jobs, jobs)] = inner + inner.T
    single[jobs] -= 0.25
    return pair, single


def worth(pair, single, mate):
    jobs = np.arange(len(mate))
    first, alone = jobs[mate > jobs], jobs[mate == jobs]
    assert (mate[mate[first]] == first).all()
    return pair[first, mate[first]].sum() + single[alone].sum()


@pytest.mark.usefixtures("way")
def test_a_changed_problem_is_solved_as_if_anew():
    rng = np.random.default_rng(0)
    infeasible = 0
    for kind in KINDS * 3:
        n = int(rng.integers(4, 24))
        gpus = int(rng.integers(1, n))
        pair, single = pair_values(rng, n, kind, absent=0.3), rng.random(n)
        pair[~np.isfinite(pair) | np.eye(n, dtype=bool)] = np.nan
        required = rng.random(n) < 0.1
        rematching = Rematching(pair, single, gpus, required)
        start = rematching.start
        for _ in range(4):
            jobs = np.sort(rng.choice(n, int(rng.integers(1, n)), replace=False))
            changed, alone = lowered(rng, pair, single, jobs)
            must = required.copy()
            must[jobs] = rng.random(len(jobs)) < 0.2
            anew = match_pairs(changed, alone, gpus, required=must)
            fits = rematching.revalue(jobs, changed[jobs], alone[jobs], must[jobs])
            if fits:
                found = rematching.solve(start)
                if found is None:
                    assert anew.status == "infeasible"
                    infeasible += 1
                else:
                    assert found.bound == pytest.approx(anew.bound, abs=1e-6)
                    assert worth(changed, alone, found.mate) == pytest.approx(anew.value, abs=1e-6)
                    assert np.count_nonzero(found.mate >= np.arange(n)) <= gpus
                    assert (found.mate[must] >= 0).all()
                    start = found.start
            assert rematching.revalue(jobs, pair[jobs], single[jobs], required[jobs])
    assert infeasible > 0


def test_values_that_the_units_are_not_made_for_are_refused():
    pair = np.full((4, 4), 1.0)
    rematching = Rematching(pair, np.ones(4), 2, np.zeros(4, dtype=bool))
    jobs, no = np.arange(4), np.zeros(4, dtype=bool)
    assert rematching.revalue(jobs, pair / 2, np.ones(4) / 2, no)
    assert not rematching.revalue(jobs, pair * 4, np.ones(4), no)
    assert not rematching.revalue(jobs, pair * 1e-3, np.ones(4) * 1e-3, no)
    assert rematching.revalue(jobs, -pair, -np.ones(4), no)


def test_out_of_time():
    clock = WorkClock()
    budget = Budget.of(1.0, clock)
    rematching = Rematching(np.ones((4, 4)), np.ones(4), 2, np.zeros(4, dtype=bool), budget)
    clock.spend(2 * STEPS_PER_S)
    with pytest.raises(OutOfTimeError):
        rematching.solve(rematching.start)
