"""Refusal of requests that are not permitted, or for jobs that can never run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from dovetail.executor.jobs.live_jobs import LiveJob
from dovetail.executor.jobs.specs import FIXED, JobSpec, Owner
from dovetail.executor.jobs.state_machine import StateMachine
from dovetail.executor.jobs.states import OVER, QUEUED, JobState
from dovetail.executor.live.errors import RefusedError
from dovetail.formulations.rules import largest_gang, modes
from dovetail.instances._record import field_path, shown
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Cluster, Workload

MOST_WAITING: Final = 10_000
"""Default limit on the waiting jobs of one user."""

MOST_MIB: Final = 128.0
"""Default limit on the texts (commands, environments, ...) of one user's jobs not over, MiB."""

MOST_WEIGHT: Final = 10.0
"""Limit on the weight of a job, unless an administrator submits it."""

MOST_WORD_BYTES: Final = 128 * 2**10
"""The kernel's limit on an argument or a variable, including the final NUL (MAX_ARG_STRLEN)."""

MOST_WORDS_BYTES: Final = 2 * 2**20 - MOST_WORD_BYTES
"""Limit on all of them: the kernel's limit for the usual stack limit, less the variables that the
service adds to the environment."""

MOST_PATH_BYTES: Final = 4096
"""The kernel's limit on a path, including the final NUL (PATH_MAX)."""

_OVERHEAD_BYTES: Final = 9
"""Additional bytes for each: the final NUL and the pointer to it."""


MOST_GRACE_S: Final = 3600.0
"""Default limit on the grace period of a job."""


class AdmissionLimits(NamedTuple):
    """The limits that the administrator sets for users.

    Attributes
    ----------
    grace_s : float
        The longest grace period that a job may have, seconds.
    waiting : int
        Number of jobs of a user that may wait, unless the user is an administrator.
    mib : float
        Memory for the specifications of a user's jobs that are not over, MiB, unless the user is an
        administrator.
    any_user : bool, optional
        Whether jobs may run as users other than the service's; by default only if that is root.
    """

    grace_s: float = MOST_GRACE_S
    waiting: int = MOST_WAITING
    mib: float = MOST_MIB
    any_user: bool | None = None


def is_administrator(user: Owner) -> bool:
    """Return whether a user is root or the service's own user."""
    return user.uid in (0, os.geteuid())


def refuse_others(job: LiveJob, by: Owner, what: str) -> None:
    """Refuse users who neither own a job nor are administrators.

    Raises
    ------
    RefusedError
        For such a user; the text says ``what`` is refused.
    """
    if by.uid != job.spec.owner.uid and not is_administrator(by):
        raise RefusedError(f"{by.name} may not {what} {job.id} of {job.spec.owner.name}")


def refuse_edit(job: LiveJob, changes: Mapping[str, Any], by: Owner) -> None:
    """Refuse an edit by another user, of a job that no longer waits, or of a fixed field.

    Raises
    ------
    RefusedError, InputError
        If the edit is refused.
    """
    own = by.uid == job.spec.owner.uid
    if not own and not (is_administrator(by) and changes.keys() <= {"nice"}):
        raise RefusedError(f"{by.name} may not edit {job.id} of {job.spec.owner.name}")
    if job.state not in QUEUED:
        raise RefusedError(f"{job.id} is {job.state}: a job may be edited while it waits")
    for name in ("env", *FIXED):
        if name in changes:
            raise InputError("cannot be edited: submit the job again", name)


def refuse_scaling(job: LiveJob, changes: Mapping[str, Any], by: Owner) -> None:
    """Refuse another number of replicas by another user, of no service, or with other changes.

    Raises
    ------
    RefusedError, InputError
        If it is refused.
    """
    if by.uid != job.spec.owner.uid:
        raise RefusedError(f"{by.name} may not scale {job.id} of {job.spec.owner.name}")
    if not job.spec.service:
        raise InputError(f"needs a service, and {job.id} has an end", "replicas")
    if job.state in OVER:
        raise RefusedError(f"{job.id} is {job.state}: name a replica that is not over")
    for name in changes:
        if name != "replicas":
            raise InputError("cannot be combined with replicas: edit it by itself", name)
    if changes["replicas"] is None:
        raise InputError("must be a number of replicas", "replicas")


def refuse_values(job: LiveJob, spec: JobSpec) -> None:
    """Refuse an edited specification that contradicts the job's earlier runs.

    Raises
    ------
    InputError
        If it is refused.
    """
    if job.runs and spec.workers != job.spec.workers:
        raise InputError(f"must be {job.spec.workers}, as {job.id} has run", "workers")
    if spec.retries < job.failures:
        raise InputError(f"must be >= {job.failures}, its failures", "retries")


def refuse_another(specs: Sequence[JobSpec], jobs: Sequence[LiveJob]) -> None:
    """Refuse a request that has the key of an earlier request but submits different jobs.

    Raises
    ------
    InputError
        If it is refused.
    """
    # Jobs that are over have no more words than this.
    asked = [spec.without_words() for spec in specs]
    if asked != [job.spec.without_words() for job in jobs]:
        names = f"{jobs[0].id} to {jobs[-1].id}" if len(jobs) > 1 else jobs[0].id
        raise InputError(f"must be new, got the key of {names}, which are different jobs", "key")


def refuse_too_many(more: int, by: Owner, machine: StateMachine, most: int) -> None:
    """Refuse jobs if too many jobs of the user would wait; administrators have no limit.

    Raises
    ------
    RefusedError
        If they are refused.
    """
    barred = sum(job.spec.owner.uid == by.uid for job in machine.barred.values())
    waiting = machine.waiting[by.uid] + barred
    if waiting + more > most and not is_administrator(by):
        rule = f"may have {most} waiting jobs, has {waiting}, and {more} more are submitted"
        raise RefusedError(f"{by.name} {rule}")


def refuse_too_much(more_bytes: int, by: Owner, machine: StateMachine, most_mib: float) -> None:
    """Refuse jobs if the user's specifications would take too much memory.

    Words that several jobs share count once. Administrators have no limit.

    Raises
    ------
    RefusedError
        If they are refused.
    """
    has = machine.charges.of_user[by.uid]
    if has + more_bytes > most_mib * 2**20 and not is_administrator(by):
        rule = f"may have {most_mib:.15g} MiB for commands and environments of jobs not over"
        got = f"has {has / 2**20:.1f} MiB, and {more_bytes / 2**20:.1f} MiB more are submitted"
        raise RefusedError(f"{by.name} {rule}, {got}")


def refuse_after(spec: JobSpec, machine: StateMachine, path: str) -> None:
    """Refuse a job that depends on a job that is unknown, or did not finish.

    Raises
    ------
    InputError
        If it is refused.
    """
    for name, awaited in (("after", spec.after), ("after_any", spec.after_any)):
        for k, job in enumerate(awaited):
            where = f"{path}{name}[{k}]"
            first = machine.jobs.get(job)
            if first is None:
                raise InputError(f"must be the id of a job, got {shown(job)}", where)
            if name == "after" and first.state in OVER - {JobState.FINISHED}:
                rule = f"must be a job that can still finish, got {job} ({first.state})"
                raise InputError(rule, where)
            if name == "after" and first.spec.service:
                raise InputError(f"must be a job that can finish, got {job} (a service)", where)


def refuse_hopeless(
    spec: JobSpec, by: Owner, cluster: Cluster | None, limits: AdmissionLimits, path: str
) -> None:
    """Refuse a job that may not run as its owner, breaks a limit, or fits on no devices.

    Parameters
    ----------
    spec : JobSpec
        The job.
    by : Owner
        The user who submits it.
    cluster : Cluster or None
        The pool's devices; None if more devices may join, so that larger jobs may wait.
    limits : AdmissionLimits
        The limits for users.
    path : str
        Path of the job in the request.

    Raises
    ------
    InputError
        If it is refused.
    """
    if spec.owner.uid != by.uid and not is_administrator(by):
        rule = f"must be {by.uid} (users submit jobs only for themselves), got {spec.owner.uid}"
        raise InputError(rule, f"{path}owner.uid")
    any_user = os.geteuid() == 0 if limits.any_user is None else limits.any_user
    if spec.owner.uid != os.geteuid() and not any_user:
        rule = f"must be {os.geteuid()} (the service is not root), got {spec.owner.uid}"
        raise InputError(rule, f"{path}owner.uid")
    if spec.weight > MOST_WEIGHT and not is_administrator(by):
        rule = f"must be <= {MOST_WEIGHT:g} (administrators: any), got {spec.weight:.15g}"
        raise InputError(rule, f"{path}weight")
    if spec.grace_s > limits.grace_s:
        most, got = f"{limits.grace_s:.15g} s", f"{spec.grace_s:.15g}"
        rule = f"must be <= {most} (the service's --max-grace), got {got}"
        raise InputError(rule, f"{path}grace_s")
    _refuse_unstartable(spec, path)
    if cluster is not None:
        _refuse_too_large(spec, cluster, path)


def _refuse_unstartable(spec: JobSpec, path: str) -> None:
    """Refuse a job that the kernel could not start on any machine (execve(2))."""
    if not os.path.isabs(spec.cwd):
        raise InputError(f"must begin with '/', got {shown(spec.cwd)}", f"{path}cwd")
    if "\0" in spec.cwd:
        raise InputError(f"must not contain NUL characters, got {shown(spec.cwd)}", f"{path}cwd")
    if len(os.fsencode(spec.cwd)) >= MOST_PATH_BYTES:
        rule = f"must have less than {MOST_PATH_BYTES} bytes, got {len(os.fsencode(spec.cwd))}"
        raise InputError(rule, f"{path}cwd")
    if not spec.command[0] or any("\0" in word for word in spec.command):
        rule = "must name a program and not contain NUL characters"
        raise InputError(rule, f"{path}command")
    for name, value in spec.env.items():
        if not name or "=" in name or "\0" in name + value:
            rule = "must be a variable's name and value, without = in the name or NUL characters"
            raise InputError(rule, field_path(f"{path}env", name))
    _refuse_too_long(spec, path)


def _refuse_too_long(spec: JobSpec, path: str) -> None:
    sizes = [len(word.encode()) for word in spec.command]
    sizes += [len(f"{name}={value}".encode()) for name, value in spec.env.items()]
    if max(sizes) >= MOST_WORD_BYTES:
        where = [f"command[{k}]" for k in range(len(spec.command))]
        where += [field_path("env", name) for name in spec.env]
        rule = f"must have less than {MOST_WORD_BYTES} bytes, got {max(sizes)}"
        raise InputError(rule, f"{path}{where[sizes.index(max(sizes))]}")
    taken = sum(sizes) + len(sizes) * _OVERHEAD_BYTES
    if taken > MOST_WORDS_BYTES:
        rule = f"must have at most {MOST_WORDS_BYTES} bytes with the command, got {taken}"
        raise InputError(rule, f"{path}env")


def _refuse_too_large(spec: JobSpec, cluster: Cluster, path: str) -> None:
    one_each = spec.workers_per_node is not None
    mib = (spec.memory_mib or 0.0) if spec.memory_percent is None else None
    workload = Workload(memory_mib=mib, memory_percent=spec.memory_percent)
    way = modes(workload, cluster.per_process_mib)[0]
    most = largest_gang(cluster, way)
    if spec.memory_mib is not None and not most:
        kept_mib = cluster.per_process_mib + cluster.reserve_mib
        sizes = [gpu.memory_mib - kept_mib for node in cluster.nodes for gpu in node.devices]
        rule = f"must be <= {max(sizes, default=0.0):.15g} (the largest device)"
        rule += f", got {spec.memory_mib:.15g}"
        raise InputError(rule, f"{path}memory_mib")
    if spec.workers > most:
        rule = f"must be <= {most} (devices of one model that hold it), got {spec.workers}"
        raise InputError(rule, f"{path}workers")
    most = largest_gang(cluster, way, spec.together, one_each)
    if spec.workers > most:
        rule = f"must let {spec.workers} workers start; the nodes hold {most} in groups of"
        name = "workers_per_node" if one_each else "workers_together"
        raise InputError(f"{rule} {spec.together}", f"{path}{name}")
