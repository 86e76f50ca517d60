"""``dovetail dataset pairs``: the workloads that were measured together."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from dovetail.instances.errors import InputError
from dovetail.toolkit.commands import DATA, Command, option
from dovetail.toolkit.files import print_either
from dovetail.toolkit.tables import TableColumn, table
from dovetail.toolkit.wording import share_text, two_digits

PAIRS: Final = Command(
    "pairs",
    "List the workloads that were measured together.",
    "dovetail.data.dataset_pairs:pairs",
    (DATA, option("--workload NAME", "only pairs and sets with this workload")),
)


if TYPE_CHECKING:
    from rich.console import RenderableType

    from dovetail.instances._record import AnyShare
    from dovetail.instances.datasets.dataset import DataSet
    from dovetail.instances.datasets.records import Measurement
    from dovetail.instances.slowdowns.entry import SharingMode

    _Key = tuple[str, SharingMode, tuple[str, ...], tuple[int, ...]]


class Together(NamedTuple):
    """Workloads on one GPU, measured together once or several times.

    Attributes
    ----------
    gpu_model : str
        Model of the GPU.
    mode : {"mps", "time_sliced"}
        How they shared it.
    workloads, shares : tuple
        The workloads in the order of their names, and the cap of each.
    slowdown : tuple of float, or None
        The mean slowdown of each; None if they never ran together.
    at_least : tuple of float or None, or None
        If they never ran together: the largest known lower bound of each slowdown, if any.
    times, failed : int
        How often they were measured, and how often they failed to run together.
    last : str or None
        The date of the last measurement.
    """

    gpu_model: str
    mode: SharingMode
    workloads: tuple[str, ...]
    shares: tuple[AnyShare, ...]
    slowdown: tuple[float, ...] | None
    at_least: tuple[float | None, ...] | None
    times: int
    failed: int
    last: str | None


def pairs(options: Namespace) -> int:
    """List the workloads measured together, or only those with one workload."""
    from dovetail.instances.datasets.files import read_dataset

    data = read_dataset(options.data)
    found = together(data.measurements)
    if options.workload is not None:
        _require_known(data, options.workload)
        found = [one for one in found if options.workload in one.workloads]
    print_either(options, [one._asdict() for one in found], lambda: _view(found))
    return 0


def together(measurements: Iterable[Measurement]) -> list[Together]:
    """Return the measurements, with repeats merged, in the order of GPU models and names."""
    ordered = sorted((_seated(one) for one in measurements), key=lambda one: one[0])
    return [
        _summed(key, [(order, one) for _, order, one in repeats])
        for key, repeats in groupby(ordered, key=lambda one: one[0])
    ]


def _seated(one: Measurement) -> tuple[_Key, tuple[int, ...], Measurement]:
    """Return a measurement with its key, and the positions of its workloads in that order."""
    from dovetail.instances.slowdowns.shares import share_code

    seats = [
        (name, share_code(share)) for name, share in zip(one.workloads, one.shares, strict=True)
    ]
    order = tuple(sorted(range(len(seats)), key=lambda k: seats[k]))
    names, shares = zip(*(seats[k] for k in order), strict=True)
    return (one.gpu_model, one.mode, names, shares), order, one


def _summed(key: _Key, repeats: Sequence[tuple[tuple[int, ...], Measurement]]) -> Together:
    from statistics import fmean

    from dovetail.instances.slowdowns.shares import share_of

    ran = [[one.slowdown[k] for k in order] for order, one in repeats if one.slowdown is not None]
    least = [[one.at_least[k] for k in order] for order, one in repeats if one.at_least]
    dates = [one.date for _, one in repeats if one.date is not None]
    return Together(
        gpu_model=key[0],
        mode=key[1],
        workloads=key[2],
        shares=tuple(map(share_of, key[3])),
        slowdown=tuple(map(fmean, zip(*ran, strict=True))) if ran else None,
        at_least=tuple(map(_largest, zip(*least, strict=True))) if least and not ran else None,
        times=len(repeats),
        failed=len(repeats) - len(ran),
        last=max(dates, default=None),
    )


def _largest(bounds: Iterable[float | None]) -> float | None:
    return max((bound for bound in bounds if bound is not None), default=None)


def _require_known(data: DataSet, workload: str) -> None:
    from dovetail.instances._record import listed, shown

    if workload not in data.families:
        rule = f"must be one of {listed(sorted(data.families))}, got {shown(workload)}"
        raise InputError(rule, "--workload")


def _view(found: Sequence[Together]) -> RenderableType:
    """Return a table with a row for each workload, and a line below those measured together."""
    if not found:
        return "nothing was measured together"
    rows = [row for one in found for row in _rows(one)]
    ends = {*accumulate(len(one.workloads) for one in found)}
    columns = (
        TableColumn("GPU model", folds=True),
        TableColumn("workload", folds=True),
        *("SM share", "slowdown"),
        TableColumn("measured"),
    )
    return table(columns, rows, names=2, ends={each - 1 for each in ends})


def _rows(one: Together) -> Iterator[tuple[str, ...]]:
    for k, (name, share) in enumerate(zip(one.workloads, one.shares, strict=True)):
        often = (_often(one), one.last[:10] if one.last else "")[k] if k < 2 else ""
        where = (one.gpu_model, "" if one.mode == "mps" else one.mode)[k] if k < 2 else ""
        yield where, name, share_text(share), _slowdown(one, k), often


def _slowdown(one: Together, k: int) -> str:
    if one.slowdown is not None:
        return two_digits(one.slowdown[k])
    least = one.at_least[k] if one.at_least else None
    return "failed" if least is None else f">= {two_digits(least)}"


def _often(one: Together) -> str:
    times = "once" if one.times == 1 else f"{one.times} times"
    return f"{times}, {one.failed} failed" if one.failed and one.slowdown else times
