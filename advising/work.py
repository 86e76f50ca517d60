r"""Kinds of work in records, and the range of what each needs: low, likely and high.

The three cases are named by what sharing saves in them. In the case ``low`` a job needs as much as
the records allow, in the case ``high`` as little. Peaks decide memory and, for services, the time
for which a GPU is busy: a mean hides the moments in which two jobs meet.

====================  ======================  =====================  ====================
\                      low                     likely                 high
====================  ======================  =====================  ====================
memory                1.05 x maximum, else    maximum, else 1.05 x   p95, else mean,
                      1.15 x p95, else asked  p95, else asked for,   else maximum, else
                      for, else 1.5 x mean    else 1.25 x mean       asked for
busy, of a job        p95, else maximum,      mean, else p95,        mean, else half of
                      else 2 x mean           else maximum           p95 or maximum
busy, of a service    p95, else maximum,      p95, else maximum,     as for a job
                      else 2 x mean           else 1.5 x mean
====================  ======================  =====================  ====================

Busy is the fraction of time in which a kernel runs (``gpu_util``); SM and DRAM activity follow the
same rules. Of several runs of one kind, the largest peaks count, and the mean over time of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.cards import card_of
from dovetail.advising.usage import Omission, UsageRecords
from dovetail.instances.metrics import Metrics

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

CASES: Final = ("low", "likely", "high")
"""The cases, by what sharing saves in them."""

METRICS: Final = ("gpu_util", "mem_util", "sm_active", "dram_active", "sm_occupancy")
"""The figures of a workload's profile that records hold."""

MOST_KINDS: Final = 1_500
"""Of more kinds of work, those of fewest hours are merged."""

_OTHERS: Final = "others"

_HOUR_S: Final = 3_600.0
_LEAST_S: Final = 1.0
"""How long a job has run at least that the records see start at their end."""


@dataclass(frozen=True, eq=False)
class Work:
    """The jobs of some records, and the kinds of work among them.

    Attributes
    ----------
    kind : (jobs,) int
        The kind of each job.
    begin_s, end_s : (jobs,) float
        When it ran; all equal if the records have no times.
    timed : bool
        Whether the records have times.
    names, users : tuple of str
        Name and owner of each kind; an empty text if the records name no owner.
    models : tuple of str
        Its GPU model; an empty text if unknown.
    gpus : (kinds,) int
        How many GPUs a job of it uses.
    nodes : (kinds,) int
        On how many nodes these are; 0 if unknown.
    card_mib : (kinds,) float
        The memory of its GPUs; NaN if unknown.
    service : (kinds,) bool
        Whether it answers requests.
    runs : (kinds,) int
        How many jobs it has.
    gpu_hours : (kinds,) float
        The GPU hours that its jobs held; 0 without times.
    memory_mib : (3, kinds) float
        What a job needs on each of its GPUs, in each of ``CASES``; NaN if unknown.
    metrics : mapping of str to (3, kinds) float
        The figures of ``METRICS`` in each of the cases; NaN if unknown.
    profiles : mapping of int to Metrics
        The profiles of kernels that are known, by kind.
    """

    kind: Ints
    begin_s: Floats
    end_s: Floats
    timed: bool
    names: tuple[str, ...]
    users: tuple[str, ...]
    models: tuple[str, ...]
    gpus: Ints
    nodes: Ints
    card_mib: Floats
    service: Bools
    runs: Ints
    gpu_hours: Floats
    memory_mib: Floats
    metrics: Mapping[str, Floats]
    profiles: Mapping[int, Metrics]

    @property
    def hours(self) -> float:
        """The hours from the first start to the last end."""
        return float((self.end_s.max() - self.begin_s.min()) / _HOUR_S) if self.timed else 0.0

    @property
    def used(self) -> Bools:
        """Whether it is known for how much of the time each kind uses its GPUs."""
        return np.asarray(
            ~np.isnan(self.metrics["gpu_util"][0]) | ~np.isnan(self.metrics["sm_active"][0])
        )

    @property
    def detailed(self) -> Bools:
        """Whether SM and DRAM activity of each kind are known, not ``gpu_util`` alone."""
        return np.asarray(
            ~np.isnan(self.metrics["sm_active"][0]) & ~np.isnan(self.metrics["dram_active"][0])
        )

    def label(self, kind: int) -> str:
        """Return the name of a kind as a reader meets it: ``USER/NAME``."""
        name = "/".join(filter(None, (self.users[kind], self.names[kind])))
        return "".join(sign if sign.isprintable() else "?" for sign in name)


def work_of(
    usage: UsageRecords, model: str | None = None, cards: Mapping[str, float] | None = None
) -> tuple[Work, tuple[Omission, ...]]:
    """Return the work in records, and the records that say too little.

    Parameters
    ----------
    usage : UsageRecords
        The records.
    model : str, optional
        The GPU model of jobs for which the records name none.
    cards : mapping of str to float, optional
        Memory by GPU model in MiB, for models that ``cards`` does not know.
    """
    jobs, omissions = _that_ran(usage.jobs)
    # Without an end, the records are of one moment.
    timed = bool((jobs["start_s"].notna() & jobs["end_s"].notna()).any())
    if timed:
        jobs, without = _with_times(jobs)
        omissions.append(Omission(without, "jobs", "ran for no time, or their times are unknown"))
    begin = jobs["start_s"].to_numpy() if timed else np.zeros(len(jobs))
    end = jobs["end_s"].to_numpy() if timed else np.full(len(jobs), _HOUR_S)
    jobs = jobs.assign(
        hours=(end - begin) / _HOUR_S,
        gpu_model=_models(jobs["gpu_model"].fillna(model or "").astype(str)),
        user=jobs["user"].fillna(""),
        name=jobs["name"].fillna(jobs["job"]),
        nodes=jobs["node"].map(lambda nodes: 0 if nodes is None else nodes.count(",") + 1),
    )
    keys = ["user", "name", "gpus", "nodes", "gpu_model", "service"]
    jobs, merged = _without_rare(jobs, keys)
    omissions.append(
        Omission(merged, "kinds of work", "have the fewest hours and count as one, called others")
    )
    groups = jobs.groupby(keys, sort=False)
    kind = groups.ngroup().to_numpy(np.int64)
    found = _kinds(groups, cards or {})
    names: Sequence[str] = found["names"]
    profiles = {k: usage.profiles[name] for k, name in enumerate(names) if name in usage.profiles}
    work = Work(kind, begin, end, timed, profiles=profiles, **found)
    return work, tuple(each for each in omissions if each.number)


def _without_rare(jobs: pd.DataFrame, keys: list[str]) -> tuple[pd.DataFrame, int]:
    """Return the jobs with one name and no user for the rarest kinds, and how many these were."""
    hours = jobs.groupby(keys, sort=False)["hours"].transform("sum")
    groups = jobs.groupby(keys, sort=False).ngroup()
    by_kind = hours.groupby(groups).first().sort_values(ascending=False, kind="stable")
    if len(by_kind) <= MOST_KINDS:
        return jobs, 0
    rare = groups.isin(by_kind.index[MOST_KINDS:])
    merged = jobs.assign(
        name=jobs["name"].where(~rare, _OTHERS), user=jobs["user"].where(~rare, "")
    )
    return merged, len(by_kind) - MOST_KINDS


def _models(names: pd.Series[str]) -> pd.Series[str]:
    """Return names spelt as the first that differs from them in upper and lower case only."""
    first: dict[str, str] = {}
    return names.map(lambda name: first.setdefault(name.lower(), name))


def _that_ran(jobs: pd.DataFrame) -> tuple[pd.DataFrame, list[Omission]]:
    """Return the jobs on whole GPUs; if all jobs still wait, as if they ran."""
    waiting = (jobs["state"] == "waiting").to_numpy()
    if waiting.all():
        waiting = np.zeros(len(jobs), np.bool_)
    none = ~(jobs["gpus"] >= 1).to_numpy() & ~waiting
    part = (jobs["fraction"] < 1).to_numpy() & ~waiting & ~none
    omissions = [
        Omission(int(waiting.sum()), "jobs", "still wait"),
        Omission(int(none.sum()), "jobs", "used no GPU"),
        Omission(int(part.sum()), "jobs", "ask for a part of a GPU, and so share already"),
    ]
    return jobs[~waiting & ~none & ~part].reset_index(drop=True), omissions


def _with_times(jobs: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the jobs that ran for some time; running ones end with the records."""
    last = np.nanmax(jobs[["submit_s", "start_s", "end_s"]].to_numpy())
    until = np.maximum(last, jobs["start_s"] + _LEAST_S)
    ends = jobs["end_s"].where(jobs["state"] != "running", jobs["end_s"].fillna(until))
    ran = (ends > jobs["start_s"]).to_numpy()
    return jobs.assign(end_s=ends)[ran].reset_index(drop=True), int((~ran).sum())


def _kinds(groups: Any, cards: Mapping[str, float]) -> dict[str, Any]:  # noqa: ANN401 - pandas
    """Return the fields of ``Work`` that describe kinds."""
    first = groups.first().reset_index()
    largest = groups.max(numeric_only=True).reset_index()
    average = _over_time(groups)
    gpus = first["gpus"].to_numpy(np.float64)
    models = tuple(first["gpu_model"])
    card = groups["card_mib"].min().to_numpy(np.float64).copy()
    for k, model in enumerate(models):
        card[k] = card_of(model, float(card[k]), cards)
    asked = largest["memory_request_mib"].to_numpy(np.float64)
    service = first["service"].to_numpy(np.bool_)
    hours = groups["hours"].sum().to_numpy(np.float64)
    return {
        "names": tuple(first["name"]),
        "users": tuple(first["user"]),
        "models": models,
        "nodes": first["nodes"].to_numpy(np.int64),
        "gpus": np.round(gpus).astype(np.int64),
        "card_mib": card,
        "service": service,
        "runs": groups.size().to_numpy(np.int64),
        "gpu_hours": hours * gpus,
        "memory_mib": _memory(largest, average, asked),
        "metrics": {name: _cases(name, largest, average, service) for name in METRICS},
    }


def _over_time(groups: Any) -> pd.DataFrame:  # noqa: ANN401 - pandas
    """Return the mean of each mean over the time of all runs in which it is known."""
    jobs = groups.obj
    means = [name for name in jobs.columns if name.endswith(("_mean", "_mean_mib"))]
    hours, kinds = jobs["hours"].to_numpy(), groups.ngroup().to_numpy()
    values = jobs[means].to_numpy(np.float64)
    known = ~np.isnan(values)
    weight = np.where(known, hours[:, np.newaxis], 0.0)
    total, time = np.zeros((2, kinds.max() + 1, len(means)))
    np.add.at(total, kinds, np.where(known, values, 0.0) * weight)
    np.add.at(time, kinds, weight)
    import pandas as pd

    with np.errstate(invalid="ignore", divide="ignore"):
        return pd.DataFrame(total / time, columns=means)


def _memory(largest: pd.DataFrame, average: pd.DataFrame, asked: Floats) -> Floats:
    # A process that monitoring did not see used 0.
    largest, average = largest.replace(0.0, np.nan), average.replace(0.0, np.nan)
    peak, p95 = (largest[f"memory_{of}_mib"].to_numpy() for of in ("max", "p95"))
    mean = average["memory_mean_mib"].to_numpy()
    return np.stack(
        [
            _first(1.05 * peak, 1.15 * p95, asked, 1.5 * mean),
            _first(peak, 1.05 * p95, asked, 1.25 * mean),
            _first(p95, mean, peak, asked),
        ]
    )


def _cases(metric: str, largest: pd.DataFrame, average: pd.DataFrame, service: Bools) -> Floats:
    """Return a figure in each case."""
    mean = average[f"{metric}_mean"].to_numpy(np.float64)
    if f"{metric}_p95" not in largest:
        return np.stack([mean] * len(CASES))
    p95, peak = (largest[f"{metric}_{of}"].to_numpy(np.float64) for of in ("p95", "max"))
    low = _first(p95, peak, np.minimum(1, 2 * mean))
    of_job, of_service = _first(mean, p95, peak), _first(p95, peak, np.minimum(1, 1.5 * mean))
    high = _first(mean, 0.5 * p95, 0.5 * peak)
    return np.stack([low, np.where(service, of_service, of_job), high])


def _first(*columns: Floats) -> Floats:
    """Return the first figure of each row that is known."""
    found = columns[0].copy()
    for column in columns[1:]:
        found = np.where(np.isnan(found), column, found)
    return found
