"""What a cap of half the SMs for each does to the pairs of a data set, as a table and as a picture.

A pair stands for its slower workload. Combined throughput is the sum of 1 / slowdown of both: 1 is
what they do one after the other. ``better`` takes for each pair the setting with the higher
combined throughput. Means are of pairs measured both ways.

Run it as ``python benchmarks/caps.py [DATA] [--svg FILE]``; ``docs/images/caps.svg`` is of the
default, our measurements of an H200.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from dovetail.instances.datasets import DataSet, Measurement, read_dataset

DATA = "library:h200-2026-11"
WAYS = ((None, None), (50, 50))

_STYLE = """\
text{fill:#24292f}.paper{fill:#fff}.grid{stroke:#d0d7de}.both{stroke:#8c959f;stroke-width:1.5}
.none{fill:#d55e00;stroke:#d55e00}.half{fill:#0072b2}.open{fill:#fff;stroke-width:1.6}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#0d1117}.grid{stroke:#30363d}
.both{stroke:#7d8590}.none{fill:#ff9e4a;stroke:#ff9e4a}.half{fill:#6cb6ff}.open{fill:#0d1117}}"""
_WIDTH, _ROW, _TOP, _PANEL, _START, _PLOT = 770, 17, 92, 385, 186, 180
_TICKS = (1, 2, 4, 8, 16)


class Setting(NamedTuple):
    """A pair without caps or at halves; ``slowdowns`` are lower bounds if it was not measured."""

    slowdowns: Sequence[tuple[str, float]]
    measured: bool

    @property
    def slower(self) -> str:
        """The workload that is slowed more."""
        return max(self.slowdowns, key=lambda one: one[1])[0]

    @property
    def worst(self) -> float:
        """Its slowdown."""
        return max(slowdown for _, slowdown in self.slowdowns)

    @property
    def combined(self) -> float:
        """The combined throughput."""
        return sum(1 / slowdown for _, slowdown in self.slowdowns)


class Pair(NamedTuple):
    """A pair that is known both ways."""

    workloads: Sequence[str]
    none: Setting
    half: Setting

    @property
    def text(self) -> str:
        """The two names, first the one that is slowed more without caps."""
        others = [name for name in self.workloads if name != self.none.slower]
        return f"{self.none.slower} with {(others or [self.none.slower])[0]}"

    @property
    def better(self) -> Setting:
        """The setting with the higher combined throughput."""
        return max(self.none, self.half, key=lambda setting: setting.combined)


def pairs_of(data: DataSet) -> list[Pair]:
    """Return the pairs known both ways, the worst without caps first."""
    none, half = (
        {tuple(sorted(one.workloads)): _setting(one) for one in data.measurements if _at(one, way)}
        for way in WAYS
    )
    found = [Pair(names, none[names], half[names]) for names in none if names in half]
    return sorted(found, key=lambda pair: -pair.none.worst)


def _at(one: Measurement, way: tuple[int | None, int | None]) -> bool:
    return one.shares == way and (one.slowdown or one.at_least) is not None


def _setting(one: Measurement) -> Setting:
    known = zip(one.workloads, one.slowdown or one.at_least or (), strict=True)
    return Setting([(name, value) for name, value in known if value is not None], not one.failed)


def means(pairs: Sequence[Pair]) -> Mapping[str, tuple[float, float, float]]:
    """Return each figure of the pairs measured both ways: without caps, at halves, the better."""
    measured = [pair for pair in pairs if pair.none.measured and pair.half.measured]

    def each(of: Callable[[Sequence[Setting]], float]) -> tuple[float, float, float]:
        none, half = [one.none for one in measured], [one.half for one in measured]
        return of(none), of(half), of([one.better for one in measured])

    return {
        "slowdown of the slower job, mean": each(lambda way: fmean(one.worst for one in way)),
        "slowdown of the slower job, at most": each(lambda way: max(one.worst for one in way)),
        "combined throughput, mean": each(lambda way: fmean(one.combined for one in way)),
    }


def table(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"{'':38}{'no caps':>16}{'halves':>14}{'better':>8}"
    for name, values in means(pairs).items():
        none, half, better = (f"{value:.2f}" for value in values)
        yield f"{name:38}{none:>16}{half:>14}{better:>8}"
    for pair in pairs:
        yield f"{pair.text:38}{_shown(pair, pair.none):>16}{_shown(pair, pair.half):>14}"


def _shown(pair: Pair, setting: Setting) -> str:
    """Return the slowdowns as in the pair's text: first the one that is slower without caps."""
    first = sorted(setting.slowdowns, key=lambda one: one[0] != pair.none.slower)
    return ("" if setting.measured else ">= ") + " / ".join(f"{value:.2f}" for _, value in first)


def picture(pairs: Sequence[Pair], gpu: str) -> str:
    """Return the SVG: a row for each pair, in two panels."""
    rows = math.ceil(len(pairs) / 2)
    height = _TOP + rows * _ROW + 14
    worst = max(pairs, key=lambda pair: pair.none.worst * pair.none.measured)
    about = (
        f"Slowdowns of {len(pairs)} pairs without caps and with half of the SMs for each. Without "
        f"caps the slower job takes up to {worst.none.worst:.1f} times as long, at halves at most "
        f"{max(pair.half.worst for pair in pairs):.1f} times."
    )
    title = "Slowdown of the slower job of each pair"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12" role="img" aria-labelledby="t d">',
        f'<title id="t">{title}</title>',
        f'<desc id="d">{about}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{height}"/>',
        f'<text x="16" y="24" font-size="15" font-weight="bold">{title}</text>',
        f'<text x="16" y="42">{len(pairs)} pairs under MPS, measured on an {gpu}; '
        "1 = as fast as alone</text>",
        *_legend(),
    ]
    for panel in range(2):
        part = pairs[panel * rows : (panel + 1) * rows]
        lines += _panel(part, panel * _PANEL, rows)
    return "\n".join([*lines, "</svg>\n"])


def _legend() -> Iterator[str]:
    signs = (
        (16, '<circle class="none" cx="22" cy="60" r="4.5"/>', "no caps"),
        (110, _triangle(116, 60), "no caps: at least this, too slow to measure"),
        (400, '<rect class="half" x="402" y="56" width="8" height="8"/>', "half of the SMs each"),
    )
    for x, sign, text in signs:
        yield f'{sign}<text x="{x + 16}" y="64">{text}</text>'


def _panel(pairs: Sequence[Pair], left: float, rows: int) -> Iterator[str]:
    bottom = _TOP + rows * _ROW
    for tick in _TICKS:
        x = left + _at_x(tick)
        yield f'<path class="grid" d="M{x:.1f} {_TOP}V{bottom}"/>'
        yield f'<text x="{x:.1f}" y="{_TOP - 6}" text-anchor="middle">{tick}</text>'
    for k, pair in enumerate(pairs):
        y = _TOP + (k + 0.5) * _ROW
        none, half = left + _at_x(pair.none.worst), left + _at_x(pair.half.worst)
        yield f'<text x="{left + _START - 12}" y="{y + 4}" text-anchor="end">{pair.text}</text>'
        yield f'<path class="both" d="M{half:.1f} {y}H{none:.1f}"/>'
        yield f'<rect class="half" x="{half - 4:.1f}" y="{y - 4}" width="8" height="8"/>'
        circle = f'<circle class="none" cx="{none:.1f}" cy="{y}" r="4.5"/>'
        yield circle if pair.none.measured else _triangle(none, y)


def _triangle(x: float, y: float) -> str:
    return (
        f'<path class="none open" d="M{x - 4:.1f} {y - 5}L{x + 6:.1f} {y}L{x - 4:.1f} {y + 5}Z"/>'
    )


def _at_x(slowdown: float) -> float:
    return _START + _PLOT * math.log(slowdown) / math.log(_TICKS[-1])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="?", default=DATA)
    parser.add_argument("--svg", type=Path, help="write the picture to this file")
    given = parser.parse_args(arguments)
    data = read_dataset(given.data)
    pairs = pairs_of(data)
    print("\n".join(table(pairs)))
    if given.svg:
        given.svg.write_text(picture(pairs, *data.gpu_models), encoding="utf-8")


if __name__ == "__main__":
    main()
