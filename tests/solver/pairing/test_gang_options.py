"""What the options of a gang lose, against all ways to take its seats."""

from __future__ import annotations

import math
from itertools import combinations
from random import Random

import numpy as np
import pytest

from dovetail.solver.pairing.gang_options import options_left

_PARTNERS, _SEATS = 4, 12


def _losses(draw, needed, seats, priced, price):
    """Return the least loss of each worth, by every set of seats of that worth or more."""
    own = needed * priced[_PARTNERS]
    found = {}
    for taken in combinations(seats, needed):
        partners = [partner for _, partner, _ in taken if partner >= 0]
        if len(partners) == len(set(partners)):
            paid = sum(price + cost + (priced[k] if k >= 0 else 0.0) for _, k, cost in taken)
            least = min(worth for worth, _, _ in taken)
            for worth in {worth for worth, _, _ in seats if worth <= least}:
                found[worth] = min(found.get(worth, math.inf), own + paid - worth)
    return own, found


@pytest.mark.parametrize("seed", range(60))
def test_exactly_what_loses_too_much_is_ruled_out(seed):
    draw = Random(seed)
    needed, price = draw.choice((2, 3)), draw.random()
    # A seat without a partner is there for every worker, so it is listed that often here.
    seats = [
        (draw.choice((0.5, 1.0, 1.5)), draw.randrange(_PARTNERS), draw.random())
        for _ in range(_SEATS)
    ]
    alone = [(2.0, -1, draw.random())] * needed
    seats = sorted([*seats, *alone[: draw.choice((0, needed))]], key=lambda seat: -seat[0])
    priced = np.array([draw.random() for _ in range(_PARTNERS + 1)])
    own, losses = _losses(draw, needed, seats, priced, price)
    most = draw.uniform(0, 1.2 * own)
    required = draw.random() < 0.3
    left = [worth for worth, loss in losses.items() if loss <= most]
    jobs = _PARTNERS + 1
    box = {
        "floor": np.full(jobs, -np.inf),
        "cap": np.full(jobs, np.inf),
        "variant": np.full(jobs, -1),
        "required": np.full(jobs, required),
        "excluded": np.zeros(jobs, dtype=bool),
    }
    worth, partner, cost = (np.array(column) for column in zip(*seats, strict=True))
    start = np.zeros(jobs + 1, dtype=np.int64)
    start[-1] = len(seats)
    zeros = np.zeros(len(seats))
    able = options_left(
        np.array([_PARTNERS]), start, worth, zeros.astype(np.int64), partner, zeros,
        zeros.astype(np.int64), cost, np.arange(jobs), np.ones(jobs, dtype=np.int64),
        np.append(np.ones(_PARTNERS, dtype=np.int64), needed), np.arange(jobs), priced, price,
        most, *box.values(),
    )  # fmt: skip
    may_wait = not required and own <= most
    assert able == bool(left or may_wait)
    if able and left:
        assert box["floor"][_PARTNERS] == min(left)
        assert box["cap"][_PARTNERS] == max(left)
        assert box["required"][_PARTNERS] == (not may_wait)
    elif able:
        assert box["excluded"][_PARTNERS]
