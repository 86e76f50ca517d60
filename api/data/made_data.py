"""Data sets that commands write."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from dovetail.toolkit.wording import number

if TYPE_CHECKING:
    from dovetail.instances.datasets.dataset import DataSet
    from dovetail.instances.datasets.records import SoloProfile

COUNTED: Final = ("workloads", "profiles", "measurements")


def write_made_data(options: Namespace, data: DataSet) -> None:
    """Write a data set that a command made, or append it to a repository."""
    from dovetail.instances.datasets.files import write_dataset
    from dovetail.instances.datasets.repository import Repository, is_repository

    if is_repository(options.output):
        Repository(options.output).append(data.profiles, data.measurements)
    else:
        write_dataset(data, options.output, options.parquet)
    tell_data(options, {"name": data.name, **counted_data(data), "written_to": options.output})


def data_at(path: str) -> DataSet:
    """Return the data set at a path; an empty one if nothing is there yet."""
    from dovetail.instances.datasets.dataset import DataSet
    from dovetail.instances.datasets.files import dataset_files, read_dataset

    if any(file.exists() for file in dataset_files(path)):
        return read_dataset(path)
    return DataSet(name=os.path.basename(os.path.realpath(path)) or "data")


def write_profile(options: Namespace, data: DataSet, profile: SoloProfile, kernels: int) -> None:
    """Write a data set in which a profile has changed; only append the profile to a repository."""
    from dovetail.instances.datasets.files import write_dataset
    from dovetail.instances.datasets.repository import Repository, is_repository
    from dovetail.instances.files import write_data

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


def counted_data(data: DataSet) -> dict[str, object]:
    """Return how much a data set holds."""
    return {
        "workloads": len(data.families),
        "profiles": len(data.profiles),
        "measurements": len(data.measurements),
    }


def tell_data(options: Namespace, summary: dict[str, object]) -> None:
    """Print what was written, and where."""
    from dovetail.instances.files import write_data

    if options.json:
        write_data(summary, "-")
    else:
        print(f"{summary['name']}: {listed_counts(summary, COUNTED)} -> {summary['written_to']}")


def listed_counts(summary: dict[str, object], things: Iterable[str]) -> str:
    """Return counts with the names of what is counted."""
    return ", ".join(
        f"{summary[thing]} {thing.removesuffix('s') if summary[thing] == 1 else thing}"
        for thing in things
    )
