"""Measurements shipped with the package: a data set each, with a README and the raw results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from dovetail.instances._record import Record, Text, listed, shown
from dovetail.instances.errors import InputError, hint
from dovetail.instances.reading.contents import parse_yaml

__all__ = ["LibraryDataSet", "manifest", "names", "path"]


class LibraryDataSet(Record):
    """The manifest's entry of a shipped data set."""

    title: Text
    source: Text
    licence: Text


class _MeasuredManifest(Record):
    data_sets: Mapping[str, LibraryDataSet]


@cache
def manifest() -> Mapping[str, LibraryDataSet]:
    """Return the entry of every shipped data set by its name."""
    data = parse_yaml(files(__name__).joinpath("manifest.yaml").read_text(encoding="utf-8"))
    return _MeasuredManifest.from_data(data, "manifest.yaml").data_sets


def names() -> tuple[str, ...]:
    """Return the names of the shipped data sets, in the order of the manifest."""
    return tuple(manifest())


def path(name: str) -> Path:
    """Return the folder of a shipped data set.

    Raises
    ------
    InputError
        When there is none of that name.
    """
    if name not in manifest():
        rule = f"must be a data set, one of {listed(names())}, got {shown(name)}"
        raise InputError(f"{rule}{hint(name, names())}", "library")
    return Path(str(files(__name__).joinpath(name)))
