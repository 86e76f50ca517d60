"""The split gate: which shares of a GPU have been shown to compute right.

On Hopper many percentages make cuBLAS leave parts of half-precision products unwritten, without
an error (``docs/explanation/splits.md`` has the source). A share may therefore be used only where
matrix products under it have been compared with a reference on the same GPU model, driver and
cuBLAS version. Passing is no proof, as not every shape of product fails; failing once is enough.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from dovetail.instances._record import Count, Name, NonNegative, Record, Share, listed
from dovetail.instances.datasets import REPOSITORY, Evidence, Repository
from dovetail.instances.datasets.records import Date
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.files import read_data

SPLITS_FORMAT: Final = "dovetail-splits/1"
_KINDS: Final = ("split", "sm-count")
WHOLE: Final = 100
_REPORTED_LEAST: Final = 8


def reported_sms(share: int, sms: int) -> int:
    """Return the SMs of a share that others have seen on an H200, scaled to a GPU with ``sms``.

    It fits what they published for driver 580.178.04 and 132 SMs; what holds here is what a
    client sees.
    """
    return min(sms, max(_REPORTED_LEAST, 2 * (sms * share // (2 * WHOLE))))


class SplitKey(NamedTuple):
    """What decides whether a share computes right."""

    gpu_model: str
    driver: str
    cublas: str


class Product(Record):
    """A matrix product that was compared with a reference (``products.py``).

    ``kind`` is how it was computed. ``error`` is the largest deviation of an element, as a part
    of what rounding alone may cause (1 = as much as it may; above: wrong); None where the result
    had an element that is no number.
    """

    kind: Name = "nn"
    dtype: Literal["float16", "bfloat16", "float32"]
    m: Count
    n: Count
    k: Count
    error: NonNegative | None

    @property
    def right(self) -> bool:
        """Whether rounding explains it."""
        return self.error is not None and self.error <= 1


class SplitEvidence(Record):
    """What was measured of one share: how many SMs a client saw, and what it computed."""

    gpu_model: Name
    driver: Name
    cublas: Name
    share: Share
    sms: Count
    products: Annotated[tuple[Product, ...], Field(min_length=1)]
    date: Date

    @property
    def key(self) -> SplitKey:
        """What it holds for."""
        return SplitKey(self.gpu_model, self.driver, self.cublas)

    @property
    def passed(self) -> bool:
        """Whether every product was right."""
        return all(product.right for product in self.products)


class SmCount(Record):
    """How many SMs a client of MPS saw under a share; it says nothing of what it would compute."""

    gpu_model: Name
    driver: Name
    share: Share
    sms: Count
    date: Date


class Splits(Record):
    """All evidence that was gathered, in the order of time, and the SMs counted without any."""

    format: Literal["dovetail-splits/1"] = SPLITS_FORMAT
    evidence: tuple[SplitEvidence, ...] = ()
    sms: tuple[SmCount, ...] = ()

    @cached_property
    def _verdicts(self) -> dict[SplitKey, dict[int, bool]]:
        """Of each key and share whether it has always passed."""
        found: dict[SplitKey, dict[int, bool]] = defaultdict(dict)
        for one in self.evidence:
            shares = found[one.key]
            shares[one.share] = shares.get(one.share, True) and one.passed
        return dict(found)

    def allowed(self, key: SplitKey) -> tuple[int, ...]:
        """Return the shares below 100 that may be used, ascending; none where nothing is known."""
        verdicts = self._verdicts.get(key, {})
        return tuple(sorted(share for share, right in verdicts.items() if right and share < WHOLE))

    def refused(self, key: SplitKey) -> tuple[int, ...]:
        """Return the shares that have failed, ascending."""
        verdicts = self._verdicts.get(key, {})
        return tuple(sorted(share for share, right in verdicts.items() if not right))

    def libraries(self, gpu_model: str, driver: str) -> tuple[str, ...]:
        """Return the versions of cuBLAS that were measured on a GPU model with a driver."""
        return tuple(sorted(key.cublas for key in self._verdicts if key[:2] == (gpu_model, driver)))

    def allowed_anywhere(self, gpu_model: str, driver: str) -> tuple[int, ...]:
        """Return the shares that may be used with one version of cuBLAS at least."""
        versions = self.libraries(gpu_model, driver)
        allowed = (self.allowed(SplitKey(gpu_model, driver, version)) for version in versions)
        return tuple(sorted(set().union(*allowed)))

    def why(self, key: SplitKey) -> str:
        """Say in one line which shares may be used and why."""
        where = f"{key.gpu_model}, driver {key.driver}, cuBLAS {key.cublas}"
        if key not in self._verdicts:
            return f"no share was measured on {where}: no partitioning"
        allowed, refused = self.allowed(key), self.refused(key)
        told = f"shares that computed right on {where}: {listed(map(str, allowed), 20) or 'none'}"
        return f"{told}; wrong: {listed(map(str, refused), 20)}" if refused else told

    def measured(self, key: SplitKey) -> frozenset[int]:
        """Return the shares of which there is evidence."""
        return frozenset(self._verdicts.get(key, {}))

    def seen(self, gpu_model: str, driver: str) -> dict[int, int]:
        """Return by share the SMs that a client saw, as it was last counted or measured."""
        where = (gpu_model, driver)
        measured = {one.share: one.sms for one in self.evidence if one.key[:2] == where}
        counted = [one for one in self.sms if (one.gpu_model, one.driver) == where]
        return measured | {one.share: one.sms for one in counted}


def read_splits(directory: Path) -> Splits:
    """Read what is known of shares from a state directory; where there is nothing, nothing is.

    It is evidence in the directory's repository. What Dovetail 0.1 has kept in ``splits.json``
    counts, too, as older.

    Raises
    ------
    InputError
        When it cannot be read or breaks a rule.
    """
    old, repository = directory / "splits.json", Repository(directory / REPOSITORY)
    known = _old_splits(old) if old.exists() else Splits()
    if not repository.path.exists():
        return known
    found = repository.evidence(*_KINDS)
    splits = [SplitEvidence.from_data(one.content) for one in found if one.kind == "split"]
    counts = [SmCount.from_data(one.content) for one in found if one.kind == "sm-count"]
    return Splits(evidence=(*known.evidence, *splits), sms=(*known.sms, *counts))


def keep_splits(directory: Path, found: SplitEvidence | SmCount) -> None:
    """Add what was found of a share to the repository of a state directory.

    Raises
    ------
    InputError
        When it cannot be written.
    """
    cublas = found.cublas if isinstance(found, SplitEvidence) else None
    kind = "sm-count" if cublas is None else "split"
    one = Evidence(kind, found.gpu_model, found.driver, cublas, found.date, found.to_data())
    Repository(directory / REPOSITORY).record([one])


def _old_splits(path: Path) -> Splits:
    data = read_data(path)
    if not isinstance(data, dict) or data.get("format") != SPLITS_FORMAT:
        raise InputError(f"must be a file of the format {SPLITS_FORMAT}", "", source_name(path))
    return Splits.from_data(data, source_name(path))
