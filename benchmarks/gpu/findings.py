"""What a ledger says: noise, slowdowns, throughput of pairs, latency of requests."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from dovetail.executor.measuring.ledger import read_ledger, standing
from dovetail.executor.measuring.noise import Noise, noise
from dovetail.executor.measuring.records import Latency, Result
from dovetail.executor.measuring.summary import Summary, summary

Caps = tuple[int | None, ...]


class Setting(NamedTuple):
    """How workloads shared a GPU. ``caps`` and ``first`` have one item for each of them."""

    mode: str
    caps: Caps
    first: tuple[bool, ...]

    @property
    def told(self) -> str:
        """In words; of equal caps and no preference only the way of sharing."""
        if self.mode == "time-sliced":
            return "time-sliced"
        caps = "" if self.whole else " " + "/".join(_cap(cap) for cap in self.caps)
        return f"MPS{caps}{' first' if any(self.first) else ''}"

    @property
    def whole(self) -> bool:
        """Whether nobody had a cap."""
        return all(cap is None for cap in self.caps)

    @property
    def mirrored(self) -> Setting:
        """The same seen from the other workload."""
        return Setting(self.mode, self.caps[::-1], self.first[::-1])


def _cap(cap: int | None) -> str:
    return "-" if cap is None else str(cap)


def read(folder: Path) -> Found:
    """Read the ledger of a campaign, finished or not."""
    contents = read_ledger(folder)
    return Found(summary(contents), tuple(standing(contents.results).values()))


class Found(NamedTuple):
    """The summary of a campaign, and the result that counts of each experiment."""

    summary: Summary
    results: tuple[Result, ...]

    @property
    def sound(self) -> Iterator[Result]:
        """Results that say something of their setting."""
        return (one for one in self.results if one.sound)


def setting(result: Result) -> Setting:
    """Return how the workloads of a result shared the GPU."""
    return Setting(result.mode, result.shares, result.first)


class Pair(NamedTuple):
    """Two workloads in one setting, as measured; slowdowns are means over the repeats."""

    workloads: tuple[str, str]
    setting: Setting
    slowdown: tuple[float, float]

    @property
    def throughput(self) -> float:
        """Sum of both speeds, each alone on the whole GPU being 1."""
        return sum(1 / each for each in self.slowdown)


def pairs(found: Found) -> list[Pair]:
    """Return every pair with a baseline."""
    return [
        Pair(one.workloads, Setting(one.mode, one.shares, one.first), one.slowdown)
        for one in found.summary.together
    ]


def sided(found: Iterable[Pair]) -> Iterator[tuple[str, str, Setting, float]]:
    """Yield who, beside whom, in which setting seen from the first, and its slowdown."""
    for pair in found:
        (a, b), (slow_a, slow_b) = pair.workloads, pair.slowdown
        yield a, b, pair.setting, slow_a
        yield b, a, pair.setting.mirrored, slow_b


def noises(found: Found) -> dict[str, Noise]:
    """Return the noise of solos and of pairs in each mode that has repeats."""
    kinds = defaultdict(list)
    for one in found.results:
        kinds[f"{'solos' if len(one.workloads) == 1 else 'pairs'}, {one.mode}"].append(one)
    measured = {kind: noise(results) for kind, results in kinds.items()}
    return {kind: one for kind, one in measured.items() if one is not None}


def error_floor(one: Noise) -> float:
    """Mean absolute error of perfect predictions of one window, as a part of the value.

    Of normal noise: the root of 2 / pi times its standard deviation.
    """
    return math.sqrt(2 / math.pi) * one.pooled


class Answered(NamedTuple):
    """Requests of a workload beside a partner: medians over the windows of a setting."""

    p50_s: float
    p99_s: float
    requests: int


def latencies(found: Found) -> dict[str, dict[str, dict[str, Answered]]]:
    """Return by workload that answers requests, by partner, by setting in words.

    The partner of one that is alone is ``alone``.
    """
    windows_of = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for one in found.sound:
        for at, pace in enumerate(one.paces):
            if pace.latency is not None:
                how = setting(one) if at == 0 else setting(one).mirrored
                partner = one.workloads[1 - at] if len(one.workloads) == 2 else "alone"
                windows_of[one.workloads[at]][partner][how.told].append(pace.latency)
    return {
        name: {
            partner: {how: _answered(windows) for how, windows in hows.items()}
            for partner, hows in partners.items()
        }
        for name, partners in windows_of.items()
    }


def _answered(windows: Sequence[Latency]) -> Answered:
    return Answered(
        median(one.p50_s for one in windows),
        median(one.p99_s for one in windows),
        sum(one.requests for one in windows),
    )


def open_loop(found: Found) -> frozenset[str]:
    """Return the workloads that answer requests: they wait, so they have no throughput."""
    return frozenset(
        name
        for one in found.sound
        for name, pace in zip(one.workloads, one.paces, strict=True)
        if pace.latency is not None
    )


def combined(found: Sequence[Pair], without: frozenset[str]) -> dict[str, dict[str, float]]:
    """Return the throughput of pairs by pair and setting; both ways of a split by their mean.

    Setting names are those of ``Setting.told`` with the smaller cap first.
    """
    rates = defaultdict(lambda: defaultdict(list))
    for pair in found:
        if not without & {*pair.workloads} and not any(pair.setting.first):
            caps = tuple(sorted(pair.setting.caps, key=lambda cap: cap or 0))
            how = pair.setting._replace(caps=caps).told
            rates[" + ".join(sorted(pair.workloads))][how].append(pair.throughput)
    return {
        names: {how: fmean(each) for how, each in hows.items()} for names, hows in rates.items()
    }
