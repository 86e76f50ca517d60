"""How close predictions can come to the best matching if measurements are noisy.

Reads ``lucid/`` of ``../shared/data`` next to the checkout (it is not part of the project). The
best matching by measured slowdowns takes the pairs whose noise was lucky. Luck cannot be predicted:
by the same measurements, even a matching by the exact means of all speeds is worth less. How much
less depends on the noise, and is simulated here. Held-out predictions of the model ``hierarchical``
(each pair predicted without its own measurements) stand in for the exact means; noise on each speed
makes simulated measurements of them. The value of the matching by the means, under these
measurements, is given as a fraction of that of the best matching under them.

The noise of Lucid's measurements is only known within bounds. Lower bound: the two speeds of a
workload with itself should be equal, and differ; noise common to both does not show in this. Upper
bound: the errors of the predictions are noise and errors of the model together.

Run it as ``python benchmarks/noise_ceiling.py`` (under a minute; extra ``train``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.datasets import DataSet
from dovetail.papers.importers.lucid import lucid_data
from dovetail.papers.studies.comparison import (
    MeasuredBlock,
    complete_block,
    greedy,
    matching,
    worth,
)
from dovetail.predictors.fitted.folds import held_out, random_folds
from dovetail.predictors.fitted.rows import measured_pairs
from dovetail.predictors.fitted.training import PreparedModel, prepared

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "lucid"
NOISES = (0.02, 0.025, 0.033, 0.045)
DRAWS = 100

FloatArray = NDArray[np.float64]
Noise = Callable[[np.random.Generator, tuple[int, ...]], FloatArray]


class Ceiling(NamedTuple):
    """What the matching by the means is worth, as a part of the best one's: mean and spread."""

    mean: float
    sd: float


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if not DATA.is_dir():
        print(f"skipped, no measured data in {DATA}: python benchmarks/fetch_data.py fetches it")
        return
    data = lucid_data(str(DATA))
    model = prepared(data, "hierarchical")
    block = complete_block(data, model.rows)
    if block is None:
        print("skipped, no four workloads of which every two were measured together")
        return
    means = predicted_speed(model, block)
    twins = differences(data)
    report_measured(block, means, twins)
    noises = {f"normal {sd:.3f}": partial(normal, sd) for sd in NOISES}
    report_simulated(means, {"differences": partial(resampled, twins), **noises}, given)


def report_measured(block: MeasuredBlock, means: FloatArray, twins: FloatArray) -> None:
    """Print how noisy speeds are, at least and at most, and what matchings are worth."""
    measured, apart = 1 / block.slowdown, ~np.eye(len(block.names), dtype=np.bool_)
    best = worth(block.value, matching(block.value))
    print("noise of a speed")
    print(f"  at least: workloads with themselves {np.sqrt(np.mean(twins**2)):13.3f}")
    print(f"  at most: errors of predictions        {(means - measured)[apart].std():13.3f}")
    size = len(block.names)
    print(
        f"measured: {size} workloads on {size // 2} GPUs ({block.gpu_model}), of the best matching"
    )
    print(f"  random pairs                {size // 2 * block.value[apart].mean() / best:23.1%}")
    print(f"  greedy by the measurements  {worth(block.value, greedy(block.value)) / best:23.1%}")
    by_predictions = worth(block.value, matching(means + means.T)) / best
    print(f"  best by the predictions     {by_predictions:23.1%}")


def report_simulated(
    means: FloatArray, noises: Mapping[str, Noise], given: argparse.Namespace
) -> None:
    """Print what a matching by exact means reaches at each noise."""
    print(f"simulated: exact means known, {given.draws} draws of the measurements")
    print(f"  {'noise of a speed':20s}{'matching by the means':>24s}{'sd':>8s}")
    for name, noise in noises.items():
        found = ceiling(means, noise, given.draws, given.seed)
        print(f"  {name:20s}{found.mean:24.1%}{found.sd:8.1%}")


def differences(data: DataSet) -> FloatArray:
    """Return for each workload with itself the difference of both speeds, by the root of 2.

    The difference of two has twice the variance of one. Which is the first means nothing: both
    signs are returned.
    """
    twins = [m.slowdown for m in measured_pairs(data) if len(set(m.workloads)) == 1]
    speed = 1 / np.array(twins, dtype=np.float64)
    apart = (speed[:, 0] - speed[:, 1]) / np.sqrt(2)
    return np.concatenate([apart, -apart])


def predicted_speed(model: PreparedModel, block: MeasuredBlock) -> FloatArray:
    """Return held-out predictions of the speed of each workload with each, shape (n, n)."""
    rows = model.rows
    held = held_out(model.spec, rows, random_folds(rows))
    inside = block.rows[held.row]
    own = block.position[rows.own_workload[held.row[inside]]]
    other = block.position[rows.other_workload[held.row[inside]]]
    speed = np.full(block.slowdown.shape, np.nan)
    speed[own, other] = 1 / held.slowdown[inside]
    return speed


def normal(sd: float, generator: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return generator.normal(0.0, sd, shape)


def resampled(
    values: FloatArray, generator: np.random.Generator, shape: tuple[int, ...]
) -> FloatArray:
    return generator.choice(values, shape)


def ceiling(means: FloatArray, noise: Noise, draws: int, seed: int) -> Ceiling:
    """Return what the matching by the means is worth by noisy measurements of them.

    Parameters
    ----------
    means : ndarray of float, shape (n, n)
        The exact mean speed of the first with the second.
    noise : callable
        Draws the noise of each speed, of a shape.
    draws : int
        How often everything is measured anew.
    seed : int
        Of the noise.
    """
    generator = np.random.default_rng(seed)
    chosen = matching(means + means.T)
    parts = []
    for _ in range(draws):
        speed = means + noise(generator, means.shape)
        value = speed + speed.T
        parts.append(worth(value, chosen) / worth(value, matching(value)))
    return Ceiling(float(np.mean(parts)), float(np.std(parts)))


if __name__ == "__main__":
    main()
