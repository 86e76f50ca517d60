"""A model fitted on few pairs compared with the analytic predictor: when live mode should fit.

``python benchmarks/live_fits.py``, about five minutes. Reads ``lucid/`` of ``../shared/data``
next to the checkout (RTX 3090, uncapped pairs, utilisations only; other people's measurements,
which are not part of the project). Some configurations are drawn, and some of the pairs among
them are measured; errors are over the other pairs among them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dovetail.executor.live.beliefs import Beliefs
from dovetail.instances.datasets import DataSet, Measurement
from dovetail.instances.slowdowns.slowdown_table import UNCAPPED
from dovetail.papers.importers.lucid import lucid_data
from dovetail.predictors.fitted.training import fit

FOLDER = Path(__file__).parents[2] / "shared" / "data" / "lucid"
WORKLOADS = (16, 30)
PAIRS = (15, 30, 60)


class Errors(NamedTuple):
    """Mean absolute errors of the slowdown, and how long the fit took."""

    median: float
    analytic: float
    fitted: float
    fit_s: float


def errors(data: DataSet, workloads: int, pairs: int, seed: int) -> Errors:
    """Draw configurations and measured pairs, and return the errors of the others."""
    draw = np.random.default_rng(seed)
    measured = [found for found in data.measurements if found.slowdown]
    names = list(dict.fromkeys(name for found in measured for name in found.workloads))
    chosen = set(draw.permutation(names)[:workloads].tolist())
    inside = [found for found in measured if chosen.issuperset(found.workloads)]
    order = draw.permutation(len(inside)).tolist()
    known = data.replace(measurements=tuple(inside[k] for k in order[:pairs]))
    test = [inside[k] for k in order[pairs:]]
    began = time.perf_counter()
    model = fit(known, gpu_models=data.gpu_models)
    fit_s = time.perf_counter() - began
    middle = np.median([value for found in known.measurements for value in found.slowdown or ()])
    constant = np.mean([abs(value - middle) for found in test for value in found.slowdown or ()])
    return Errors(
        float(constant), _error(Beliefs(known), test), _error(Beliefs(known, model), test), fit_s
    )


def _error(beliefs: Beliefs, test: Sequence[Measurement]) -> float:
    names = tuple(dict.fromkeys(name for found in test for name in found.workloads))
    table = beliefs.table(names, beliefs.data.gpu_models, (UNCAPPED,))
    wrong = []
    for found in test:
        a, b = (table.place[name] for name in found.workloads)
        mine, theirs = found.slowdown or (np.nan, np.nan)
        wrong += [
            abs(table.prior.slowdown[0, 0, a, b] - mine),
            abs(table.prior.slowdown[0, 0, b, a] - theirs),
        ]
    return float(np.nanmean(wrong))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=2)
    seeds = options.parse_args().seeds
    if not FOLDER.exists():
        sys.exit(f"{FOLDER} is absent: python benchmarks/fetch_data.py lucid")
    data = lucid_data(str(FOLDER))
    print("| workloads | pairs measured | constant | analytic | fitted | seconds to fit |")
    print("|--:|--:|--:|--:|--:|--:|")
    for workloads in WORKLOADS:
        for pairs in PAIRS:
            found = [errors(data, workloads, pairs, seed) for seed in range(seeds)]
            *mae, fit_s = np.mean(found, axis=0).tolist()
            cells = " | ".join(f"{value:.3f}" for value in mae)
            print(f"| {workloads} | {pairs} | {cells} | {fit_s:.0f} |", flush=True)


if __name__ == "__main__":
    main()
