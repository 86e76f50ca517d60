"""Pairs to measure next: the plan's quality over the number of measured pairs.

Reads ``gavel/``, ``lucid/`` and ``igniter/`` of ``../shared/data`` next to the checkout (they are
not part of the project, their licences differ). ``python benchmarks/measuring/suggest.py`` for all
parts or name some: ``k80``, ``p100``, ``v100``, ``lucid``, ``igniter``.

One job of every workload is paired on half as many GPUs for the largest throughput. The
measurements begin with 30 random pairs (from which on live mode fits a model) and continue one by
one, chosen at random, by the largest variance of both logarithms, or by the knowledge gradient
(``measuring.suggesting.knowledge_gradient``). After each, the plan is made from the measured
slowdowns of measured pairs and the expected slowdowns of others. Its *quality* is its true
throughput over that of the best plan. Variances are fitted again whenever the number of pairs has
grown by a half. ``--out FILE.csv --figure FILE.svg`` draws what ``--out`` has collected.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
from unseen import DATA, PARTS

from dovetail.measuring.suggesting.knowledge_gradient import SharingGains, knowledge_gradient
from dovetail.predictors.estimators.hierarchical import SPEC, Hierarchical
from dovetail.predictors.fitted.posterior import JobsWithCoRunners, Moments, Posterior
from dovetail.predictors.fitted.rows import DirectedRows, training_rows
from dovetail.solver import match_pairs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WORLDS = ("k80", "p100", "v100", "lucid", "igniter")
RULES = ("random", "uncertain", "worth")
BEGIN, MORE, EVERY = 30, 60, 5
GROWN = 1.5


class World(NamedTuple):
    """Every pair that was measured, each once at each split.

    Attributes
    ----------
    pairs : JobsWithCoRunners
        Both directions: row k and row ``half + k`` are of one measurement.
    slowdown : (rows,) float
        The truth.
    sharing : SharingGains
        One job of each workload.
    """

    pairs: JobsWithCoRunners
    slowdown: Floats
    sharing: SharingGains

    @property
    def half(self) -> int:
        """The number of measurements."""
        return len(self.slowdown) // 2

    def rows(self, measurements: Ints) -> Ints:
        """Return both rows of each measurement."""
        return np.concatenate([measurements, measurements + self.half])


def world_of(rows: DirectedRows) -> World:
    """Return the pairs of two workloads, one measurement of each split."""
    half = len(rows.own) // 2
    mine, theirs = rows.own[:half], rows.other[:half]
    ends = np.sort(np.stack([mine, theirs]), axis=0)
    apart = rows.workload[mine] != rows.workload[theirs]
    _, first = np.unique(ends, axis=1, return_index=True)
    kept = first[apart[first]]
    both = np.concatenate([kept, kept + half])
    count = len(kept)
    jobs, place = np.unique(rows.workload[rows.own[both]], return_inverse=True)
    number = len(jobs)
    sharing = SharingGains(
        first=place[:count],
        second=place[count:],
        mine=np.arange(count),
        theirs=np.arange(count, 2 * count),
        scale=np.ones(number),
        alone=np.ones(number),
        size=np.ones(number, dtype=np.int64),
        gpus=number // 2,
        gsla=np.full(number, np.inf),
    )
    pairs = JobsWithCoRunners(rows.states, rows.own[both], rows.other[both])
    return World(pairs, rows.slowdown[both], sharing)


def qualities(world: World, rule: str, seed: int, more: int) -> Iterator[tuple[int, float]]:
    """Yield the number of measured pairs and the quality of the plan, as pairs are measured."""
    draw = np.random.default_rng(seed)
    order = draw.permutation(world.half)
    measured = order[:BEGIN]
    believed, fitted_on = refitted(world, measured), len(measured)
    for step in range(more + 1):
        if step % EVERY == 0:
            yield len(measured), quality(world, believed)
        left = np.setdiff1d(order, measured)
        if step == more or not len(left):
            return
        chosen = CHOICES[rule](world, believed, left, draw)
        measured = np.append(measured, chosen)
        if len(measured) < GROWN * fitted_on:
            believed = after(world, believed, world.rows(np.array([chosen])))
        else:
            believed, fitted_on = refitted(world, measured), len(measured)


def refitted(world: World, measured: Ints) -> Moments:
    """Return what is believed of all pairs, with variances fitted to those measured."""
    rows = world.rows(measured)
    pairs, slowdown = world.pairs, world.slowdown[rows]
    seen = JobsWithCoRunners(pairs.states, pairs.own[rows], pairs.other[rows])
    table = np.hstack([pairs.states[seen.own], pairs.states[seen.other]])
    posterior = Posterior.of(Hierarchical().fit(table, slowdown).to_form(), seen, slowdown)
    return posterior.moments(pairs).of_truth(rows, slowdown)


def after(world: World, believed: Moments, rows: Ints) -> Moments:
    """Return what is believed once a pair has been measured, the mean of the process kept."""
    mean, covariance, _ = believed
    gain = np.linalg.solve(covariance[np.ix_(rows, rows)], covariance[rows]).T
    left = np.log(world.slowdown[rows]) - mean[rows]
    return Moments(mean + gain @ left, covariance - gain @ covariance[rows], 0.0)


def quality(world: World, believed: Moments) -> float:
    """Return the true throughput of the plan that is made by what is believed, over the best."""
    jobs, sure = world.sharing, np.zeros(len(world.slowdown))
    worth = jobs.worth(np.log(world.slowdown), sure)
    best = match_pairs(jobs.table(worth, np.nan), jobs.alone, jobs.gpus).value
    expected = jobs.worth(believed.mean, np.maximum(np.diag(believed.covariance), 0.0))
    mate = match_pairs(jobs.table(expected, np.nan), jobs.alone, jobs.gpus).mate
    order = np.argsort(expected)
    ends = np.sort(np.stack([jobs.first, jobs.second])[:, order], axis=0)
    split = np.full((len(mate),) * 2, -1)
    split[ends[0], ends[1]] = order  # that of the best split is written last
    shared = [split[a, b] for a, b in enumerate(mate) if b > a]
    alone = int(np.sum(mate == np.arange(len(mate))))
    return float((worth[shared].sum() + alone) / best)


def at_random(world: World, believed: Moments, left: Ints, draw: np.random.Generator) -> int:
    return int(draw.choice(left))


def most_uncertain(world: World, believed: Moments, left: Ints, draw: np.random.Generator) -> int:
    variance = np.diag(believed.covariance)
    return int(left[np.argmax(variance[left] + variance[left + world.half])])


def most_worth(world: World, believed: Moments, left: Ints, draw: np.random.Generator) -> int:
    pairs = np.stack([left, left + world.half], axis=1)
    bounds = np.ones(len(believed.mean))
    return int(left[np.argmax(knowledge_gradient(world.sharing, *believed, bounds, pairs))])


CHOICES = {"random": at_random, "uncertain": most_uncertain, "worth": most_worth}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(WORLDS)}; all")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--more", type=int, default=MORE, help="pairs measured one by one")
    parser.add_argument("--out", type=Path, help="append every quality to this CSV file")
    parser.add_argument("--figure", type=Path, metavar="FILE.svg", help="draw --out, run nothing")
    given = parser.parse_args(arguments)
    if given.figure:
        draw_figure(given.out, given.figure)
        return
    for part in given.parts or WORLDS:
        folder, gpu_model, read = PARTS[part]
        if not (DATA / folder).is_dir():
            print(f"{part}: skipped, python benchmarks/fetch_data.py fetches {DATA / folder}")
            continue
        _, rows = training_rows(read(), SPEC.features, [gpu_model], partial=True)
        world = world_of(rows)
        print(f"\n{part}: {world.half} pairs; plan quality in %, {given.seeds} draws")
        for rule in RULES:
            began = time.process_time()
            runs = [list(qualities(world, rule, seed, given.more)) for seed in range(given.seeds)]
            took_s = (time.process_time() - began) / (given.seeds * given.more)
            mean, error = summary([[quality for _, quality in run] for run in runs])
            cells = "".join(f"{m:8.2f} ({e:.2f})" for m, e in zip(mean, error, strict=True))
            print(f"  {rule:10s}{cells}   {took_s:.3f} s each", flush=True)
            if given.out:
                with given.out.open("a", newline="") as file:
                    csv.writer(file).writerows(
                        [part, rule, seed, *at] for seed, run in enumerate(runs) for at in run
                    )


def summary(runs: Sequence[Sequence[float]]) -> tuple[Floats, Floats]:
    """Return mean and standard error over runs, in per cent."""
    each = 100 * np.array(runs)
    return each.mean(axis=0), each.std(axis=0) / max(1, len(each) - 1) ** 0.5


def draw_figure(source: Path, path: Path) -> None:
    """Draw the qualities of a file: a panel a data set, a line with standard errors a rule."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "dovetail"
    from matplotlib import pyplot as plt

    with source.open(newline="") as file:
        found = list(csv.reader(file))
    parts = list(dict.fromkeys(part for part, *_ in found))
    figure, panels = plt.subplots(1, len(parts), figsize=(2.2 * len(parts), 2.3), squeeze=False)
    for part, panel in zip(parts, panels[0], strict=True):
        for rule, (name, colour) in NAMES.items():
            rows = [row for row in found if row[:2] == [part, rule]]
            seeds = dict.fromkeys(row[2] for row in rows)
            runs = [[float(row[4]) for row in rows if row[2] == seed] for seed in seeds]
            mean, error = summary(runs)
            measured = [int(row[3]) for row in rows[: len(mean)]]
            panel.plot(measured, mean, color=colour, label=name, linewidth=1.3)
            panel.fill_between(measured, mean - error, mean + error, color=colour, alpha=0.2, lw=0)
        panel.set_title(part, fontsize=9)
        panel.tick_params(labelsize=7)
        panel.grid(color="#d8dee6", linewidth=0.5)
        panel.set_xlabel("measured pairs", fontsize=8)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    panels[0][0].set_ylabel("% of the best plan", fontsize=8)
    panels[0][-2:][0].legend(frameon=False, fontsize=7, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


NAMES = {
    "random": ("random", "#8794a3"),
    "uncertain": ("most uncertain", "#b3541e"),
    "worth": ("worth to the plan", "#16857e"),
}

if __name__ == "__main__":
    main()
