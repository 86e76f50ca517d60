"""Checks of what can hold a job's limits: of device memory, and of SMs."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.executor.doctor.finding import Finding, lacking, note
from dovetail.executor.pools.means import Means
from dovetail.executor.pools.runs.memory_groups import NoGroups


def limits(means: Means) -> Finding:
    """Report what holds the memory limit of a job, and what each binds."""
    text = f"the limit of a job is held by {means.held_by()}"
    if not isinstance(means.groups, NoGroups):
        return Finding(text)
    if not means.mps:
        remedy = "install MPS; until then a job may take all memory of its GPU"
        return lacking(text, remedy)
    return note(text, "--memory-mib has to hold all processes of a job that use the GPU, together")


def groups(means: Means) -> Finding:
    """Report whether control groups hold limits, or what this machine lacks for that."""
    found = means.groups
    if isinstance(found, NoGroups):
        return note(f"the whole job cannot be limited: {found.why}", found.remedy)
    holder = "the kernel (dmem)" if found.by_kernel else "the driver (misc: no dmem in this kernel)"
    return Finding(f"limited by {holder}, tried below {found.home.parent}")


def partitions(means: Means) -> Iterator[Finding]:
    """Report whether shares can be reservations of SMs."""
    if means.modes.static:
        yield Finding("static partitions: the pool option partitions=static reserves SMs")
    elif means.mps and means.modes.static is None:
        text = "unknown whether the control program has static partitions of SMs"
        yield note(text, "starting with --pool gpu:partitions=static tells")
    elif means.mps:
        text = "no static partitions: a share is a limit of SMs, not a reservation"
        yield Finding(f"{text}; they come with CUDA 13.1 (driver 590)")


def namespaces(means: Means) -> Finding | None:
    """Report whether the control program has MPS v3, which is not used."""
    if not means.modes.namespaces:
        return None
    return Finding(
        "MPS v3 is there, and not used: a limit of its namespaces binds each client, as here"
    )
