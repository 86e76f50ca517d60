"""How often the three cases of ``dovetail advise`` hold on our measured pairs at halves.

Each workload of ``library:h200-2026-11`` is left out in turn: the one number of the law of MPS that
counts at caps, ``bandwidth``, is fitted on the pairs without it, and the pairs with it are
predicted from what monitoring records: ``gpu_util`` alone, with ``mem_util``, or with SM and DRAM
activity. The number in use is the package's.
Nothing says how often the cases hold for three and more jobs under caps: no such set has been
measured, neither in this data set nor in public ones.

    python benchmarks/advising/ranges.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.advising.sharing import CONFIDENCE
from dovetail.instances.datasets.files import read_dataset
from dovetail.instances.instance import Workload
from dovetail.instances.metrics import Metrics
from dovetail.predictors.kernels import KernelsPredictor, Law

RECORDS = {
    "gpu_util": ("gpu_util",),
    "gpu_util and mem_util": ("gpu_util", "mem_util"),
    "SM and DRAM activity": ("gpu_util", "sm_active", "dram_active"),
}
TRIED = np.arange(0.0, 3.01, 0.04)


class Pairs:
    """The measured pairs at halves, and profiles of some figures only."""

    def __init__(self, figures: Sequence[str]) -> None:
        data = read_dataset("library:h200-2026-11")
        self.workloads = {
            each.workload: Workload(
                memory_mib=0.0,
                metrics=Metrics(**{name: getattr(each.metrics, name) for name in figures}),
            )
            for each in data.profiles
            if each.share is None
        }
        self.names = list(self.workloads)
        halves = [
            each
            for each in data.measurements
            if each.shares == (50, 50) and all(value is not None for value in each.slowdown)
        ]
        self.rows = np.array([[self.names.index(name) for name in one.workloads] for one in halves])
        self.truth = np.array([each.slowdown for each in halves], dtype=float)

    def cases(self, bandwidth: float) -> np.ndarray:
        """Return the slowdowns of the cases low, likely and high, shape (3, pairs, 2)."""
        law = KernelsPredictor(Law(bandwidth=bandwidth), CONFIDENCE)
        found = law.predict(self.workloads, self.rows, np.full(self.rows.shape, 50))
        high = np.maximum(1.0, found.slowdown**2 / found.upper)
        return np.stack([found.upper, found.slowdown, high])

    def fitted(self, which: np.ndarray) -> float:
        """Return the number of the law that is best for some of the pairs."""
        error = [
            abs(np.log(self.cases(tried)[1][which] / self.truth[which])).mean() for tried in TRIED
        ]
        return float(TRIED[int(np.argmin(error))])


def main() -> None:
    """Print a row for each kind of record, with the workload left out and with the law in use."""
    print(f"{'':24}{'within low':>12}{'error of likely':>18}{'beyond high':>14}")
    for name, figures in RECORDS.items():
        pairs = Pairs(figures)
        held_out = np.full((3, *pairs.truth.shape), np.nan)
        for workload in range(len(pairs.names)):
            own = pairs.rows == workload
            with_it = own.any(axis=1)
            cases = pairs.cases(pairs.fitted(~with_it))
            held_out[:, own] = cases[:, own]
        for kind, cases in (("left out", held_out), ("in use", pairs.cases(Law().bandwidth))):
            low, likely, high = cases
            truth = pairs.truth
            print(
                f"{name:>24}{(truth <= low).mean():12.0%}{abs(likely - truth).mean():18.2f}"
                f"{(truth >= high).mean():14.0%}  {kind}"
            )


if __name__ == "__main__":
    main()
