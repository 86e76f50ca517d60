"""An instance of measured pairs: a table with slowdowns, one row a pair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dovetail.instances._record import listed, shown
from dovetail.instances.datasets._measured import UNKNOWN_MEMORY_MIB, cluster, entries, nodes
from dovetail.instances.datasets.files import read_pairs
from dovetail.instances.datasets.records import Measurement
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Instance


class ImportedPairs(NamedTuple):
    """An instance, and in a line each what its user should know."""

    instance: Instance
    notes: tuple[str, ...]


def import_pairs(
    csv_path: str, gpus: int, *, device: str | None = None, gpus_per_node: int = 8
) -> ImportedPairs:
    """Return an instance with the measured slowdowns of a table and one job of each workload.

    The table is that of `read_pairs`. A pair whose status is not ``ok`` did not run and may not
    share. Rows of the same pair, mirrored or not, are averaged.

    Parameters
    ----------
    csv_path : str
        ``.csv``, ``.csv.gz`` or ``.parquet``.
    gpus : int
        GPUs of the cluster; of *each* GPU model where several are taken.
    device : str, optional
        Take the rows of this GPU model only. Default: every model of the file. The file does not
        say how fast models are relative to each other, so every workload has speed 1 on all.
    gpus_per_node : int
        GPUs of a node; the last node of a model may have fewer.

    Returns
    -------
    ImportedPairs
        The instance has no gSLAs. The file has no memory figures: workloads need 0 MiB.

    Raises
    ------
    InputError
        With file, line and column of the first value that breaks a rule.
    """
    pairs = read_pairs(csv_path)
    measured = _of_device(pairs.measurements, device, csv_path)
    workloads = dict.fromkeys(name for found in measured for name in found.workloads)
    models = dict.fromkeys(found.gpu_model for found in measured)
    data = {
        "name": Path(csv_path).name,
        "cluster": cluster(measured, nodes(models, gpus, gpus_per_node)),
        "workloads": {name: {"memory_mib": 0.0} for name in workloads},
        "jobs": [{"id": name, "workload": name} for name in workloads],
        "slowdowns": entries(measured),
    }
    memory = f"no memory figures: a GPU gets {UNKNOWN_MEMORY_MIB:g} MiB and a workload needs 0"
    return ImportedPairs(Instance.from_data(data, csv_path), (*pairs.notes, memory))


def _of_device(
    measured: Sequence[Measurement], device: str | None, source: str
) -> list[Measurement]:
    taken = [found for found in measured if device in (None, found.gpu_model)]
    if taken:
        return taken
    if not measured:
        raise InputError("must have at least one row", "", source)
    devices = dict.fromkeys(found.gpu_model for found in measured)
    raise InputError(f"must be one of {listed(devices)}, got {shown(device)}", "device", source)
