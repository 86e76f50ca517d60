"""What commands of the live service print about jobs."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from dovetail.toolkit.tables import console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dovetail.executor.live.views import JobView


def tell_states(jobs: Sequence[JobView], as_json: bool) -> None:
    """Print the state of jobs after a change."""
    if as_json:
        write_json(jobs)
        return
    for job in jobs:
        held = f", held by {job.held}" if job.held else ""
        why = "" if job.why == job.state.value else f": {job.why}"
        print(f"{job.id}: {job.state.value}{held}{why}")


def ended_status(job: JobView, as_json: bool) -> int:
    """Print how a job ended; return the corresponding exit status."""
    from dovetail.executor.jobs.states import OVER, JobState

    assert job.state in OVER
    line = f"{job.id}: {job.state.value}: {job.why}"
    tell(job, line, as_json)
    return 0 if job.state is JobState.FINISHED else 1


def tell(data: object, text: str, as_json: bool) -> None:
    """Print data as JSON, or else a line."""
    if as_json:
        write_json(data)
    else:
        print(text)


def print_view(options: Namespace, data: object, view: Callable[[], RenderableType]) -> None:
    """Print data as JSON, or else the view for readers that a function returns."""
    if options.json:
        write_json(data)
    else:
        console().print(view(), markup=False, highlight=False)


def write_json(data: object) -> None:
    """Print data or views as JSON, including fields at their default, for programs."""
    from dovetail.instances.reading.json_text import json_text

    sys.stdout.write(json_text(_plain(data)))


def _plain(data: object) -> object:
    from dataclasses import fields, is_dataclass

    match data:
        case list() | tuple():
            return [_plain(each) for each in data]
        case Mapping():
            return {name: _plain(each) for name, each in data.items()}
    if is_dataclass(data) and not isinstance(data, type):
        return {field.name: _plain(getattr(data, field.name)) for field in fields(data)}
    return data
