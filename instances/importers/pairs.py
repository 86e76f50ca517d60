"""An instance of measured pairs: a table with slowdowns, one row per pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dovetail.instances._record import listed, shown
from dovetail.instances.datasets.dataset import UNKNOWN_MEMORY_MIB, cluster, entries, nodes
from dovetail.instances.datasets.files import read_pairs
from dovetail.instances.datasets.records import Measurement
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.importers.plain_pairs import plain_pairs
from dovetail.instances.instance import Instance
from dovetail.instances.reading.contents import FilePath
from dovetail.instances.slowdowns.columns import Slowdowns
from dovetail.instances.slowdowns.entry import MODES, EntryKey, SharingMode, SlowdownEntry
from dovetail.instances.slowdowns.shares import share_code


class ImportedPairs(NamedTuple):
    """An instance, and notes for its user, one line each."""

    instance: Instance
    notes: tuple[str, ...]


def import_pairs(
    csv_path: str,
    gpus: int,
    *,
    device: str | None = None,
    gpus_per_node: int = 8,
    sharing: SharingMode = "mps",
) -> ImportedPairs:
    """Return an instance with the measured slowdowns of a table and one job of each workload.

    The table is read by `read_pairs`. A pair with a status other than ``ok`` failed to run and may
    not share. Rows of the same pair, mirrored or not, are averaged.

    Parameters
    ----------
    csv_path : str
        ``.csv``, ``.csv.gz`` or ``.parquet``.
    gpus : int
        GPUs of the cluster; of *each* GPU model if there are several.
    device : str, optional
        Take only the rows of this GPU model. Default: every model of the file. The file does not
        give relative speeds of models, so every workload has speed 1 on all.
    gpus_per_node : int
        GPUs of a node; the last node of a model may have fewer.
    sharing : {"mps", "time_sliced"}
        How the jobs on a GPU share it; rows of the other mode are left out with a note.

    Returns
    -------
    ImportedPairs
        The instance has no gSLAs. As the file has no memory figures, workloads need 0 MiB.

    Raises
    ------
    InputError
        With file, line and column of the first value that breaks a rule.
    """
    pairs = read_pairs(csv_path)
    of_mode = [found for found in pairs.measurements if found.mode == sharing]
    left_out = _of_modes(Counter(each.mode for each in pairs.measurements), (sharing,))
    if pairs.measurements and not of_mode:
        raise InputError("; ".join(["no row is of this sharing", *left_out]), "", csv_path)
    measured = _of_device(of_mode, device, csv_path)
    workloads = dict.fromkeys(name for found in measured for name in found.workloads)
    models = dict.fromkeys(found.gpu_model for found in measured)
    data = {
        "name": Path(csv_path).name,
        "cluster": cluster(measured, nodes(models, gpus, gpus_per_node), sharing),
        "workloads": {name: {"memory_mib": 0.0} for name in workloads},
        "jobs": [{"id": name, "workload": name} for name in workloads],
        "slowdowns": entries(measured),
    }
    memory = f"no memory figures: a GPU gets {UNKNOWN_MEMORY_MIB:g} MiB and a workload needs 0"
    notes = (*pairs.notes, *left_out, memory)
    return ImportedPairs(Instance.from_data(data, csv_path), notes)


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


def with_pairs(instance: Instance, path: FilePath) -> ImportedPairs:
    """Return an instance with the measured slowdowns of a table as well.

    Rows of another sharing mode, or of workloads or GPU models that the instance does not have,
    are left out with a note.
    Entries that the instance already has, with the same numbers, are kept.

    Parameters
    ----------
    instance : Instance
        The instance to extend.
    path : str or path
        A table for `read_pairs`.

    Raises
    ------
    InputError
        With file, line and column of the first value that breaks a rule; when the instance has
        other numbers for the same workloads; when no row belongs to the instance.
    """
    source = source_name(path)
    table = plain_pairs(path)
    models = {place.gpu.model for place in instance.places.values()}
    found, notes = (
        _kept_rows(instance, models, path) if table is None else _kept(instance, models, table)
    )
    if not len(found):
        rule = f"no row is of workloads, GPU models and sharing of instance {instance.name}"
        raise InputError("; ".join([rule, *notes]), "", source)
    added = _unknown(instance, found.numbered(tuple(instance.workloads)), source)
    return ImportedPairs(instance.replace(slowdowns=instance.slowdowns.extended(added)), notes)


def _kept_rows(
    instance: Instance, models: set[str], path: FilePath
) -> tuple[Slowdowns, tuple[str, ...]]:
    """Return the entries of the rows that belong to an instance, and notes."""
    pairs = read_pairs(path)
    measured = [
        found
        for found in pairs.measurements
        if found.gpu_model in models
        and instance.workloads.keys() >= set(found.workloads)
        and found.mode in instance.cluster.modes
    ]
    rows = _TableRows(
        dict.fromkeys(name for found in pairs.measurements for name in found.workloads),
        dict.fromkeys(found.gpu_model for found in pairs.measurements),
        _of_modes(Counter(each.mode for each in pairs.measurements), instance.cluster.modes),
        len(pairs.measurements),
    )
    notes = (*pairs.notes, *_left_out(instance, models, rows, len(measured)))
    return Slowdowns.of(SlowdownEntry.from_data(entry) for entry in entries(measured)), notes


def _kept(
    instance: Instance, models: set[str], table: Slowdowns
) -> tuple[Slowdowns, tuple[str, ...]]:
    """Return the pairs that belong to an instance, and notes."""
    modes = instance.cluster.modes
    of_mode = np.isin(table.mode, [MODES.index(mode) for mode in modes])
    there = [k for k, model in enumerate(table.models) if model in models]
    known = np.array([name in instance.workloads for name in table.names], dtype=bool)
    kept = of_mode & np.isin(table.model, there) & known[table.workload].all(axis=1)
    number = np.bincount(table.mode, minlength=len(MODES)).tolist()
    others = _of_modes(dict(zip(MODES, number, strict=True)), modes)
    rows = _TableRows(table.names, table.models, others, len(table))
    found = table.select(kept)
    return found, tuple(_left_out(instance, models, rows, len(found)))


def _unknown(instance: Instance, found: Slowdowns, source: str) -> Slowdowns:
    """Return the entries that an instance does not have; refuse those that contradict it."""
    if not len(instance.slowdowns):
        return found
    known = instance.slowdowns.numbered(found.names)
    again = np.isin(found.members, known.members)
    by_key = instance.entries
    same = [row for row in np.flatnonzero(again) if _is_known(found.at(int(row)), by_key, source)]
    again[:] = True
    again[same] = False
    sets = [k for k, entry in found.sets.items() if not _is_known(entry, by_key, source)]
    return found.select(again, sets)


def _is_known(entry: SlowdownEntry, known: Mapping[EntryKey, SlowdownEntry], source: str) -> bool:
    """Return whether the instance has the same entry; refuse one that contradicts it."""
    model, members, mode = entry.key
    before = known.get((model, members, mode)) or known.get((None, members, mode))
    if before is None:
        return False
    if _figures(before) != _figures(entry):
        raise InputError(
            f"{' + '.join(entry.workloads)} on {model}: must be as in the instance, "
            f"{_shown(before)}, got {_shown(entry)}: remove one of the two",
            "",
            source,
        )
    return True


def _figures(entry: SlowdownEntry) -> list[tuple[object, ...]] | None:
    """Return the slowdown of each workload at its share, in a canonical order."""
    if entry.slowdown is None:
        return None
    shares = (share_code(share) for share in entry.shares)
    return sorted(zip(entry.workloads, shares, entry.slowdown, strict=True))


def _shown(entry: SlowdownEntry) -> str:
    if entry.slowdown is None:
        return "may not share"
    cells = zip(entry.workloads, entry.slowdown, strict=True)
    return ", ".join(f"{name} {slowdown:.6g}" for name, slowdown in cells)


def _of_modes(number: Mapping[SharingMode, int], modes: Collection[SharingMode]) -> tuple[str, ...]:
    """Return a note on the rows of other modes than these, if there are any."""
    others = ((mode, count) for mode, count in number.items() if count and mode not in modes)
    return tuple(f"{count} of mode {mode} are left out" for mode, count in others)


class _TableRows(NamedTuple):
    """What the rows of a table are of: names in order of first appearance."""

    workloads: Iterable[str]
    devices: Iterable[str]
    other_modes: Sequence[str]
    total: int


def _left_out(instance: Instance, models: set[str], rows: _TableRows, kept: int) -> Iterable[str]:
    """Yield notes on rows that were left out."""
    if kept == rows.total:
        return
    foreign = [name for name in rows.workloads if name not in instance.workloads]
    absent = [model for model in rows.devices if model not in models]
    yield from rows.other_modes
    for names, what in ((foreign, "workloads"), (absent, "GPU models")):
        if names:
            yield f"{what} that the instance does not have: {listed(names)}"
    yield f"{rows.total - kept} of {rows.total} rows are left out"
