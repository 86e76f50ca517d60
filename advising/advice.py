"""The advice: who could share, what it would save, what may not, and what to measure next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from dovetail.advising.matched import FewestGpus, fewest_gpus
from dovetail.advising.replay import Replayed, replay
from dovetail.advising.sharing import (
    RESERVE_MIB,
    SPLITS,
    KindPairs,
    has_partner,
    in_each_case,
    pairs_of,
)
from dovetail.advising.work import CASES, Ints, Work
from dovetail.formulations.budget import Budget

LIKELY: Final = CASES.index("likely")
_MOST_MEASURED: Final = 5


class Moment(NamedTuple):
    """The moment at which the records use most GPUs, and the fewest that are enough then.

    Attributes
    ----------
    at_s : float
        The time; 0 without times.
    jobs : int
        How many jobs run then.
    gpus_now : int
        How many GPUs they hold.
    gpus : tuple of int
        The fewest with sharing, in each of ``CASES``.
    bounds : tuple of int
        No fewer are possible for the numbers of each case, proven.
    """

    at_s: float
    jobs: int
    gpus_now: int
    gpus: tuple[int, ...]
    bounds: tuple[int, ...]

    @property
    def proven(self) -> bool:
        """Whether every number is proven to be the fewest."""
        return self.gpus == self.bounds


class Partners(NamedTuple):
    """Two kinds of work that could share GPUs, in the case ``likely``.

    Attributes
    ----------
    kinds : tuple of int
        Both kinds.
    at_once : int
        How many GPUs they share at the busiest moment.
    shared_hours : float
        The GPU hours that they share in the replay.
    split : tuple of int
        The SM share of each, in per cent: halves if jobs come and go.
    memory_mib : tuple of float
        The memory that each is likely to need.
    limit_mib : tuple of float
        A limit for each: what is free on the card is divided in proportion to the need.
    slowdown : tuple of (float, float)
        The least and the largest slowdown of each over the cases.
    sure : bool
        Whether they may share at this split in every case, and none answers requests.
    """

    kinds: tuple[int, int]
    at_once: int
    shared_hours: float
    split: tuple[int, int]
    memory_mib: tuple[float, float]
    limit_mib: tuple[float, float]
    slowdown: tuple[tuple[float, float], tuple[float, float]]
    sure: bool


class Obstacle(NamedTuple):
    """Kinds of work that may share with none, and the reason.

    Attributes
    ----------
    reason : str
        One of ``REASONS``.
    kinds : tuple of int
        The kinds, those with most GPU hours first.
    gpu_hours : float
        Their GPU hours.
    """

    reason: str
    kinds: tuple[int, ...]
    gpu_hours: float


REASONS: Final[dict[str, str]] = {
    "card": "the memory of the GPU is unknown: name it with --gpu-memory MODEL=MIB",
    "memory unknown": "no memory is recorded",
    "use unknown": "no utilisation is recorded",
    "memory": "no co-runner on the same GPU model fits into the memory beside it",
    "slowdown": "every co-runner that fits would slow one of both beyond the limit",
    "alone": "no other job uses as many GPUs of the same model on as many nodes",
    "others": "too little is recorded of every co-runner that might fit",
}
"""Why a kind of work may share with none, as clauses."""

UNKNOWN: Final = ("card", "memory unknown", "use unknown", "others")
"""The reasons that measurements may remove."""


class ToMeasure(NamedTuple):
    """Measurements that would narrow the range.

    Attributes
    ----------
    what : str
        A sentence without its end: what to measure, and how.
    kinds : tuple of int
        For these kinds, those with most GPU hours first.
    gpu_hours : float
        Their GPU hours.
    """

    what: str
    kinds: tuple[int, ...]
    gpu_hours: float


@dataclass(frozen=True, eq=False)
class Advice:
    """What sharing would come to for some work.

    Attributes
    ----------
    work : Work
        The work.
    limit : float
        The slowdown that owners accept.
    gpu_hours : float
        The GPU hours that the records hold; 0 without times.
    replayed : tuple of Replayed
        The same jobs with sharing, for each of ``CASES``; empty without times.
    moment : Moment
        The busiest moment.
    partners : tuple of Partners
        Kinds that could share: those that may in every case first, then those that save most.
    obstacles : tuple of Obstacle
        Kinds that may not.
    to_measure : tuple of ToMeasure
        What to measure next.
    """

    work: Work
    limit: float
    gpu_hours: float
    replayed: tuple[Replayed, ...]
    moment: Moment
    partners: tuple[Partners, ...]
    obstacles: tuple[Obstacle, ...]
    to_measure: tuple[ToMeasure, ...]


def advice_for(
    work: Work,
    limit: float,
    budget: Budget,
    tell: Callable[[str], None] = lambda _text: None,
) -> Advice:
    """Return the advice.

    Parameters
    ----------
    work : Work
        What is known of the jobs.
    limit : float
        The slowdown that owners accept, >= 1.
    budget : Budget
        The time for it.
    tell : callable
        Gets the name of each step.

    Raises
    ------
    OutOfTimeError
        When the time is up before the replay has ended.
    """
    splits = SPLITS[:1] if work.timed else SPLITS
    tables = [pairs_of(work, case, limit, budget, splits) for case in range(len(CASES))]
    tell("finding the busiest moment")
    moment, mates = _busiest(work, tables, budget)
    replayed = []
    for case, name in enumerate(CASES if work.timed else ()):
        tell(f"replaying the jobs, case {name}")
        replayed.append(replay(work, case, tables, limit, budget))
    obstacles = _obstacles(work, tables[LIKELY])
    return Advice(
        work,
        limit,
        float(work.gpu_hours.sum()),
        tuple(replayed),
        moment,
        _partners(work, tables, mates, replayed[LIKELY] if replayed else None, limit),
        obstacles,
        _to_measure(work, tables),
    )


def _busiest(
    work: Work, tables: Sequence[KindPairs], budget: Budget
) -> tuple[Moment, list[tuple[int, int]]]:
    """Return the busiest moment, and the kinds that share then in the case ``likely``."""
    at, jobs = _running_most(work)
    kinds = work.kind[jobs]
    gpus, bounds, mates = [], [], []
    for case, table in enumerate(tables):
        used = least = 0
        for size in np.unique(work.gpus[kinds]).tolist():
            of_size = kinds[work.gpus[kinds] == size]
            found = fewest_gpus(of_size, table.allowed, table.slowdown, budget)
            used += size * (len(of_size) - found.pairs)
            least += size * (len(of_size) - found.most_pairs)
            if case == LIKELY:
                mates += _pairs_in(of_size, found)
        gpus.append(used)
        bounds.append(least)
    held = int(work.gpus[kinds].sum())
    return Moment(at, len(jobs), held, tuple(gpus), tuple(bounds)), mates


def _pairs_in(kinds: Ints, found: FewestGpus) -> list[tuple[int, int]]:
    own = np.flatnonzero(found.mate > np.arange(len(kinds)))
    both = np.sort(np.stack([kinds[own], kinds[found.mate[own]]], axis=1), axis=1)
    return [(int(a), int(b)) for a, b in both]


def _running_most(work: Work) -> tuple[float, Ints]:
    """Return the moment at which most GPUs are held, and the jobs that run then."""
    if not work.timed:
        return 0.0, np.arange(len(work.kind))
    held = work.gpus[work.kind]
    times = np.concatenate([work.begin_s, work.end_s])
    change = np.concatenate([held, -held])
    # What ends at a moment does so before what begins.
    order = np.lexsort((change, times))
    most = int(np.argmax(np.cumsum(change[order])))
    at = float(times[order][most])
    return at, np.flatnonzero((work.begin_s <= at) & (work.end_s > at))


def _partners(
    work: Work,
    tables: Sequence[KindPairs],
    mates: Sequence[tuple[int, int]],
    replayed: Replayed | None,
    limit: float,
) -> tuple[Partners, ...]:
    at_once: dict[tuple[int, int], int] = {}
    for pair in mates:
        at_once[pair] = at_once.get(pair, 0) + int(work.gpus[pair[0]])
    hours = replayed.shared_hours if replayed else {}
    pairs = list(dict.fromkeys((*at_once, *hours)))
    if not pairs:
        return ()
    both = np.array(pairs, np.int64)
    split = [SPLITS[int(tables[LIKELY].split[pair])] for pair in pairs]
    slowdowns = in_each_case(work, both, np.array(split, np.int64))
    least, most = slowdowns.min(axis=0), slowdowns.max(axis=0)
    fits = np.all([table.fits[both[:, 0], both[:, 1]] for table in tables], axis=0)
    # No record tells the tail latency of a service.
    sure = fits & (most <= limit).all(axis=1) & ~work.service[both].any(axis=1)
    found = []
    for k, (a, b) in enumerate(pairs):
        memory = (float(work.memory_mib[LIKELY, a]), float(work.memory_mib[LIKELY, b]))
        room = float(min(work.card_mib[a], work.card_mib[b])) - RESERVE_MIB
        scale = room / max(sum(memory), 1.0)
        found.append(
            Partners(
                (a, b),
                at_once.get((a, b), 0),
                hours.get((a, b), 0.0),
                split[k],
                memory,
                (memory[0] * scale, memory[1] * scale),
                (
                    (float(least[k, 0]), float(most[k, 0])),
                    (float(least[k, 1]), float(most[k, 1])),
                ),
                bool(sure[k]),
            )
        )
    return tuple(sorted(found, key=_by_use))


def _by_use(each: Partners) -> tuple[bool, float, int, tuple[int, int]]:
    """Return the key that sorts pairs: sure ones first, then by how much they share."""
    return not each.sure, -each.shared_hours, -each.at_once, each.kinds


def _obstacles(work: Work, likely: KindPairs) -> tuple[Obstacle, ...]:
    """Group the kinds that share with none by the reason."""
    able = has_partner(work, likely.allowed)
    reason = _reasons(work, likely)
    found = []
    for name in REASONS:
        which = np.flatnonzero(~able & (reason == name))
        if len(which):
            found.append(Obstacle(name, _by_hours(work, which), float(work.gpu_hours[which].sum())))
    return tuple(sorted(found, key=lambda each: (-each.gpu_hours, -len(each.kinds))))


def _reasons(work: Work, likely: KindPairs) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    memory = work.memory_mib[LIKELY]
    twice = np.where(np.eye(len(memory), dtype=bool), work.runs[:, None] > 1, True)
    same = (work.gpus[:, None] == work.gpus[None, :]) & twice
    models = np.unique(work.models, return_inverse=True)[1]
    same &= (models[:, None] == models[None, :]) & (work.nodes[:, None] == work.nodes[None, :])
    unknown = np.isnan(memory) | ~work.used
    fits = (likely.fits & twice & ~unknown[None, :]).any(axis=1)
    others = (same & unknown[None, :]).any(axis=1)
    conditions = [
        np.isnan(work.card_mib),
        np.isnan(memory),
        ~work.used,
        ~same.any(axis=1),
        ~fits & others,
        ~fits,
    ]
    names = ["card", "memory unknown", "use unknown", "alone", "others", "memory"]
    found = np.full(len(memory), "slowdown", dtype=object)
    for condition, name in reversed(list(zip(conditions, names, strict=True))):
        found[condition] = name
    return found


def _by_hours(work: Work, kinds: Ints) -> tuple[int, ...]:
    order = np.lexsort((kinds, -work.runs[kinds], -work.gpu_hours[kinds]))
    return tuple(kinds[order].tolist())


def _to_measure(work: Work, tables: Sequence[KindPairs]) -> tuple[ToMeasure, ...]:
    """Return measurements by the GPU hours that they could decide."""
    memory = work.memory_mib[LIKELY]
    low, high = (has_partner(work, table.allowed) for table in (tables[0], tables[-1]))
    peak = work.memory_mib[0] + memory > np.nan_to_num(work.card_mib, nan=np.inf) - RESERVE_MIB
    asked = [
        ("the memory that they use: a series of nvidia-smi or DCGM", np.isnan(memory)),
        (
            "their utilisation: a series of nvidia-smi or DCGM",
            ~np.isnan(memory) & ~work.used,
        ),
        (
            "SM and DRAM activity (DCGM fields 1002 and 1005) instead of gpu_util",
            high & ~low & ~work.detailed & ~peak,
        ),
        (
            "a pair of them under MPS at halves, for a minute (dovetail measure)",
            high & ~low & work.detailed & ~peak,
        ),
    ]
    found = [
        ToMeasure(what, _by_hours(work, which), float(work.gpu_hours[which].sum()))
        for what, mask in asked
        if len(which := np.flatnonzero(mask))
    ]
    found.sort(key=lambda each: (-each.gpu_hours, -len(each.kinds)))
    return tuple(found[:_MOST_MEASURED])
