"""A data set: profiles and measurements, and an instance made of them.

A data set has no jobs or clusters. ``DataSet.workloads`` turns its profiles into the workloads of
an instance, so that predictors read the same kind of record in training and in use.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from itertools import chain
from statistics import fmean, harmonic_mean
from typing import Final, Literal, NamedTuple

from dovetail.instances._record import IDLE, Name, Record, listed, shown
from dovetail.instances.datasets.records import Measurement, ProfileKey, SoloProfile
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance, Workload
from dovetail.instances.slowdowns.entry import SharingMode
from dovetail.instances.slowdowns.gathering import require_slowdowns
from dovetail.instances.slowdowns.shares import share_code, share_of

DATASET_FORMAT: Final = "dovetail-dataset/1"
WHOLE_GPU: Final = 100


class DataSet(Record):
    """Profiles and measurements, in the order in which they were recorded."""

    format: Literal["dovetail-dataset/1"] = DATASET_FORMAT
    name: Name
    profiles: tuple[SoloProfile, ...] = ()
    measurements: tuple[Measurement, ...] = ()

    @cached_property
    def gpu_models(self) -> tuple[str, ...]:
        """Every GPU model, in order of first appearance."""
        profiled = (profile.gpu_model for profile in self.profiles)
        measured = (found.gpu_model for found in self.measurements)
        return tuple(dict.fromkeys(chain(profiled, measured)))

    @cached_property
    def families(self) -> Mapping[str, str]:
        """The family of every workload: its own name if no profile gives one."""
        names = chain(
            (profile.workload for profile in self.profiles),
            chain.from_iterable(found.workloads for found in self.measurements),
        )
        given = {p.workload: p.family for p in self.profiles if p.family is not None}
        return {name: given.get(name, name) for name in names}

    @cached_property
    def newest(self) -> Mapping[ProfileKey, SoloProfile]:
        """The profile to use for each key: the one of the latest date, then the last recorded."""
        latest: dict[ProfileKey, SoloProfile] = {}
        for profile in self.profiles:
            known = latest.get(profile.key)
            if known is None or _moment(profile) >= _moment(known):
                latest[profile.key] = profile
        return latest

    def workloads(self, gpu_model: str) -> dict[str, Workload]:
        """Return each profiled workload as in an instance with GPUs of this model.

        If a workload was profiled with several numbers of workers or batch sizes, the fewest
        workers and then the largest batch are used. Memory is the largest mark.
        """
        by_name: dict[str, list[SoloProfile]] = {}
        for key, profile in self.newest.items():
            if key.gpu_model == gpu_model:
                by_name.setdefault(key.workload, []).append(profile)
        return {name: _workload(found) for name, found in by_name.items()}

    def uncapped(
        self, workload: str, gpu_model: str, batch_size: int | None = None
    ) -> SoloProfile | None:
        """Return the newest profile of a workload without a cap, as `workloads` chooses it.

        Parameters
        ----------
        workload, gpu_model : str
            The workload, and the GPU model.
        batch_size : int, optional
            Only profiles of this batch size.
        """
        found = (
            profile
            for profile in self.newest.values()
            if (profile.workload, profile.gpu_model) == (workload, gpu_model)
            and (profile.share or WHOLE_GPU) == WHOLE_GPU
            and batch_size in (None, profile.batch_size)
        )
        return min(found, key=_rank, default=None)

    def in_mode(self, mode: SharingMode) -> DataSet:
        """Return the data set with the measurements of one sharing mode only."""
        found = tuple(found for found in self.measurements if found.mode == mode)
        if len(found) == len(self.measurements):
            return self
        return DataSet.model_construct(name=self.name, profiles=self.profiles, measurements=found)

    def merged(self, other: DataSet) -> DataSet:
        """Return the records of both under this name, with the other's as the later ones."""
        return self.replace(
            profiles=self.profiles + other.profiles,
            measurements=self.measurements + other.measurements,
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the records, in hexadecimal digits.

        Two data sets have the same fingerprint if they have equal profiles and equal measurements
        in the same order; the name is ignored. The order matters because it decides which of two
        profiles of one date is the newest. The hash is over lines of JSON, one per record, with
        sorted keys and without default values.
        """
        digest = sha256(DATASET_FORMAT.encode())
        for record in (*self.profiles, *self.measurements):
            kind = type(record).__name__
            line = json.dumps([kind, record.to_data()], sort_keys=True, separators=(",", ":"))
            digest.update(f"\n{line}".encode())
        return digest.hexdigest()

    def instance(
        self,
        gpu_model: str,
        gpus: int,
        *,
        memory_mib: float | None = None,
        gpus_per_node: int = 8,
        sharing: SharingMode = "mps",
    ) -> Instance:
        """Return an instance of the measurements on a GPU model, with one pending job a workload.

        Repeated combinations, and the copies of a workload with itself, get their mean rate and
        p99; a combination that failed once may not share. The cluster allows the caps and the most
        workloads on a GPU that were measured.

        Parameters
        ----------
        gpu_model : str
            One of ``gpu_models``.
        gpus : int
            GPUs of the cluster.
        memory_mib : float, optional
            Memory of a GPU. May be left out only if no workload's memory is known.
        gpus_per_node : int
            GPUs of a node; the last may have fewer.
        sharing : {"mps", "time_sliced"}
            How the jobs on a GPU share it; the measurements of this mode are taken.

        Raises
        ------
        InputError
            For a GPU model without records, a number out of range, missing memory, or slowdowns
            that are speeds or percentages.
        """
        if gpu_model not in self.gpu_models:
            known = f"one of {listed(self.gpu_models)}" if self.gpu_models else "in the data"
            rule = f"must be {known}, got {shown(gpu_model)}"
            raise InputError(rule, "gpu_model")
        of_mode = self.in_mode(sharing).measurements
        measured = [found for found in of_mode if found.gpu_model == gpu_model]
        require_slowdowns([*slowdowns_of(measured)], "measurements: slowdown", self.name)
        workloads = self.workloads(gpu_model)
        for name in chain.from_iterable(found.workloads for found in measured):
            workloads.setdefault(name, Workload(memory_mib=0.0))
        for found in measured:
            for name, share in zip(found.workloads, found.shares, strict=True):
                if share == IDLE:
                    workloads[name] = workloads[name].replace(isolation="blocks")
        if memory_mib is None:
            _require_no_memory(workloads)
            memory_mib = UNKNOWN_MEMORY_MIB
        return Instance.from_data(
            {
                "name": self.name,
                "cluster": cluster(
                    measured, nodes([gpu_model], gpus, gpus_per_node, memory_mib), sharing
                ),
                "workloads": workloads,
                "jobs": [{"id": name, "workload": name} for name in workloads],
                "slowdowns": entries(measured),
            }
        )


def _require_no_memory(workloads: Mapping[str, Workload]) -> None:
    known = next((name for name, w in workloads.items() if w.memory_mib), None)
    if known is not None:
        rule = "must be given (MiB of a GPU), as the memory of workloads is known"
        raise InputError(f"{rule}: {known} needs {workloads[known].memory_mib:.15g}", "memory_mib")


def _moment(profile: SoloProfile) -> float:
    """Return the date in seconds; undated profiles are older than every dated one."""
    return datetime.fromisoformat(profile.date).timestamp() if profile.date else float("-inf")


def _rank(profile: SoloProfile) -> tuple[int, int]:
    """Return a key: the profile with the fewest workers and the largest batch comes first."""
    return profile.workers, -(profile.batch_size or 0)


def _workload(profiles: list[SoloProfile]) -> Workload:
    main: dict[int, SoloProfile] = {}
    for profile in sorted(profiles, key=_rank):
        main.setdefault(profile.share or WHOLE_GPU, profile)
    whole = main.get(WHOLE_GPU)
    capped = {share: p.metrics for share, p in main.items() if share != WHOLE_GPU and p.metrics}
    return Workload(
        family=next((p.family for p in profiles if p.family is not None), None),
        memory_mib=max((p.memory_mib for p in profiles if p.memory_mib is not None), default=0.0),
        metrics=whole.metrics if whole else None,
        metrics_by_share=capped,
        metrics_variance=whole.metrics_variance if whole else {},
        memory_mean_mib=whole.memory_mean_mib if whole else None,
        duration_s=whole.duration_s if whole else None,
        throughput={share: p.throughput for share, p in main.items() if p.throughput},
        power_w=whole.power_w if whole else None,
        batch_size=next((p.batch_size for p in main.values() if p.batch_size is not None), None),
    )


UNKNOWN_MEMORY_MIB = 16384.0
"""Memory of a GPU if the data give none; the workloads then need 0 and it is never a limit."""


_MOST_GPUS = 100_000


_USUAL_RANGE = (0.5, 20.0)


_AGREES_WITHIN = 2.0


class _Member(NamedTuple):
    """A workload on a shared GPU; share 0 means no cap."""

    workload: str
    share: int


_Members = tuple[_Member, ...]


class _MeasuredCombination(NamedTuple):
    """Workloads with their shares, sorted, on a GPU model in a sharing mode."""

    gpu_model: str
    mode: SharingMode
    members: _Members


_Groups = Mapping[_MeasuredCombination, Sequence[Measurement]]


def entries(measurements: Iterable[Measurement]) -> list[dict[str, object]]:
    """Return one entry for each GPU model, mode and combination, in order of first appearance.

    A combination (workloads with their shares) measured several times, in any order, gets the mean
    of the measured rates (the harmonic mean of the slowdowns), and so do the copies of a workload
    with itself: this preserves the measured throughput of the GPU. Power and p99 are means of the
    known figures; a workload without latency uses its slowdown as p99 if a co-runner has one. A
    combination that failed once may not share.
    """
    groups = _grouped(measurements)
    return [_entry(combination, found) for combination, found in groups.items()]


def slowdowns_of(measurements: Iterable[Measurement]) -> Iterator[float]:
    """Yield every measured slowdown."""
    return chain.from_iterable(found.slowdown or () for found in measurements)


def doubts(measurements: Iterable[Measurement]) -> tuple[str, ...]:
    """Return a line for each thing in measurements that is allowed but likely a mistake.

    These are names that differ in case only, slowdowns below 0.5 or above 20, more than half of
    them below 1, and repeats that differ by more than a factor of 2.
    """
    measured = list(measurements)
    odd = (*_twins(measured), *_unusual(measured), *_mostly_faster(measured))
    return (*odd, *_disagreeing(_grouped(measured)))


def _twins(measured: Iterable[Measurement]) -> Iterator[str]:
    spellings: dict[str, dict[str, None]] = {}
    for name in chain.from_iterable(found.workloads for found in measured):
        spellings.setdefault(name.casefold(), {})[name] = None
    for names in spellings.values():
        if len(names) > 1:
            yield f"{listed(names)} differ in case only and are {len(names)} workloads"


def _unusual(measured: Iterable[Measurement]) -> Iterator[str]:
    least, most = _USUAL_RANGE
    odd = [
        (value, found)
        for found in measured
        for value in found.slowdown or ()
        if not least <= value <= most
    ]
    if odd:
        value, found = odd[0]
        where = f"{value:g} of {' + '.join(found.workloads)} on {found.gpu_model}"
        rule = f"below {least:g} or above {most:g}: speeds or percentages?"
        yield f"{_counted(len(odd), 'slowdown')} {rule} The first is {where}"


def _mostly_faster(measured: Iterable[Measurement]) -> Iterator[str]:
    values = list(slowdowns_of(measured))
    faster = sum(value < 1 for value in values)
    if 2 * faster > len(values):
        yield f"{faster} of {_counted(len(values), 'slowdown')} are below 1: speeds?"


def _disagreeing(groups: _Groups) -> Iterator[str]:
    ranges = [
        (min(values), max(values), member.workload, members, model)
        for (model, _, members), found in groups.items()
        for member, values in (_measured(found) or {}).items()
    ]
    wide = [each for each in ranges if each[1] > _AGREES_WITHIN * each[0]]
    if wide:
        least, most, workload, members, model = wide[0]
        pair = " + ".join(member.workload for member in members)
        where = f"{workload} in {pair} on {model} from {least:g} to {most:g}"
        rule = f"differ by more than a factor of {_AGREES_WITHIN:g} and are averaged"
        yield f"repeats of {_counted(len(wide), 'slowdown')} {rule}, as {where}"


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _grouped(measurements: Iterable[Measurement]) -> _Groups:
    """Return the measurements of each combination."""
    groups: dict[_MeasuredCombination, list[Measurement]] = {}
    for found in measurements:
        members = tuple(sorted(_members(found)))
        key = _MeasuredCombination(found.gpu_model, found.mode, members)
        groups.setdefault(key, []).append(found)
    return groups


def _members(found: Measurement) -> _Members:
    return tuple(
        _Member(name, share_code(share))
        for name, share in zip(found.workloads, found.shares, strict=True)
    )


def _entry(combination: _MeasuredCombination, found: Sequence[Measurement]) -> dict[str, object]:
    members = combination.members
    capped = any(member.share for member in members)
    slowdowns = _means(found)
    tails = _mean_tails(found)
    powers = [measured.power_w for measured in found if measured.power_w is not None]
    return {
        "pair" if len(members) == 2 else "set": tuple(member.workload for member in members),
        "share": tuple(share_of(member.share) for member in members) if capped else None,
        "slowdown": slowdowns and tuple(slowdowns[member] for member in members),
        "p99": tuple(tails.get(member, slowdowns[member]) for member in members)
        if slowdowns and tails
        else None,
        "power_w": fmean(powers) if slowdowns and powers else None,
        "gpu_model": combination.gpu_model,
        "source": "measured",
        "mode": combination.mode,
    }


def _means(found: Sequence[Measurement]) -> dict[_Member, float] | None:
    """Return the mean slowdown of each member, or None if they failed to run once."""
    known = _measured(found)
    if known is None:
        return None
    return {member: harmonic_mean(slowdowns) for member, slowdowns in known.items()}


def _measured(found: Sequence[Measurement]) -> dict[_Member, list[float]] | None:
    """Return the slowdowns of each member, or None if they failed to run once."""
    known: dict[_Member, list[float]] = {}
    for measured in found:
        if measured.slowdown is None:
            return None
        for member, slowdown in zip(_members(measured), measured.slowdown, strict=True):
            known.setdefault(member, []).append(slowdown)
    return known


def cluster(
    measurements: Iterable[Measurement],
    nodes: Sequence[Mapping[str, object]],
    sharing: SharingMode = "mps",
) -> dict[str, object]:
    """Return a cluster that allows the measured caps and the measured most workloads on a GPU."""
    measured = list(measurements)
    caps = {share for found in measured for share in found.shares if share is not None}
    return {
        "sharing": sharing,
        "max_jobs_per_gpu": max((len(found.workloads) for found in measured), default=2),
        "shares": sorted(caps, key=share_code),
        "nodes": nodes,
    }


def _mean_tails(found: Sequence[Measurement]) -> dict[_Member, float]:
    """Return the mean growth of the tail latency of each member that has one."""
    known: dict[_Member, list[float]] = {}
    for measured in found:
        for member, p99 in zip(_members(measured), measured.p99 or (), strict=False):
            if p99 is not None:
                known.setdefault(member, []).append(p99)
    return {member: fmean(tails) for member, tails in known.items()}


def nodes(
    models: Iterable[str], gpus: int, per_node: int, memory_mib: float = UNKNOWN_MEMORY_MIB
) -> list[dict[str, object]]:
    """Return nodes ``n0``, ``n1``, ... with ``gpus`` GPUs of every model.

    Nodes hold ``per_node`` GPUs of one model; the last of each model may have fewer.

    Raises
    ------
    InputError
        When ``gpus`` or ``per_node`` is out of range.
    """
    for name, count in (("gpus", gpus), ("gpus_per_node", per_node)):
        if not 1 <= count <= _MOST_GPUS:
            raise InputError(f"must be between 1 and {_MOST_GPUS}, got {count}", name)
    sizes = [min(per_node, gpus - start) for start in range(0, gpus, per_node)]
    kinds = [(model, size) for model in models for size in sizes]
    return [
        {"id": f"n{k}", "gpu_count": size, "gpu": {"model": model, "memory_mib": memory_mib}}
        for k, (model, size) in enumerate(kinds)
    ]
