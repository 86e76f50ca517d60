"""The split gate: which shares of a GPU have been measured to compute correctly.

On Hopper many percentages make cuBLAS leave parts of half-precision products unwritten, without an
error (``docs/explanation/splits.md`` has the source). So a share is used only if matrix products
under it were compared with a reference on the same GPU model, driver and cuBLAS version. Passing is
no proof, as not every product fails; one failure is enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from dovetail.instances._record import Count, Name, NonNegative, Record, Share, listed
from dovetail.instances.datasets.records import Date
from dovetail.instances.datasets.repository import REPOSITORY, EvidenceRecord, Repository

WHOLE: Final = 100


def reported_sms(share: int, sms: int) -> int:
    """Return the number of SMs of a share by published measurements, for a GPU with ``sms``.

    The formula fits measurements of an H200 (132 SMs, driver 580.178.04).
    """
    return min(sms, max(8, 2 * (sms * share // (2 * WHOLE))))


def partitioned(gpu_model: str) -> str:
    """Return the name of a GPU model whose SMs MPS divides into static partitions.

    It is another model to everything that is measured: evidence of shares, profiles, slowdowns. A
    share there is a reservation, and what was measured at a limit says nothing about it.
    """
    return f"{gpu_model} (static partitions)"


class SplitKey(NamedTuple):
    """The conditions under which a measurement of a share holds."""

    gpu_model: str
    driver: str
    cublas: str


class Product(Record):
    """A matrix product that was compared with a reference (``products.py``).

    ``kind`` is how it was computed. ``error`` is the largest deviation of an element divided by
    the deviation that rounding may cause, so above 1 the product is wrong; None if an element is
    NaN.
    """

    kind: Name = "nn"
    dtype: Literal["float16", "bfloat16", "float32"]
    m: Count
    n: Count
    k: Count
    error: NonNegative | None

    @property
    def right(self) -> bool:
        """Whether rounding explains the error."""
        return self.error is not None and self.error <= 1


class SplitEvidence(Record):
    """A measurement of a share: the number of SMs that a client saw, and its products."""

    gpu_model: Name
    driver: Name
    cublas: Name
    share: Share
    sms: Count
    products: Annotated[tuple[Product, ...], Field(min_length=1)]
    date: Date

    @property
    def key(self) -> SplitKey:
        """The conditions under which the measurement holds."""
        return SplitKey(self.gpu_model, self.driver, self.cublas)

    @property
    def passed(self) -> bool:
        """Whether every product was right."""
        return all(product.right for product in self.products)


class SmCount(Record):
    """The number of SMs that an MPS client saw under a share, without any computation."""

    gpu_model: Name
    driver: Name
    share: Share
    sms: Count
    date: Date


class Splits(Record):
    """All measurements and counts of shares, oldest first."""

    evidence: tuple[SplitEvidence, ...] = ()
    sms: tuple[SmCount, ...] = ()

    @cached_property
    def _verdicts(self) -> dict[SplitKey, dict[int, bool]]:
        """Whether each share has always passed, by key and share."""
        found: dict[SplitKey, dict[int, bool]] = defaultdict(dict)
        for one in self.evidence:
            shares = found[one.key]
            shares[one.share] = shares.get(one.share, True) and one.passed
        return dict(found)

    def allowed(self, key: SplitKey) -> tuple[int, ...]:
        """Return the shares below 100 that may be used, ascending.

        Shares that give a client equally many SMs are one: of them the one measured first is
        returned, and none if one has failed.
        """
        verdicts = self._verdicts.get(key, {})
        groups = self._alike(key, verdicts)
        right = [alike[0] for alike in groups if all(verdicts[share] for share in alike)]
        return tuple(sorted(share for share in right if share < WHOLE))

    def _alike(self, key: SplitKey, shares: Iterable[int]) -> Iterable[Sequence[int]]:
        """Return shares in groups that give equally many SMs, by what clients last saw."""
        seen = self.seen(key.gpu_model, key.driver)
        groups: dict[int, list[int]] = defaultdict(list)
        for share in shares:
            groups[seen[share]].append(share)
        return groups.values()

    def refused(self, key: SplitKey) -> tuple[int, ...]:
        """Return the shares that have failed, ascending."""
        verdicts = self._verdicts.get(key, {})
        return tuple(sorted(share for share, right in verdicts.items() if not right))

    def libraries(self, gpu_model: str, driver: str) -> tuple[str, ...]:
        """Return the versions of cuBLAS that were measured on a GPU model with a driver."""
        return tuple(sorted(key.cublas for key in self._verdicts if key[:2] == (gpu_model, driver)))

    def allowed_anywhere(self, gpu_model: str, driver: str) -> tuple[int, ...]:
        """Return the shares that may be used with at least one version of cuBLAS, ascending."""
        versions = self.libraries(gpu_model, driver)
        allowed = (self.allowed(SplitKey(gpu_model, driver, version)) for version in versions)
        return tuple(sorted(set().union(*allowed)))

    def why(self, key: SplitKey) -> str:
        """Return a line that says which shares may be used, and why."""
        where = f"{key.gpu_model}, driver {key.driver}, cuBLAS {key.cublas}"
        if key not in self._verdicts:
            return f"no share was measured on {where}: no partitioning"
        allowed, refused = self.allowed(key), self.refused(key)
        right = listed(map(str, allowed), 20) or "none"
        text = f"shares that compute correctly on {where}: {right}"
        return f"{text}; wrong: {listed(map(str, refused), 20)}" if refused else text

    def measured(self, key: SplitKey) -> frozenset[int]:
        """Return the shares that were measured."""
        return frozenset(self._verdicts.get(key, {}))

    def covered(self, key: SplitKey) -> frozenset[int]:
        """Return the measured shares, and those that give the same number of SMs as one."""
        seen, own = self.seen(key.gpu_model, key.driver), self.measured(key)
        counts = {seen[share] for share in own}
        return own | {share for share, sms in seen.items() if sms in counts}

    def seen(self, gpu_model: str, driver: str) -> dict[int, int]:
        """Return the number of SMs that a client last saw, by share."""
        where = (gpu_model, driver)
        measured = {one.share: one.sms for one in self.evidence if one.key[:2] == where}
        counted = [one for one in self.sms if (one.gpu_model, one.driver) == where]
        return measured | {one.share: one.sms for one in counted}


def read_splits(directory: Path) -> Splits:
    """Read the measurements and counts of shares in the repository of a state directory.

    Raises
    ------
    InputError
        If the repository cannot be read or breaks a rule.
    """
    repository = Repository(directory / REPOSITORY)
    if not repository.path.exists():
        return Splits()
    found = repository.evidence("split", "sm-count")
    return Splits(
        evidence=tuple(SplitEvidence.from_data(e.content) for e in found if e.kind == "split"),
        sms=tuple(SmCount.from_data(e.content) for e in found if e.kind == "sm-count"),
    )


def keep_splits(directory: Path, found: SplitEvidence | SmCount) -> None:
    """Add a measurement or a count to the repository of a state directory.

    Raises
    ------
    InputError
        If it cannot be written.
    """
    cublas = found.cublas if isinstance(found, SplitEvidence) else None
    kind = "sm-count" if cublas is None else "split"
    one = EvidenceRecord(kind, found.gpu_model, found.driver, cublas, found.date, found.to_data())
    Repository(directory / REPOSITORY).record([one])
