"""How well the law of MPS predicts measured pairs of workloads that it was not fitted on.

Each workload is left out in turn: the four numbers of the law are fitted on the pairs without it,
and its pairs are predicted. ``as shipped`` are the defaults of ``predictors.kernels.Law``,
which were fitted on the same pairs. ``counted`` leaves out workloads whose kernels are unknown.
Solo curves are not known, so what a cap costs a job alone is by the roofline; ``level known`` takes
it from the job's other pairs at halves in place of a measurement alone, with one pair hidden at a
time and predicted with the numbers as shipped.

Run it as ``python benchmarks/law.py [DATA] [--svg FILE]``; ``docs/images/law.svg`` is of the
default, our measurements of an H200.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dovetail.instances.datasets import DataSet, read_dataset
from dovetail.predictors.estimators.constant import Median
from dovetail.predictors.estimators.kernels import LawOfMps
from dovetail.predictors.fitted.folds import workload_folds
from dovetail.predictors.fitted.rows import DirectedRows, training_rows
from dovetail.predictors.forms.kernels import FEATURES, Kernels
from dovetail.predictors.kernels import KernelsPredictor, Law
from dovetail.predictors.predictor import UNCAPPED, BoolArray, FloatArray

DATA = "library:h200-2026-11"

_STYLE = """\
text{fill:#24292f}.paper{fill:#fff}.grid{stroke:#d0d7de}.host{stroke:#8c959f;stroke-dasharray:2 3}
.none{fill:#d55e00}.half{fill:#0072b2}.mine{fill:#0072b2}.other{fill:#c3ccd5}.equal{stroke:#8c959f}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#0d1117}.grid{stroke:#30363d}
.none{fill:#ff9e4a}.half,.mine{fill:#6cb6ff}.other{fill:#484f58}.equal{stroke:#7d8590}}"""
_TICKS = (1, 2, 4, 8, 16)
_WIDTH, _HEIGHT, _LEFT, _TOP, _PLOT = 770, 340, 448, 70, 220


class Tested(NamedTuple):
    """Predictions and measurements of directed pairs, arrays of shape (tests,)."""

    predicted: FloatArray
    measured: FloatArray

    @property
    def text(self) -> str:
        """The number of tests, the mean absolute error, and R2 of slowdowns and logarithms."""
        log = Tested(np.log(self.predicted), np.log(self.measured))
        error = np.abs(self.predicted - self.measured).mean()
        return f"{len(self.measured):5}{error:8.3f}{self.r2:7.2f}{log.r2:8.2f}"

    @property
    def r2(self) -> float:
        """The coefficient of determination."""
        off = ((self.predicted - self.measured) ** 2).sum()
        return float(1 - off / ((self.measured - self.measured.mean()) ** 2).sum())


def left_out(rows: DirectedRows, constant: bool = False) -> Tested:
    """Return the predictions of pairs of each workload by a fit on the pairs without it."""
    predicted, measured = [], []
    for train, test in workload_folds(rows):
        known, hidden = rows.take(train), rows.take(test)
        model = Median() if constant else LawOfMps()
        predicted.append(model.fit(known.table, known.slowdown).predict(hidden.table))
        measured.append(hidden.slowdown)
    return Tested(np.concatenate(predicted), np.concatenate(measured))


def as_shipped(rows: DirectedRows) -> Tested:
    """Return the predictions of all pairs by the default numbers."""
    return Tested(Kernels(Law()).predict(rows.states, rows.own, rows.other), rows.slowdown)


def hidden_with_levels(rows: DirectedRows) -> Tested:
    """Return predictions of each pair at caps with levels from all other pairs."""
    predicted = np.empty(len(rows.own))
    for pair in np.unique(rows.workload_pair):
        test = rows.workload_pair == pair
        states = _with_levels(rows.take(~test))
        predicted[test] = Kernels(Law()).predict(states, rows.own[test], rows.other[test])
    return Tested(predicted, rows.slowdown)


def _with_levels(rows: DirectedRows) -> FloatArray:
    """Return the states with the levels alone for which the law fits the rows best."""
    states, column = rows.states.copy(), FEATURES.index("log_alone")
    for _ in range(20):
        found = Kernels(Law()).predict(states, rows.own, rows.other)
        off = np.log(rows.slowdown / found)
        for state in np.unique(rows.own):
            of_state = float(np.median(off[rows.own == state]))
            level = states[state, column]
            states[state, column] = of_state / 2 + (0.3 if np.isnan(level) else level)
    return states


def counted(rows: DirectedRows) -> BoolArray:
    """Return which rows are of two workloads with known kernels."""
    known = ~np.isnan(rows.states[:, FEATURES.index("kernels_s")])
    return np.asarray(known[rows.own] & known[rows.other])


class Settings(NamedTuple):
    """The pairs without caps and those with."""

    uncapped: DirectedRows
    capped: DirectedRows

    @classmethod
    def of(cls, data: DataSet) -> Settings:
        """Return the pairs of a data set of one GPU model."""
        _, rows = training_rows(data, FEATURES, partial=True)
        return cls(rows.take(rows.split == 0), rows.take(rows.split != 0))


def table(pairs: Settings) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"{'':48}{'tests':>5}{'MAE':>8}{'R2':>7}{'log R2':>8}"
    known = pairs.uncapped.take(counted(pairs.uncapped))
    for name, rows in (
        ("no caps", pairs.uncapped),
        ("no caps, counted", known),
        ("caps", pairs.capped),
    ):
        yield f"{name + ': constant, workload left out':48}{left_out(rows, True).text}"
        yield f"{name + ': law, workload left out':48}{left_out(rows).text}"
        yield f"{name + ': law, as shipped':48}{as_shipped(rows).text}"
    yield f"{'caps, level known: law, pair hidden':48}{hidden_with_levels(pairs.capped).text}"


def coverage(data: DataSet, confidence: float) -> Iterator[float]:
    """Yield how often bounds hold with a workload left out: without caps, and at caps."""
    workloads, (model,) = data.workloads(*data.gpu_models), data.gpu_models
    place = {name: k for k, name in enumerate(workloads)}
    _, rows = training_rows(data, FEATURES, partial=True)
    number = np.array([place[name] for name in rows.names])[rows.workload]
    held: dict[bool, list[bool]] = {False: [], True: []}
    for train, test in workload_folds(rows):
        known, hidden = rows.take(train), rows.take(test)
        law = LawOfMps().fit(known.table, known.slowdown).to_form().law
        ends = np.stack([hidden.own, hidden.other], axis=1)
        caps = (np.zeros(len(number), np.int64) if rows.cap is None else rows.cap)[ends]
        found = KernelsPredictor(law, confidence).predict(workloads, number[ends], caps, model)
        below = hidden.slowdown <= np.asarray(found.upper)[:, 0]
        for capped, each in zip((caps[:, 0] != UNCAPPED).tolist(), below.tolist(), strict=True):
            held[capped].append(each)
    yield from (sum(each) / len(each) for each in held.values())


def picture(pairs: Settings, gpu: str) -> str:
    """Return the SVG: what happens, and how well it is predicted."""
    title = "Why a harmless-looking pair is slow, and what the law predicts"
    about = (
        "Left: without caps every short kernel waits for a long kernel of the other job; with a "
        "cap each both run side by side. Right: predicted against measured slowdowns."
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12" role="img" aria-labelledby="t d">',
        f'<title id="t">{title}</title>',
        f'<desc id="d">{about}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>',
        *_time_lines(),
        *_scatter(pairs, gpu),
    ]
    return "\n".join([*lines, "</svg>\n"])


def _time_lines() -> Iterator[str]:
    yield '<text x="16" y="24" font-size="15" font-weight="bold">MPS is a queue of kernels</text>'
    yield '<text x="16" y="42">a job of short kernels, and one of long kernels</text>'
    short, long = 10, 62
    yield '<text x="16" y="76">alone: ten kernels</text>'
    for k in range(10):
        yield _kernel("mine", 16 + k * (short + 2), 84, short, 36)
    yield '<text x="16" y="152">together, no caps: each waits for a long one</text>'
    for k in range(5):
        x = 16 + k * (short + long + 4)
        yield _kernel("mine", x, 160, short, 36)
        yield _kernel("other", x + short + 2, 160, long, 36)
    yield '<text x="16" y="228">together, half of the SMs each: nobody waits</text>'
    for k in range(10):
        yield _kernel("mine", 16 + k * (2 * short + 2), 236, 2 * short, 17)
    for k in range(3):
        yield _kernel("other", 16 + k * (2 * long + 2), 255, 2 * long, 17)
    yield _kernel("mine", 16, 300, 12, 12)
    yield '<text x="34" y="311">short kernels</text>'
    yield _kernel("other", 136, 300, 12, 12)
    yield '<text x="154" y="311">long kernels of the other job</text>'
    yield '<text x="386" y="290" text-anchor="end" font-style="italic">time</text>'


def _kernel(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"/>'


def _scatter(pairs: Settings, gpu: str) -> Iterator[str]:
    yield (
        f'<text x="{_LEFT - 28}" y="24" font-size="15" font-weight="bold">'
        "Predicted from solo profiles</text>"
    )
    yield f'<text x="{_LEFT - 28}" y="42">slowdowns on an {gpu}, workload left out</text>'
    bottom, right = _TOP + _PLOT, _LEFT + _PLOT
    for tick in _TICKS:
        at = _PLOT * math.log(tick) / math.log(_TICKS[-1])
        yield f'<path class="grid" d="M{_LEFT + at:.1f} {_TOP}V{bottom}"/>'
        yield f'<path class="grid" d="M{_LEFT} {bottom - at:.1f}H{right}"/>'
        yield f'<text x="{_LEFT + at:.1f}" y="{bottom + 16}" text-anchor="middle">{tick}</text>'
        yield f'<text x="{_LEFT - 8}" y="{bottom - at + 4:.1f}" text-anchor="end">{tick}</text>'
    yield f'<path class="equal" d="M{_LEFT} {bottom}L{right} {_TOP}"/>'
    yield f'<text x="{_LEFT + _PLOT / 2}" y="{bottom + 36}" text-anchor="middle">measured</text>'
    yield (
        f'<text transform="translate({_LEFT - 30} {_TOP + _PLOT / 2}) rotate(-90)" '
        'text-anchor="middle">predicted</text>'
    )
    for kind, rows in zip(("half", "none"), (pairs.capped, pairs.uncapped), strict=True):
        found = left_out(rows)
        for predicted, measured in zip(found.predicted, found.measured, strict=True):
            x, y = (
                _PLOT * math.log(max(1.0, value)) / math.log(_TICKS[-1])
                for value in (measured, predicted)
            )
            yield _point(kind, _LEFT + x, bottom - y)
    yield _point("none", right + 14, _TOP + 8) + (
        f'<text x="{right + 24}" y="{_TOP + 12}">no caps</text>'
    )
    yield _point("half", right + 14, _TOP + 28) + (
        f'<text x="{right + 24}" y="{_TOP + 32}">halves</text>'
    )


def _point(kind: str, x: float, y: float) -> str:
    if kind == "half":
        return f'<rect class="half" x="{x - 2.5:.1f}" y="{y - 2.5:.1f}" width="5" height="5"/>'
    return f'<circle class="none" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="?", default=DATA)
    parser.add_argument("--svg", type=Path, help="write the picture to this file")
    given = parser.parse_args(arguments)
    data = read_dataset(given.data)
    pairs = Settings.of(data)
    print("\n".join(table(pairs)))
    for confidence in (0.8, 0.9, 0.95):
        none, caps = coverage(data, confidence)
        print(f"bounds of {confidence:.0%} hold for {none:.0%} without caps, {caps:.0%} at caps")
    if given.svg:
        given.svg.write_text(picture(pairs, *data.gpu_models), encoding="utf-8")


if __name__ == "__main__":
    main()
