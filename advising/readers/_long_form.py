"""Tables with a row for a sample: a time, words that name a GPU or its job, and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.advising.readers._cells import TablePart
from dovetail.advising.readers._metrics import (
    GpuMetric,
    cell_numbers,
    factor_of,
    limit_of,
    scaled,
    unit_in,
)
from dovetail.advising.readers._series import SampledGpu, Samples
from dovetail.advising.readers._times import times_s
from dovetail.instances.errors import InputError

TIMES: Final[Mapping[str, float]] = MappingProxyType(
    {
        **dict.fromkeys(("time", "timestamp", "timestamps", "timestamp_anon", "datetime"), np.nan),
        **dict.fromkeys(("date", "ts", "t", "_time", "epoch", "moment"), np.nan),
        **dict.fromkeys(("time_s", "timestamp_s", "ts_s", "epoch_s", "seconds"), 1.0),
        **dict.fromkeys(("time_ms", "timestamp_ms", "ts_ms", "epoch_ms", "unix_ms"), 1e-3),
    }
)
"""Columns of times, and the seconds of their unit if the name says it."""


class LongForm(NamedTuple):
    """What the columns of a long series are: their positions in the header."""

    time: int
    words: Mapping[str, int]
    metrics: Mapping[int, GpuMetric]


def long_samples(
    source: str,
    header: Sequence[str],
    form: LongForm,
    parts: Iterable[TablePart],
    gpu_of: Callable[[Mapping[str, str]], SampledGpu | None],
) -> tuple[Samples, SeriesClock]:
    """Return the samples of a table in the long form, and what its times are.

    Parameters
    ----------
    source : str
        The file.
    header : sequence of str
        The names of the columns, for messages.
    form : LongForm
        What the columns are.
    parts : iterable of TablePart
        The rows.
    gpu_of : callable
        Returns the GPU that the words of a row name, None for a row that is not used.
    """
    clock = SeriesClock(header[form.time], source)
    values = {at: MetricCells(metric, header[at], source) for at, metric in form.metrics.items()}
    samples = Samples(source)
    words = _RowWords(samples, form.words, gpu_of)
    gathered = []
    for part in parts:
        samples.expect(len(part.lines), len(values))
        times = clock.times_s(part.columns[form.time], part, form.time)
        gpus = words.gpus(part)
        numbers = {at: one.of(part.columns[at], part, at) for at, one in values.items()}
        gathered.append((gpus, times, numbers))
    factors = {at: one.factor() for at, one in values.items()}
    for gpus, times, numbers in gathered:
        used = gpus >= 0
        quantities = {}
        for at, column in numbers.items():
            quantity = form.metrics[at].quantity
            quantities[quantity] = scaled(quantity, column[used], factors[at])
        samples.add(gpus[used], times[used], quantities)
    return samples, clock


class _RowWords:
    """Finds the GPU of each row by its words."""

    def __init__(
        self,
        samples: Samples,
        columns: Mapping[str, int],
        gpu_of: Callable[[Mapping[str, str]], SampledGpu | None],
    ) -> None:
        self._samples, self._columns, self._gpu_of = samples, columns, gpu_of
        self._numbers: list[dict[str, int]] = [{} for _ in columns]
        self._codes: dict[tuple[str, ...], int] = {}

    def gpus(self, part: TablePart) -> NDArray[np.int64]:
        """Return the number of each row's GPU in the samples, -1 if the row is not used."""
        combined = np.zeros(len(part.lines), np.int64)
        texts = [part.columns[at] for at in self._columns.values()]
        for known, column in zip(self._numbers, texts, strict=True):
            for text in dict.fromkeys(column):
                known.setdefault(text, len(known))
            numbers = np.fromiter(map(known.__getitem__, column), np.int64, len(column))
            _, combined = np.unique(combined * len(known) + numbers, return_inverse=True)
        _, first, row_of = np.unique(combined, return_index=True, return_inverse=True)
        codes = [self._code(tuple(column[row] for column in texts)) for row in first.tolist()]
        return np.array(codes, np.int64)[row_of]

    def _code(self, words: tuple[str, ...]) -> int:
        if words not in self._codes:
            gpu = self._gpu_of(dict(zip(self._columns, words, strict=True)))
            self._codes[words] = -1 if gpu is None else self._samples.code(gpu)
        return self._codes[words]


class MetricCells:
    """The numbers of a metric in parts, until their unit is known from the largest."""

    def __init__(self, metric: GpuMetric, name: str, source: str) -> None:
        self._metric, self._name, self._source = metric, name, source
        self._most = 0.0
        self._where = ""

    def of(self, texts: Sequence[str], part: TablePart, column: int) -> NDArray[np.float64]:
        """Return the numbers of cells, in the unit of the file."""
        if np.isnan(self._metric.factor):
            self._metric = self._metric._replace(factor=unit_in(texts[:100]))
        found = cell_numbers(texts, part.refuse(column, self._name, self._source))
        if np.isfinite(found).any():
            row = int(np.nanargmax(found))
            if found[row] > self._most:
                self._most, self._where = float(found[row]), f"line {part.lines[row]}: {self._name}"
        return found

    def factor(self) -> float:
        """Return the factor to the unit of the quantity; refuse numbers above the most."""
        try:
            factor = factor_of(self._metric, self._most, self._name)
        except InputError as error:
            raise error.at(self._source) from None
        most = limit_of(self._metric, factor)
        if self._most > most:
            rule = f"must be <= {most:g}, got {self._most:.15g}"
            raise InputError(rule, self._where, self._source)
        return factor


class SeriesClock:
    """The times of a series; all parts have the unit of the first."""

    def __init__(self, name: str, source: str) -> None:
        self._name, self._source = name, source
        self._factor = TIMES.get(name.lower(), np.nan)
        self.without_zone = False

    def times_s(self, texts: Sequence[str], part: TablePart, column: int) -> NDArray[np.float64]:
        refuse = part.refuse(column, self._name, self._source)
        times = times_s(texts, self._factor, refuse)
        self.without_zone |= _without_zone(texts[0])
        if np.isnan(self._factor) and _is_number(texts[0]):
            last = int(np.argmax(times))
            self._factor = times[last] / float(texts[last]) if times[last] else np.nan
        return times


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _without_zone(text: str) -> bool:
    clock = text.strip()[10:]
    return not _is_number(text) and not any(mark in clock for mark in ("Z", "z", "+", "-"))


def stem_of(path: Path | str) -> str:
    """Return the name of a file without its ending."""
    name = Path(path).name.removesuffix(".gz")
    return name.rpartition(".")[0] or name
