"""Summary of a campaign so far, as records for tables and JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import truediv
from statistics import fmean
from typing import Annotated, Final, get_args

from pydantic import Field

from dovetail.instances._record import (
    IDLE,
    AnyShare,
    Count,
    FrozenMapping,
    Name,
    NonNegative,
    Positive,
    Record,
    SeatShare,
    Share,
    Slowdown,
)
from dovetail.measuring.campaign import Load, Measured, Mode, WorkerSeat, experiments
from dovetail.measuring.dataset import (
    Baselines,
    LeftOut,
    baseline,
    baselines,
    measured_data,
    slowdowns,
    tails_alone,
)
from dovetail.measuring.ledger import Contents, by_setting, settled, standing
from dovetail.measuring.noise import CampaignNoise, noise
from dovetail.measuring.results import ExperimentResult, Machine, ProfiledKernels

Amount = Annotated[int, Field(ge=0)]

_MODES: Final = get_args(Mode)
_Settings = Mapping[tuple[WorkerSeat, ...], Sequence[ExperimentResult]]
"""Sound results by setting."""


class Cover(Record):
    """Progress of a stage, in numbers of experiments.

    ``done`` have a sound result; the others are counted by their last attempt. ``left`` are still
    to be measured, including some of the failed and all of the refused ones. ``known`` are those
    that a data set has.
    """

    stage: Amount
    measure: Measured
    mode: Mode
    shares: tuple[Share | None, ...]
    workloads: tuple[Name, ...] | None = None
    first: tuple[Name, ...] = ()
    latency: tuple[Name, ...] = ()
    load: Positive | None = None
    planned: Amount
    done: Amount
    out_of_memory: Amount
    starved: Amount
    failed: Amount
    refused: Amount
    known: Amount
    disturbed: Amount
    left: Amount


class Alone(Record):
    """One workload alone in one setting, as means over repeats.

    ``energy_j`` is the GPU's energy per iteration, idle power included; ``p50_s`` and ``p99_s`` are
    latencies of requests.
    """

    workload: Name
    mode: Mode
    share: SeatShare | None = None
    repeats: Count
    iterations_s: Positive
    power_w: NonNegative | None = None
    energy_j: NonNegative | None = None
    memory_mib: NonNegative | None = None
    p50_s: NonNegative | None = None
    p99_s: NonNegative | None = None


class WorkloadKernels(Record):
    """The kernels of a workload, or why they could not be profiled."""

    workload: Name
    kernels: ProfiledKernels | None = None
    lack: str = ""


class TogetherSummary(Record):
    """Two or three workloads together in one setting, as means over repeats.

    ``combined`` is the sum of 1 / slowdown; above 1, sharing is faster than running one after the
    other. ``p99_s`` are the workloads' 99th percentiles of latency, null for those without.
    """

    mode: Mode
    workloads: tuple[Name, ...]
    shares: tuple[Share | None, ...]
    first: tuple[bool, ...]
    repeats: Count
    slowdown: tuple[Slowdown, ...]
    combined: Positive
    power_w: NonNegative | None = None
    p99_s: tuple[NonNegative | None, ...] = ()


class RequestsSummary(Record):
    """Requests to a workload at a load, alone or beside others, as means over repeats.

    ``due_s`` requests a second came, ``answered_s`` were answered. ``growth`` is ``p99_s`` over
    that alone at the same load without interception. ``others_iterations_s`` and ``others_part``,
    over their throughput alone, are of the workloads ``beside`` it. ``intercepted_s`` is the number
    of intercepted launches a second.
    """

    workload: Name
    load: Load
    mode: Mode
    share: SeatShare | None = None
    beside: tuple[Name, ...] = ()
    other_shares: tuple[SeatShare | None, ...] = ()
    repeats: Count
    due_s: Positive
    answered_s: Positive
    p50_s: NonNegative
    p99_s: NonNegative
    growth: Positive | None = None
    others_iterations_s: tuple[Positive, ...] = ()
    others_part: tuple[Positive | None, ...] = ()
    intercepted_s: NonNegative | None = None


class SharingSummary(Record):
    """One way to share, over all pairs (or triples) measured with it.

    ``over_time_sliced`` is the mean ratio of the combined throughput to that of time slicing, over
    the ``compared`` pairs that were measured in both ways.
    """

    mode: Mode
    shares: tuple[Share | None, ...]
    preferred: bool
    pairs: Count
    out_of_memory: Amount
    combined: Positive
    combined_least: Positive
    combined_most: Positive
    over_time_sliced: Positive | None = None
    compared: Amount = 0


class Tail(Record):
    """The 99th percentile of a workload's latency in one setting, over its partners.

    ``partners`` is 0 if it runs alone, ``other_share`` the partners' share, and ``worst`` the
    partner with which the percentile is ``worst_s``.
    """

    workload: Name
    mode: Mode
    share: Share | None = None
    other_share: Share | None = None
    preferred: bool = False
    partners: Amount
    p99_s: NonNegative
    worst_s: NonNegative
    worst: Name | None = None


class Summary(Record):
    """All findings of a campaign.

    ``windows`` is the number of sound windows, ``unstable`` the number of these that reached their
    greatest length with a standard error above ``relative_error``. ``escapes`` is the number of
    kernels that could not be isolated, or not in some form, by reason. ``others_busy`` is the mean
    fraction of the device's time that other programs used, if known (on a processor core).
    """

    machine: Machine
    machines: Count
    stages: tuple[Cover, ...]
    windows: Amount
    unstable: Amount
    relative_error: Positive
    others_busy: NonNegative | None = None
    noise: CampaignNoise | None
    alone: tuple[Alone, ...]
    kernels: tuple[WorkloadKernels, ...] = ()
    together: tuple[TogetherSummary, ...]
    requests: tuple[RequestsSummary, ...] = ()
    escapes: FrozenMapping[str, Count] = Field({})
    sharing: tuple[SharingSummary, ...]
    tails: tuple[Tail, ...]
    left_out: tuple[LeftOut, ...]


def summary(contents: Contents) -> Summary:
    """Return the summary of a ledger."""
    results, settings = standing(contents.results).values(), by_setting(contents.results)
    sound = [one for repeats in settings.values() for one in repeats]
    asked = contents.campaign.windows.relative_error
    errors = [max(pace.relative_error for pace in one.paces or ()) for one in sound]
    alone = tuple(_alone(settings))
    together = tuple(_together(settings, baselines(results)))
    return Summary(
        machine=contents.machine,
        machines=len(contents.machines),
        stages=tuple(_covers(contents)),
        windows=len(errors),
        unstable=sum(error > asked for error in errors),
        relative_error=asked,
        others_busy=_mean(one.others_busy for one in sound),
        noise=noise(contents.results),
        alone=alone,
        kernels=tuple(
            WorkloadKernels(workload=one.workloads[0], kernels=one.kernels, lack=one.kernels_lack)
            for one in contents.results
            if one.kernels or one.kernels_lack
        ),
        together=together,
        requests=tuple(_requests(settings, baselines(results), tails_alone(results))),
        escapes=_escapes(sound),
        sharing=tuple(_sharing(together, results)),
        tails=tuple(_tails(alone, together)),
        left_out=measured_data(contents, contents.campaign.name).left_out,
    )


def _covers(contents: Contents) -> Iterable[Cover]:
    found, over = standing(contents.results), settled(contents.results)
    planned = experiments(contents.campaign)
    for at, stage in enumerate(contents.campaign.stages):
        keys = [one.key for one in planned if one.stage == at]
        results = [found[key] for key in keys if key in found]
        counts = Counter(one.status for one in results)
        done = sum(one.sound for one in results)
        yield Cover(
            stage=at,
            measure=stage.measure,
            mode=stage.mode,
            shares=stage.caps,
            workloads=stage.workloads,
            first=stage.first,
            latency=stage.latency,
            load=stage.load,
            planned=len(keys),
            done=done,
            out_of_memory=counts["out-of-memory"],
            starved=counts["starved"],
            failed=counts["failed"],
            refused=counts["refused"],
            known=counts["known"],
            disturbed=counts["ok"] - done,
            left=sum(key not in over for key in keys),
        )


def _alone(settings: _Settings) -> Iterable[Alone]:
    singles = {
        seats[0]: found
        for seats, found in settings.items()
        if len(seats) == 1 and seats[0].load is None
    }
    for seat in sorted(singles, key=lambda one: (one.mode, one.workload, _order(one.share))):
        repeats = singles[seat]
        paces = [one.paces[0] for one in repeats if one.paces]
        yield Alone(
            workload=seat.workload,
            mode=seat.mode,
            share=seat.share,
            repeats=len(repeats),
            iterations_s=1 / fmean(1 / pace.iterations_s for pace in paces),
            power_w=_mean(one.power_w for one in repeats),
            energy_j=_mean(map(_energy_j, repeats)),
            memory_mib=max((p.memory_mib for p in paces if p.memory_mib is not None), default=None),
            p50_s=_mean(pace.latency.p50_s if pace.latency else None for pace in paces),
            p99_s=_mean(pace.p99_s for pace in paces),
        )


def _energy_j(one: ExperimentResult) -> float | None:
    """Return the energy per iteration alone, including idle gaps between requests."""
    (pace,) = one.paces or ()
    if one.power_w is None or one.window_s is None:
        return None
    rate = pace.iterations / one.window_s if pace.latency else pace.iterations_s
    return one.power_w / rate


def _together(settings: _Settings, alone: Baselines) -> Iterable[TogetherSummary]:
    for seats, repeats in settings.items():
        if len(seats) == 1 or any(seat.load for seat in seats):
            continue
        slowed = [found for one in repeats if (found := slowdowns(one, alone)) is not None]
        if slowed:
            slowdown = [fmean(values) for values in zip(*slowed, strict=True)]
            paces = [one.paces for one in repeats if one.paces]
            yield TogetherSummary.from_data(
                {
                    "mode": seats[0].mode,
                    "workloads": [seat.workload for seat in seats],
                    "shares": [seat.share for seat in seats],
                    "first": [seat.first for seat in seats],
                    "repeats": len(slowed),
                    "slowdown": slowdown,
                    "combined": sum(1 / value for value in slowdown),
                    "power_w": _mean(one.power_w for one in repeats),
                    "p99_s": [_mean(one[at].p99_s for one in paces) for at in range(len(seats))],
                }
            )


def _requests(
    settings: _Settings, alone: Baselines, tails_s: Baselines
) -> Iterable[RequestsSummary]:
    """Return the settings with requests at a load; each workload and load is first alone."""
    found = [
        _requests_in(seats, at, repeats, alone, tails_s)
        for seats, repeats in settings.items()
        for at, seat in enumerate(seats)
        if seat.load is not None
    ]
    return sorted(found, key=_place)


def _requests_in(
    seats: tuple[WorkerSeat, ...],
    at: int,
    repeats: Sequence[ExperimentResult],
    alone: Baselines,
    tails_s: Baselines,
) -> RequestsSummary:
    seat, others = seats[at], [k for k in range(len(seats)) if k != at]
    paces = [one.paces or () for one in repeats]
    own = [each[at] for each in paces]
    tails = [pace.latency for pace in own if pace.latency is not None]
    windows_s = [one.window_s or 1 for one in repeats]
    rates = [fmean(each[k].iterations_s for each in paces) for k in others]
    usual_s = [baseline(alone, seats[k]) for k in others]
    p99_s, p99_alone_s = fmean(one.p99_s for one in tails), baseline(tails_s, seat)
    counts = [sum(one.launches.values()) for one in repeats]
    return RequestsSummary.from_data(
        {
            "workload": seat.workload,
            "load": seat.load,
            "mode": seat.mode,
            "share": seat.share,
            "beside": [seats[k].workload for k in others],
            "other_shares": [seats[k].share for k in others],
            "repeats": len(repeats),
            "due_s": fmean(one.requests_s or 0 for one in tails),
            "answered_s": fmean(map(truediv, (pace.iterations for pace in own), windows_s)),
            "p50_s": fmean(one.p50_s for one in tails),
            "p99_s": p99_s,
            "growth": p99_s / p99_alone_s if p99_alone_s else None,
            "others_iterations_s": rates,
            "others_part": [
                rate * time_s if time_s else None
                for rate, time_s in zip(rates, usual_s, strict=True)
            ],
            "intercepted_s": fmean(map(truediv, counts, windows_s)) if any(counts) else None,
        }
    )


def _escapes(results: Iterable[ExperimentResult]) -> Mapping[str, int]:
    """Return how many kernels could not be isolated, by reason, the most frequent first."""
    kernels = {kernel: why for one in results for kernel, why in one.escapes.items()}
    return dict(Counter(kernels.values()).most_common())


def _place(one: RequestsSummary) -> tuple[object, ...]:
    shares = [_order(share) for share in (one.share, *one.other_shares)]
    return one.workload, one.load.text, len(one.beside), one.beside, _MODES.index(one.mode), shares


def _order(share: AnyShare) -> int:
    """Return the place of a share in tables: no cap, large caps, small ones, ``idle``."""
    if share is None:
        return -100
    return 0 if share == IDLE else -share


def _tails(alone: Iterable[Alone], together: Iterable[TogetherSummary]) -> Iterable[Tail]:
    """Yield the tails of workloads alone, then in pairs with partners of each share."""
    found: dict[tuple[WorkerSeat, int | None, bool], list[tuple[float, str | None]]] = defaultdict(
        list
    )
    for one in alone:
        if one.p99_s is not None:
            found[WorkerSeat(one.workload, one.mode, one.share), None, False].append(
                (one.p99_s, None)
            )
    for pair in (one for one in together if len(one.workloads) == 2):
        for at, p99_s in enumerate(pair.p99_s):
            if p99_s is not None:
                seat = WorkerSeat(pair.workloads[at], pair.mode, pair.shares[at], pair.first[at])
                partner = pair.workloads[1 - at]
                found[seat, pair.shares[1 - at], True].append((p99_s, partner))
    for (seat, other_share, paired), tails in found.items():
        worst_s, worst = max(tails)
        yield Tail(
            workload=seat.workload,
            mode=seat.mode,
            share=seat.share,
            other_share=other_share,
            preferred=seat.first,
            partners=len({partner for _, partner in tails}) if paired else 0,
            p99_s=fmean(p99_s for p99_s, _ in tails),
            worst_s=worst_s,
            worst=worst,
        )


_Way = tuple[Mode, tuple[AnyShare, ...], bool]
_SLICED: _Way = ("time-sliced", (None, None), False)


def _sharing(
    together: Sequence[TogetherSummary], results: Iterable[ExperimentResult]
) -> Iterable[SharingSummary]:
    by_way: dict[_Way, list[TogetherSummary]] = defaultdict(list)
    for one in together:
        by_way[_way(one.mode, one.shares, one.first)].append(one)
    sliced = {frozenset(one.workloads): one.combined for one in by_way.get(_SLICED, ())}
    full = Counter(
        _way(seats[0].mode, [seat.share for seat in seats], [seat.first for seat in seats])
        for seats in {one.seats for one in results if one.status == "out-of-memory"}
        if len(seats) > 1 and not any(seat.load for seat in seats)
    )
    for way, pairs in by_way.items():
        ratios = [
            one.combined / sliced[frozenset(one.workloads)]
            for one in pairs
            if way != _SLICED and frozenset(one.workloads) in sliced
        ]
        values = [one.combined for one in pairs]
        mode, shares, preferred = way
        yield SharingSummary.from_data(
            {
                "mode": mode,
                "shares": shares,
                "preferred": preferred,
                "pairs": len(pairs),
                "out_of_memory": full[way],
                "combined": fmean(values),
                "combined_least": min(values),
                "combined_most": max(values),
                "over_time_sliced": _mean(ratios),
                "compared": len(ratios),
            }
        )


def _way(mode: Mode, shares: Sequence[AnyShare], first: Sequence[bool]) -> _Way:
    """Return a way to share, the same for both orders of two shares."""
    return mode, tuple(sorted(shares, key=_order, reverse=True)), any(first)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
