"""Files of commands: instances that they read, shipped or not, and outputs, never an input."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.instances.errors import InputError, source_name
from dovetail.toolkit.tables import console

if TYPE_CHECKING:
    from rich.console import RenderableType

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


def require_separate(read: Iterable[str | Path], *outputs: str | None) -> None:
    """Refuse outputs that are an input or the same file; an input and an output may both be ``-``.

    Parameters
    ----------
    read : iterable of str or path
        The inputs.
    outputs : str or None
        Files to write, or None.

    Raises
    ------
    InputError
        When an output is refused; it names the output.
    """
    seen = {_place(name) for name in read if str(name) != "-"}
    for name in filter(None, outputs):
        if _place(name) in seen:
            raise InputError("is another file of this command, too", "", source_name(name))
        seen.add(_place(name))


def _place(name: str | Path) -> str:
    return "-" if str(name) == "-" else os.path.realpath(name)


def print_either(options: Namespace, data: object, view: Callable[[], RenderableType]) -> None:
    """Print data as JSON, or else the view for readers that a function returns."""
    if options.json:
        from dovetail.instances.files import write_data

        write_data(data, "-")
    else:
        console().print(view())


def write_made(options: Namespace, instance: Instance) -> None:
    """Write an instance to the output of the options, and print a summary of it."""
    from dovetail.instances.files import write_data, write_instance

    write_instance(instance, options.output)
    if options.output == "-":
        return
    summary = {
        "name": instance.name,
        "jobs": len(instance.jobs),
        "gpus": len(instance.places),
        "workloads": len(instance.workloads),
        "slowdowns": len(instance.slowdowns),
        "written_to": options.output,
    }
    if options.json:
        write_data(summary, "-")
    else:
        print(_sentence(summary))


def _sentence(summary: Mapping[str, object]) -> str:
    things = {"jobs": "job", "gpus": "GPU", "workloads": "workload", "slowdowns": "slowdown"}
    listed = ", ".join(
        f"{summary[key]} {thing}{'' if summary[key] == 1 else 's'}" for key, thing in things.items()
    )
    return f"{summary['name']}: {listed} -> {summary['written_to']}"
