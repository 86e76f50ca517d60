"""The solo measurements of MISO (SoCC 2022), taken on slices of an A100-40GB.

Source: the repository ``boringlee24/socc22-miso``, gathered in two tables: ``solo_features.csv``
(``mps/configs``: utilisations, power and memory of each configuration alone on the whole GPU) and
``mig_iter_time.csv`` (iteration times alone on each MIG slice).
"""

from __future__ import annotations

from dovetail.instances.datasets.dataset import DataSet
from dovetail.instances.datasets.records import SoloProfile
from dovetail.instances.reading.tables import Row, read_csv, table_of

GPU_MODEL = "A100-40GB"

_WHOLE = (7, 40)
_TYPE = ("model", "batch")
_FEATURES = (*_TYPE, "sm_util_pct", "mem_util_pct", "power_w", "memory_mb")
_TIMES = (*_TYPE, "mig_g", "mig_mem_gb", "iter_s_median")


def miso_data(directory: str) -> DataSet:
    """Return MISO's solo measurements as a data set without pairs.

    A MIG slice is a separate GPU model: ``A100-40GB MIG 2g.10gb``; the slice of all 7 parts is the
    ``A100-40GB``. Throughput = 1 / median iteration time. Utilisations (``nvidia-smi``'s), power
    and memory were measured on the whole GPU and belong to it only; MISO gives means over five
    seconds of training, during which memory did not change, so the mean equals the high-water
    mark. A configuration that was not timed on a slice has no profile there.

    Parameters
    ----------
    directory : str
        Folder with ``solo_features.csv`` and ``mig_iter_time.csv`` (or the same with ``.gz``).

    Raises
    ------
    InputError
        With file, line and column of the first value that breaks a rule.
    """
    features = read_csv(table_of(directory, "solo_features.csv"), _FEATURES)
    measured = {_workload(row): row for row in features}
    times = read_csv(table_of(directory, "mig_iter_time.csv"), _TIMES)
    timed = [_timed(row, measured.get(_workload(row))) for row in times]
    whole = {profile.workload for profile in timed if profile.gpu_model == GPU_MODEL}
    untimed = (row for name, row in measured.items() if name not in whole)
    profiles = [*timed, *(_profile(row, GPU_MODEL, _whole_gpu(row)) for row in untimed)]
    return DataSet(name="miso", profiles=tuple(profiles))


def _workload(row: Row) -> str:
    return f"{row.text('model')} b{row.count('batch')}"


def _slice(row: Row) -> str:
    size = (row.count("mig_g"), row.count("mig_mem_gb"))
    return GPU_MODEL if size == _WHOLE else f"{GPU_MODEL} MIG {size[0]}g.{size[1]}gb"


def _timed(row: Row, features: Row | None) -> SoloProfile:
    gpu_model = _slice(row)
    whole = _whole_gpu(features) if features and gpu_model == GPU_MODEL else {}
    return _profile(row, gpu_model, {**whole, "throughput": 1 / row.positive("iter_s_median")})


def _profile(row: Row, gpu_model: str, figures: dict[str, object]) -> SoloProfile:
    return row.record(
        SoloProfile,
        workload=_workload(row),
        gpu_model=gpu_model,
        family=row.text("model"),
        batch_size=row.count("batch"),
        source="MISO",
        **figures,
    )


def _whole_gpu(row: Row) -> dict[str, object]:
    memory_mib = row.number("memory_mb")
    return {
        "metrics": {
            "gpu_util": row.fraction("sm_util_pct"),
            "mem_util": row.fraction("mem_util_pct"),
        },
        "power_w": row.positive("power_w"),
        "memory_mib": memory_mib,
        "memory_mean_mib": memory_mib,
    }
