"""What is known of SM shares: the split gate's evidence, and the SMs that clients have seen."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dovetail.executor.doctor.finding import Seen, lacking
from dovetail.executor.gpus.splits import (
    WHOLE,
    SplitKey,
    Splits,
    read_splits,
    reported_sms,
)
from dovetail.instances.datasets import REPOSITORY
from dovetail.instances.errors import DovetailError


class ShareRow(NamedTuple):
    """What is known of one share of a GPU model under a driver.

    Attributes
    ----------
    share : int
        In per cent.
    sms : int
        That a client saw.
    reported_sms : int or None
        What others' measurements on an H200 give, scaled; None where the whole is not known.
    right, wrong : int
        Products that were compared, over all measurements; 0 and 0 where SMs were counted only.
    worst : float or None
        The largest error of a product, as a part of what rounding may cause; None where none was
        compared, or one was no number.
    cublas, date : str
        Whose products, and when they were last compared; empty where none were.
    allowed : bool
        Whether a job may get it.
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


def evidence_in(directory: Path) -> tuple[Splits, Seen | None]:
    """Read what is known; of a file that cannot be read it is told why, and nothing is known."""
    path = directory / REPOSITORY
    try:
        if path.exists() and not os.access(path, os.R_OK):
            raise PermissionError
        return read_splits(directory), None
    except PermissionError:
        told, remedy = f"{path} may not be read", "run dovetail doctor as the service's user"
    except DovetailError as error:
        told = str(error)
        remedy = "nothing is partitioned; move the file away and run dovetail doctor --splits"
    return Splits(), lacking(told, remedy)


def allowed(splits: Splits, models: Iterable[str], driver: str) -> Iterator[Seen]:
    """Say which shares may be used on GPU models."""
    for model in models:
        libraries = splits.libraries(model, driver)
        if not libraries:
            told = f"not measured on {model}, driver {driver}"
            yield lacking(told, "dovetail doctor --splits --python FILE")
        for key in (SplitKey(model, driver, library) for library in libraries):
            if splits.allowed(key):
                yield Seen(splits.why(key))
            else:
                remedy = "no share is used: jobs share this GPU without caps"
                yield lacking(splits.why(key), remedy)


def share_table(splits: Splits, gpu_model: str, driver: str, sms: int | None) -> ShareTable:
    """Return what is known share by share, each library's evidence in a row of its own.

    Parameters
    ----------
    splits : Splits
        The evidence.
    gpu_model, driver : str
        Of which GPUs.
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
