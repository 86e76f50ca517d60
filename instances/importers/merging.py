"""Measured pairs added to an instance that exists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dovetail.instances._record import listed
from dovetail.instances.datasets._measured import entries
from dovetail.instances.datasets.files import read_pairs
from dovetail.instances.datasets.records import Measurement
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import FilePath
from dovetail.instances.importers.pairs import ImportedPairs
from dovetail.instances.instance import EntryKey, Instance, SlowdownEntry


def with_pairs(instance: Instance, path: FilePath) -> ImportedPairs:
    """Return an instance with the measured slowdowns of a table as well.

    Rows of workloads or GPU models that the instance does not have are left out, and a note
    says so. What the instance knows already, in the same numbers, stays as it is.

    Parameters
    ----------
    instance : Instance
        Where to add them.
    path : str or path
        A table as `read_pairs` takes it.

    Raises
    ------
    InputError
        With file, line and column of the first value that breaks a rule; when the instance has
        other numbers for the same workloads; when no row is of the instance.
    """
    source = source_name(path)
    pairs = read_pairs(path)
    models = {place.gpu.model for place in instance.places.values()}
    measured = [
        found
        for found in pairs.measurements
        if found.gpu_model in models and instance.workloads.keys() >= set(found.workloads)
    ]
    notes = (*pairs.notes, *_left_out(instance, models, pairs.measurements, len(measured)))
    if not measured:
        rule = f"no row is of workloads and GPU models of instance {instance.name}"
        raise InputError("; ".join([rule, *notes]), "", source)
    found = [SlowdownEntry.from_data(entry) for entry in entries(measured)]
    known = {entry.key: entry for entry in instance.slowdowns}
    added = [entry for entry in found if not _is_known(entry, known, source)]
    return ImportedPairs(instance.replace(slowdowns=(*instance.slowdowns, *added)), notes)


def _is_known(entry: SlowdownEntry, known: Mapping[EntryKey, SlowdownEntry], source: str) -> bool:
    """Tell whether the instance has the same entry; refuse one that contradicts it."""
    model, members = entry.key
    before = known.get((model, members)) or known.get((None, members))
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
    """Return what each workload at its share is slowed, in an order of its own."""
    if entry.slowdown is None:
        return None
    shares = (share or 0 for share in entry.shares)
    return sorted(zip(entry.workloads, shares, entry.slowdown, strict=True))


def _shown(entry: SlowdownEntry) -> str:
    if entry.slowdown is None:
        return "may not share"
    cells = zip(entry.workloads, entry.slowdown, strict=True)
    return ", ".join(f"{name} {slowdown:.6g}" for name, slowdown in cells)


def _left_out(
    instance: Instance, models: set[str], measured: Sequence[Measurement], kept: int
) -> Iterable[str]:
    """Yield what the instance does not have, if rows had to be left out for it."""
    if kept == len(measured):
        return
    workloads = dict.fromkeys(name for found in measured for name in found.workloads)
    foreign = [name for name in workloads if name not in instance.workloads]
    devices = dict.fromkeys(found.gpu_model for found in measured)
    absent = [model for model in devices if model not in models]
    for names, what in ((foreign, "workloads"), (absent, "GPU models")):
        if names:
            yield f"{what} that the instance does not have: {listed(names)}"
    yield f"{len(measured) - kept} of {len(measured)} rows are left out"
