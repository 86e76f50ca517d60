"""Who was on which GPU when, under each policy: lanes that a page can show any window of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from dovetail.executor.simulation.results import RunResult
from dovetail.instances.instance import Cluster
from dovetail.simulating import wording
from dovetail.simulating.groups import Groups
from dovetail.toolkit.charts import Axis, time_axis

MOST_PIECES: Final = 150_000
"""Bars of all policies together; of more, the longest of each policy are drawn."""

MOST_GPUS: Final = 192
"""GPUs that are drawn, the first ones."""

WIDTH: Final = 100_000
"""Units of a lane from the beginning to the end of the longest run."""

HUES: Final = 8
"""Colours of bars; which of them a job has says nothing."""

_FIRST_WINDOW: Final = 250
_LANE: Final = 0.86


class Piece(NamedTuple):
    """A job on a GPU while nothing changes there: lane ``lane`` of ``lanes``."""

    start: int
    end: int
    gpu: int
    lane: int
    lanes: int
    job: int


@dataclass(frozen=True)
class Bars:
    """Bars of one colour and height: a path of strokes, and the job of each of them."""

    hue: int
    height: float
    path: str
    jobs: str


@dataclass(frozen=True)
class Lanes:
    """The GPUs under one policy."""

    policy: str
    seed: int
    bars: tuple[Bars, ...]
    caption: str


class Node(NamedTuple):
    """A node's name and its rows, from the first to before the last."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class Gantt:
    """All policies with the same rows, time and first window.

    ``window`` is the part of ``WIDTH`` that is shown first: begin and length.
    """

    every: tuple[Lanes, ...]
    nodes: tuple[Node, ...]
    gpus: int
    left_out: int
    row_px: float
    end_s: float
    window: tuple[int, int]
    axis: Axis
    names: tuple[str, ...]

    @property
    def height_px(self) -> float:
        """Height of all rows on the screen."""
        return round(self.gpus * self.row_px, 1)


def gantt(groups: Groups, cluster: Cluster | None, pool: int) -> Gantt:
    """Return the lanes of the first seed's run of every policy.

    Parameters
    ----------
    groups : Groups
        The runs.
    cluster : Cluster or None
        Names the nodes.
    pool : int
        How many GPUs there are.
    """
    runs = [group.first for group in groups.every]
    end_s = max(float(run.jobs["finish_s"].max()) for run in runs)
    gpus = min(pool, MOST_GPUS)
    most = MOST_PIECES // len(runs)
    window = _first_window(runs[0], end_s)
    begin_s, length_s = (part / WIDTH * end_s for part in window)
    return Gantt(
        every=tuple(_lanes(run, end_s, gpus, most) for run in runs),
        nodes=tuple(_nodes(cluster, gpus)),
        gpus=gpus,
        left_out=pool - gpus,
        row_px=round(min(18.0, max(4.0, 520 / gpus)), 2),
        end_s=end_s,
        window=window,
        axis=time_axis(begin_s + length_s, begin_s),
        names=tuple(str(job) for job in runs[0].jobs["job"]),
    )


def pieces(run: RunResult, end_s: float, gpus: int) -> Iterator[Piece]:
    """Yield the pieces of every GPU in the order of time.

    A job that shares has a lane of its own for as long as it shares, the one who came first the
    upper one; alone it has the whole row.
    """
    by_gpu: dict[int, list[tuple[float, float, int]]] = defaultdict(list)
    columns = (run.stays[name].tolist() for name in ("gpu", "start_s", "end_s", "job"))
    for gpu, start, end, job in zip(*columns, strict=True):
        if gpu < gpus and end > start:
            by_gpu[gpu].append((start, end, job))
    for gpu, stays in sorted(by_gpu.items()):
        yield from _row(gpu, sorted(stays), WIDTH / end_s)


def _row(gpu: int, stays: Sequence[tuple[float, float, int]], scale: float) -> Iterator[Piece]:
    moments = sorted({moment for stay in stays for moment in stay[:2]})
    waiting = list(reversed(stays))
    present: list[tuple[float, float, int]] = []
    since: dict[int, float] = {}
    had: dict[int, tuple[int, int]] = {}
    for start, stop in pairwise([*moments, moments[-1]]):
        present = [stay for stay in present if stay[1] > start]
        while waiting and waiting[-1][0] <= start:
            present.append(waiting.pop())
        seats = {job: (lane, len(present)) for lane, (_, _, job) in enumerate(present)}
        for job in [job for job, seat in had.items() if seats.get(job) != seat]:
            ends = (round(since.pop(job) * scale), round(start * scale))
            yield Piece(*ends, gpu, *had.pop(job), job)
        for job, seat in seats.items():
            if job not in had and stop > start:
                since[job], had[job] = start, seat


def _lanes(run: RunResult, end_s: float, gpus: int, most: int) -> Lanes:
    every = list(pieces(run, end_s, gpus))
    kept = sorted(every, key=lambda piece: piece.start - piece.end)[:most]
    kept.sort(key=lambda piece: (piece.job, piece.gpu, piece.start))
    alike: dict[tuple[int, int], list[Piece]] = defaultdict(list)
    for piece in kept:
        alike[piece.lanes, piece.job % HUES].append(piece)
    bars = tuple(_bars(hue, lanes, group) for (lanes, hue), group in sorted(alike.items()))
    return Lanes(run.policy, run.seed, bars, _text(every, kept))


def _bars(hue: int, lanes: int, group: Sequence[Piece]) -> Bars:
    return Bars(
        hue,
        round(_LANE / lanes, 3),
        "".join(f"M{p.start} {_middle(p):g}h{max(p.end - p.start, 1)}" for p in group),
        ",".join(str(piece.job) for piece in group),
    )


def _middle(piece: Piece) -> float:
    inner = _LANE / piece.lanes * (piece.lane + 0.5)
    return round(piece.gpu + (1 - _LANE) / 2 + inner, 2)


def _text(every: Sequence[Piece], kept: Sequence[Piece]) -> str:
    """Return what was left out, if anything was."""
    if len(kept) == len(every):
        return f"{len(every):,} bars"
    drawn = sum(piece.end - piece.start for piece in kept)
    whole = sum(piece.end - piece.start for piece in every)
    part = wording.three_digits(100 * drawn / whole)
    return (
        f"the longest {len(kept):,} of {len(every):,} bars, {part} % of the time of jobs on GPUs; "
        "shorter ones are left out"
    )


def _nodes(cluster: Cluster | None, gpus: int) -> Iterator[Node]:
    """Yield the nodes of the rows; all rows are one node without a name if none is known."""
    if cluster is None:
        yield Node("", 0, gpus)
        return
    first = 0
    for node in cluster.nodes:
        last = min(first + len(node.devices), gpus)
        if last > first:
            yield Node(node.id, first, last)
        first = last


def _first_window(run: RunResult, end_s: float) -> tuple[int, int]:
    """Return the window that is shown first: all, or of many jobs where the most begin."""
    starts = np.sort(np.asarray(run.stays["start_s"], float))
    if len(starts) <= 2 * _FIRST_WINDOW:
        return 0, WIDTH
    spans = starts[_FIRST_WINDOW:] - starts[:-_FIRST_WINDOW]
    place = int(spans.argmin())
    length = max(round(1.5 * float(spans[place]) / end_s * WIDTH), WIDTH // 100)
    begin = round(float(starts[place]) / end_s * WIDTH)
    return max(0, min(begin, WIDTH - length)), min(length, WIDTH)
