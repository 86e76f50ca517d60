"""Tables of SM shares from the split gate's measurements and counts of SMs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dovetail.executor.doctor.commands import moved_away
from dovetail.executor.doctor.finding import (
    Finding,
    lacking,
    measuring_shares,
    note,
    shares_are_measured,
)
from dovetail.executor.gpus.python_libraries import Libraries, NoPythonError
from dovetail.executor.gpus.splits import (
    WHOLE,
    SplitKey,
    Splits,
    read_splits,
    reported_sms,
)
from dovetail.instances.datasets.repository import REPOSITORY
from dovetail.instances.errors import DovetailError


class ShareRow(NamedTuple):
    """One share of a GPU model under a driver.

    Attributes
    ----------
    share : int
        The share in per cent.
    sms : int
        SMs that a client saw.
    reported_sms : int or None
        SMs expected from published measurements of an H200, scaled; None if unknown.
    right, wrong : int
        Numbers of compared products over all measurements; both 0 if SMs were only counted.
    worst : float or None
        Largest error of a product divided by the error that rounding may cause; None without
        products, or if one was NaN.
    cublas, date : str
        Version of cuBLAS, and date of the last measurement; empty without products.
    allowed : bool
        Whether jobs may use it.
    """

    share: int
    sms: int
    reported_sms: int | None
    right: int = 0
    wrong: int = 0
    worst: float | None = None
    cublas: str = ""
    date: str = ""
    allowed: bool = False


class ShareTable(NamedTuple):
    """The shares of a GPU model under a driver, ascending."""

    gpu_model: str
    driver: str
    rows: tuple[ShareRow, ...]


def evidence_in(directory: Path) -> tuple[Splits, Finding | None]:
    """Return the measurements in a state directory, or none and why they cannot be read."""
    path = directory / REPOSITORY
    try:
        if path.exists() and not os.access(path, os.R_OK):
            raise PermissionError
        return read_splits(directory), None
    except PermissionError:
        text, remedy = f"{path} may not be read", "run dovetail doctor as the service's user"
    except DovetailError as error:
        text = str(error)
        again = f"move the file away, then: {measuring_shares()}"
        remedy = f"nothing is partitioned; {again}"
        return Splits(), lacking(text, remedy, moved_away(path))
    return Splits(), lacking(text, remedy)


def allowed(
    splits: Splits, models: Iterable[str], driver: str, measure: tuple[str, ...]
) -> Iterator[Finding]:
    """Report which shares may be used on GPU models; ``measure`` are commands that measure."""
    for model in models:
        libraries = splits.libraries(model, driver)
        if not libraries:
            text = f"not measured on {model}, driver {driver}"
            remedy = measuring_shares("--python FILE")
            if shares_are_measured():
                remedy = f"dovetail serve does so on an idle GPU; or now: {remedy}"
            yield lacking(text, remedy, *measure)
        for key in (SplitKey(model, driver, library) for library in libraries):
            if splits.allowed(key):
                yield Finding(splits.why(key))
            else:
                remedy = "no share is used: jobs share this GPU without caps"
                yield lacking(splits.why(key), remedy)


def python(path: str, found: Libraries | NoPythonError) -> Finding | None:
    """Report a Python with which no share can be measured, by the service or the doctor."""
    if isinstance(found, NoPythonError):
        lacks = str(found)
    elif found.cuda is None:
        lacks = f"{path} has no PyTorch for CUDA"
    else:
        return None
    remedy = "name the Python of the jobs: dovetail serve --python FILE, doctor --python FILE"
    return note(f"no share can be measured: {lacks}", remedy)


def share_table(splits: Splits, gpu_model: str, driver: str, sms: int | None) -> ShareTable:
    """Return the table of a GPU model's shares, with a row per share and version of cuBLAS.

    Parameters
    ----------
    splits : Splits
        The measurements.
    gpu_model, driver : str
        The GPU model and the driver.
    sms : int or None
        SMs of the whole GPU.
    """
    seen = splits.seen(gpu_model, driver)
    whole = sms or seen.get(WHOLE)
    reported = {share: None if whole is None else reported_sms(share, whole) for share in seen}
    keys = (SplitKey(gpu_model, driver, one) for one in splits.libraries(gpu_model, driver))
    measured = [
        _row(splits, key, share, reported[share]) for key in keys for share in splits.measured(key)
    ]
    known = {row.share for row in measured}
    counted = [ShareRow(p, seen[p], reported[p]) for p in seen if p not in known]
    rows = sorted([*measured, *counted], key=lambda row: (row.share, row.cublas))
    return ShareTable(gpu_model, driver, tuple(rows))


def _row(splits: Splits, key: SplitKey, share: int, reported: int | None) -> ShareRow:
    found = [one for one in splits.evidence if one.key == key and one.share == share]
    products = [product for one in found for product in one.products]
    errors = [product.error for product in products if product.error is not None]
    right = sum(product.right for product in products)
    return ShareRow(
        share,
        found[-1].sms,
        reported,
        right,
        len(products) - right,
        max(errors) if len(errors) == len(products) else None,
        key.cublas,
        str(found[-1].date),
        share in splits.allowed(key),
    )
