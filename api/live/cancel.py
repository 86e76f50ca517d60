"""``dovetail cancel``: end jobs."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Final

from dovetail.live.choosing import CHOSEN, changed_jobs, waited_for
from dovetail.live.printing import tell_states
from dovetail.toolkit.commands import Command, duration, option
from dovetail.toolkit.wording import lasting

CANCEL: Final = Command(
    "cancel",
    "End jobs: first by a signal, after their grace by a kill.",
    "dovetail.live.cancel:cancel",
    (
        *CHOSEN,
        option("--wait", "return when they are gone"),
        option("--now", "kill them without grace"),
        option(
            "--grace TIME", "kill them after this, if their own grace is longer; 0: now", duration
        ),
    ),
)


def cancel(options: Namespace) -> int:
    """Begin to cancel jobs."""
    from dovetail.live.client import Client

    grace_s = 0.0 if options.now else options.grace
    with Client() as client:
        found, status = changed_jobs(
            client, options, lambda name: client.cancel(name, grace_s), lambda job: True
        )
        if options.wait:
            found = [waited_for(client, job.id) for job in found]
    tell_states(found, options.json)
    for job in found if not options.json else ():
        if job.run is not None and (grace_s or 0.0) > job.grace_s:
            own = f"its own grace of {lasting(job.grace_s)}, which --grace cannot lengthen"
            print(f"dovetail: {job.id} is killed after {own}", file=sys.stderr)
    return status
