"""The pair measurements published with Lucid (ASPLOS 2023), taken on an RTX 3090.

Source: the repository ``S-Lab-System-Group/Lucid``, files ``single_data.csv`` (each
configuration alone) and ``colocate_info.csv`` (pairs on one GPU).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import permutations

from dovetail.instances.datasets.dataset import DataSet, entries, nodes
from dovetail.instances.datasets.records import Measurement, SoloProfile
from dovetail.instances.instance import Instance
from dovetail.instances.reading.tables import Row, read_csv, table_of

GPU_MODEL = "RTX 3090"
MEMORY_MIB = 24576.0
SOURCE = "Lucid (S-Lab-System-Group/Lucid, non-commercial)"

_TYPE = ("model", "dataset", "batchsize", "amp")
_SOLO = (*_TYPE, "speed", "gpu_util", "gmem_util", "gmem")
_PAIR = tuple(f"{name}{k}" for k in (1, 2) for name in (*_TYPE, "gpu_num", "speed"))


def import_lucid(directory: str, gpus: int, *, gpus_per_node: int = 8) -> Instance:
    """Return an instance with Lucid's measured slowdowns and one job of each complete type.

    A type is (model, dataset, batch size, mixed precision or not). Types with the fewest measured
    partners are dropped, the alphabetically last first, until every two of the rest (and each with
    itself) were measured together; these complete types are 52 of the published 66. The others are
    kept as workloads without a job.

    The published speeds are normalised, alone = 1, so slowdown = 1 / speed. Many are above 1,
    which is measurement noise and is kept. A speed of 0 means that the pair failed to run.

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
        The instance, without shares and gSLAs. ``throughput`` is in the unit of the table (samples
        per second for most types); the measured memory of a type includes its CUDA context.

    Raises
    ------
    InputError
        With file, line and column of the first value that breaks a rule.
    """
    profiles = _profiles(directory)
    measured = _measurements(directory, profiles)
    cluster = {"nodes": nodes([GPU_MODEL], gpus, gpus_per_node, MEMORY_MIB)}
    data = {
        "name": "lucid",
        "cluster": cluster,
        "workloads": {profile.workload: _workload(profile) for profile in profiles},
        "jobs": [{"id": name, "workload": name} for name in complete_types(measured)],
        "slowdowns": entries(measured),
    }
    return Instance.from_data(data, directory)


def lucid_data(directory: str) -> DataSet:
    """Return Lucid's measurements as a data set.

    The batch size is the type's, its family the model: batch sizes and precisions of one model are
    never on both sides of a train-test split. Utilisations and memory are ``nvidia-smi``'s figures
    of the whole GPU, the throughput is in samples/s for most types, and slowdown = 1 / speed. The
    measured utilisation of a pair is left out: no predictor may know it.

    Parameters
    ----------
    directory : str
        Folder with ``single_data.csv`` and ``colocate_info.csv`` (or the same with ``.gz``).

    Raises
    ------
    InputError
        With file, line and column of the first value that breaks a rule.
    """
    profiles = _profiles(directory)
    measured = _measurements(directory, profiles)
    return DataSet(name="lucid", profiles=tuple(profiles), measurements=tuple(measured))


def complete_types(measured: Iterable[Measurement]) -> list[str]:
    """Return the types such that every two, and each with itself, were measured together."""
    partners: dict[str, set[str]] = {}
    for found in measured:
        for mine, other in permutations(found.workloads):
            partners.setdefault(mine, set()).add(other)
    while partners and min(map(len, partners.values())) < len(partners):
        fewest = max(partners, key=lambda name: (-len(partners[name]), name))
        del partners[fewest]
        for others in partners.values():
            others.discard(fewest)
    return sorted(partners)


def _type(row: Row, side: str = "") -> str:
    model, dataset, batch = (row.text(f"{name}{side}") for name in _TYPE[:3])
    precision = {"0": "", "1": " amp"}.get(row.text(f"amp{side}"))
    if precision is None:
        raise row.broken(f"amp{side}", f"must be 0 or 1, got {row.values[f'amp{side}']!r}")
    return f"{model} {dataset} b{batch}{precision}"


def _profiles(directory: str) -> list[SoloProfile]:
    return [_profile(row) for row in read_csv(table_of(directory, "single_data.csv"), _SOLO)]


def _profile(row: Row) -> SoloProfile:
    return row.record(
        SoloProfile,
        workload=_type(row),
        gpu_model=GPU_MODEL,
        family=row.text("model"),
        batch_size=row.count("batchsize"),
        metrics={"gpu_util": row.fraction("gpu_util"), "mem_util": row.fraction("gmem_util")},
        throughput=row.positive("speed"),
        memory_mib=row.number("gmem"),
        source=SOURCE,
    )


def _workload(profile: SoloProfile) -> dict[str, object]:
    return {
        "memory_mib": profile.memory_mib,
        "family": profile.family,
        "batch_size": profile.batch_size,
        "metrics": profile.metrics,
        "throughput": {100: profile.throughput},
    }


def _measurements(directory: str, profiles: Iterable[SoloProfile]) -> list[Measurement]:
    rows = read_csv(table_of(directory, "colocate_info.csv"), _PAIR)
    known = {profile.workload for profile in profiles}
    return [_measurement(row, known) for row in rows]


def _measurement(row: Row, known: Container[str]) -> Measurement:
    pair = (_type(row, "1"), _type(row, "2"))
    for side, name in zip("12", pair, strict=True):
        if row.count(f"gpu_num{side}") != 1:
            raise row.broken(f"gpu_num{side}", "must be 1, as pairs are of one GPU")
        if name not in known:
            raise row.broken(f"model{side}", f"{name!r} has no row in single_data.csv")
    speeds = (row.number("speed1"), row.number("speed2"))
    return row.record(
        Measurement,
        workloads=pair,
        gpu_model=GPU_MODEL,
        slowdown=None if 0 in speeds else tuple(1 / speed for speed in speeds),
        source=SOURCE,
    )
