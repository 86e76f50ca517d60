"""What is shipped with the package: instances with their proven optima, data sets, and traces."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Final, Generic, TypeVar

from dovetail.instances._record import Name, NonNegative, Number, Record, Text, listed, shown
from dovetail.instances.errors import InputError, hint
from dovetail.instances.files import read_instance
from dovetail.instances.instance import Instance
from dovetail.instances.objectives import ObjectiveName
from dovetail.instances.reading.contents import parse_yaml

_R = TypeVar("_R", bound=Record)


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


class LibraryDataSet(Record):
    """The manifest's entry of measurements, a folder with a README and the raw results."""

    title: Text
    source: Text
    licence: Text


class LibraryTrace(Record):
    """The manifest's entry of a trace, whose jobs are synthetic; ``world`` is the instance for it.

    What an instance says besides its jobs: cluster, workloads and slowdowns.
    """

    title: Text
    source: Text
    world: Name


class Shelf(Generic[_R]):
    """Everything shipped of one kind: a folder with a manifest.

    Parameters
    ----------
    folder : str
        The folder in the package.
    kind : str
        What one is called in messages.
    entry : type
        The manifest's entry of each.
    """

    def __init__(self, folder: str, kind: str, entry: type[_R]) -> None:
        self.folder = Path(str(files("dovetail.instances"))) / folder
        self._kind, self._entry = kind, entry

    @cached_property
    def manifest(self) -> Mapping[str, _R]:
        """The entry of each by its name."""
        text = (self.folder / "manifest.yaml").read_text(encoding="utf-8")
        entries = parse_yaml(text)
        assert isinstance(entries, dict)
        return {name: self._entry.from_data(each, name) for name, each in entries.items()}

    def entry(self, name: str) -> _R:
        """Return the entry of a name.

        Raises
        ------
        InputError
            When there is none of that name.
        """
        if name not in self.manifest:
            raise not_shipped(name, self.manifest, self._kind)
        return self.manifest[name]


def not_shipped(name: str, known: Collection[str], kind: str) -> InputError:
    """Return the error for a name that none of these shipped things has."""
    rule = f"must be {kind}, one of {listed(known, most=40)}, got {shown(name)}"
    return InputError(rule + hint(name, known), "library")


INSTANCES: Final = Shelf("library", "an instance", LibraryInstance)
DATA_SETS: Final = Shelf("measured", "a data set", LibraryDataSet)
TRACES: Final = Shelf("traces/shipped", "a trace", LibraryTrace)


def manifest() -> Mapping[str, LibraryInstance]:
    """Return the entry of every shipped instance by its name."""
    return INSTANCES.manifest


def names() -> tuple[str, ...]:
    """Return the names of the shipped instances, in the order of the manifest."""
    return tuple(INSTANCES.manifest)


def path(name: str) -> Path:
    """Return the file of a shipped instance.

    Raises
    ------
    InputError
        When there is none of that name.
    """
    if name in DATA_SETS.manifest:
        rule = f"{name} is a data set: write an instance of it with dovetail dataset instance"
        raise InputError(rule, "library")
    INSTANCES.entry(name)
    return INSTANCES.folder / f"{name}.yaml"


def load(name: str) -> Instance:
    """Return a shipped instance.

    Raises
    ------
    InputError
        When there is none of that name.
    """
    return read_instance(path(name))
