"""Slurm's accounting, as ``sacct -P`` prints it: a row for each job, and one for each of its steps.

Source: Slurm's manual of ``sacct``. ``AllocTRES`` lists the resources that a job had, ``ReqTRES``
those that a waiting one asks for; only steps tell how GPUs were used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.reader import Reader
from dovetail.advising.readers._frames import mapped, numbers, require, text_frame
from dovetail.advising.readers._jobstats import PREFIX, JobSummary, Summaries
from dovetail.advising.readers._sacct_steps import use_of_steps
from dovetail.advising.readers._slurm import (
    NO_GPU,
    NONE_LISTED,
    held_gpus,
    nodes_in,
    state_of,
    tasks_of,
    workers_per_node,
)
from dovetail.advising.readers._slurm_times import LASTS, ends, moments, without_zone
from dovetail.advising.usage import Omission, UsageRecords
from dovetail.instances.errors import InputError, source_name
from dovetail.instances.importers._hostlist import MOST_NAMES
from dovetail.instances.importers._tres import UNKNOWN
from dovetail.instances.reading.tables import first_line

if TYPE_CHECKING:
    import pandas as pd

COMMAND: Final = (
    "sacct -a -D -P --format=JobID,User,Submit,Start,End,ElapsedRaw,State,NNodes,NTasks,ReqTRES,"
    "AllocTRES,TRESUsageInMax,TRESUsageInTot,NodeList,AdminComment,JobName"
)
"""Prints all columns that are read; only the last may hold the separator."""

_IDS: Final = ("JobID", "JobIDRaw")
_NEEDED: Final = ("Start", "AllocTRES")
_COMMENTS: Final = ("AdminComment", "Comment")
_FREE: Final = ("JobName", "SubmitLine", "WorkDir", "Comment", "SystemComment")
"""Columns whose text may hold the separator."""

_READ: Final = (
    *(*_IDS, *_NEEDED, *LASTS, *_COMMENTS, "User", "JobName", "Submit", "State", "NNodes"),
    *("NTasks", "ReqTRES", "TRESUsageInMax", "TRESUsageInTot", "NodeList", "Cluster"),
)
_FIELDS: Final = {*_READ, "Account", "Partition", "QOS", "ReqMem", "NCPUS", "MaxRSS", "ExitCode"}
_ID: Final = re.compile(r"(\d+(?:_(?:\d+|\[[^\]]*\]|\*))?(?:\+\d+)?)(\..+)?")
_USE: Final = ("memory_max_mib", "gpu_util_max", "gpu_util_mean")
_NO_USE: Final = (
    "No row tells memory or utilisation: sacct prints it in the rows of steps (without -X) under "
    "TRESUsageInMax, if AccountingStorageTRES has gres/gpumem and gres/gpuutil."
)
_SUMMED: Final = "jobs of unknown memory, as sacct adds up the GPUs of a task"
_MIG: Final = "jobs on instances of MIG, which count as the parts of a GPU that their names say"
_UNLISTED: Final = "waiting arrays whose tasks are not all listed, which count as one job each"
_UNREADABLE: Final = "comments of jobstats that cannot be read"
_MIXED: Final = "start times without a zone among others with one, taken as UTC"


def _recognises(_name: str, start: str) -> bool:
    fields = re.split(r"[^\w%]+", start.lstrip().partition("\n")[0].strip())
    return not {*fields}.isdisjoint(_IDS) and len(_FIELDS.intersection(fields)) > 1


def _read(path: Path) -> UsageRecords:
    """Return the jobs, with the use of GPUs that their steps and comments tell.

    Of a requeued job every attempt is a row; those before the last are called ``103#1``.

    Raises
    ------
    InputError
        When it is not by ``sacct -P``, or a value has another form.
    """
    source = source_name(path)
    frame = _frame(path, source)
    is_job = frame["is_job"].to_numpy(bool)
    job_of = _job_of_each(frame["job"], is_job)
    jobs = _jobs(frame[is_job], source)
    below = ~is_job & (job_of >= 0)
    steps = use_of_steps(frame[below], job_of[below], jobs["gpus"].to_numpy(), source)
    summaries, unreadable = _summaries(frame[is_job])
    jobs = jobs.assign(
        memory_max_mib=np.fmax(steps.memory_max_mib, summaries["memory_max_mib"].to_numpy()),
        gpu_util_max=steps.gpu_util_max,
        gpu_util_mean=summaries["gpu_util_mean"].to_numpy(),
        card_mib=summaries["card_mib"].to_numpy(),
        _summed=steps.summed,
    )
    jobs, unlisted = _by_task(jobs)
    kept, left_out = _kept(jobs, asked="ReqTRES" in frame)
    orphans = Omission(int((job_of < 0).sum()), "steps", "the rows of their jobs are missing")
    notes = {
        _SUMMED: int((kept["_summed"] & kept["memory_max_mib"].isna()).sum()),
        _MIG: int(kept["fraction"].notna().sum()),
        _UNLISTED: unlisted,
        _UNREADABLE: unreadable,
        _MIXED: without_zone(frame["Start"]),
    }
    return UsageRecords.of(
        _attempts_named(kept).drop(columns=["_in_parts", "_summed"]),
        left_out=[*left_out, orphans],
        notes=[
            *(f"{note}: {number:,}." for note, number in notes.items() if number),
            *([_NO_USE] if len(kept) and kept[[*_USE]].isna().all(axis=None) else []),
        ],
    )


# Rows.


def _frame(path: Path, source: str) -> pd.DataFrame:
    """Return the rows as texts, each once, with the id of its ``job`` and whether it ``is_job``."""
    first = first_line(path)
    separator = _separator(first, source)
    free = [name for name in _FREE if name in first.split(separator)]
    try:
        frame = text_frame(
            path, _NEEDED, _READ, separator, quoted=False, free=free[0] if len(free) == 1 else None
        )
    except InputError as error:
        raise _as_printed(error) from None
    for needed in (_IDS, LASTS):
        if frame.columns.intersection([*needed]).empty:
            rule = f"must have the column {' or '.join(needed)}"
            raise _as_printed(InputError(rule, "line 1", source))
    if "JobID" not in frame:
        frame = frame.rename(columns={"JobIDRaw": "JobID"})
    frame = frame[~frame["JobID"].isin(_IDS)]
    found = [_ID.fullmatch(text) for text in frame["JobID"]]
    fine = np.array([each is not None for each in found], bool)
    rule = "must be a job like 102, 102_1 or 100+0, or a step of one"
    require(frame["JobID"], fine, rule, source)
    frame = frame.assign(
        job=[each[1] for each in found if each], is_job=[not each[2] for each in found if each]
    )
    if "Cluster" in frame and frame["Cluster"].nunique() > 1:
        frame["job"] = frame["Cluster"] + "/" + frame["job"]
    keys = [*frame.columns.intersection(["Cluster", "JobID", "Start"])]
    return frame[~frame.duplicated(keys, keep="last")]


def _separator(header: str, source: str) -> str:
    """Return the text between two columns."""
    found = re.match(r"\w+([^\w\s]+|\t)\w", header)
    if found is None:
        raise _as_printed(InputError("must have columns separated by |", "line 1", source))
    return found[1]


def _as_printed(error: InputError) -> InputError:
    return InputError(f"{error.rule}; print it by {COMMAND}", error.path, error.source)


def _job_of_each(base: pd.Series[str], is_job: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of the job, among the rows of jobs, to which each row belongs, else -1.

    Steps are below their job, also if a requeued job has several rows; in a file that was sorted
    otherwise they are of its last row.
    """
    ids = base[is_job].to_numpy()
    if not len(ids):
        return np.full(len(base), -1)
    above = np.cumsum(is_job) - 1
    directly = (above >= 0) & (ids[np.maximum(above, 0)] == base.to_numpy())
    last = dict(zip(ids, range(len(ids)), strict=True))
    above[~directly] = [last.get(job, -1) for job in base[~directly]]
    return above


# Jobs.


def _jobs(frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return the rows of jobs in columns of usage, and whether each had a part of a GPU."""
    import pandas as pd

    start_s = moments(frame["Start"], source)
    end_s = ends(frame, start_s, source)
    states = _states(frame, start_s, end_s)
    resources = frame["AllocTRES"]
    if "ReqTRES" in frame:
        resources = resources.where(resources.ne("") | (states != "waiting"), frame["ReqTRES"])
    by_text = {text: held_gpus(text) for text in resources.unique()}
    held = [by_text[text] for text in resources]
    nodes = np.array([each.nodes for each in held])
    if "NNodes" in frame:
        nodes = np.where(nodes, nodes, np.nan_to_num(numbers(frame["NNodes"], source)))
    return pd.DataFrame(
        {
            "job": frame["job"].to_numpy(object),
            "user": _words(frame, "User"),
            "name": _words(frame, "JobName"),
            "gpu_model": [each.gpu_model for each in held],
            "node": _nodes(frame, source),
            "state": states,
            "gpus": np.array([each.gpus for each in held], np.float64),
            "fraction": [each.fraction for each in held],
            "workers_per_node": [
                workers_per_node(each.gpus, int(count))
                for each, count in zip(held, nodes, strict=True)
            ],
            "submit_s": moments(frame["Submit"], source) if "Submit" in frame else np.nan,
            "start_s": np.where(states == "waiting", np.nan, start_s),
            "end_s": np.where(states == "ended", end_s, np.nan),
            "memory_request_mib": [each.memory_mib for each in held],
            "_in_parts": np.array([each.in_parts for each in held], bool),
        }
    )


def _words(frame: pd.DataFrame, column: str) -> NDArray[np.object_] | None:
    return np.array(frame[column].replace("", None), object) if column in frame else None


def _nodes(frame: pd.DataFrame, source: str) -> NDArray[np.object_] | None:
    if "NodeList" not in frame:
        return None
    names = mapped(frame["NodeList"], nodes_in, source)
    return np.array(frame["NodeList"].map(names), object)


def _states(
    frame: pd.DataFrame, start_s: NDArray[np.float64], end_s: NDArray[np.float64]
) -> NDArray[np.object_]:
    """Return the states, from the times if the file does not have them.

    An attempt that was requeued or resized has such a state, but has ended if its end is known.
    """
    if "State" not in frame:
        begun = np.where(np.isnan(end_s), "running", "ended")
        return np.where(np.isnan(start_s) & np.isnan(end_s), "waiting", begun).astype(object)
    by_word = {word: state_of(word) for word in frame["State"].unique()}
    states = np.array(frame["State"].map(by_word), object)
    if "End" in frame:
        states[~frame["End"].isin(UNKNOWN).to_numpy()] = "ended"
    return states


def _by_task(jobs: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Give each task of a waiting array a row; return the number of arrays that keep one row."""
    import pandas as pd

    left, unlisted = MOST_NAMES, 0
    tasks: list[Sequence[str]] = []
    for job in jobs["job"]:
        found = tasks_of(job, left)
        if found is None:
            unlisted += 1
        elif len(found) > 1:
            left -= len(found)
        tasks.append(found or (job,))
    listed = jobs.assign(job=pd.Series(tasks, jobs.index, dtype=object))
    return listed.explode("job", ignore_index=True), unlisted


def _kept(jobs: pd.DataFrame, *, asked: bool) -> tuple[pd.DataFrame, list[Omission]]:
    """Return the jobs that count, and how many others there are."""
    waits, ended = (jobs["state"].eq(state).to_numpy() for state in ("waiting", "ended"))
    start_s, end_s = jobs["start_s"].to_numpy(), jobs["end_s"].to_numpy()
    again = jobs["job"].duplicated(keep="last").to_numpy()
    reasons = {
        "started later, as another row says": waits & again,
        "what waiting jobs ask for would be in the column ReqTRES": waits & (not asked),
        "never started": ~waits & np.isnan(start_s),
        "had a part of a GPU by gres/mps or gres/shard, of unknown size": jobs["_in_parts"],
        NO_GPU if jobs["gpus"].any() else NONE_LISTED: jobs["gpus"].eq(0).to_numpy(),
        "ended at an unknown time": ended & np.isnan(end_s),
        "ran for no time": ended & ~(end_s > start_s),
    }
    out = np.zeros(len(jobs), bool)
    left_out = []
    for why, holds in reasons.items():
        left_out.append(Omission(int((holds & ~out).sum()), "jobs", why))
        out = out | holds
    return jobs[~out], left_out


def _attempts_named(jobs: pd.DataFrame) -> pd.DataFrame:
    """Name the attempts of a requeued job before the last one ``103#1``, ``103#2`` ..."""
    number = jobs.groupby("job").cumcount() + 1
    earlier = jobs["job"].duplicated(keep="last")
    return jobs.assign(job=jobs["job"].where(~earlier, jobs["job"] + "#" + number.astype(str)))


def _summaries(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return what comments of jobstats tell of each job, and how many could not be read."""
    import pandas as pd

    reader = Summaries()
    found = pd.DataFrame(np.nan, frame.index, JobSummary._fields)
    for name in frame.columns.intersection([*_COMMENTS]):
        comments = frame[name][frame[name].str.startswith(PREFIX)]
        told = [reader.read(comment) for comment in comments]
        found.loc[comments.index] = np.array(told).reshape(-1, len(JobSummary._fields))
    return found, reader.unreadable


SACCT: Final = Reader("Slurm's accounting by sacct -P", _recognises, _read)
