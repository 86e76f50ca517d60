"""From a campaign to its experiments, in their order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import combinations_with_replacement

from dovetail.executor.measuring.campaign import Campaign, Stage
from dovetail.executor.measuring.records import Experiment, Seat


def experiments(campaign: Campaign) -> tuple[Experiment, ...]:
    """Return all experiments of a campaign, in the order in which they are carried out.

    Stages stand in their order. A stage is carried out in whole rounds, one for each repeat, and
    each round is a random permutation of its own (a randomised complete block design: Montgomery,
    Design and Analysis of Experiments, ch. 4), so that a drift of the machine is no property of
    a workload. A round's order depends on seed, stage and repeat alone: what a campaign gains
    at its end leaves it as it was.
    """
    found: list[Experiment] = []
    for at, stage in enumerate(campaign.stages):
        for repeat in range(stage.repeats):
            drawn = list(_settings(campaign, stage))
            random.Random(f"{campaign.seed}:{at}:{repeat}").shuffle(drawn)
            found += (Experiment(at, seats, repeat) for seats in drawn)
    return tuple(found)


def remaining(campaign: Campaign, settled: Collection[str]) -> tuple[Experiment, ...]:
    """Return the experiments whose key is not among ``settled``, in their order."""
    return tuple(one for one in experiments(campaign) if one.key not in settled)


def workers_needed(planned: Iterable[Experiment]) -> Counter[Seat]:
    """Return how many workers of each seat must be there at once: two for a self-pair."""
    needed: Counter[Seat] = Counter()
    for one in planned:
        needed |= Counter(one.seats)
    return needed


def _settings(campaign: Campaign, stage: Stage) -> Iterator[tuple[Seat, ...]]:
    """Yield who runs in each of a stage's experiments; what differs by order only comes once."""
    told = set()
    for names in _groups(campaign, stage):
        for ordered in dict.fromkeys((names, names[::-1])):
            seats = tuple(
                Seat(name, stage.mode, cap, name in stage.first)
                for name, cap in zip(ordered, stage.caps, strict=True)
            )
            alike = frozenset(Counter(seats).items())
            if alike not in told:
                told.add(alike)
                yield seats


def _groups(campaign: Campaign, stage: Stage) -> Iterator[tuple[str, ...]]:
    chosen = stage.workloads or campaign.names
    if stage.measure == "solos":
        return ((name,) for name in campaign.names if name in chosen)
    pairs = combinations_with_replacement(campaign.names, 2)
    return (pair for pair in pairs if not set(chosen).isdisjoint(pair))
