"""How long an iteration takes and how much memory it needs, by batch size.

Castor (Luo et al., 2025), section 3.1: computing a batch of b samples takes ``alpha + beta * b``
seconds (eq. 1); workers then exchange gradients, which takes a time that does not depend on b
(eq. 2, the message is as large as the model); and of ``s`` accumulated sub-batches the last one
overlaps with the exchange (eq. 3)::

    t = (s - 1) * t_comp(b / s) + (t_comp(b / s)^delta + t_comm^delta)^(1 / delta)

Profiles are taken without accumulation, s = 1. The paper does not say how it fits the parameters,
or whether delta may vary with the batch size; here one delta holds for all batch sizes, as in
``instance.Batch``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import least_squares, linprog, nnls

from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import SoloProfile
from dovetail.instances.errors import InputError
from dovetail.instances.instance import Batch, Instance, StepTime
from dovetail.predictors.predictor import FloatArray

_MOST_OVERLAP: Final = 100.0
_STARTS: Final = ((0.1, 1.5), (0.5, 1.5), (0.5, 4.0))
"""Communication as a part of the longest iteration, and delta: the fit is not convex."""


class BatchFit(NamedTuple):
    """A fitted batch model and its errors.

    Attributes
    ----------
    batch : Batch
        The model; its size is the largest batch measured, its ``min`` the smallest.
    time_error : ndarray of float, shape (timed profiles,)
        Fitted over measured iteration time, minus 1, in the order of the profiles.
    memory_error_mib : ndarray of float, shape (profiles with a mark,)
        Fitted minus measured memory, never below 0.
    """

    batch: Batch
    time_error: FloatArray
    memory_error_mib: FloatArray


def fit_batch(profiles: Sequence[SoloProfile]) -> BatchFit:
    """Fit the iteration time and the memory of a workload from profiles at several batch sizes.

    ``batch_size`` is the batch size of one worker, ``throughput`` is in iterations/s. The sum of
    squared relative errors is minimised. alpha and beta, both at least 0, come from the profiles
    of one worker. ``comm_s`` and ``overlap`` come from profiles of several workers, regardless of
    their number; if these have one batch size only, overlap is 1 (none), and without any,
    ``comm_s`` is 0 as well. The memory line lies above every mark, with the least total distance;
    with marks at one batch size only it is level, so that smaller batches promise no saving.

    Parameters
    ----------
    profiles : sequence of SoloProfile
        Profiles of one workload on the whole of one GPU model.

    Raises
    ------
    InputError
        When the profiles are of different workloads or GPU models, are capped, or lack a batch
        size; when fewer than two batch sizes of one worker were timed; when no profile has a
        memory mark.
    """
    _check(profiles)
    timed = np.array(
        [(p.batch_size, p.workers, 1 / p.throughput) for p in profiles if p.throughput]
    ).reshape(-1, 3)
    alone, gangs = timed[timed[:, 1] == 1], timed[timed[:, 1] > 1]
    marks = np.array(
        [(p.batch_size, p.memory_mib) for p in profiles if p.memory_mib is not None]
    ).reshape(-1, 2)
    if len(np.unique(alone[:, 0])) < 2:
        raise InputError("must have two timed batch sizes of one worker", "profiles")
    if not len(marks):
        raise InputError("must have a mark of memory", "profiles")
    fixed, per_sample = _step(alone)
    comm_s, overlap = _exchange(gangs, fixed + per_sample * gangs[:, 0])
    fixed_mib, mib_per_sample = _memory(marks)
    compute = fixed + per_sample * timed[:, 0]
    fitted = np.where(timed[:, 1] == 1, compute, _gang_s(compute, comm_s, overlap))
    batches = [profile.batch_size or 1 for profile in profiles]
    return BatchFit(
        Batch(
            size=max(batches),
            min=min(batches),
            fixed_mib=fixed_mib,
            mib_per_sample=mib_per_sample,
            step_s=StepTime(fixed=fixed, per_sample=per_sample),
            comm_s=comm_s,
            overlap=overlap,
        ),
        time_error=fitted / timed[:, 2] - 1,
        memory_error_mib=fixed_mib + mib_per_sample * marks[:, 0] - marks[:, 1],
    )


def with_sub_batches(instance: Instance, data: DataSet, gpu_model: str) -> Instance:
    """Return the instance with ``batch`` for the workloads with enough profiles in a data set.

    One worker must have been timed at two or more batch sizes, and memory must have been measured;
    jobs of these workloads may then start at a sub-batch. The others stay as they are.

    Parameters
    ----------
    instance : Instance
        The problem.
    data : DataSet
        The newest profiles are used; their throughput must be in iterations/s.
    gpu_model : str
        Take the profiles of this GPU model, uncapped ones only.
    """
    profiled: dict[str, list[SoloProfile]] = {}
    for key, profile in data.newest.items():
        if key.gpu_model == gpu_model and key.batch_size and key.share in (None, 100):
            profiled.setdefault(key.workload, []).append(profile)
    workloads = {
        name: workload.replace(batch=fit_batch(profiled[name]).batch)
        if _enough(profiled.get(name, ()))
        else workload
        for name, workload in instance.workloads.items()
    }
    return instance.replace(workloads=workloads)


def _enough(profiles: Sequence[SoloProfile]) -> bool:
    timed = {p.batch_size for p in profiles if p.throughput and p.workers == 1}
    return len(timed) > 1 and any(p.memory_mib is not None for p in profiles)


def _check(profiles: Sequence[SoloProfile]) -> None:
    for k, profile in enumerate(profiles):
        for name in ("workload", "gpu_model"):
            if getattr(profile, name) != getattr(profiles[0], name):
                first = getattr(profiles[0], name)
                rule = f"must be as in the first profile, {first!r}"
                raise InputError(f"{rule}, got {getattr(profile, name)!r}", f"profiles[{k}].{name}")
        if profile.batch_size is None:
            raise InputError("this field is required", f"profiles[{k}].batch_size")
        if profile.share not in (None, 100):
            rule = f"must be of the whole GPU, got {profile.share}"
            raise InputError(rule, f"profiles[{k}].share")


def _step(alone: FloatArray) -> tuple[float, float]:
    """Return alpha and beta (eq. 1) by non-negative least squares of relative errors."""
    batch, seconds = alone[:, 0], alone[:, 2]
    columns = np.stack([np.ones_like(batch), batch], axis=1) / seconds[:, np.newaxis]
    (fixed, per_sample), _ = nnls(columns, np.ones_like(seconds))
    return float(fixed), float(per_sample)


def _exchange(gangs: FloatArray, compute: FloatArray) -> tuple[float, float]:
    """Return the seconds of communication and delta, by bounded least squares."""
    seconds = gangs[:, 2]
    if not len(gangs):
        return 0.0, 1.0
    if len(np.unique(gangs[:, 0])) < 2:
        return float(np.maximum(0.0, seconds - compute).mean()), 1.0

    def errors(x: FloatArray) -> FloatArray:
        return _gang_s(compute, x[0] * seconds.max(), x[1]) / seconds - 1

    bounds = ([0.0, 1.0], [1.0, _MOST_OVERLAP])
    tries = (least_squares(errors, start, bounds=bounds) for start in _STARTS)
    part, overlap = min(tries, key=lambda found: float(found.cost)).x
    return float(part * seconds.max()), float(overlap)


def _gang_s(compute: FloatArray, comm_s: float, overlap: float) -> FloatArray:
    """Return eq. 3 for s = 1; the longer part is factored out, as a power could overflow."""
    longer, shorter = np.maximum(compute, comm_s), np.minimum(compute, comm_s)
    seconds: FloatArray = longer * (1 + (shorter / longer) ** overlap) ** (1 / overlap)
    return seconds


def _memory(marks: FloatArray) -> tuple[float, float]:
    """Return the line above all marks with the least total distance to them."""
    batch, mib = marks[:, 0], marks[:, 1]
    if len(np.unique(batch)) < 2:
        return float(mib.max()), 0.0
    scale = mib.max() or 1.0
    columns = np.stack([np.ones_like(batch), batch / batch.max()], axis=1)
    found = linprog(columns.sum(axis=0), A_ub=-columns, b_ub=-mib / scale)
    fixed, slope = np.asarray(found.x) * scale
    per_sample = float(slope / batch.max())
    short = float(np.max(mib - (fixed + per_sample * batch)))
    raised = fixed + max(0.0, short)
    return float(np.nextafter(raised, np.inf) if raised else raised), per_sample
