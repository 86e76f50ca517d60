"""Pairs measured on one GPU, one row a pair: a CSV file with slowdowns."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dovetail.instances._record import listed, shown
from dovetail.instances.datasets.records import Measurement
from dovetail.instances.errors import InputError
from dovetail.instances.importers._measured import entries, nodes
from dovetail.instances.importers._tables import Row, read_csv
from dovetail.instances.instance import Instance

COLUMNS = ("device", "mode", "gpus", "job_a", "job_b", "slowdown_a", "slowdown_b", "status")


def import_pairs(
    csv_path: str, gpus: int, *, device: str | None = None, gpus_per_node: int = 8
) -> Instance:
    """Return an instance with the measured slowdowns of a CSV file and one job of each type.

    The columns are ``device`` (GPU model), ``mode`` (``shared``: unpartitioned), ``gpus`` (1),
    ``job_a``, ``job_b``, ``slowdown_a``, ``slowdown_b`` (1 = no interference) and ``status``;
    others are ignored. A pair whose status is not ``ok`` did not run and may not share. Rows
    of the same pair, mirrored or not, are averaged. ``p99_a`` and ``p99_b``, where there, are the
    growth of the tail latency; empty for a job type without.

    Parameters
    ----------
    csv_path : str
        The file; may end in ``.gz``.
    gpus : int
        GPUs of the cluster; of *each* device where several are taken.
    device : str, optional
        Take the rows of this device only. Default: every device of the file. The file does not
        say how fast devices are beside each other, so every workload has speed 1 on all.
    gpus_per_node : int
        GPUs of a node; the last node of a device may have fewer.

    Returns
    -------
    Instance
        Unpartitioned, no gSLAs. The file has no memory figures: workloads need 0 MiB.

    Raises
    ------
    InputError
        With file, line and column of the first value that breaks a rule.
    """
    rows = list(read_csv(csv_path, COLUMNS))
    measured = _of_device([_measurement(row) for row in rows], device, csv_path)
    types = list(dict.fromkeys(name for found in measured for name in found.workloads))
    devices = dict.fromkeys(found.gpu_model for found in measured)
    data = {
        "name": Path(csv_path).name,
        "cluster": {"nodes": nodes(devices, gpus, gpus_per_node)},
        "workloads": {name: {"memory_mib": 0.0} for name in types},
        "jobs": [{"id": name, "workload": name} for name in types],
        "slowdowns": entries(measured),
    }
    return Instance.from_data(data, csv_path)


def _measurement(row: Row) -> Measurement:
    if row.text("mode") != "shared":
        raise row.broken("mode", f"must be 'shared', got {shown(row.values['mode'])}")
    if row.count("gpus") != 1:
        raise row.broken("gpus", f"must be 1, as pairs are of one GPU, got {row.values['gpus']}")
    ran = row.text("status") == "ok"
    slowdown = (row.positive("slowdown_a"), row.positive("slowdown_b")) if ran else None
    return row.record(
        Measurement,
        workloads=(row.text("job_a"), row.text("job_b")),
        gpu_model=row.text("device"),
        slowdown=slowdown,
        p99=(_tail(row, "p99_a"), _tail(row, "p99_b")) if ran else None,
    )


def _tail(row: Row, column: str) -> float | None:
    return row.positive(column) if row.values.get(column) else None


def _of_device(
    measured: Iterable[Measurement], device: str | None, source: str
) -> list[Measurement]:
    measured = list(measured)
    taken = [found for found in measured if device in (None, found.gpu_model)]
    if taken:
        return taken
    if not measured:
        raise InputError("must have at least one row", "", source)
    devices = dict.fromkeys(found.gpu_model for found in measured)
    raise InputError(f"must be one of {listed(devices)}, got {shown(device)}", "device", source)
