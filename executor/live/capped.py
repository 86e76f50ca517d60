"""Whether a job that starts alone should take a cap, so that a partner can join it later.

A cap stays for a process's life. Whoever starts without one runs at full pace alone, and can only
be joined in the ways there are for a job without a cap. Under a cap it is slower until somebody
comes, and may then share better. What is better follows from how soon somebody comes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Partner(NamedTuple):
    """A workload that may come next, beside a job at one cap.

    Attributes
    ----------
    chance : float
        The part of newcomers that are this one.
    mine, theirs : float
        Slowdown of the job that is there and of the newcomer, in the best way that is allowed.
    """

    chance: float
    mine: float
    theirs: float


class Choice(NamedTuple):
    """A cap and what it is worth.

    Attributes
    ----------
    share : int or None
        The cap in per cent; None = none.
    rates : mapping of (int or None) to float
        The expected rate of the device at each cap: ``expected_rate``.
    """

    share: int | None
    rates: Mapping[int | None, float]


def expected_rate(
    alone: float, work_s: float, newcomers_per_s: float, partners: Sequence[Partner]
) -> float:
    """Return the work that a device does in a second while a job is on it, in expectation.

    Newcomers arrive as a Poisson process. Those that may not join go elsewhere; the first that
    may joins, and stays (itself or the next of its kind) until the job ends. With rate r alone,
    work w, and joining newcomers at rate l, the job is alone for the time t and has work L left
    when it is joined::

        t = (1 - exp(-l w / r)) / l        L = w - r t

    With m and p its own slowdown and the partner's, averaged over those who join, the device is
    held for ``t + L m`` seconds and does ``r t + L (1 + m / p)`` seconds of work. The rate is the
    ratio of these expectations, which is that of a long row of such stays (renewal reward
    theorem).

    Parameters
    ----------
    alone : float
        The job's rate alone, as a part of that without a cap.
    work_s : float
        Seconds of work that it needs, alone without a cap.
    newcomers_per_s : float
        How many jobs a second would come to this device.
    partners : sequence of Partner
        Those who may join; what their chances lack to 1 may not.
    """
    chance = math.fsum(partner.chance for partner in partners)
    joining = newcomers_per_s * chance
    if joining * work_s <= 0:
        return alone
    alone_s = -math.expm1(-joining * work_s / alone) / joining
    left_s = work_s - alone * alone_s
    mine = math.fsum(p.chance * p.mine for p in partners) / chance
    both = math.fsum(p.chance * (1 + p.mine / p.theirs) for p in partners) / chance
    return (alone * alone_s + left_s * both) / (alone_s + left_s * mine)


def best_cap(
    alone: Mapping[int | None, float],
    partners: Mapping[int | None, Sequence[Partner]],
    work_s: float,
    newcomers_per_s: float,
) -> Choice:
    """Return the cap at which a job that starts alone lets its device do the most work.

    Parameters
    ----------
    alone : mapping of (int or None) to float
        The rate alone at each cap that may be taken, as a part of that without a cap; None, with
        1.0, is among them, and is taken where nothing is better.
    partners : mapping of (int or None) to sequence of Partner
        Who may join a job at each of these.
    work_s, newcomers_per_s : float
        See ``expected_rate``.
    """
    rates = {
        share: expected_rate(rate, work_s, newcomers_per_s, partners.get(share, ()))
        for share, rate in alone.items()
    }
    best = max(rates, key=lambda share: (rates[share], share is None))
    return Choice(best, rates)
