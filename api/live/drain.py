"""``dovetail drain``: keep devices from taking new jobs."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from dovetail.live.printing import write_json
from dovetail.toolkit.commands import Command, argument, option

DRAIN: Final = Command(
    "drain",
    "Keep devices from taking new jobs; running jobs continue.",
    "dovetail.live.drain:drain",
    (
        argument("[DEVICE ...]", "device, or node with all its devices (default: all)", "gpus"),
        option("--off", "let them take jobs again"),
    ),
)


def drain(options: Namespace) -> int:
    """Keep devices from taking new jobs, or let them take jobs again."""
    from dovetail.live.client import Client

    with Client() as client:
        service = client.drain(options.gpus, not options.off)
    named = {*options.gpus}
    chosen = [d for d in service.devices if not named or named & {d.id, d.node}]
    if options.json:
        write_json(chosen)
        return 0
    for device in chosen:
        stay = f", still held by {', '.join(device.jobs)}" if device.jobs else ""
        print(f"{device.id}: {device.trouble or 'takes new jobs'}{stay}")
    return 0
