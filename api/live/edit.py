"""``dovetail edit``: change a waiting job."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Final

from dovetail.instances.errors import InputError
from dovetail.live.choosing import JOB
from dovetail.live.printing import tell_states
from dovetail.live.submit import DESCRIBING, default_workload, described, utf8_texts
from dovetail.toolkit.commands import Command, argument, option, whole

EDIT: Final = Command(
    "edit",
    "Change a waiting job, or the number of a service's replicas; the rest stays as it is.",
    "dovetail.live.edit:edit",
    (
        JOB,
        argument("[COMMAND ...]", "program and arguments, after --", "job_command"),
        option("--replicas N", "run a service N times from now on, also while it runs", whole(1)),
        # A field that is not given stays as it is.
        *(each._replace(default=None) for each in DESCRIBING),
    ),
    usage="dovetail edit [OPTION ...] JOB [-- COMMAND [ARGUMENT ...]]",
)


def edit(options: Namespace) -> int:
    """Change a waiting job."""
    from dovetail.live.client import Client

    changes = described(options)
    if options.replicas is not None:
        changes["replicas"] = options.replicas
    if options.cwd is not None:
        changes["cwd"] = utf8_texts([os.path.abspath(options.cwd)], "--cwd")[0]
    if options.job_command:
        changes["command"] = utf8_texts(options.job_command, "COMMAND")
    if not changes:
        raise InputError("needs an option to change, or a new command after --", "JOB")
    with Client() as client:
        job = client.job(options.job)
        own = "replicas" not in changes and job.workload == default_workload(job.command, job.cwd)
        if own:
            program = changes.get("command", job.command), changes.get("cwd", job.cwd)
            changes.setdefault("workload", default_workload(*program))
        found = client.edit(job.id, changes)
    tell_states([found], options.json)
    return 0
