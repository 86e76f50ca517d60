"""The advice: who could share, what it would save, what may not, and what to measure next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from dovetail.advising.moment import Moment, busiest
from dovetail.advising.replay import Replayed, replay
from dovetail.advising.sharing import (
    RESERVE_MIB,
    SPLITS,
    KindPairs,
    SharingLaw,
    has_partner,
    pairs_of,
)
from dovetail.advising.work import CASES, Ints, Work
from dovetail.formulations.budget import Budget

LIKELY: Final = CASES.index("likely")
_MOST_MEASURED: Final = 5
_MOST_PARTNERS: Final = 1_000
"""The most sets of kinds that are named."""


class Partners(NamedTuple):
    """Kinds of work that could share GPUs, in the case ``likely``.

    Attributes
    ----------
    kinds : tuple of int
        The kinds, two or more; jobs of one kind may share.
    at_once : int
        How many GPUs they share at the busiest moment.
    shared_hours : float
        The GPU hours that they share in the replay.
    split : tuple of int
        The SM share of each, in per cent.
    memory_mib : tuple of float
        The memory that each is likely to need.
    limit_mib : tuple of float
        A limit for each: what is free on the card is divided in proportion to the need.
    slowdown : tuple of (float, float)
        The least and the largest slowdown of each over the cases.
    sure : bool
        Whether they may share at this split in every case, and none answers requests.
    """

    kinds: tuple[int, ...]
    at_once: int
    shared_hours: float
    split: tuple[int, ...]
    memory_mib: tuple[float, ...]
    limit_mib: tuple[float, ...]
    slowdown: tuple[tuple[float, float], ...]
    sure: bool

    @property
    def alike(self) -> dict[int, int]:
        """The position of the first of the jobs of one kind and share, and how many there are."""
        first: dict[tuple[int, int], int] = {}
        counts: dict[int, int] = {}
        for k, job in enumerate(zip(self.kinds, self.split, strict=True)):
            at = first.setdefault(job, k)
            counts[at] = counts.get(at, 0) + 1
        return counts


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
    most : int
        The most jobs on a GPU.
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
    most: int
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
    most: int = 2,
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
    most : int
        The most jobs on a GPU, from 2 to 48.

    Raises
    ------
    OutOfTimeError
        When the time is up before the replay has ended.
    """
    splits = SPLITS[:1] if work.timed else SPLITS
    tables = [pairs_of(work, case, limit, budget, splits) for case in range(len(CASES))]
    tell("finding the busiest moment")
    moment = busiest(work, tables, limit, most, budget)
    replayed = []
    for case, name in enumerate(CASES if work.timed else ()):
        tell(f"replaying the jobs, case {name}")
        replayed.append(replay(work, case, tables, limit, most, budget))
    return Advice(
        work,
        limit,
        most,
        float(work.gpu_hours.sum()),
        tuple(replayed),
        moment,
        _partners(
            work,
            [table.law for table in tables],
            moment,
            replayed[LIKELY] if replayed else None,
            limit,
        ),
        _obstacles(work, tables[LIKELY]),
        _to_measure(work, tables),
    )


def _partners(
    work: Work,
    laws: Sequence[SharingLaw],
    moment: Moment,
    replayed: Replayed | None,
    limit: float,
) -> tuple[Partners, ...]:
    """Return the kinds that share, each set of them once at the shares of the replay."""
    hours = dict(replayed.shared_hours) if replayed else {}
    shares_of: dict[tuple[int, ...], tuple[int, ...]] = {}
    at_once: dict[tuple[int, ...], int] = {}
    for (kinds, shares), gpus in moment.mates.items():
        shares_of[kinds] = shares
        at_once[kinds] = at_once.get(kinds, 0) + gpus
    if replayed:
        shares_of |= {kinds: tuple(replayed.shares[list(kinds)].tolist()) for kinds in hours}
    saved = {kinds: hours.get(kinds, 0.0) * (len(kinds) - 1) for kinds in shares_of}
    often = sorted(shares_of, key=lambda kinds: (-saved[kinds], -at_once.get(kinds, 0), kinds))
    by_size = defaultdict(list)
    for kinds in often[:_MOST_PARTNERS]:
        by_size[len(kinds)].append(kinds)
    found: list[Partners] = []
    for same in by_size.values():
        splits = [shares_of[kinds] for kinds in same]
        for kinds, split, slowdown, sure in _judged(work, laws, same, splits, limit):
            once, shared = at_once.get(kinds, 0), hours.get(kinds, 0.0)
            memory, limits = _memory_of(work, kinds)
            found.append(Partners(kinds, once, shared, split, memory, limits, slowdown, sure))
    return tuple(sorted(found, key=_by_use))


def _judged(
    work: Work,
    laws: Sequence[SharingLaw],
    sets: Sequence[tuple[int, ...]],
    shares: Sequence[tuple[int, ...]],
    limit: float,
) -> Iterator[_Judged]:
    """Yield sets of one size with their shares, the range of each slowdown, and whether sure."""
    kinds, split = np.array(sets, np.int64), np.array(shares, np.int64)
    slowdowns = np.stack([law.slowdowns(kinds, split) for law in laws])
    least, most = slowdowns.min(axis=0), slowdowns.max(axis=0)
    free = work.card_mib[kinds].min(axis=1) - RESERVE_MIB
    fits = (work.memory_mib[:, kinds].sum(axis=2) <= free).all(axis=0)
    # No record tells the tail latency of a service.
    sure = fits & (most <= limit).all(axis=1) & ~work.service[kinds].any(axis=1)
    ranges = np.stack([least, most], axis=2).tolist()
    for k, each in enumerate(sets):
        slowdown = tuple((low, high) for low, high in ranges[k])
        yield _Judged(each, shares[k], slowdown, bool(sure[k]))


class _Judged(NamedTuple):
    kinds: tuple[int, ...]
    split: tuple[int, ...]
    slowdown: tuple[tuple[float, float], ...]
    sure: bool


def _memory_of(work: Work, kinds: tuple[int, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the memory that each of some kinds is likely to need, and a limit for each."""
    among = list(kinds)
    memory = work.memory_mib[LIKELY, among]
    room = float(work.card_mib[among].min()) - RESERVE_MIB
    limits = memory * room / max(float(memory.sum()), 1.0)
    return tuple(memory.tolist()), tuple(limits.tolist())


def _by_use(each: Partners) -> tuple[bool, float, int, tuple[int, ...]]:
    """Return the key that sorts sets: sure ones first, then by how much they save."""
    return not each.sure, -each.shared_hours * (len(each.kinds) - 1), -each.at_once, each.kinds


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
