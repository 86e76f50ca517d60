"""Instances and a data set from the throughputs and traces published with Gavel (OSDI 2020)."""

from __future__ import annotations

import math
from itertools import chain
from pathlib import Path

from dovetail.instances.datasets.dataset import DataSet, entries, nodes
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance
from dovetail.instances.reading.tables import Row, read_tsv
from dovetail.papers.importers.gavel_table import (
    TRACE,
    Gang,
    Throughputs,
    all_throughputs,
    read_throughputs,
)

_Job = dict[str, object]


def import_gavel(
    throughputs: str,
    device: str,
    gpus: int,
    *,
    trace: str | None = None,
    at_s: float | None = None,
    gangs_as_single: bool = False,
    gpus_per_node: int = 8,
) -> Instance:
    """Return an instance with Gavel's measured slowdowns (solo / co-located throughput).

    Without a trace there is one job of each one-GPU type. With a trace, the jobs are those that
    would be unfinished at ``at_s`` if each ran alone from its arrival on, without waiting: the
    trace does not give start times, so this is the shortest possible queue. ``remaining_s`` is the
    remaining time then. All jobs are pending, with ids ``job-LINE``.

    Only pairs of one-GPU jobs were measured. A gang therefore gets its own workload, ``TYPE
    xGPUS``, without entries: it runs alone. Pairs in which one side made no progress failed to run
    (most likely out of memory) and may not share. Both orders of a pair, and both copies of a type
    with itself, are averaged.

    Parameters
    ----------
    throughputs : str
        The file of throughputs, ``.json`` or ``.json.gz``.
    device : str
        One of the file's devices, for example ``p100``; the GPU model of the instance.
    gpus : int
        GPUs of the cluster.
    trace : str, optional
        Trace file, tab separated: type, command, steps flag, data flag, total steps,
        arrival (s), GPUs; may end in ``.gz``.
    at_s : float, optional
        The time in the trace, in seconds; required with ``trace``.
    gangs_as_single : bool
        Assume that every worker of a gang behaves like the one-GPU job of its type: with the same
        slowdowns, and with the same rate if the gang's own was not measured.
    gpus_per_node : int
        GPUs of a node; the last may have fewer.

    Returns
    -------
    Instance
        The instance, without shares and gSLAs. The data have no memory figures: workloads need 0
        MiB.

    Raises
    ------
    InputError
        With file and position of the first value that breaks a rule; for a gang whose solo
        throughput was not measured, unless ``gangs_as_single``.
    """
    if (trace is None) != (at_s is None):
        raise InputError("trace and at_s go together", "at_s")
    if at_s is not None and not (math.isfinite(at_s) and at_s >= 0):
        raise InputError(f"must be a finite number >= 0, got {at_s}", "at_s")
    table = read_throughputs(throughputs, device)
    jobs = table.one_of_each()
    if trace is not None and at_s is not None:
        jobs = _jobs_at(trace, at_s, table, gangs_as_single)
    data = {
        "name": "-".join(["gavel", device, *([f"{_stem(trace)}-{at_s:g}"] if trace else [])]),
        "cluster": {"nodes": nodes([device], gpus, gpus_per_node)},
        "workloads": table.workloads(),
        "jobs": jobs,
        "slowdowns": entries(table.measurements()),
    }
    return Instance.from_data(data, trace or throughputs)


def gavel_data(throughputs: str) -> DataSet:
    """Return Gavel's measurements of all devices as a data set.

    Every type and gang size that ran alone gives a profile with its throughput (iterations/s); its
    batch size and its family are read from the name (``ResNet-18 (batch size 16)``). The pairs are
    those of one-GPU jobs; a pair in which one side made no progress failed. The file has most
    pairs in both orders: if both agree they are one measurement (in the published file they always
    do), else two.

    Devices ``NAME_unconsolidated`` are left out: their gangs were spread over machines, and the
    one-GPU rows are copied from ``NAME``.

    Parameters
    ----------
    throughputs : str
        The file of throughputs, ``.json`` or ``.json.gz``.

    Raises
    ------
    InputError
        With file and place of the first value that breaks a rule.
    """
    tables = all_throughputs(throughputs)
    return DataSet(
        name="gavel",
        profiles=tuple(chain.from_iterable(table.profiles() for table in tables)),
        measurements=tuple(chain.from_iterable(table.measurements() for table in tables)),
    )


def _jobs_at(trace: str, at_s: float, table: Throughputs, gangs_as_single: bool) -> list[_Job]:
    jobs = (_job_at(row, at_s, table, gangs_as_single) for row in read_tsv(trace, TRACE))
    return [job for job in jobs if job is not None]


def _job_at(row: Row, at_s: float, table: Throughputs, gangs_as_single: bool) -> _Job | None:
    """Return the job as of ``at_s``, or None if it has not arrived or is finished."""
    gang = Gang(row.text("job type"), row.count("GPUs"))
    arrival_s, steps = row.number("arrival s"), row.positive("total steps")
    if not table.knows(gang.job_type):
        raise row.broken("job type", f"{gang.job_type!r} has no throughput on one GPU")
    if arrival_s > at_s:
        return None
    remaining_s = steps / _pace(row, gang, table, gangs_as_single) - (at_s - arrival_s)
    if remaining_s <= 0:
        return None
    workload = gang.job_type if gangs_as_single else gang.workload
    return {
        "id": f"job-{row.line}",
        "workload": workload,
        "workers": gang.gpus,
        "arrival_s": arrival_s,
        "remaining_s": remaining_s,
    }


def _pace(row: Row, gang: Gang, table: Throughputs, gangs_as_single: bool) -> float:
    measured = table.rate(gang)
    if measured > 0:
        return measured
    if gangs_as_single:
        return table.rate(Gang(gang.job_type, 1))
    rule = f"no throughput of {gang.job_type!r} on {gang.gpus} GPUs was measured"
    raise row.broken("GPUs", f"{rule}; gangs_as_single takes that of one GPU")


def _stem(path: str | None) -> str:
    return Path(path or "").name.split(".")[0]
