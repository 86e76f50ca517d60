"""How well pairs are completed from few measurements, and sets from pairs.

Reads ``gavel/``, ``lucid/`` and ``parvagpu/`` of ``../shared/data`` beside the checkout (they are
no part of the project, their licences differ). Run ``python benchmarks/completion.py`` for all
parts or name some: ``gavel``, ``cold``, ``transfer``, ``lucid``, ``sets``; ``--seeds`` sets the
number of random draws.
"""

from __future__ import annotations

import argparse
import copy
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.sets import set_slowdown
from dovetail.predictors.estimators.completion import Completion
from dovetail.predictors.forms.low_rank import LowRank

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
DEVICES = ("k80", "p100", "v100")
FRACTIONS = (0.05, 0.10, 0.25, 0.50)
SEEDS = 20

Row = dict[str, str]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Method = Callable[[FloatArray, BoolArray], FloatArray]


class Matrix(NamedTuple):
    """Slowdown of the workload of the row beside that of the column; NaN where not measured."""

    slowdown: FloatArray
    groups: tuple[int, ...]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    given = parser.parse_args(arguments)
    for part in given.parts or PARTS:
        folder, report = PARTS[part]
        if (DATA / folder).is_dir():
            report(given.seeds)
        else:
            print(f"{part}: skipped, no measured data in {DATA / folder}")


def report_gavel(seeds: int) -> None:
    """Print learning curves on the three GPU models, pairs revealed at random."""
    matrices = {device: gavel(device) for device in DEVICES}
    full = {device: completed(matrix) for device, matrix in matrices.items()}
    for device, matrix in matrices.items():
        others = [full[other] for other in DEVICES if other != device]
        methods = {
            **BASELINES,
            "completion": completion(),
            "  + families": completion(groups=matrix.groups),
            "  + other GPUs": completion(priors=others),
            "  + both": completion(groups=matrix.groups, priors=others),
        }
        print_curves(f"gavel {device}", matrix, methods, FRACTIONS, seeds)


def report_lucid(seeds: int) -> None:
    """Print errors on an RTX 3090 with a quarter of the pairs revealed."""
    matrix = lucid()
    methods = {
        **BASELINES,
        "completion": completion(),
        "  + families": completion(groups=matrix.groups),
    }
    print_curves("lucid", matrix, methods, (0.25,), min(seeds, 5))


def report_transfer(seeds: int) -> None:
    """Print errors on a GPU model of which nothing is measured, from one other."""
    del seeds
    print("\ngavel: nothing of this GPU model revealed, completed matrix of another one; MAE")
    for device in DEVICES:
        slowdown = gavel(device).slowdown
        test = ~np.isnan(slowdown)
        found = [
            f"constant of itself {np.abs(np.median(slowdown[test]) - slowdown)[test].mean():.3f}"
        ]
        for other in DEVICES:
            if other != device:
                told = table(completed(gavel(other)), len(slowdown))
                found.append(f"{other} {np.abs(told - slowdown)[test].mean():.3f}")
        print(f"  {device:5s} {'   '.join(found)}")


def report_cold(seeds: int) -> None:
    """Print errors on a workload that has run with a few others, all others being known."""
    counts = (0, 1, 2, 3, 5)
    draws = max(1, seeds // 4)
    print(
        f"\ngavel, a new workload with n measured co-runners; MAE, {draws} draws of each workload"
    )
    print(f"  {'n':22s}" + "".join(f"{n:>10d}" for n in counts))
    for device in DEVICES:
        slowdown, groups = gavel(device)
        for name, settings in (("completion", {}), ("  + families", {"groups": groups})):
            error: dict[int, list[float]] = {n: [] for n in counts}
            for new in np.flatnonzero(~np.isnan(slowdown).all(axis=1)).tolist():
                base, test = without(slowdown, new)
                model = Completion(**settings).fit(*rows(slowdown, base))
                for draw in range(draws):
                    for n, predicted, left in learnt(model, slowdown, new, test, counts, draw):
                        error[n].append(float(np.abs(predicted - slowdown)[left].mean()))
            cells = "".join(f"{np.mean(error[n]):10.3f}" for n in counts)
            print(f"  {device:5s}{name:17s}{cells}")


def report_sets(seeds: int) -> None:
    """Print errors of rules from pairs to sets, on equal MPS processes."""
    del seeds
    measured = parvagpu()
    print(
        f"\nparvagpu: {len(measured)} settings of equal processes; errors of the slowdown of each"
    )
    print(f"  {'':24s}{'MAE':>8s}{'bias':>8s}{'RMSE':>8s}{'too low by > 10 %':>20s}")
    for count in (3, 4, 5):
        both = [(s[2], s[count]) for s in measured if 2 in s and count in s]
        pair, truth = np.array(both).T
        for name, rule in SET_RULES.items():
            error = rule(pair, count) - truth
            figures = np.abs(error).mean(), error.mean(), np.sqrt((error**2).mean())
            low = np.mean(error < -0.1 * truth)
            mae, bias, rmse = (f"{figure:8.3f}" for figure in figures)
            print(f"  {count} {name:22s}{mae}{bias}{rmse}{low:20.0%}")


def print_curves(
    title: str,
    matrix: Matrix,
    methods: Mapping[str, Method],
    fractions: Sequence[float],
    seeds: int,
) -> None:
    print(f"\n{title}: MAE (and its standard deviation over {seeds} draws), RMSE")
    print(f"  {'pairs revealed':16s}" + "".join(f"{fraction:>20.0%}" for fraction in fractions))
    for name, method in methods.items():
        cells = [scored(matrix.slowdown, method, fraction, seeds) for fraction in fractions]
        print(f"  {name:16s}" + "".join(f"{m:8.3f} ({d:.3f}){r:6.3f}" for m, d, r in cells))


def scored(
    slowdown: FloatArray, method: Method, fraction: float, seeds: int
) -> tuple[float, float, float]:
    """Return the mean and the standard deviation of the MAE, and the mean RMSE."""
    errors = []
    for seed in range(seeds):
        seen = revealed(slowdown, fraction, seed)
        error = (method(slowdown, seen) - slowdown)[~seen & ~np.isnan(slowdown)]
        errors.append((np.abs(error).mean(), np.sqrt((error**2).mean())))
    mae, rmse = np.array(errors).T
    return float(mae.mean()), float(mae.std()), float(rmse.mean())


def revealed(slowdown: FloatArray, fraction: float, seed: int) -> BoolArray:
    """Reveal a part of the pairs at random; both directions of a pair go together."""
    first, second = np.nonzero(np.triu(~np.isnan(slowdown)))
    count = round(fraction * len(first))
    chosen = np.random.default_rng(seed).permutation(len(first))[:count]
    seen = np.zeros(slowdown.shape, dtype=np.bool_)
    seen[first[chosen], second[chosen]] = seen[second[chosen], first[chosen]] = True
    return seen


def rows(slowdown: FloatArray, seen: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return the revealed cells as the estimator takes them."""
    return np.argwhere(seen).astype(np.float64), slowdown[seen]


def completion(**settings: object) -> Method:
    def method(slowdown: FloatArray, seen: BoolArray) -> FloatArray:
        model = Completion(**settings).fit(*rows(slowdown, seen))  # type: ignore[arg-type]
        return table(model.to_form(), len(slowdown))

    return method


def completed(matrix: Matrix) -> LowRank:
    """Return the matrix completed from all that was measured."""
    return Completion().fit(*rows(matrix.slowdown, ~np.isnan(matrix.slowdown))).to_form()


def table(form: LowRank, count: int) -> FloatArray:
    own, other = np.indices((count, count)).reshape(2, -1)
    states = np.arange(count, dtype=np.float64)[:, np.newaxis]
    return form.predict(states, own, other).reshape(count, count)


def without(slowdown: FloatArray, new: int) -> tuple[BoolArray, BoolArray]:
    """Return the measured cells without a workload, and those with it."""
    concerns = np.zeros(slowdown.shape, dtype=np.bool_)
    concerns[new] = concerns[:, new] = True
    measured = ~np.isnan(slowdown)
    return measured & ~concerns, measured & concerns


def learnt(
    model: Completion,
    slowdown: FloatArray,
    new: int,
    test: BoolArray,
    counts: Sequence[int],
    draw: int,
) -> Iterator[tuple[int, FloatArray, BoolArray]]:
    """Yield predictions, and the cells still to predict, with more and more co-runners.

    The cells to predict are the same for all counts.
    """
    partners = np.random.default_rng(draw).permutation(np.flatnonzero(test[new]))[: max(counts)]
    left = test.copy()
    left[new, partners] = left[partners, new] = False
    for n in counts:
        seen = np.zeros_like(test)
        seen[new, partners[:n]] = seen[partners[:n], new] = True
        updated = copy.deepcopy(model)
        if n:
            updated.partial_fit(*rows(slowdown, seen))
        yield n, table(updated.to_form(), len(slowdown)), left


def overall_mean(slowdown: FloatArray, seen: BoolArray) -> FloatArray:
    return np.full(slowdown.shape, slowdown[seen].mean())


def overall_median(slowdown: FloatArray, seen: BoolArray) -> FloatArray:
    return np.full(slowdown.shape, np.median(slowdown[seen]))


def row_mean(slowdown: FloatArray, seen: BoolArray) -> FloatArray:
    """Return the mean of each row, the mean of all where the row has nothing."""
    count = seen.sum(axis=1)
    total = np.where(seen, slowdown, 0.0).sum(axis=1)
    mean = np.where(count > 0, total / np.maximum(count, 1), slowdown[seen].mean())
    return np.broadcast_to(mean[:, np.newaxis], slowdown.shape)


def column_mean(slowdown: FloatArray, seen: BoolArray) -> FloatArray:
    return row_mean(slowdown.T, seen.T).T


def row_and_column_means(slowdown: FloatArray, seen: BoolArray) -> FloatArray:
    both = row_mean(slowdown, seen) + column_mean(slowdown, seen)
    return both - slowdown[seen].mean()


def additive(slowdown: FloatArray, seen: BoolArray) -> FloatArray:
    """Return own and co-runner's effects on the logarithm, by least squares."""
    count = len(slowdown)
    own, other = np.nonzero(seen)
    design = np.hstack([np.eye(count)[own], np.eye(count)[other]])
    logs = np.log(slowdown[seen])
    effects = np.linalg.lstsq(design, logs - logs.mean(), rcond=None)[0]
    return np.exp(logs.mean() + np.add.outer(effects[:count], effects[count:]))


BASELINES: Mapping[str, Method] = {
    "mean": overall_mean,
    "median": overall_median,
    "row mean": row_mean,
    "column mean": column_mean,
    "row + column": row_and_column_means,
    "additive, logs": additive,
}


def by_mean_value_analysis(pair: FloatArray, count: int) -> FloatArray:
    pairs = np.broadcast_to(pair[:, np.newaxis, np.newaxis], (len(pair), count, count))
    return set_slowdown(pairs)[:, 0]


SET_RULES: Mapping[str, Callable[[FloatArray, int], FloatArray]] = {
    "mean-value analysis": by_mean_value_analysis,
    "1 + sum of (s - 1)": lambda pair, count: 1 + (count - 1) * (pair - 1),
    "product": lambda pair, count: pair ** (count - 1),
    "worst pair": lambda pair, count: pair,
    "count / 2 * s": lambda pair, count: count / 2 * pair,
    "count ^ log2(s)": lambda pair, count: count ** np.log2(pair),
}


def gavel(device: str) -> Matrix:
    """Return the matrix of one GPU model; families are the models whatever the batch size."""
    found = [row for row in rows_of(DATA / "gavel" / "gavel_pairs.csv") if row["device"] == device]
    names = sorted({row[side] for row in found for side in ("job_a", "job_b")})
    return matrix_of(
        names,
        [name.split(" (")[0] for name in names],
        [
            (row["job_a"], row["job_b"], float(row["slowdown_a"]), float(row["slowdown_b"]))
            for row in found
            if row["status"] == "ok"
        ],
    )


def lucid() -> Matrix:
    solo = list(rows_of(DATA / "lucid" / "single_data.csv"))
    return matrix_of(
        [lucid_name(row, "") for row in solo],
        [row["model"] for row in solo],
        [
            (
                lucid_name(row, "1"),
                lucid_name(row, "2"),
                1 / float(row["speed1"]),
                1 / float(row["speed2"]),
            )
            for row in rows_of(DATA / "lucid" / "colocate_info.csv")
        ],
    )


def lucid_name(row: Row, side: str) -> str:
    return " ".join(row[name + side] for name in ("model", "dataset", "batchsize", "amp"))


def matrix_of(
    names: Sequence[str],
    families: Sequence[str],
    pairs: Sequence[tuple[str, str, float, float]],
) -> Matrix:
    position = {name: k for k, name in enumerate(names)}
    kinds = {family: k for k, family in enumerate(dict.fromkeys(families))}
    slowdown = np.full((len(names), len(names)), np.nan)
    for first, second, of_first, of_second in pairs:
        slowdown[position[first], position[second]] = of_first
        slowdown[position[second], position[first]] = of_second
    return Matrix(slowdown, tuple(kinds[family] for family in families))


def parvagpu() -> list[dict[int, float]]:
    """Return slowdowns by number of processes, for each model, MIG size and batch size."""
    rates: dict[tuple[str, str, str], dict[int, float]] = {}
    for path in sorted((DATA / "parvagpu").glob("[!S]*.csv")):
        for row in rows_of(path):
            key = path.stem, row["Mig instance"], row["Batch size"]
            if float(row["Throughput"]) > 0:
                rates.setdefault(key, {})[int(row["Workload Number"])] = float(row["Throughput"])
    return [
        {k: found[1] / rate for k, rate in found.items()} for found in rates.values() if 1 in found
    ]


def rows_of(path: Path) -> Iterator[Row]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


PARTS: Mapping[str, tuple[str, Callable[[int], None]]] = {
    "gavel": ("gavel", report_gavel),
    "cold": ("gavel", report_cold),
    "transfer": ("gavel", report_transfer),
    "lucid": ("lucid", report_lucid),
    "sets": ("parvagpu", report_sets),
}

if __name__ == "__main__":
    main()
