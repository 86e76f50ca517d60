"""Profiles of runs that run alone: the first of a workload, and newer ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from dovetail.executor.jobs.events import AnyEvent, Profiled, ProfileFailed
from dovetail.executor.jobs.states import JobState
from dovetail.executor.live.observation.rates import Rate
from dovetail.executor.live.observation.records import moment, solo_profile, with_kernels_of
from dovetail.executor.live.observation.tracks import PART, Track, Tracks
from dovetail.instances.datasets.records import SoloProfile

OUTDATED: Final = 0.1
"""Relative difference to the profile's rate at which a run alone is profiled again."""

_MEMORY_GROWTH: Final = 1.02


def profiles(tracks: Tracks) -> Iterator[AnyEvent]:
    """Yield profiles of runs that are measured alone, and failures if a profile takes too long."""
    found = (track for track in tracks.runs.values() if track.to_profile)
    return _one_of_each(tracks, found, _profile)


def _one_of_each(
    tracks: Tracks,
    candidates: Iterable[Track],
    profile: Callable[[Tracks, Track], Iterator[AnyEvent]],
) -> Iterator[AnyEvent]:
    """Yield profiles, but only one if several equal jobs are ready: it serves all of them."""
    known = set()
    for track in candidates:
        key = tracks.key(track)
        if key not in known:
            for event in profile(tracks, track):
                if isinstance(event, Profiled):
                    known.add(key)
                yield event


def _profile(tracks: Tracks, track: Track) -> Iterator[AnyEvent]:
    options, begin_s = tracks.options, tracks.begin_s(track)
    since_s = max(track.seen_s, track.job.since_s, track.first_s or 0.0)
    rates: list[Rate] = []
    if begin_s is not None and tracks.now_s - begin_s >= options.profile_s:
        starts = (tracks.now_s - options.profile_s, begin_s)
        rates = [rate for start in starts if (rate := tracks.rate(track, start))]
    least_s = options.warm_up_s + options.settle_s + options.profile_s
    late = tracks.now_s - since_s >= max(options.profile_most_s, least_s)
    ready = (rate for rate in rates if tracks.steady(rate) and _tail_known(track, rate))
    best = next(ready, rates[0] if late and rates else None)
    if best is not None:
        yield _profiled(tracks, track, best)
    elif late:
        yield _unmeasured(tracks, track, _too_few(tracks, track))


def ended_profiles(tracks: Tracks) -> Iterator[AnyEvent]:
    """Yield profiles of runs that finished before their profile was complete."""
    found = (track for track in tracks.runs.values() if track.present and _ended_alone(track))
    return _one_of_each(tracks, found, _ended_profile)


def _ended_alone(track: Track) -> bool:
    job = track.job
    alone = job.profiling and not (job.alone_only or track.profiled)
    return job.state is JobState.FINISHED and alone


def _ended_profile(tracks: Tracks, track: Track) -> Iterator[AnyEvent]:
    begin_s = tracks.begin_s(track) if track.phase else None
    rate = tracks.rate(track, begin_s) if begin_s is not None else None
    if rate and tracks.steady(rate) and rate.seconds >= tracks.options.profile_s / PART:
        yield _profiled(tracks, track, rate)


def _profiled(tracks: Tracks, track: Track, rate: Rate) -> AnyEvent:
    memory_mib = track.memory_mib or track.run.spec.memory_mib
    if memory_mib is None:
        return _unmeasured(tracks, track, "its memory is unknown: submit it with its memory")
    track.profiled = True
    begin_s = track.samples[-1].at_s - rate.seconds
    tail = track.tail_over(rate)
    p99_s = tail.p99_s if tail else None
    period = tracks.period([track], [seat.gpu for seat in track.run.seats], begin_s)
    profile = solo_profile(track.run, track.name, rate, memory_mib, period, p99_s)
    profile = with_kernels_of(profile, tracks.described(track))
    if profile.share is None:
        tracks.found[tracks.key(track)] = profile
    return Profiled(at_s=tracks.now_s, run=track.run.id, profile=profile)


def _unmeasured(tracks: Tracks, track: Track, reason: str) -> AnyEvent:
    track.profiled = True
    return ProfileFailed(at_s=tracks.now_s, run=track.run.id, reason=reason)


def _too_few(tracks: Tracks, track: Track) -> str:
    if track.first_s is None:
        most_s = tracks.options.profile_most_s
        return f"it reported no progress in {most_s:g} s; see docs/howto/report-progress.md"
    return (
        f"its rate is unknown: fewer than {tracks.options.iterations} iterations "
        f"in {tracks.options.profile_most_s:g} s"
    )


def grown_profiles(tracks: Tracks) -> Iterator[AnyEvent]:
    """Yield profiles of runs that use more memory than their profile says."""
    for track in tracks.runs.values():
        known = tracks.alone(track) if track.job.state is JobState.RUNNING else None
        used, most = track.memory_mib, known.memory_mib if known else None
        if known and used and most and used > _MEMORY_GROWTH * most:
            profile = known.replace(memory_mib=used, date=moment(tracks.now_s))
            tracks.found[tracks.key(track)] = profile
            yield Profiled(at_s=tracks.now_s, run=track.run.id, profile=profile)


def renewed_profiles(tracks: Tracks) -> Iterator[AnyEvent]:
    """Yield new profiles of runs alone whose rate differs from their profile."""
    since_s = tracks.now_s - tracks.options.profile_s
    for track in tracks.runs.values():
        begin_s = tracks.begin_s(track) if _may_renew(track) else None
        rate = tracks.rate(track, since_s) if begin_s and begin_s <= since_s else None
        known = tracks.alone(track)
        if rate is None or known is None or not tracks.steady(rate):
            continue
        if _outdated(known, track, rate) and track.memory_mib is not None:
            track.renewed = True
            yield _profiled(tracks, track, rate)


def _outdated(known: SoloProfile, track: Track, rate: Rate) -> bool:
    """Return whether a run's rate differs from its profile, or the profile lacks its p99."""
    solo = known.throughput
    new_tail = known.latency_p99_s is None and track.tail_over(rate) is not None
    return solo is not None and (new_tail or abs(rate.per_s - solo) > OUTDATED * solo)


def _may_renew(track: Track) -> bool:
    alone = all(len(residents) == 1 for residents in track.phase)
    uncapped = all(seat.share is None for seat in track.run.seats)
    running = track.job.state is JobState.RUNNING and track.run.sub_batch is None
    return running and alone and uncapped and not track.renewed


def _tail_known(track: Track, rate: Rate) -> bool:
    """Return False if a run reports latencies, but too few in the time of a rate."""
    return not track.tails.reported or track.tail_over(rate) is not None
