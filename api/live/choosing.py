"""The jobs that a command is about: options that select them, and changes to each."""

from __future__ import annotations

import os
import re
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from dovetail.instances.errors import InputError
from dovetail.live.printing import tell_states
from dovetail.toolkit.commands import argument, one_of, option

if TYPE_CHECKING:
    from dovetail.executor.live.views import JobView
    from dovetail.live.client import Client

MOST_ARRAY: Final = 10_000
"""Most jobs of an array, as of any request."""

_AGAIN_S: Final = 1.0
_PATIENCE_S: Final = 300.0
"""Seconds to wait for a service that is being restarted."""


def _state(text: str) -> str:
    from dovetail.executor.jobs.states import OVER, JobState

    return one_of([state.value for state in JobState if state not in OVER], text)


JOB: Final = argument("JOB", "id of the job")
CHOSEN: Final = (
    argument("[JOB ...]", "ids of jobs, or ranges like j3-j7", "jobs"),
    option("--all", "all of your jobs"),
    option("--name NAME", "jobs of this name"),
    option("--user NAME", "jobs of this user instead of yours"),
    option("--state STATE", "jobs in this state", _state),
)
"""Options that select jobs that are not over."""


def order_jobs(
    options: Namespace,
    change: Callable[[Client, str], JobView],
    fits: Callable[[JobView], bool],
) -> int:
    """Change the jobs that options select, print their new states; return the exit status."""
    from dovetail.live.client import Client

    with Client() as client:
        found, status = changed_jobs(client, options, partial(change, client), fits)
    tell_states(found, options.json)
    return status


def changed_jobs(
    client: Client,
    options: Namespace,
    change: Callable[[str], JobView],
    fits: Callable[[JobView], bool],
) -> tuple[list[JobView], int]:
    """Change the jobs that options select; return the changed jobs and the exit status.

    A job that cannot be changed is reported in one line; the others are still changed.
    """
    from dovetail.executor.live.errors import RefusedError, UnknownJobError

    found, status = [], 0
    for name in chosen_jobs(client, options, fits):
        try:
            found.append(change(name))
        except (UnknownJobError, RefusedError) as error:
            print(f"dovetail: {error}", file=sys.stderr)
            status = 2
    return found, status


def chosen_jobs(client: Client, options: Namespace, fits: Callable[[JobView], bool]) -> list[str]:
    """Return the ids of the jobs that options name, or of jobs not over that they describe."""
    from dovetail.executor.live.views import Chosen

    described = options.all or options.name or options.user or options.state
    if options.jobs and described:
        raise InputError("cannot be combined with --all, --name, --user or --state", "JOB")
    if options.jobs:
        return list(dict.fromkeys(chain.from_iterable(map(job_ids, options.jobs))))
    if not described:
        rule = "is required, unless --all, --name, --user or --state selects jobs"
        raise InputError(rule, "JOB")
    found = [
        job.id
        for job in client.jobs(chosen=Chosen(options.user, options.name, options.state))
        if (options.user or job.uid == os.getuid()) and fits(job)
    ]
    if not found:
        print("dovetail: no job matches", file=sys.stderr)
    return found


def job_ids(text: str) -> Sequence[str]:
    """Return the ids in a text: one id, or a range like ``j3-j7``."""
    said = re.fullmatch(r"j([1-9]\d{0,17})-j([1-9]\d{0,17})", text, re.ASCII)
    if said is None:
        return (text,)
    first, last = int(said[1]), int(said[2])
    if not 0 <= last - first < MOST_ARRAY:
        rule = f"must be a range like j3-j7 of at most {MOST_ARRAY:,} jobs, got {text!r}"
        raise InputError(rule, "JOB")
    return [f"j{number}" for number in range(first, last + 1)]


def waited_for(client: Client, name: str) -> JobView:
    """Return a job once it is over; the service may be restarted meanwhile."""
    from dovetail.live.places import NoServiceError

    missed_s = 0.0
    while True:
        try:
            return client.wait(name)
        except NoServiceError as error:
            if missed_s >= _PATIENCE_S:
                raise
            if missed_s == 0:
                print(f"dovetail: {error}; waiting for it to come back", file=sys.stderr)
            missed_s += _AGAIN_S
            time.sleep(_AGAIN_S)
