"""Outputs of commands, which never overwrite an input."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.instances.errors import InputError, source_name
from dovetail.toolkit.tables import console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dovetail.instances.instance import Instance


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
