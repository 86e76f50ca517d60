"""The features of a workload at a cap: a row of numbers for each state.

A *state* is a workload at a cap. A model of a pair sees two states, the job's own and its
co-runner's, so a round of n workloads at k caps has n * k states however many pairs there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from dovetail.instances._record import listed
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Workload
from dovetail.instances.metrics import METRICS, Metrics
from dovetail.predictors.predictor import UNCAPPED, BoolArray, FloatArray, IntArray

WORKLOAD: Final = "workload"
"""The feature that is a workload's position among the workloads that the model knows by name."""

FAMILY: Final = "family"
"""The feature that is the position of a workload's family among the known families."""

ABSENT: Final = "absent"
"""The feature that is 0, in place of a resource that is left out: ``a|absent``."""

CODES: Final = (WORKLOAD, FAMILY)
"""The features that number workloads instead of describing them."""

_WHOLE: Final = 100
_VARIANCE = ".variance"
_OR = "|"


@dataclass(frozen=True)
class Features:
    """The features of a state, by name.

    Names are those of metrics (``sm_active``; ``sm_active.variance`` for the variance over time),
    those in ``DERIVED``, and ``workload`` and ``family``, which number the workloads and families
    of the training data and are unknown for new ones. At a cap, a metric is taken from
    ``metrics_by_share`` if given there, and from the uncapped run otherwise.

    Parameters
    ----------
    names : tuple of str
        The features, one per column.
    known : tuple of str
        The workloads that ``workload`` numbers, in order.
    families : tuple of str
        The family of each of them.
    """

    names: tuple[str, ...]
    known: tuple[str, ...] = ()
    families: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.families and len(self.families) != len(self.known):
            rule = f"must have one for each of the {len(self.known)} known workloads"
            raise InputError(f"{rule}, got {len(self.families)}", "families")
        for name in self.names:
            if not is_feature(name):
                known = listed((*CODES, *DERIVED, *METRICS), 99)
                raise InputError(f"must be one of {known}, got {name!r}", "features")

    def states(
        self, workloads: Mapping[str, Workload], which: IntArray, caps: IntArray
    ) -> FloatArray:
        """Return one row for each state.

        Parameters
        ----------
        workloads : mapping of str to Workload
            Workloads by name.
        which : ndarray of int, shape (states,)
            The workload of each state, as a position in ``workloads``.
        caps : ndarray of int, shape (states,)
            Its cap in per cent of the SMs, ``UNCAPPED`` for none.

        Returns
        -------
        ndarray of float, shape (states, features)
            NaN for unknown features.
        """
        names = list(workloads)
        rows = [
            self._row(names[w], workloads[names[w]], cap)
            for w, cap in zip(which.tolist(), caps.tolist(), strict=True)
        ]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(self.names))

    def lacks(self, name: str, workload: Workload) -> tuple[str, ...]:
        """Return the needed features that are unknown for the workload without a cap."""
        row = self.states({name: workload}, np.array([0]), np.array([UNCAPPED]))[0]
        return tuple(self.names[k] for k in np.flatnonzero(np.isnan(row) & self._needed))

    def complete(self, states: FloatArray) -> BoolArray:
        """Return which states, shape (states, features), have all needed features."""
        return np.asarray(~np.isnan(states[:, self._needed]).any(axis=1))

    @cached_property
    def _needed(self) -> BoolArray:
        """The features without which there is no answer.

        If there are features that describe a workload, its codes may be unknown, as they are for a
        new one.
        """
        describes = [name not in (*CODES, "share", ABSENT) for name in self.names]
        return np.array([True if not any(describes) else name not in CODES for name in self.names])

    def _row(self, name: str, workload: Workload, cap: int) -> list[float]:
        return [
            self._code(feature, name, workload)
            if feature in CODES
            else _value(feature, workload, cap)
            for feature in self.names
        ]

    def _code(self, feature: str, name: str, workload: Workload) -> float:
        if feature == WORKLOAD:
            return self._numbers.get(name, np.nan)
        family = workload.family or self._family_of.get(name)
        return np.nan if family is None else self._family_numbers.get(family, np.nan)

    @cached_property
    def _numbers(self) -> Mapping[str, float]:
        return {name: float(k) for k, name in enumerate(self.known)}

    @cached_property
    def _family_of(self) -> Mapping[str, str]:
        return dict(zip(self.known, self.families, strict=False))

    @cached_property
    def _family_numbers(self) -> Mapping[str, float]:
        return {family: float(k) for k, family in enumerate(dict.fromkeys(self.families))}


def is_feature(name: str) -> bool:
    """Return whether a feature has this name."""
    return name in CODES or name in DERIVED or name.removesuffix(_VARIANCE) in METRICS


def resolved(
    candidates: Sequence[str], workloads: Mapping[str, Workload], partial: bool = False
) -> tuple[str, ...]:
    """Return the candidates that are known for every workload.

    A candidate ``a|b`` means the one of a and b that is known for more workloads, a in a tie: a
    finer metric or, if a data set lacks it, a coarser one. With ``partial`` every candidate is
    returned, even if it is known for few.
    """
    chosen = []
    for candidate in candidates:
        names = alternatives(candidate)
        known = [_times_known(name, workloads) for name in names]
        if partial or max(known) == len(workloads):
            chosen.append(names[known.index(max(known))])
    return tuple(dict.fromkeys(chosen))


def alternatives(candidate: str) -> list[str]:
    """Return the features that a candidate may mean, the best first."""
    return candidate.split(_OR)


def _times_known(name: str, workloads: Mapping[str, Workload]) -> int:
    if name in CODES:
        return len(workloads)
    features = Features((name,))
    return sum(not features.lacks(key, workload) for key, workload in workloads.items())


def _value(feature: str, workload: Workload, cap: int) -> float:
    if feature in DERIVED:
        return DERIVED[feature](workload, cap)
    if feature.endswith(_VARIANCE):
        return workload.metrics_variance.get(feature.removesuffix(_VARIANCE), np.nan)
    return _metric(feature, workload, cap)


def _metric(name: str, workload: Workload, cap: int) -> float:
    at_cap = workload.metrics_by_share.get(cap)
    for metrics in (at_cap, workload.metrics or Metrics()):
        value: float | None = getattr(metrics, name, None)
        if value is not None:
            return value
    return np.nan


def _share(_: Workload, cap: int) -> float:
    return 1.0 if cap == UNCAPPED else cap / 100


def _log_batch(workload: Workload, _: int) -> float:
    """Return the logarithm to base 2 of the batch size."""
    size = workload.batch.size if workload.batch else workload.batch_size
    return np.nan if size is None else float(np.log2(size))


def _log_throughput(workload: Workload, _: int) -> float:
    return _log_rate(workload, _WHOLE)


def _log_alone(workload: Workload, cap: int) -> float:
    """Return the logarithm of the slowdown alone at the cap, by the solo curve."""
    if cap in (UNCAPPED, _WHOLE):
        return 0.0
    return _log_rate(workload, _WHOLE) - _log_rate(workload, cap)


def _log_rate(workload: Workload, share: int) -> float:
    """Return the logarithm of the throughput at a share, by the solo curve.

    The curve is a line between measured shares on logarithmic axes, continued beyond them with the
    slope of the last two, limited to 0 to 1; at least two shares are needed.
    """
    if len(workload.throughput) < 2 or share in workload.throughput:
        return float(np.log(workload.throughput.get(share, np.nan)))
    shares, rates = (
        np.log(values) for values in zip(*sorted(workload.throughput.items()), strict=True)
    )
    at, slopes = np.log(share), np.clip(np.diff(rates) / np.diff(shares), 0.0, 1.0)
    if at < shares[0]:
        return float(rates[0] - slopes[0] * (shares[0] - at))
    if at > shares[-1]:
        return float(rates[-1] + slopes[-1] * (at - shares[-1]))
    return float(np.interp(at, shares, rates))


def _log_memory(workload: Workload, _: int) -> float:
    """Return the logarithm of the memory; 0 MiB means unknown."""
    return float(np.log(workload.memory_mib)) if workload.memory_mib else np.nan


def _optional(field: str) -> Callable[[Workload, int], float]:
    def value(workload: Workload, _: int) -> float:
        found: float | None = getattr(workload, field)
        return np.nan if found is None else found

    return value


def _alone(workload: Workload, cap: int) -> float:
    """Return the slowdown alone at the cap, as measured."""
    if cap == UNCAPPED:
        return 1.0
    measured = workload.slowdown_alone(cap)
    return np.nan if measured is None else measured


def _absent(_: Workload, __: int) -> float:
    """Return 0."""
    return 0.0


def _rate(workload: Workload, cap: int) -> float:
    """Return the throughput alone at the cap, relative to the whole GPU."""
    return 1 / _alone(workload, cap)


def _throughput(workload: Workload, cap: int) -> float:
    return workload.throughput.get(100 if cap == UNCAPPED else cap, np.nan)


def _sensitivity(workload: Workload, _: int) -> float:
    """Return the slope of throughput over the share, both relative to the whole GPU.

    SM-allocation paper, section 3.1 (throughput sensitivity); a line needs two shares.
    """
    if len(workload.throughput) < 2:
        return np.nan
    shares, rates = (
        np.array(list(values), dtype=float)
        for values in zip(*workload.throughput.items(), strict=True)
    )
    return float(np.polyfit(shares / 100, rates / rates[np.argmax(shares)], 1)[0])


DERIVED: Final[Mapping[str, Callable[[Workload, int], float]]] = {
    "share": _share,
    "alone": _alone,
    ABSENT: _absent,
    "rate": _rate,
    "throughput": _throughput,
    "sensitivity": _sensitivity,
    "log_throughput": _log_throughput,
    "log_memory_mib": _log_memory,
    "log_batch": _log_batch,
    "log_alone": _log_alone,
    "memory_mean_mib": _optional("memory_mean_mib"),
    "power_w": _optional("power_w"),
    "duration_s": _optional("duration_s"),
}
"""Features derived from other fields of a workload, as functions of the workload and the cap."""
