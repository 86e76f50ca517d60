"""From samples of GPUs to what they say of jobs: exact figures over time.

A *moment* of a job is one sample of each of its GPUs: samples at one time, or, as monitors read one
GPU after the other, those until a GPU of the job comes again or nine tenths of the usual interval
are over. At a moment a utilisation is the average over the GPUs, and memory that of the fullest.

A moment counts for the time to the next one, but at most for twice the usual interval (the median
of the job's intervals): after that, nothing is recorded. The last one counts for a usual interval.
So the mean is sum(w_k x_k) / sum(w_k), and the 95th percentile is the smallest x such that moments
with x_k <= x have 95 % of the weight. If samples are regular, all weights are equal.

While no memory of its GPUs is in use and nothing runs, a job has not begun or has ended: such
moments before its first and after its last use are left out. Zeros between them count as idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.readers._metrics import FRACTIONS
from dovetail.advising.usage import Omission, UsageRecords
from dovetail.instances.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

MOST_NUMBERS: Final = 60_000_000
"""The most numbers of a series: samples times metrics, 8 bytes each."""

_Numbers = NDArray[np.float64]
_Codes = NDArray[np.int64]

_MOMENT: Final = 0.9
_GAP: Final = 2.0
_MOST_MIB: Final = ("memory_mib", "card_mib")
_ABSENT: Final = Omission(0, "jobs", "used no GPU while they were recorded")
_IDLE: Final = Omission(0, "GPUs", "were idle and empty while they were recorded")
_SHARED: Final = (
    "{} GPUs had samples of several jobs at one time: the figures of these jobs are of whole GPUs."
)
_RUNS: Final = ("gpu_util", "sm_active", "dram_active")
_EMPTY_MIB: Final = 128.0
"""Memory of a GPU without a process, at most: a context of CUDA alone takes more."""


class SampledGpu(NamedTuple):
    """A GPU of a job.

    Attributes
    ----------
    job : str
        The job; of a GPU whose job is not recorded, its own name.
    gpu : str
        What differs among the GPUs of a job; empty if the GPUs are not named.
    node, gpu_model, user, name : str or None
        As in ``WORDS`` of `dovetail.advising.usage`.
    known : bool
        Whether the job is recorded.
    whole : bool
        Whether its samples are of the whole GPU, not of the job's part in it.
    """

    job: str
    gpu: str = ""
    node: str | None = None
    gpu_model: str | None = None
    user: str | None = None
    name: str | None = None
    known: bool = True
    whole: bool = True


def gpu_name(node: str | None, gpu: str) -> str:
    """Return the name of a GPU whose job is not recorded: ``node1/gpu 3``; empty without words."""
    own = f"gpu {gpu}" if gpu.isdecimal() else gpu
    return "/".join(word for word in (node or "", own) if word)


class Samples:
    """Samples of GPUs, gathered in parts."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._codes: dict[SampledGpu, int] = {}
        self._parts: list[tuple[_Codes, _Numbers, Mapping[str, _Numbers]]] = []
        self._numbers = 0

    def code(self, gpu: SampledGpu) -> int:
        """Return the number of a GPU, by which samples name it."""
        return self._codes.setdefault(gpu, len(self._codes))

    def expect(self, samples: int, metrics: int) -> None:
        """Refuse a file once it has more than ``MOST_NUMBERS``, before they are in memory.

        Raises
        ------
        InputError
            With the most.
        """
        self._numbers += samples * (2 + metrics)
        if self._numbers > MOST_NUMBERS:
            rule = f"must have at most {MOST_NUMBERS:,} numbers, got more: split it by jobs"
            raise InputError(rule, "", self._source)

    def add(self, gpus: _Codes, time_s: _Numbers, values: Mapping[str, _Numbers]) -> None:
        """Add samples: GPU and time of each, and its values by quantity, NaN if missing."""
        self._parts.append((gpus, time_s, values))

    def usage(self, notes: Sequence[str] = (), left_out: Sequence[Omission] = ()) -> UsageRecords:
        """Return what the samples say of each job.

        Raises
        ------
        InputError
            If a GPU has two different values at one time.
        """
        if not self._parts:
            return UsageRecords.of(notes=notes, left_out=left_out)
        gpus = list(self._codes)
        table = _SampleTable.of(self._parts, gpus, self._source)
        self._parts.clear()
        shared = _shared(table, gpus)
        moments = _in_use(_moments(table))
        return _usage(
            moments, gpus, (*notes, *((_SHARED.format(shared),) if shared else ())), left_out
        )


class _SampleTable(NamedTuple):
    """Samples ordered by job, time and GPU, one for each GPU and time."""

    job: _Codes
    gpu: _Codes
    time_s: _Numbers
    values: dict[str, _Numbers]
    jobs: list[str]

    @classmethod
    def of(
        cls,
        parts: Sequence[tuple[_Codes, _Numbers, Mapping[str, _Numbers]]],
        gpus: Sequence[SampledGpu],
        source: str,
    ) -> _SampleTable:
        names = list(dict.fromkeys(gpu.job for gpu in gpus))
        number = {name: at for at, name in enumerate(names)}
        job_of = np.array([number[gpu.job] for gpu in gpus])
        # A GPU with another model or user is the same GPU of the job.
        same = {(gpu.job, gpu.node, gpu.gpu): at for at, gpu in reversed(list(enumerate(gpus)))}
        one = np.array([same[gpu.job, gpu.node, gpu.gpu] for gpu in gpus])
        gpu = one[np.concatenate([part[0] for part in parts])]
        time_s = np.concatenate([part[1] for part in parts])
        job = job_of[gpu]
        order = np.lexsort((gpu, time_s, job))
        job, gpu, time_s = job[order], gpu[order], time_s[order]
        new = _changes(job, time_s, gpu)
        first = np.flatnonzero(new)
        values = {}
        for name in dict.fromkeys(name for part in parts for name in part[2]):
            column = np.concatenate([_column(part, name) for part in parts])[order]
            if len(first) < len(column):
                column = _agreed(column, first, name, (gpus, gpu, time_s), source)
            values[name] = column
        return cls(job[first], gpu[first], time_s[first], values, names)


def _shared(table: _SampleTable, gpus: Sequence[SampledGpu]) -> int:
    """Return how many GPUs have samples of several jobs at one time."""
    places = [(gpu.node, gpu.gpu) for gpu in gpus]
    numbers = {place: at for at, place in enumerate(dict.fromkeys(places))}
    whole = np.array([gpu.whole and bool(gpu.gpu) for gpu in gpus])[table.gpu]
    place = np.array([numbers[each] for each in places])[table.gpu][whole]
    time_s = table.time_s[whole]
    order = np.lexsort((time_s, place))
    again = ~_changes(place[order], time_s[order])
    return len(np.unique(place[order][again]))


def _column(part: tuple[_Codes, _Numbers, Mapping[str, _Numbers]], name: str) -> _Numbers:
    found = part[2].get(name)
    return np.full(len(part[1]), np.nan) if found is None else found


def _changes(*columns: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Return for each row whether it differs from the one before in a column."""
    new = np.ones(len(columns[0]), dtype=np.bool_)
    if len(new):
        new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return new


def _agreed(
    column: _Numbers,
    first: _Codes,
    name: str,
    place: tuple[Sequence[SampledGpu], _Codes, _Numbers],
    source: str,
) -> _Numbers:
    """Return the value of each run of rows; refuse a run with two different ones."""
    most = np.fmax.reduceat(column, first)
    least = np.fmin.reduceat(column, first)
    differ = most > least
    if differ.any():
        run = int(np.argmax(differ))
        gpus, gpu, time_s = place
        who = gpus[gpu[first[run]]]
        rule = f"must be one number of a GPU at a time, got {least[run]:g} and {most[run]:g}"
        rest = f" for {who.job} at {time_s[first[run]]:.15g} s: name its GPUs in a column or label"
        raise InputError(rule + rest, name, source)
    return most


class _JobMoments(NamedTuple):
    """Moments ordered by job and time: the values at each, and the number of GPUs."""

    job: _Codes
    time_s: _Numbers
    gpus: _Codes
    values: dict[str, _Numbers]
    jobs: list[str]

    def kept(self, rows: NDArray[np.bool_]) -> _JobMoments:
        values = {name: column[rows] for name, column in self.values.items()}
        return _JobMoments(self.job[rows], self.time_s[rows], self.gpus[rows], values, self.jobs)


def _moments(table: _SampleTable) -> _JobMoments:
    first = np.flatnonzero(_starts(table))
    counts = np.diff(np.append(first, len(table.job)))
    values = {}
    for name, column in _with_card(table.values).items():
        if len(first) == len(column):
            values[name] = column
        elif name in _MOST_MIB:
            values[name] = np.fmax.reduceat(column, first)
        else:
            there = np.add.reduceat((~np.isnan(column)).astype(np.float64), first)
            total = np.add.reduceat(np.nan_to_num(column), first)
            values[name] = np.where(there > 0, total / np.maximum(there, 1), np.nan)
    return _JobMoments(table.job[first], table.time_s[first], counts, values, table.jobs)


def _with_card(values: dict[str, _Numbers]) -> dict[str, _Numbers]:
    """Return values with the memory of the card in place of what is free of it."""
    rest = {name: values[name] for name in values if name not in ("free_mib", "reserved_mib")}
    if "card_mib" not in values and {"memory_mib", "free_mib"} <= values.keys():
        reserved = values.get("reserved_mib")
        more = 0.0 if reserved is None else np.nan_to_num(reserved)
        rest["card_mib"] = values["memory_mib"] + values["free_mib"] + more
    return rest


def _starts(table: _SampleTable) -> NDArray[np.bool_]:
    """Return for each sample whether it begins a moment."""
    starts = _changes(table.job, table.time_s)
    bounds = [*np.flatnonzero(_changes(table.job)).tolist(), len(table.job)]
    for first, end in pairwise(bounds):
        gpu = table.gpu[first:end]
        if (gpu != gpu[0]).any():
            starts[first:end] = _starts_of_job(gpu, table.time_s[first:end])
    return starts


def _starts_of_job(gpu: _Codes, time_s: _Numbers) -> NDArray[np.bool_]:
    longest_s = _MOMENT * _interval_s(gpu, time_s)
    starts = np.zeros(len(gpu), dtype=np.bool_)
    seen: set[int] = set()
    begin_s = -np.inf
    for at, (one, now_s) in enumerate(zip(gpu.tolist(), time_s.tolist(), strict=True)):
        if one in seen or (now_s > begin_s and now_s - begin_s >= longest_s):
            begin_s, starts[at] = now_s, True
            seen.clear()
        seen.add(one)
    return starts


def _interval_s(gpu: _Codes, time_s: _Numbers) -> float:
    """Return the median of the intervals between the samples of each GPU, 0 if there are none."""
    order = np.lexsort((time_s, gpu))
    steps = np.diff(time_s[order])[~_changes(gpu[order])[1:]]
    return float(np.median(steps)) if len(steps) else 0.0


def _in_use(moments: _JobMoments) -> _JobMoments:
    """Return the moments from the first to the last use of each job."""
    used = np.zeros(len(moments.job), dtype=np.bool_)
    empty = moments.values.get("memory_mib")
    for name, column in moments.values.items():
        if name in FRACTIONS or name == "memory_mib":
            used |= column > 0 if empty is not None else ~np.isnan(column)
    if empty is not None:  # no zero of memory: the GPU may be held
        held = np.isnan(empty) & np.logical_or.reduce(
            [~np.isnan(moments.values[name]) for name in FRACTIONS if name in moments.values]
            or [np.zeros(len(used), np.bool_)]
        )
        used |= held
    if used.all():
        return moments
    at = np.arange(len(used))
    last = len(moments.jobs)
    begin, end = np.full(last, len(used)), np.full(last, -1)
    np.minimum.at(begin, moments.job[used], at[used])
    np.maximum.at(end, moments.job[used], at[used])
    return moments.kept((at >= begin[moments.job]) & (at <= end[moments.job]))


class _TimeFigures(NamedTuple):
    """Figures over time for each job, NaN for a job without a value."""

    mean: _Numbers
    p95: _Numbers
    most: _Numbers


def _figures(job: _Codes, time_s: _Numbers, value: _Numbers, jobs: int) -> _TimeFigures:
    """Return the figures of a quantity, whose moments are ordered by job and time."""
    there = ~np.isnan(value)
    job, time_s, value = job[there], time_s[there], value[there]
    mean, p95, most = (np.full(jobs, np.nan) for _ in range(3))
    if not len(job):
        return _TimeFigures(mean, p95, most)
    weight = _weights(job, time_s)
    order = np.lexsort((value, job))
    value, weight = value[order], weight[order]
    first = np.flatnonzero(_changes(job))
    found = job[first]
    last = np.append(first[1:], len(job)) - 1
    total = np.add.reduceat(weight, first)
    mean[found] = np.add.reduceat(weight * value, first) / total
    below = np.cumsum(weight)
    before = below[last] - total
    at = np.searchsorted(below, before + 0.95 * total - 1e-9 * np.maximum(before, 1))
    p95[found] = value[np.clip(at, first, last)]
    most[found] = value[last]
    return _TimeFigures(np.minimum(mean, most), p95, most)


def _weights(job: _Codes, time_s: _Numbers) -> _Numbers:
    """Return the weight of each moment, in usual intervals of its job."""
    step = np.ones(len(job))
    step[:-1] = np.diff(time_s)
    ends = np.append(job[1:] != job[:-1], True)
    inner = np.flatnonzero(~ends)
    if not len(inner):
        return np.ones(len(job))
    order = inner[np.lexsort((step[inner], job[inner]))]
    first = np.flatnonzero(_changes(job[order]))
    counts = np.diff(np.append(first, len(order)))
    usual = np.ones(int(job[-1]) + 1)
    usual[job[order][first]] = step[order[first + (counts - 1) // 2]]
    weight = np.minimum(step / usual[job], _GAP)
    weight[ends] = 1.0
    return weight


def _usage(
    moments: _JobMoments,
    gpus: Sequence[SampledGpu],
    notes: Sequence[str],
    left_out: Sequence[Omission],
) -> UsageRecords:
    import pandas as pd

    number = len(moments.jobs)
    columns: dict[str, object] = {"job": moments.jobs, **_words(gpus, moments.jobs)}
    first = np.flatnonzero(_changes(moments.job))
    counts = np.diff(np.append(first, len(moments.job)))
    for name, found in (
        ("gpus", np.maximum.reduceat(moments.gpus, first) if len(first) else counts),
        ("samples", counts),
        ("start_s", moments.time_s[first]),
        ("end_s", moments.time_s[first + counts - 1]),
    ):
        column = np.full(number, np.nan)
        column[moments.job[first]] = found
        columns[name] = column
    for name, value in moments.values.items():
        figures = _figures(moments.job, moments.time_s, value, number)
        columns |= _columns_of(name, figures)
    jobs = pd.DataFrame(columns)
    known = np.array([_of_job(gpus)[name].known for name in moments.jobs])
    absent = np.isnan(jobs["samples"].to_numpy())
    idle = ~known & ~absent & _is_idle(jobs)
    out = (
        _ABSENT._replace(number=int((absent & known).sum())),
        _IDLE._replace(number=int((idle | (absent & ~known)).sum())),
    )
    kept = jobs[~(absent | idle)].reset_index(drop=True)
    return UsageRecords.of(kept, left_out=(*left_out, *out), notes=notes)


def _is_idle(jobs: pd.DataFrame) -> NDArray[np.bool_]:
    """Return whether no process had memory on the GPUs, and nothing ran there."""
    if "memory_max_mib" not in jobs:
        return np.zeros(len(jobs), dtype=np.bool_)
    empty = jobs["memory_max_mib"].to_numpy() <= _EMPTY_MIB
    ran = [jobs[f"{name}_max"].to_numpy() > 0 for name in _RUNS if f"{name}_max" in jobs]
    return np.asarray(empty & ~np.any([np.zeros(len(jobs), np.bool_), *ran], axis=0))


def _columns_of(name: str, figures: _TimeFigures) -> dict[str, _Numbers]:
    if name == "card_mib":
        return {name: figures.most}
    if name == "memory_mib":
        return {
            "memory_mean_mib": figures.mean,
            "memory_p95_mib": figures.p95,
            "memory_max_mib": figures.most,
        }
    if name in ("sm_occupancy", "pcie_rx_bytes_s", "power_w"):
        return {f"{name}_mean": figures.mean}
    return {
        f"{name}_{of}": column for of, column in zip(("mean", "p95", "max"), figures, strict=True)
    }


def _of_job(gpus: Iterable[SampledGpu]) -> dict[str, SampledGpu]:
    return {gpu.job: gpu for gpu in gpus}


def _words(gpus: Sequence[SampledGpu], jobs: Sequence[str]) -> dict[str, list[str | None]]:
    """Return the texts of each job: its nodes, and the first of each other kind."""
    firsts: dict[str, dict[str, str]] = {word: {} for word in ("user", "name", "gpu_model")}
    nodes: dict[str, dict[str, None]] = {}
    for gpu in gpus:
        for word, found in firsts.items():
            text = getattr(gpu, word)
            if text:
                found.setdefault(gpu.job, text)
        if gpu.node:
            nodes.setdefault(gpu.job, {})[gpu.node] = None
    words: dict[str, list[str | None]] = {
        word: [found.get(job) for job in jobs] for word, found in firsts.items()
    }
    words["node"] = [",".join(nodes[job]) if job in nodes else None for job in jobs]
    return words
