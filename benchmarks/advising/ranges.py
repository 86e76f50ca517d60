"""How often the ranges of ``dovetail advise`` hold on our measured pairs at halves.

For each workload of ``library:h200-2026-11``, constants of the form of ``advising/sharing.py`` are
chosen on the pairs without it, and tried on the pairs with it: the case low such that nine of ten
slowdowns are at most as large, the case high such that eight of ten are at least as large, the case
likely with the least mean absolute error. The last column has the constants in use on all pairs.

    python benchmarks/advising/ranges.py
"""

from __future__ import annotations

from itertools import product

import numpy as np

from dovetail.advising.sharing import _ACTIVITY, _UNSEEN, _UTILISATION
from dovetail.instances.datasets.files import read_dataset

CASES = ("low", "likely", "high")
CAPS = (0.0, 0.25, 0.5, 0.75, 1.0)
MEMORY = (0.0, 0.2, 0.3, 0.4, 0.5, 0.8, 1.0, 1.3, 1.6, 2.0, 2.5, 3.0)


def rows(detailed: bool) -> list[tuple[str, str, float, float, float, float]]:
    """Return own, other, slowdown, busy, part of the SMs and the other's use of the memory."""
    data = read_dataset("library:h200-2026-11")
    profiles = {each.workload: each.metrics for each in data.profiles if each.share is None}
    found = []
    for pair in data.measurements:
        if pair.shares != (50, 50) or any(value is None for value in pair.slowdown):
            continue
        for k in range(2):
            own, other = pair.workloads[k], pair.workloads[1 - k]
            mine, its = profiles[own], profiles[other]
            busy = mine.gpu_util
            sms = min(1.0, mine.sm_active / busy) if detailed else 1.0
            dram = its.dram_active if detailed else its.gpu_util
            found.append((own, other, pair.slowdown[k], busy, sms, dram))
    return found


def predicted(table: np.ndarray, unseen: float, by_cap: float, by_memory: float) -> np.ndarray:
    """Return the slowdowns by one choice of constants."""
    busy, sms, dram = table.T
    busy, dram = np.minimum(1, busy + unseen), np.minimum(1, dram + unseen)
    return 1 + by_cap * busy * (np.maximum(1, sms / 0.5) - 1) + by_memory * busy * dram


def chosen(case: str, table: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Return the constants of a case that are best on these pairs."""

    def cost(constants: tuple[float, float]) -> tuple[float, ...]:
        error = predicted(table, _UNSEEN[CASES.index(case)], *constants) - truth
        size = float(abs(error).mean())
        if case == "low":
            return (max(0.0, 0.9 - float((error >= 0).mean())), size)
        if case == "high":
            return (max(0.0, 0.8 - float((error <= 0).mean())), size)
        return (size,)

    return min(product(CAPS, MEMORY), key=cost)


def main() -> None:
    """Print a row for each case and each kind of record."""
    print(f"{'':26}{'with the workload left out':>30}{'constants in use':>22}")
    for detailed, used in ((False, _UTILISATION), (True, _ACTIVITY)):
        found = rows(detailed)
        names = np.array([row[:2] for row in found])
        truth = np.array([row[2] for row in found])
        table = np.array([row[3:] for row in found])
        for case, constants in zip(CASES, used, strict=True):
            guess = np.zeros_like(truth)
            for workload in sorted(set(names.ravel())):
                with_it = (names == workload).any(axis=1)
                best = chosen(case, table[~with_it], truth[~with_it])
                own = names[:, 0] == workload
                guess[own] = predicted(table[own], _UNSEEN[CASES.index(case)], *best)
            fitted = predicted(table, _UNSEEN[CASES.index(case)], *constants)
            kind = "SM and DRAM activity" if detailed else "gpu_util"
            print(f"{kind:>20} {case:6}", *(told(case, each, truth) for each in (guess, fitted)))


def told(case: str, guess: np.ndarray, truth: np.ndarray) -> str:
    """Return how often a case holds, or its error."""
    if case == "likely":
        return f"   mean error {abs(guess - truth).mean():6.2f}"
    held = guess >= truth if case == "low" else guess <= truth
    return f"   holds for  {held.mean():6.0%}"


if __name__ == "__main__":
    main()
