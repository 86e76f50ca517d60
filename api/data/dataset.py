"""The commands of ``dovetail dataset``."""

from __future__ import annotations

import os
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from textwrap import wrap

from dovetail.instances.datasets.dataset import DataSet, slowdowns_of
from dovetail.instances.datasets.files import dataset_files, read_dataset, write_dataset
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.datasets.repository import Repository, is_repository
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import write_data
from dovetail.instances.instance import METRICS
from dovetail.instances.reading.plausible import require_slowdowns
from dovetail.toolkit.wording import number

COUNTED = ("workloads", "profiles", "measurements")
FIGURES = ("throughput", "power_w", "memory_mib", "memory_mean_mib", "duration_s", "latency_p99_s")
UNCAPPED = "uncapped"

_WIDTH = 78

_Summary = dict[str, object]


def write_made_data(options: Namespace, data: DataSet) -> None:
    """Write a data set that a command made, or append it to a repository."""
    if is_repository(options.output):
        Repository(options.output).append(data.profiles, data.measurements)
    else:
        write_dataset(data, options.output, options.parquet)
    _tell(options, {"name": data.name, **_counted(data), "written_to": options.output})


def data_at(path: str) -> DataSet:
    """Return the data set at a path; an empty one if nothing is there yet."""
    if any(file.exists() for file in dataset_files(path)):
        return read_dataset(path)
    return DataSet(name=os.path.basename(os.path.realpath(path)) or "data")


def write_profile(options: Namespace, data: DataSet, profile: SoloProfile, kernels: int) -> None:
    """Write a data set in which a profile has changed; only append the profile to a repository."""
    if is_repository(options.output):
        Repository(options.output).append((profile,), ())
    else:
        parquet = os.path.exists(os.path.join(options.output, "profiles.parquet"))
        write_dataset(data, options.output, parquet)
    if options.json:
        summary = {"profile": profile.to_data(), "kernels": kernels, "written_to": options.output}
        write_data(summary, "-")
    else:
        what = f"{profile.workload} on {profile.gpu_model}: {number(kernels, 'kernel')}"
        print(f"{what} -> {options.output}")


def add(options: Namespace) -> int:
    """Append data sets to a repository, all of them or none."""
    if not is_repository(options.repository):
        rule = "must be a repository: a name that ends in .db or .sqlite"
        raise InputError(rule, "", source_name(options.repository))
    if any(os.path.realpath(path) == os.path.realpath(options.repository) for path in options.data):
        raise InputError("is the repository itself", "", source_name(options.repository))
    given = [read_dataset(path) for path in options.data]
    for path, added in zip(options.data, given, strict=True):
        require_slowdowns([*slowdowns_of(added.measurements)], "slowdowns", source_name(path))
    data = reduce(DataSet.merged, given)
    sequence = Repository(options.repository).append(data.profiles, data.measurements)
    name = ", ".join(options.data)
    written = {"written_to": options.repository, "sequence": sequence}
    _tell(options, {"name": name, **_counted(data), **written})
    return 0


def show(options: Namespace) -> int:
    """Print a summary of a data set."""
    data = read_dataset(options.data)
    summary = {
        "name": data.name,
        **_counted(data),
        "families": len(set(data.families.values())),
        "fingerprint": data.fingerprint,
        "gpu_models": {model: _of_model(data, model) for model in data.gpu_models},
    }
    if options.json:
        write_data(summary, "-")
        return 0
    print(f"{data.name}: {_listed(summary, COUNTED)}")
    print(f"fingerprint {data.fingerprint}")
    for model in data.gpu_models:
        print("\n".join([model, *(f"  {line}" for line in _lines(_of_model(data, model)))]))
    return 0


def _of_model(data: DataSet, gpu_model: str) -> _Summary:
    """Return a summary of one GPU model."""
    profiles = [profile for profile in data.profiles if profile.gpu_model == gpu_model]
    measured = [found for found in data.measurements if found.gpu_model == gpu_model]
    return {
        "workloads": len(_workloads(profiles, measured)),
        "profiles": _by_share(profiles),
        "pairs": _ran(found for found in measured if len(found.workloads) == 2),
        "sets": _ran(found for found in measured if len(found.workloads) > 2),
        "known": _known(profiles),
    }


def _workloads(profiles: Iterable[SoloProfile], measured: Iterable[Measurement]) -> set[str]:
    alone = {profile.workload for profile in profiles}
    return alone.union(*(found.workloads for found in measured))


def _by_share(profiles: Iterable[SoloProfile]) -> dict[str, int]:
    shares = Counter(profile.share for profile in profiles)
    capped = sorted(share for share in shares if share is not None)
    uncapped = {UNCAPPED: shares[None]} if None in shares else {}
    return uncapped | {str(share): shares[share] for share in capped}


def _ran(measured: Iterable[Measurement]) -> dict[str, int]:
    """Return how many were measured and failed, and how many of these took turns, if any."""
    found = list(measured)
    failed = Counter(one.failed for one in found)
    turns = sum(one.mode == "time_sliced" for one in found)
    by_turns = {"time_sliced": turns} if turns else {}
    return {"measured": failed[False], "failed": failed[True], **by_turns}


def _known(profiles: Iterable[SoloProfile]) -> dict[str, int]:
    """Return the number of workloads with each figure, without figures that none has."""
    known: dict[str, set[str]] = {name: set() for name in (*METRICS, *FIGURES)}
    for profile in profiles:
        names = {*(profile.metrics.to_data() if profile.metrics else ())}
        names |= {name for name in FIGURES if getattr(profile, name) is not None}
        for name in names:
            known[name].add(profile.workload)
    return {name: len(workloads) for name, workloads in known.items() if workloads}


def _lines(summary: _Summary) -> Iterator[str]:
    yield f"workloads  {summary['workloads']}"
    for name in ("profiles", "pairs", "sets", "known"):
        counts = summary[name]
        if isinstance(counts, dict) and any(counts.values()):
            text = f"{name:<9}  {_TEXTS[name](counts)}"
            yield from wrap(text, _WIDTH, subsequent_indent=" " * 11)


def _profiles_text(counts: Mapping[str, int]) -> str:
    return ", ".join(
        f"{count} {share}" if share == UNCAPPED else f"{count} at {share} %"
        for share, count in counts.items()
    )


def _ran_text(counts: Mapping[str, int]) -> str:
    names = {"time_sliced": "of these time-sliced"}
    return ", ".join(f"{count} {names.get(outcome, outcome)}" for outcome, count in counts.items())


def _known_text(counts: Mapping[str, int]) -> str:
    """Return the figures, grouped by the number of workloads that have them."""
    by_count: dict[int, list[str]] = {}
    for name, count in counts.items():
        by_count.setdefault(count, []).append(name)
    parts = (
        f"{', '.join(names)} of {number(count, 'workload')}" for count, names in by_count.items()
    )
    return "; ".join(parts)


_TEXTS: Mapping[str, Callable[[Mapping[str, int]], str]] = {
    "profiles": _profiles_text,
    "pairs": _ran_text,
    "sets": _ran_text,
    "known": _known_text,
}


def _counted(data: DataSet) -> _Summary:
    return {
        "workloads": len(data.families),
        "profiles": len(data.profiles),
        "measurements": len(data.measurements),
    }


def _tell(options: Namespace, summary: _Summary) -> None:
    if options.json:
        write_data(summary, "-")
    else:
        print(f"{summary['name']}: {_listed(summary, COUNTED)} -> {summary['written_to']}")


def _listed(summary: _Summary, things: Iterable[str]) -> str:
    return ", ".join(
        f"{summary[thing]} {thing.removesuffix('s') if summary[thing] == 1 else thing}"
        for thing in things
    )
