"""What records tell of jobs on GPUs: the one form in which all readers return it.

A row of ``UsageRecords.jobs`` is a run of a job, or a GPU whose use was recorded if the records do
not say which job ran on it. Readers give what the records hold and derive nothing: a maximum is
never given as a mean, and what is not recorded stays empty. Files about the same jobs, such as a
list of pods and a series of their utilisation, are joined by the name of the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from dovetail.instances.errors import InputError
from dovetail.instances.metrics import Metrics

if TYPE_CHECKING:
    import pandas as pd

WORDS: Final = (
    *("job", "user", "name", "gpu_model", "node", "state", "reason", "placement", "sharing"),
)
"""Columns of texts, which may be missing (``None``) in all rows but ``job`` and ``state``.

- ``job``: the id, different in every row of a file.
- ``user``: the owner.
- ``name``: the kind of work. Jobs with the same user, name and GPUs count as one workload.
- ``gpu_model``: as the records write it.
- ``node``: the nodes of its GPUs, joined by commas.
- ``state``: one of ``STATES``.
- ``reason``: why it waits, in the scheduler's words.
- ``placement``: each of its GPUs as ``NODE/GPU``, joined by commas; only ``NODE/`` if the records
  do not say which GPU of the node it is.
- ``sharing``: the only way in which it shares a GPU, as in an instance.
"""

STATES: Final = ("waiting", "running", "ended")
"""Running and waiting are meant at the end of the records."""

NUMBERS: Final = (
    *("gpus", "fraction", "sm_share", "workers_per_node", "workers_together"),
    *("card_mib", "submit_s", "start_s", "end_s", "samples"),
    *("memory_request_mib", "memory_mean_mib", "memory_p95_mib", "memory_max_mib"),
    *(f"{metric}_{of}" for metric in ("gpu_util", "mem_util") for of in ("mean", "p95", "max")),
    *(f"{metric}_{of}" for metric in ("sm_active", "dram_active") for of in ("mean", "p95", "max")),
    *("sm_occupancy_mean", "pcie_rx_bytes_s_mean", "power_w_mean"),
)
"""Columns of numbers, NaN if unknown.

- ``gpus``: how many GPUs the job has a part of; ``fraction``: the part of each that it asked for,
  in (0, 1], unknown for whole GPUs; ``sm_share``: the part of the SMs of each, if it asked for one.
- ``workers_per_node``, ``workers_together``: as in an instance.
- ``card_mib``: the memory of one of its GPUs.
- ``submit_s``, ``start_s``, ``end_s``: seconds since 1970 in UTC, or since any moment that all
  rows share; a running job has no ``end_s``.
- ``samples``: from how many samples the figures below are.
- ``memory_*_mib``: memory on its fullest GPU: asked for, and used on average, in 95 % of the
  samples, and at most. Utilisations and activities are fractions, averaged over its GPUs at each
  moment; ``mean``, ``p95`` and ``max`` are over time. Power is of one GPU.
"""

_FIGURES: Final = tuple(
    name for name in NUMBERS if name.endswith(("_mean", "_p95", "_max", "_mean_mib", "_max_mib"))
)
_SEVERAL: Final = (
    "{} jobs have the same figure in several files, of which the first counts: write the parts of"
    " a series into one file."
)

FLAGS: Final = ("service",)
"""Columns of truth values: ``service``, whether the job answers requests."""

COLUMNS: Final = (*WORDS, *NUMBERS, *FLAGS)

NODE_COLUMNS: Final = ("node", "gpu_model", "gpus", "card_mib", "rack", "closed", "sharing")
"""Columns of ``UsageRecords.nodes``, a row for the GPUs of one model on a node. ``closed`` is a
truth value: no job may start there. ``sharing`` is how jobs share these GPUs, as in an instance."""


class Omission(NamedTuple):
    """Records that are not used.

    Attributes
    ----------
    number : int
        How many.
    what : str
        What they are, in the plural: ``jobs``.
    why : str
        Why they are not used, as the end of a sentence: ``used no GPU``.
    """

    number: int
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what} ({self.number:,}): {self.why}"


@dataclass(frozen=True)
class UsageRecords:
    """What files record of jobs on GPUs.

    Attributes
    ----------
    jobs : pandas.DataFrame
        One row for each run, with the columns of ``COLUMNS``.
    nodes : pandas.DataFrame
        The nodes with GPUs, with ``NODE_COLUMNS``; empty if the files do not list them.
    profiles : mapping of str to Metrics
        Profiles of kernels by the job's ``name``. A file of kernels has a row whose ``job`` and
        ``name`` are this name; it is left out where other files have jobs of the name.
    left_out : tuple of Omission
        The records that are not used.
    notes : tuple of str
        What a reader of the answer must know of the records, one sentence each.
    """

    jobs: pd.DataFrame
    nodes: pd.DataFrame
    profiles: Mapping[str, Metrics] = field(default_factory=lambda: MappingProxyType({}))
    left_out: tuple[Omission, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        jobs: pd.DataFrame | None = None,
        nodes: pd.DataFrame | None = None,
        profiles: Mapping[str, Metrics] | None = None,
        left_out: Sequence[Omission] = (),
        notes: Sequence[str] = (),
    ) -> UsageRecords:
        """Return usage from frames that have some of the columns; the others stay empty.

        ``job`` is required; a missing ``state`` is ``ended``, a missing ``gpus`` 1.

        Raises
        ------
        ValueError
            If a column is unknown or a job has no id: a mistake of the reader.
        """
        return cls(
            _with_columns(jobs, COLUMNS),
            _with_columns(nodes, NODE_COLUMNS),
            MappingProxyType(dict(profiles or {})),
            tuple(each for each in left_out if each.number),
            tuple(notes),
        )


def _with_columns(frame: pd.DataFrame | None, columns: Sequence[str]) -> pd.DataFrame:
    """Return a frame with all columns in order, each of its kind."""
    import pandas as pd

    given = pd.DataFrame() if frame is None else frame
    unknown = [name for name in given.columns if name not in columns]
    if unknown:
        raise ValueError(f"unknown columns: {', '.join(unknown)}")
    made = {}
    for name in columns:
        column = given[name] if name in given.columns else None
        if name in FLAGS or name == "closed":
            made[name] = np.zeros(len(given), bool) if column is None else column.to_numpy(bool)
        elif name in WORDS or name == "rack":
            none = "ended" if name == "state" else None
            texts = [none] * len(given) if column is None else _texts(column, none)
            made[name] = pd.Series(texts, dtype=object)
        else:
            usual = 1.0 if name == "gpus" else np.nan
            made[name] = (
                np.full(len(given), usual) if column is None else column.to_numpy(np.float64)
            )
    if "job" in columns and any(job is None for job in made["job"]):
        raise ValueError("a job has no id")
    return pd.DataFrame(made, columns=list(columns))


def _texts(column: pd.Series[Any], none: str | None) -> list[str | None]:
    """Return the values of a column as texts, or what stands for a missing one."""
    missing = column.isna().tolist()
    return [none if no else str(text) for text, no in zip(column, missing, strict=True)]


def joined(parts: Sequence[UsageRecords]) -> UsageRecords:
    """Return the usage of several files as one.

    Rows of different files with the same job are one: each column is taken from the first file that
    knows it, files without samples first, since a scheduler knows more of a job than its samples.
    """
    import pandas as pd

    if len(parts) == 1:
        return parts[0]
    parts = sorted(parts, key=lambda part: bool(part.jobs["samples"].notna().any()))
    jobs = pd.concat([part.jobs for part in parts], ignore_index=True)
    notes = list(dict.fromkeys(note for part in parts for note in part.notes))
    if jobs["job"].duplicated().any():
        several = int(
            jobs[list(_FIGURES)].notna().groupby(jobs["job"]).sum().gt(1).any(axis=1).sum()
        )
        notes += [_SEVERAL.format(several)] if several else []
        jobs = _one_row_each(jobs)
    profiles = {name: each for part in parts for name, each in part.profiles.items()}
    return UsageRecords(
        _without_profiled(jobs, profiles),
        pd.concat([part.nodes for part in parts], ignore_index=True),
        MappingProxyType(profiles),
        tuple(each for part in parts for each in part.left_out),
        tuple(notes),
    )


def _without_profiled(jobs: pd.DataFrame, profiles: Mapping[str, Metrics]) -> pd.DataFrame:
    """Leave out rows that stand for a profile alone, if other jobs have its name."""
    alone = jobs["job"].isin(profiles) & jobs["job"].eq(jobs["name"])
    others = set(jobs["name"][~alone])
    return jobs[~(alone & jobs["name"].isin(others))].reset_index(drop=True)


def _one_row_each(jobs: pd.DataFrame) -> pd.DataFrame:
    """Join the rows of each job: the first value that is known, and any flag that is set."""
    by_job = jobs.groupby("job", sort=False)
    found = by_job.first()
    for name in FLAGS:
        found[name] = by_job[name].any()
    return found.reset_index()[list(COLUMNS)]


def require_jobs(jobs: int, left_out: Sequence[Omission], source: str) -> None:
    """Refuse records without a job on a GPU.

    Raises
    ------
    InputError
        With what was left out.
    """
    if not jobs:
        out = "".join(f" ({each})" for each in left_out)
        raise InputError(f"must tell of jobs on GPUs, got none{out}", "", source)
