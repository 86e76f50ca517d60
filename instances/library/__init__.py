"""Instances shipped with the package, each with its source and its proven optimum."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from dovetail.instances import measured
from dovetail.instances._record import NonNegative, Number, Record, Text, listed, shown
from dovetail.instances.errors import InputError, hint
from dovetail.instances.files import read_instance
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.reading.contents import parse_yaml

__all__ = ["LibraryInstance", "Optimum", "load", "manifest", "names", "path"]


class Optimum(Record):
    """The proven best value of an objective.

    ``placed_weight`` is the first stage of two-stage objectives; ``value`` is then the best value
    of the second.
    """

    value: Number
    placed_weight: NonNegative | None = None


class LibraryInstance(Record):
    """The manifest's entry of a shipped instance."""

    title: Text
    source: Text
    optimum: Mapping[ObjectiveName, Optimum]


class _LibraryManifest(Record):
    instances: Mapping[str, LibraryInstance]


@cache
def manifest() -> Mapping[str, LibraryInstance]:
    """Return the entry of every shipped instance by its name."""
    source = files(__name__).joinpath("manifest.yaml")
    data = parse_yaml(source.read_text(encoding="utf-8"))
    return _LibraryManifest.from_data(data, "manifest.yaml").instances


def names() -> tuple[str, ...]:
    """Return the names of the shipped instances, in the order of the manifest."""
    return tuple(manifest())


def path(name: str) -> Path:
    """Return the file of a shipped instance.

    Raises
    ------
    InputError
        When there is none of that name.
    """
    if name in manifest():
        return Path(str(files(__name__).joinpath(f"{name}.yaml")))
    if name in measured.names():
        rule = f"{name} is a data set: write an instance of it with dovetail dataset instance"
        raise InputError(rule, "library")
    rule = f"must be one of {listed(names(), most=40)}, got {shown(name)}{hint(name, names())}"
    raise InputError(rule, "library")


def load(name: str) -> Instance:
    """Return a shipped instance.

    Raises
    ------
    InputError
        When there is none of that name.
    """
    return read_instance(path(name))
