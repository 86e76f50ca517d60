"""Lists of jobs that Alibaba has published: cluster-trace-gpu-v2020 and -v2023.

Source: the READMEs of these folders in the repository ``alibaba/clusterdata``. The samples of
cluster-trace-v2026-GenAI are series (``series.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.reader import Reader
from dovetail.advising.readers._frames import numbers, require, text_frame
from dovetail.advising.usage import Omission, UsageRecords
from dovetail.instances.errors import source_name
from dovetail.instances.reading.tables import lines_of

if TYPE_CHECKING:
    import pandas as pd
    from pandas.core.groupby import SeriesGroupBy

_MIB_PER_GIB: Final = 1024
_MOST_GPUS: Final = 10_000
_MOST_PERCENT: Final = 100 * _MOST_GPUS

_PODS: Final = ("name", "num_gpu", "gpu_milli")
_POD_TIMES: Final = ("creation_time", "scheduled_time", "deletion_time")
_POD_MORE: Final = ("gpu_spec", "qos", "pod_phase", *_POD_TIMES)
_NODES: Final = ("sn", "gpu", "model")

_TASKS: Final = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
_SENSORS: Final = (
    *("job_name", "task_name", "worker_name", "inst_id", "machine", "gpu_name", "cpu_usage"),
    *("gpu_wrk_util", "avg_mem", "max_mem", "avg_gpu_wrk_mem", "max_gpu_wrk_mem"),
    *("read", "write", "read_count", "write_count"),
)
_STATES: Final = {"Terminated": "ended", "Failed": "ended", "Running": "running"}
_STATUSES: Final = (*_STATES, "Waiting")

_NO_TIMES: Final = "The list of pods has no times: all of them are taken to run at one moment."
_SPREAD: Final = (
    "The sensors of cluster-trace-gpu-v2020 are averages over the lifetime of each instance: p95 "
    "is not known."
)


def _header(start: str) -> list[str]:
    return [name.strip() for name in start.partition("\n")[0].split(",")]


def _recognises_2023(_name: str, start: str) -> bool:
    header = set(_header(start))
    return header.issuperset(_PODS) or header.issuperset((*_NODES, "cpu_milli"))


def _read_2023(path: Path) -> UsageRecords:
    if "sn" in _header(next(lines_of(path), "")):
        return _nodes_2023(text_frame(path, _NODES), source_name(path))
    return _pods_2023(text_frame(path, _PODS, _POD_MORE), source_name(path))


def _nodes_2023(frame: pd.DataFrame, source: str) -> UsageRecords:
    import pandas as pd

    gpus = _counts(frame["gpu"], source)
    nodes = pd.DataFrame(
        {"node": frame["sn"], "gpu_model": frame["model"].replace("", None), "gpus": gpus}
    )
    return UsageRecords.of(nodes=nodes[gpus > 0])


def _pods_2023(frame: pd.DataFrame, source: str) -> UsageRecords:
    """Return the pods with GPUs; of several GPU models that a pod accepts, none is given."""
    import pandas as pd

    _require_names(frame["name"], source)
    gpus = _counts(frame["num_gpu"], source)
    part = numbers(frame["gpu_milli"], source, most=1000) / 1000
    with_gpus = gpus > 0
    fraction = np.where((part > 0) & (part < 1), part, np.nan)
    jobs = {
        "job": frame["name"],
        "gpus": gpus,
        "fraction": fraction,
        "workers_together": gpus,
        "state": "running",
    }
    if "gpu_spec" in frame:
        wanted = frame["gpu_spec"].replace({"": None, "nan": None})
        jobs["gpu_model"] = wanted.where(~wanted.str.contains("|", regex=False, na=False), None)
    if "qos" in frame:
        jobs["service"] = frame["qos"].eq("LS")
    timed = set(_POD_TIMES).issubset(frame.columns)
    ran = np.ones(len(frame), np.bool_)
    if timed:
        submit_s, start_s, end_s = (numbers(frame[name], source) for name in _POD_TIMES)
        ran = ~np.isnan(start_s)
        ended = ~np.isnan(end_s)
        jobs |= {"submit_s": submit_s, "start_s": start_s, "end_s": end_s}
        jobs["state"] = np.where(ended, "ended", "running")
    return UsageRecords.of(
        pd.DataFrame(jobs)[with_gpus & ran],
        left_out=[
            Omission(int((~with_gpus).sum()), "pods", "ask for no GPU"),
            Omission(int((with_gpus & ~ran).sum()), "pods", "were never placed"),
        ],
        notes=() if timed else (_NO_TIMES,),
    )


def _counts(column: pd.Series[str], source: str) -> NDArray[np.float64]:
    """Return whole numbers, NaN for empty cells."""
    found = numbers(column, source, most=_MOST_GPUS)
    fine = np.isnan(found) | (found == np.floor(found))
    require(column, fine, "must be a whole number", source)
    return found


def _require_names(column: pd.Series[str], source: str) -> None:
    require(column, column.str.strip().ne("").to_numpy(), "must not be empty", source)
    require(column, ~column.duplicated().to_numpy(), "must differ in every row", source)


def _recognises_2020(_name: str, start: str) -> bool:
    first = _header(start)
    if len(first) == len(_TASKS):
        return first[3] in _STATUSES or first == list(_TASKS)
    if len(first) == len(_SENSORS):
        return first == list(_SENSORS) or first[5].startswith("/dev/nvidia") or _is_sensor(first)
    return False


def _is_sensor(row: Sequence[str]) -> bool:
    """Return whether a row without a GPU is one of sensors: names in hexadecimal digits."""
    return all(len(row[at]) >= 12 and set(row[at]) <= set("0123456789abcdef") for at in (0, 2, 3))


def _read_2020(path: Path) -> UsageRecords:
    """Read the table of tasks or of sensors; the number of fields tells them apart."""
    source = source_name(path)
    line = next(lines_of(path), "")
    if len(line.split(",")) == len(_SENSORS):
        return _sensors_2020(text_frame(path, names=_SENSORS), source)
    return _tasks_2020(text_frame(path, names=_TASKS), source)


def _tasks_2020(frame: pd.DataFrame, source: str) -> UsageRecords:
    """Return a row for the tasks with GPUs of each job, which run together.

    A plan of 50 is half a GPU, one of 150 three quarters of two. If the tasks of a job ask for
    different parts, the largest counts.
    """
    import pandas as pd

    plan = numbers(frame["plan_gpu"], source, most=_MOST_PERCENT) / 100
    instances = _counts(frame["inst_num"], source)
    start_s, end_s = (numbers(frame[name], source) for name in ("start_time", "end_time"))
    known = frame["status"].isin(_STATUSES).to_numpy()
    require(frame["status"], known, f"must be one of {', '.join(_STATUSES)}", source)
    with_gpus = (plan > 0) & (instances > 0)
    cards = np.ceil(plan)
    tasks = pd.DataFrame(
        {
            "job": frame["job_name"].to_numpy(),
            "gpus": instances * cards,
            "part": plan / np.maximum(cards, 1),
            "together": cards,
            "state": frame["status"].map(_STATES).fillna("waiting").to_numpy(),
            "start_s": _positive(start_s),
            "end_s": _positive(end_s),
            "gpu_model": frame["gpu_type"].replace("", None).to_numpy(),
        }
    )[with_gpus]
    by_job = tasks.groupby("job", sort=False)
    part = by_job["part"].max()
    runs = tasks["state"].eq("running").groupby(tasks["job"], sort=False).any()
    waits = tasks["state"].eq("waiting").groupby(tasks["job"], sort=False).all()
    models = by_job["gpu_model"].nunique()
    jobs = pd.DataFrame(
        {
            "gpus": by_job["gpus"].sum(),
            "fraction": part.where(part < 1),
            "workers_together": _divisors(by_job["together"]),
            "state": np.select([runs, waits], ["running", "waiting"], "ended"),
            "start_s": by_job["start_s"].min(),
            "end_s": by_job["end_s"].max().where(~runs),
            "gpu_model": by_job["gpu_model"].first().where(models == 1, None),
        }
    ).reset_index()
    without = frame["job_name"].nunique() - len(jobs)
    unused = (jobs["state"] == "ended") & (jobs["start_s"].isna() | jobs["end_s"].isna())
    return UsageRecords.of(
        jobs[~unused],
        left_out=[
            Omission(without, "jobs", "ask for no GPU"),
            Omission(int(unused.sum()), "jobs", "ended without a start and an end"),
        ],
    )


def _divisors(groups: SeriesGroupBy[Any]) -> NDArray[np.int64]:
    """Return the greatest common divisor of whole numbers in each group, in their order."""
    codes = groups.ngroup().to_numpy()
    order = np.argsort(codes, kind="stable")
    found: NDArray[np.int64] = groups.obj.to_numpy().astype(np.int64)[order]
    if not len(found):
        return found
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    return np.asarray(np.gcd.reduceat(found, starts), np.int64)


def _positive(times_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return times with NaN for 0, which stands for none."""
    return np.where(times_s > 0, times_s, np.nan)


def _sensors_2020(frame: pd.DataFrame, source: str) -> UsageRecords:
    """Return a row for the sensors of each job's instances.

    ``gpu_wrk_util`` of an instance is a sum over its GPUs. How many it has is not in this table, so
    the utilisation of a job with an instance above 100 per cent stays unknown.
    """
    import pandas as pd

    with_gpu = frame["gpu_name"].str.strip().ne("").to_numpy()
    util = numbers(frame["gpu_wrk_util"], source, most=_MOST_PERCENT) / 100
    mean_gib, most_gib = (
        numbers(frame[name], source) for name in ("avg_gpu_wrk_mem", "max_gpu_wrk_mem")
    )
    sensors = pd.DataFrame(
        {
            "job": frame["job_name"].to_numpy(),
            "util": util,
            "memory_mean_mib": mean_gib * _MIB_PER_GIB,
            "memory_max_mib": most_gib * _MIB_PER_GIB,
            "node": frame["machine"].to_numpy(),
        }
    )[with_gpu]
    by_job = sensors.groupby("job", sort=False)
    within = by_job["util"].max() <= 1
    jobs = pd.DataFrame(
        {
            "gpus": by_job.size().astype(np.float64),
            "gpu_util_mean": by_job["util"].mean().where(within),
            "memory_mean_mib": by_job["memory_mean_mib"].max(),
            "memory_max_mib": by_job["memory_max_mib"].max(),
            "node": by_job["node"].agg(lambda each: ",".join(dict.fromkeys(each))),
        }
    ).reset_index()
    return UsageRecords.of(
        jobs,
        left_out=[Omission(int((~with_gpu).sum()), "instances", "used no GPU")],
        notes=(_SPREAD,),
    )


ALIBABA_2020: Final = Reader(
    "Alibaba's pai_task_table.csv and pai_sensor_table.csv", _recognises_2020, _read_2020
)
ALIBABA_2023: Final = Reader(
    "Alibaba's openb_pod_list*.csv and openb_node_list*.csv", _recognises_2023, _read_2023
)
