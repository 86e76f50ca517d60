"""A data set: profiles and measurements, and the instance that they are enough for.

A data set says nothing of jobs or clusters. ``DataSet.workloads`` turns its profiles into the
workloads that an instance has, so that predictors read one kind of record in training and in
use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from itertools import chain
from typing import Final, Literal

from dovetail.instances._record import Name, Record, listed, shown
from dovetail.instances.datasets._measured import (
    UNKNOWN_MEMORY_MIB,
    cluster,
    entries,
    nodes,
    require_slowdowns,
    slowdowns_of,
)
from dovetail.instances.datasets.records import Measurement, ProfileKey, SoloProfile
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance, Workload

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
        """The family of every workload: its own name where no profile gives one."""
        names = chain(
            (profile.workload for profile in self.profiles),
            chain.from_iterable(found.workloads for found in self.measurements),
        )
        given = {p.workload: p.family for p in self.profiles if p.family is not None}
        return {name: given.get(name, name) for name in names}

    @cached_property
    def newest(self) -> Mapping[ProfileKey, SoloProfile]:
        """The profile that counts for each key: of the latest date, then recorded last."""
        latest: dict[ProfileKey, SoloProfile] = {}
        for profile in self.profiles:
            known = latest.get(profile.key)
            if known is None or _moment(profile) >= _moment(known):
                latest[profile.key] = profile
        return latest

    def workloads(self, gpu_model: str) -> dict[str, Workload]:
        """Return what an instance with GPUs of this model would say of each profiled workload.

        Of several numbers of workers or batch sizes of one workload, one worker comes before
        more, and the largest batch before smaller ones. Memory is the largest mark seen.
        """
        by_name: dict[str, list[SoloProfile]] = {}
        for key, profile in self.newest.items():
            if key.gpu_model == gpu_model:
                by_name.setdefault(key.workload, []).append(profile)
        return {name: _workload(found) for name, found in by_name.items()}

    def merged(self, other: DataSet) -> DataSet:
        """Return the records of both under this name, the other's as the later ones."""
        return self.replace(
            profiles=self.profiles + other.profiles,
            measurements=self.measurements + other.measurements,
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the records, in hexadecimal digits.

        Two data sets have one fingerprint where they have equal profiles in one order and equal
        measurements in one order; the name does not count. Order counts because it decides
        which of two profiles of one date is the newest. Hashed are lines of JSON, one a record,
        with sorted keys and without fields that hold their default.
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
    ) -> Instance:
        """Return an instance of what was measured on a GPU model, one pending job a workload.

        Entries are averages: of a combination measured several times, and of the copies of a
        workload with itself, the mean speed and p99; what failed once may not share. The
        cluster allows the caps and the most workloads on a GPU that were measured.

        Parameters
        ----------
        gpu_model : str
            One of ``gpu_models``.
        gpus : int
            GPUs of the cluster.
        memory_mib : float, optional
            Memory of a GPU. May be left out only where no workload's memory is known.
        gpus_per_node : int
            GPUs of a node; the last may have fewer.

        Raises
        ------
        InputError
            For a GPU model without records, a number out of range, missing memory, or
            slowdowns that are speeds or percentages.
        """
        if gpu_model not in self.gpu_models:
            known = f"one of {listed(self.gpu_models)}" if self.gpu_models else "in the data"
            rule = f"must be {known}, got {shown(gpu_model)}"
            raise InputError(rule, "gpu_model")
        measured = [found for found in self.measurements if found.gpu_model == gpu_model]
        require_slowdowns(slowdowns_of(measured), "measurements: slowdown", self.name)
        workloads = self.workloads(gpu_model)
        for name in chain.from_iterable(found.workloads for found in measured):
            workloads.setdefault(name, Workload(memory_mib=0.0))
        if memory_mib is None:
            _require_no_memory(workloads)
            memory_mib = UNKNOWN_MEMORY_MIB
        return Instance.from_data(
            {
                "name": self.name,
                "cluster": cluster(measured, nodes([gpu_model], gpus, gpus_per_node, memory_mib)),
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


def _workload(profiles: list[SoloProfile]) -> Workload:
    main: dict[int, SoloProfile] = {}
    for profile in sorted(profiles, key=lambda p: (p.workers, -(p.batch_size or 0))):
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
