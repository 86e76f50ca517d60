"""``dovetail wait``: wait until jobs are over."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from dovetail.live.choosing import CHOSEN, chosen_jobs, waited_for
from dovetail.live.printing import ended_status
from dovetail.toolkit.commands import Command

WAIT: Final = Command(
    "wait",
    "Wait until jobs are over; exit status 1 unless all finished.",
    "dovetail.live.wait:wait",
    CHOSEN,
)


def wait(options: Namespace) -> int:
    """Wait until jobs are over; 1 unless all of them finished."""
    from dovetail.live.client import Client

    with Client() as client:
        chosen = chosen_jobs(client, options, lambda job: True)
        if not chosen:
            return 2
        return max(ended_status(waited_for(client, name), options.json) for name in chosen)
