"""``dovetail wait``: wait until jobs are over."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import TYPE_CHECKING, Final

from dovetail.instances.errors import InputError
from dovetail.live.choosing import CHOSEN, chosen_jobs, waited_for
from dovetail.live.printing import ended_status
from dovetail.toolkit.commands import Command, option

if TYPE_CHECKING:
    from dovetail.live.client import Client

WAIT: Final = Command(
    "wait",
    "Wait until jobs are over; exit status 1 unless all finished.",
    "dovetail.live.wait:wait",
    (
        *CHOSEN,
        option("--ready", "wait until services answer their probes; exit status 1 if one is over"),
    ),
)

_AGAIN_S: Final = 0.5


def wait(options: Namespace) -> int:
    """Wait until jobs are over; 1 unless all of them finished."""
    from dovetail.live.client import Client

    with Client() as client:
        chosen = chosen_jobs(client, options, lambda job: True)
        if not chosen:
            return 2
        if options.ready:
            return max(_ready_status(client, name) for name in chosen)
        return max(ended_status(waited_for(client, name), options.json) for name in chosen)


def _ready_status(client: Client, name: str) -> int:
    """Return 0 once a service is ready, 1 if it is over."""
    from dovetail.executor.jobs.states import OVER

    while not (job := client.job(name)).ready:
        if job.state in OVER:
            return 1
        if job.ready is None:
            raise InputError(f"needs a service with a probe, got {name}", "--ready")
        time.sleep(_AGAIN_S)
    return 0
