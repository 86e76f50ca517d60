"""The four traces published with Muri (SIGCOMM 2022): parts of Philly with random models of eight.

Source: the repository ``Rivendile/Muri``. All times are in ms. ``iteration_time`` is the time of
one iteration alone, with its overlapping stages. ``resource_time_0``, ``_1`` and ``_2`` are the
times for which one iteration holds storage and CPU (loading and preparing data, or the environment
of reinforcement learning), the GPU, and the network (exchanging gradients). All depend only on the
model and the number of GPUs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from dovetail.instances.reading.contents import FilePath
from dovetail.instances.reading.tables import read_csv
from dovetail.instances.traces._left_out import left_out
from dovetail.instances.traces._sheet import Sheet
from dovetail.instances.traces.kinds import TraceKind
from dovetail.instances.traces.trace import JobColumns, Trace

_JOB_COLUMNS: Final = ("job_id", "num_gpu", "submit_time", "model_name", "duration")
_RESOURCES: Final = ("resource_time_0", "resource_time_1", "resource_time_2")
_STAGE_COLUMNS: Final = ("num_gpu", "model_name", "iteration_time", *_RESOURCES)
_MS: Final = 1000


class IterationStages(NamedTuple):
    """One iteration of a model on a number of GPUs, in seconds.

    Attributes
    ----------
    iteration_s : float
        The whole iteration alone.
    load_s, compute_s, network_s : float
        How long it holds storage and CPU, the GPU, and the network. The sum may be less than
        ``iteration_s``, or more if stages overlap.
    """

    iteration_s: float
    load_s: float
    compute_s: float
    network_s: float


def _read(path: Path, name: str) -> Trace:
    """Return the trace; workloads are the models."""
    sheet = Sheet(read_csv(path, _JOB_COLUMNS))
    duration_s = sheet.numbers("duration") / _MS
    workers = sheet.counts("num_gpu", least=0)
    ran = (duration_s > 0) & (workers > 0)
    names = [f"job-{job}" for job in sheet.texts("job_id", ran)]
    arrival_s = sheet.numbers("submit_time", ran) / _MS
    models = sheet.texts("model_name", ran)
    sheet.require_sound()
    jobs = JobColumns.of(names, arrival_s, workers, duration_s, workload=models).take(ran)
    return Trace.of_columns(name, jobs, left_out(len(sheet) - len(jobs), len(sheet)))


def muri_stages(path: FilePath) -> dict[tuple[str, int], IterationStages]:
    """Return the stages of each (model, number of GPUs) of one of Muri's traces.

    Parameters
    ----------
    path : str or path
        One of ``trace1.csv`` to ``trace4.csv``, plain or ``.gz``.

    Raises
    ------
    InputError
        With file, line and column of the first value that breaks a rule, or of a row that
        contradicts an earlier row of the same model and number of GPUs.
    """
    found: dict[tuple[str, int], IterationStages] = {}
    for row in read_csv(str(path), _STAGE_COLUMNS):
        key = (row.text("model_name"), row.count("num_gpu"))
        stages = IterationStages(
            row.positive("iteration_time") / _MS, *(row.number(name) / _MS for name in _RESOURCES)
        )
        if found.setdefault(key, stages) != stages:
            rule = f"must be as in the other rows of {key[0]} on {key[1]} GPUs"
            raise row.broken("iteration_time or resource_time", rule)
    return found


MURI: Final = TraceKind(
    _read, lambda first: {each.strip() for each in first.split(",")}.issuperset(_JOB_COLUMNS)
)
