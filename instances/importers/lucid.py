"""The pair measurements published with Lucid (ASPLOS 2023), taken on an RTX 3090.

Source: the repository ``S-Lab-System-Group/Lucid``, files ``single_data.csv`` (each
configuration alone) and ``colocate_info.csv`` (pairs on one GPU).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from dovetail.instances.errors import InputError
from dovetail.instances.importers._measured import Measurement, entries, nodes
from dovetail.instances.importers._tables import Row, read_csv
from dovetail.instances.instance import Instance

GPU_MODEL = "RTX 3090"
MEMORY_MIB = 24576.0

_TYPE = ("model", "dataset", "batchsize", "amp")
_SOLO = (*_TYPE, "speed", "gpu_util", "gmem_util", "gmem")
_PAIR = tuple(f"{name}{k}" for k in (1, 2) for name in (*_TYPE, "gpu_num", "speed"))


def import_lucid(directory: str, gpus: int, *, gpus_per_node: int = 8) -> Instance:
    """Return an instance with Lucid's measured slowdowns and one job of each complete type.

    A type is (model, dataset, batch size, mixed precision or not). The complete types are what
    remains when those with the fewest measured partners are dropped, the last in the alphabet
    first, until every two of the rest (and each with itself) were measured together: 52 of the
    published 66. The others stay as workloads with what is known of them, without a job.

    The published speeds are normalised, alone = 1, so slowdown = 1 / speed. Many are above 1,
    which is noise of the measurement and is kept. A speed of 0 says that the pair did not run.

    Parameters
    ----------
    directory : str
        Folder with ``single_data.csv`` and ``colocate_info.csv`` (or the same with ``.gz``).
    gpus : int
        GPUs of the cluster.
    gpus_per_node : int
        GPUs of a node; the last may have fewer.

    Returns
    -------
    Instance
        Unpartitioned, no gSLAs. ``throughput`` is in the unit of the table (samples per second
        for most types); the memory a type was seen to use includes its CUDA context.

    Raises
    ------
    InputError
        With file, line and column of the first value that breaks a rule.
    """
    solo = _find(directory, "single_data.csv")
    workloads = {_type(row): _workload(row) for row in read_csv(solo, _SOLO)}
    pairs = _find(directory, "colocate_info.csv")
    measured = [_measurement(row, workloads) for row in read_csv(pairs, _PAIR)]
    cluster = {"nodes": nodes([GPU_MODEL], gpus, gpus_per_node, MEMORY_MIB)}
    data = {
        "name": "lucid",
        "cluster": cluster,
        "workloads": workloads,
        "jobs": [{"id": name, "workload": name} for name in complete_types(measured)],
        "slowdowns": entries(measured),
    }
    return Instance.from_data(data, directory)


def complete_types(measured: Iterable[Measurement]) -> list[str]:
    """Return the types of which every two, and each with itself, were measured together."""
    partners: dict[str, set[str]] = {}
    for found in measured:
        for mine, other in (found.pair, found.pair[::-1]):
            partners.setdefault(mine, set()).add(other)
    while partners and min(map(len, partners.values())) < len(partners):
        fewest = max(partners, key=lambda name: (-len(partners[name]), name))
        del partners[fewest]
        for others in partners.values():
            others.discard(fewest)
    return sorted(partners)


def _find(directory: str, name: str) -> str:
    for path in (Path(directory, name), Path(directory, f"{name}.gz")):
        if path.is_file():
            return str(path)
    raise InputError(f"must have a file {name} (or {name}.gz)", "", directory)


def _type(row: Row, side: str = "") -> str:
    model, dataset, batch = (row.text(f"{name}{side}") for name in _TYPE[:3])
    precision = {"0": "", "1": " amp"}.get(row.text(f"amp{side}"))
    if precision is None:
        raise row.broken(f"amp{side}", f"must be 0 or 1, got {row.values[f'amp{side}']!r}")
    return f"{model} {dataset} b{batch}{precision}"


def _workload(row: Row) -> dict[str, object]:
    return {
        "memory_mib": row.number("gmem"),
        "metrics": {
            "gpu_util": _fraction(row, "gpu_util"),
            "mem_util": _fraction(row, "gmem_util"),
        },
        "throughput": {100: row.positive("speed")},
    }


def _fraction(row: Row, column: str) -> float:
    percent = row.number(column)
    if percent > 100:
        raise row.broken(column, f"must be a percentage <= 100, got {percent:g}")
    return percent / 100


def _measurement(row: Row, known: Mapping[str, object]) -> Measurement:
    pair = (_type(row, "1"), _type(row, "2"))
    for side, name in zip("12", pair, strict=True):
        if row.count(f"gpu_num{side}") != 1:
            raise row.broken(f"gpu_num{side}", "must be 1, as pairs are of one GPU")
        if name not in known:
            raise row.broken(f"model{side}", f"{name!r} has no row in single_data.csv")
    speeds = (row.number("speed1"), row.number("speed2"))
    slowdown = None if 0 in speeds else (1 / speeds[0], 1 / speeds[1])
    return Measurement(GPU_MODEL, pair, slowdown)
