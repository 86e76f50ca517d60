"""When a job that starts alone should take a cap: ``python benchmarks/start_capped.py``.

All pairs are synthetic: the contention model of ``instances.generate`` at caps that divide a GPU,
and its way of sharing the SMs, limited by the caps, at caps that overlap. Nothing here was
measured on a GPU. Every workload is a host once; the others come with equal chances, as a Poisson
process. Three ways to start are compared, each by the work that the GPU truly does in a second
while a host is on it (``executor.live.capped.expected_rate``), averaged over the hosts:

- ``uncapped``: never a cap;
- ``capped``: always the cap that is best for this host if it is joined at once;
- ``by numbers``: ``best_cap``, on slowdowns that are believed with an error of a tenth.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from dovetail.executor.live.beliefs import WHOLE
from dovetail.executor.live.capped import Partner, best_cap, expected_rate
from dovetail.executor.live.kind_state import useful_caps
from dovetail.instances import _contention as contention
from dovetail.instances.instance import Cluster
from dovetail.instances.slowdown_table import Caps

WORKLOADS = 60
WAITS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0)
ERROR = 0.1
SETS = {
    "50/50": ((50,), 100),
    "5, 10, 50, 90, 95": ((5, 10, 50, 90, 95), 100),
    "50 and 100, sum 150": ((50, 100), 150),
    "25 to 75 and 100, sum 150": ((25, 50, 75, 100), 150),
    "every tenth": (tuple(range(10, 100, 10)), 100),
}

Floats = contention.Floats
Alone = dict[int | None, Floats]
"""The rates alone of all workloads at each cap, as parts of those without one."""

Pairs = dict[Caps, tuple[Floats, Floats]]
"""Slowdowns of hosts (rows) beside newcomers (columns), and of these beside the hosts."""


class World(NamedTuple):
    """Workloads and what they do to each other."""

    alone: Alone
    pairs: Pairs


class Result(NamedTuple):
    """Mean rates of a GPU under the three ways, and the part of the hosts capped by numbers."""

    uncapped: float
    capped: float
    by_numbers: float
    part: float


def world_of(seed: int, shares: Sequence[int], share_sum: int) -> World:
    """Return the true slowdowns of synthetic workloads at all useful caps."""
    traits = contention.draw_traits(np.random.default_rng(seed), WORKLOADS)
    rules = Cluster(shares=tuple(shares), share_sum=share_sum, nodes=())
    caps = useful_caps(rules, ())
    alone: Alone = {None: np.ones(WORKLOADS)}
    alone |= {share: 1 / contention.solo_slowdown(traits, share / 100) for share in shares}
    beside = {pair: slowdowns(traits, *pair) for pair in caps}
    return World(alone, {(x, y): (beside[x, y], beside[y, x].T) for x, y in caps})


def slowdowns(traits: contention.Traits, mine: int | None, theirs: int | None) -> Floats:
    """Return slowdowns (n, n) of the row beside the column."""
    if mine is not None and theirs is not None and mine + theirs <= WHOLE:
        return contention.capped_slowdown(traits, mine / WHOLE, theirs / WHOLE)
    return contention.overlapping_slowdown(
        traits, (mine or WHOLE) / WHOLE, (theirs or WHOLE) / WHOLE
    )


def believed_of(world: World, seed: int) -> World:
    """Return a world with an error for each ordered pair, the same at all caps."""
    draw = np.random.default_rng(seed)
    error = np.exp(ERROR * draw.standard_normal((WORKLOADS, WORKLOADS)))
    return World(
        world.alone, {caps: (a * error, b * error.T) for caps, (a, b) in world.pairs.items()}
    )


def ways(world: World, host: int, share: int | None) -> Iterator[tuple[int, Caps]]:
    """Yield each other workload with the caps at which the two do the most work."""
    caps = [pair for pair in world.pairs if pair[0] == share]
    rates = [1 / world.pairs[pair][0][host] + 1 / world.pairs[pair][1][host] for pair in caps]
    for other, best in enumerate(np.argmax(rates, axis=0).tolist()):
        if other != host:
            yield other, caps[best]


def partners(believed: World, true: World, host: int, share: int | None) -> list[Partner]:
    """Return the others at the caps that are believed best, with what then is true."""
    chance = 1 / (WORKLOADS - 1)
    return [
        Partner(
            chance, float(true.pairs[caps][0][host, other]), float(true.pairs[caps][1][host, other])
        )
        for other, caps in ways(believed, host, share)
    ]


def compare(true: World, believed: World, wait: float) -> Result:
    """Compare the ways to start where newcomers come every ``wait`` times a host's own work."""
    rows = [_of_host(true, believed, host, 1 / wait) for host in range(WORKLOADS)]
    return Result(*(fmean(column) for column in zip(*rows, strict=True)))


def _of_host(true: World, believed: World, host: int, per_s: float) -> Result:
    alone = {share: float(rates[host]) for share, rates in true.alone.items()}
    expected = {share: partners(believed, believed, host, share) for share in alone}
    truth = {
        share: expected_rate(rate, 1.0, per_s, partners(believed, true, host, share))
        for share, rate in alone.items()
    }
    capped = {share: rate for share, rate in alone.items() if share is not None}
    at_once = {None: 0.0, **best_cap({None: 1.0, **capped}, expected, 1.0, 1e9).rates}
    always = max(capped, key=lambda share: at_once[share])
    chosen = best_cap({None: 1.0, **alone}, expected, 1.0, per_s).share
    return Result(truth[None], truth[always], truth[chosen], float(chosen is not None))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=3)
    seeds = range(options.parse_args().seeds)
    print("| shares | newcomer every | uncapped | capped | by numbers | capped by numbers |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, (shares, share_sum) in SETS.items():
        worlds = [world_of(seed, shares, share_sum) for seed in seeds]
        beliefs = [believed_of(world, seed) for seed, world in enumerate(worlds)]
        for wait in WAITS:
            found = [compare(w, b, wait) for w, b in zip(worlds, beliefs, strict=True)]
            uncapped, capped, by_numbers, part = (fmean(c) for c in zip(*found, strict=True))
            cells = f"{uncapped:.3f} | {capped:.3f} | {by_numbers:.3f} | {part:.0%}"
            print(f"| {name} | {wait:g} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
