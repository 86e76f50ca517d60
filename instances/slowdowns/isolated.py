"""Pairs under isolation of thread blocks, from the solo profiles of both jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dovetail.instances._record import IDLE, AnyShare
from dovetail.instances.instance import Instance, Workload
from dovetail.instances.slowdowns.entry import SlowdownEntry
from dovetail.instances.slowdowns.shares import BEST_EFFORT, NO_CAP

TAIL: Final = 1.072
"""Growth of the 99th-percentile latency of the job with SMs of its own: the mean that Tally's
authors measured on an A100 (section 5.2). It is also used as the slowdown, which is lower."""

WORKERS: Final = 1.25
"""Slowdown of kernels that can yield the GPU between two blocks (Tally, section 5.7)."""

BEHIND: Final[tuple[AnyShare, AnyShare]] = (None, IDLE)
"""The shares of an isolated pair."""


def isolated_slowdowns(first: Workload) -> tuple[float, float] | None:
    """Return the expected slowdowns of a workload and of another in its idle time.

    Tally (ASPLOS 2025, section 4): a kernel of the second runs only while the first has none, so
    it gets the fraction of time in which the first leaves the GPU idle, at the rate of kernels
    that can be preempted::

        slowdown of first  = p99 = 1.072
        slowdown of behind = 1.25 / (1 - gpu_util of first)

    This is an estimate from published means; measurements are better. None if the first has
    neither ``gpu_util`` nor ``graphics_active`` in its metrics, or leaves no idle time.
    """
    busy = _busy(first)
    return None if busy is None or busy >= 1 else (TAIL, round(WORKERS / (1 - busy), 4))


def isolated_entry(instance: Instance, first: str, behind: str) -> SlowdownEntry | None:
    """Return the ``isolated_slowdowns`` of two workloads as an entry.

    Parameters
    ----------
    instance : Instance
        The instance with the workloads.
    first : str
        The workload with SMs of its own.
    behind : str
        The workload at the share ``idle``.
    """
    slowdown = isolated_slowdowns(instance.workloads[first])
    return None if slowdown is None else isolated_estimate(instance, first, behind, slowdown)


def isolated_estimate(
    instance: Instance, first: str, behind: str, slowdown: tuple[float, float]
) -> SlowdownEntry:
    """Return estimated slowdowns of an isolated pair as an entry."""
    return SlowdownEntry(
        pair=(first, behind),
        share=BEHIND,
        slowdown=slowdown,
        p99=slowdown,
        source="estimate",
        mode=instance.cluster.sharing,
    )


def isolated_entries(instance: Instance) -> Iterator[SlowdownEntry]:
    """Yield the expected entries of latency-critical workloads with others in their idle time.

    They are those of ``unknown_isolated`` of which there is an estimate.
    """
    for pair in unknown_isolated(instance):
        entry = isolated_entry(instance, *pair)
        if entry is not None:
            yield entry


def unknown_isolated(instance: Instance) -> Iterator[tuple[str, str]]:
    """Yield latency-critical workloads, each with another that could run in its idle time.

    There are none if ``idle`` is not a share of the cluster, and none that already have such an
    entry.
    """
    if IDLE not in instance.cluster.shares:
        return
    known, models = instance.entries, (None, *instance.slowdowns.models)
    mode = instance.cluster.sharing
    critical = {job.workload for job in instance.jobs if job.priority == "latency"}
    for first in instance.workloads:
        for behind, workload in instance.workloads.items():
            if first in critical and workload.isolation == "blocks":
                members = tuple(sorted(((first, NO_CAP), (behind, BEST_EFFORT))))
                if not any((model, members, mode) in known for model in models):
                    yield first, behind


def _busy(workload: Workload) -> float | None:
    """Return the fraction of time in which a workload alone has kernels on the GPU."""
    metrics = workload.metrics
    if metrics is None:
        return None
    return metrics.graphics_active if metrics.gpu_util is None else metrics.gpu_util
