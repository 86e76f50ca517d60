"""Instances that commands read: from a file, or shipped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dovetail.instances.errors import InputError, source_name

if TYPE_CHECKING:
    from dovetail.instances.instance import Instance


def named_text(source: str) -> tuple[str, str]:
    """Return the file of an instance, which may be shipped (``library:NAME``), and its text."""
    from dovetail.instances.reading.contents import LIBRARY, read_text

    if not source.startswith(LIBRARY):
        return source, read_text(source)
    from dovetail.instances import library as shipped

    path = str(shipped.path(source.removeprefix(LIBRARY)))
    return path, read_text(path)


def instance_named(source: str) -> Instance:
    """Return an instance from a file, or a shipped one (``library:NAME``).

    Slowdowns of a file that are probably speeds are reported on standard error.
    """
    from dovetail.instances.files import read_instance
    from dovetail.instances.reading.contents import LIBRARY
    from dovetail.instances.slowdowns.gathering import faster_together

    if not source.startswith(LIBRARY):
        instance = read_instance(source)
        for note in faster_together(instance.slowdowns):
            print(f"dovetail: {source_name(source)}: {note}", file=sys.stderr)
        return instance
    from dovetail.instances import library as shipped

    return shipped.load(source.removeprefix(LIBRARY))


def instance_with(source: str, slowdowns: str | None) -> Instance:
    """Return an instance with the measured pairs of a file, if there is one."""
    return with_slowdowns(instance_named(source), slowdowns)


def with_slowdowns(instance: Instance, slowdowns: str | None) -> Instance:
    """Return an instance with the measured pairs of a file as well, if there is one."""
    if slowdowns is None:
        return instance
    from dovetail.instances.importers.pairs import with_pairs

    merged = with_pairs(instance, slowdowns)
    for note in merged.notes:
        print(f"dovetail: {source_name(slowdowns)}: {note}", file=sys.stderr)
    return merged.instance


@contextmanager
def naming(source: str) -> Iterator[None]:
    """Add the file to errors of functions that know only the record made from it."""
    try:
        yield
    except InputError as error:
        raise error if error.source else error.at(source_name(source)) from None
