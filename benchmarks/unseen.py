"""Accuracy of predictions for pairs, splits, workloads and families that were never measured.

Reads ``gavel/``, ``lucid/``, ``igniter/`` and ``parvagpu/`` of ``../shared/data`` next to the
checkout (they are not part of the project, their licences differ), our own measurements and a
made-up set of the tests. Run ``python benchmarks/unseen.py`` for all parts or name some: ``h200``
(without caps), ``halves`` (the H200's at 50/50), ``names`` (made up), ``k80``, ``p100``, ``v100``,
``lucid``, ``igniter``, ``sets``; ``--seeds`` sets the number of random draws, ``--models`` which
models are tested. Errors are mean absolute errors of the slowdown, with their standard error
over draws, or over the workloads, families or splits that are hidden in turn; then R2 of the
slowdown and of its logarithm over all hidden rows together.

``igniter`` has pairs at five splits of the SMs. Most of its workloads were measured alone at
shares of 20 to 80 % only, so the rate on the whole GPU is extrapolated from the last segment of the
solo curve; the predicted slowdowns depend on that, too.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.instances.datasets import DataSet, Measurement, SoloProfile, read_dataset
from dovetail.instances.slowdowns.sets import set_slowdown
from dovetail.papers.importers.gavel import gavel_data
from dovetail.papers.importers.lucid import lucid_data
from dovetail.papers.studies.comparison import chosen_coverage, chosen_tests, complete_block
from dovetail.papers.studies.evaluation import (
    SETTING_NAMES,
    NotApplicable,
    Setting,
    coverage,
    evaluate,
)
from dovetail.predictors.estimators.hierarchical import SPEC
from dovetail.predictors.fitted.folds import family_folds, random_folds, workload_folds
from dovetail.predictors.fitted.rows import DirectedRows, training_rows
from dovetail.predictors.forms.hierarchy import ALONE, BATCH, DESCRIBED, FAMILY, SHARE
from dovetail.predictors.kernels import PROFILE

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
OWN = "library:h200-2026-11"
NAMES = ROOT / "tests" / "predictors" / "made-up-names"
SEEDS = 10
REVEALED = 0.25

Row = dict[str, str]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Model = Callable[[DirectedRows, DirectedRows, int], FloatArray]


class Hidden(NamedTuple):
    """What is hidden together: the parts of one draw, or of all workloads, in turn."""

    draws: list[list[BoolArray]]
    each_fold: bool


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--bounds", action="store_true", help="how upper bounds are kept instead")
    given = parser.parse_args(arguments)
    for part in given.parts or PARTS:
        folder, gpu_model, read = PARTS[part]
        if folder is not None and not (DATA / folder).is_dir():
            print(f"{part}: skipped, python benchmarks/fetch_data.py fetches {DATA / folder}")
        elif part == "sets":
            report_sets(given.seeds)
        elif given.bounds:
            report_bounds(part, read(), gpu_model)
        else:
            report_cells(part, read(), gpu_model, given.seeds, given.models)


def report_bounds(part: str, data: DataSet, gpu_model: str) -> None:
    """Print how many jobs kept their bounds, of all and of those in chosen pairs."""
    print(f"\n{part}: jobs within their bounds, % (of chosen pairs); mean bound / prediction")
    settings: tuple[Setting, ...] = ("random", "workload", "family")
    trials = evaluate(data, ["hierarchical"], settings, [gpu_model], rounds=4)
    for tested in trials:
        if isinstance(tested, NotApplicable):
            continue
        block = complete_block(data, tested.rows, [gpu_model])
        rounds = list(chosen_tests(block, tested)) if block else []
        split = tested.rows.split[tested.held.row]
        among = [split == one for one in np.unique(split)]
        print(f"  {SETTING_NAMES[tested.setting]:14s}", end="")
        for confidence in (0.9, 0.95):
            every = coverage(tested, confidence)
            if every is None:
                print(f"  {confidence:.0%}: refused", end="")
                continue
            ratio = np.nanmean(tested.upper(confidence) / tested.predicted)
            chosen = chosen_coverage(tested, rounds, confidence)
            words = [f"{every.job:.1%}", f"({chosen.job:.1%})" if chosen else "(-)"]
            words += [f"{ratio:.3f}", f"bounded {every.bounded:.0%}"]
            if len(among) > 1:
                each = (coverage(tested, confidence, one) for one in among)
                words.append("splits " + "/".join(f"{c.job:.1%}" if c else "-" for c in each))
            print(f"  {confidence:.0%}: {' '.join(words)}", end="")
        print(flush=True)


def report_splits(rows: DirectedRows) -> None:
    """Print what the throughput of pairs loses if their split is chosen by held-out predictions."""
    predicted = np.empty(len(rows.slowdown))
    for train, test in random_folds(rows):
        predicted[test] = hierarchical(rows.take(train), rows.take(test), 0)
    choices = {"hierarchical": predicted, "solo curves": alone(rows), "equal shares": None}
    count = rows.pair.max() + 1
    rate = np.bincount(rows.pair, 1 / rows.slowdown, count)
    even = -np.abs(rows.states[rows.own, SHARE] - rows.states[rows.other, SHARE])
    group = np.zeros(count, dtype=np.int64)
    group[rows.pair] = rows.workload_pair
    of_two = [np.flatnonzero(group == one) for one in np.unique(group)]
    print(f"  throughput lost by the chosen split, {len(of_two)} pairs, each hidden:")
    for name, slowdown in choices.items():
        score = np.bincount(rows.pair, even if slowdown is None else 1 / slowdown, count)
        lost = [1 - rate[at[score[at].argmax()]] / rate[at].max() for at in of_two]
        print(f"    {name:14s} mean {np.mean(lost):.2%}, largest {np.max(lost):.2%}")


def report_cells(
    part: str, data: DataSet, gpu_model: str, seeds: int, models: Sequence[str]
) -> None:
    """Print the errors of every model on everything that can be hidden."""
    _, rows = training_rows(data, SPEC.features, [gpu_model], partial=True)
    head = "MAE (standard error) R2 R2 of logarithms"
    print(f"\n{part}: {len(rows.slowdown)} slowdowns, {seeds} draws; {head}")
    hidden = cells(rows, seeds)
    print(f"  {'':14s}" + "".join(f"{name:>30s}" for name in hidden))
    for name in models:
        print(f"  {name:14s}", end="")
        for one in hidden.values():
            found = scored(rows, MODELS[name], one)
            words = f"{found.error:.4f} ({found.deviation:.4f}) {found.r2:.3f} {found.log_r2:.3f}"
            print(f"{words:>30s}", end="", flush=True)
        print()
    if "new split" in hidden and "hierarchical" in models:
        report_splits(rows)


def cells(rows: DirectedRows, seeds: int) -> dict[str, Hidden]:
    """Return what is hidden: a fifth of the pairs, all but a quarter, or one thing in turn."""
    split = np.minimum(rows.states[rows.own, SHARE], rows.states[rows.other, SHARE])
    splits = [split == one for one in np.unique(split)]
    found = {
        "hidden pairs": Hidden([[at_random(rows, 0.8, seed)] for seed in range(seeds)], False),
        "25 % revealed": Hidden([[at_random(rows, REVEALED, s)] for s in range(seeds)], False),
        "new workload": Hidden([[test for _, test in workload_folds(rows)]], True),
        "new family": Hidden([[test for _, test in family_folds(rows)]], True),
    }
    return found if len(splits) == 1 else {**found, "new split": Hidden([splits], True)}


def at_random(rows: DirectedRows, revealed: float, seed: int) -> BoolArray:
    """Hide pairs of workloads at random, whatever was measured of them."""
    pairs, of_row = np.unique(rows.workload_pair, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(pairs))
    return np.isin(of_row, order[round(revealed * len(pairs)) :])


class Scored(NamedTuple):
    """The mean absolute error, its standard error, and R2 of slowdowns and of their logarithms."""

    error: float
    deviation: float
    r2: float
    log_r2: float


def scored(rows: DirectedRows, model: Model, hidden: Hidden) -> Scored:
    """Return how well a model predicts what is hidden."""
    found, truth = [], []
    for seed, tests in enumerate(hidden.draws):
        for test in tests:
            found.append(model(rows.take(~test), rows.take(test), seed))
            truth.append(rows.slowdown[test])
    errors = [np.abs(p - t) for p, t in zip(found, truth, strict=True)]
    each = [float(error.mean()) for error in errors]
    mean = float(np.concatenate(errors).mean() if hidden.each_fold else np.mean(each))
    said, measured = np.concatenate(found), np.concatenate(truth)
    fits = explained(said, measured), explained(np.log(said), np.log(measured))
    return Scored(mean, float(np.std(each) / max(1, len(each) - 1) ** 0.5), *fits)


def explained(said: FloatArray, measured: FloatArray) -> float:
    """Return R2, the explained part of the variance."""
    return float(1 - ((said - measured) ** 2).sum() / ((measured - measured.mean()) ** 2).sum())


def constant(train: DirectedRows, test: DirectedRows, seed: int) -> FloatArray:
    """Return the median of what co-runners cost, times the solo curve."""
    del seed
    return np.asarray(np.median(train.slowdown / alone(train)) * alone(test))


def hierarchical(train: DirectedRows, test: DirectedRows, seed: int) -> FloatArray:
    return np.asarray(SPEC.build(seed).fit(train.table, train.slowdown).predict(test.table))


def process_on_names(train: DirectedRows, test: DirectedRows, seed: int) -> FloatArray:
    """The same process without profiles, families and batch sizes."""
    states = train.states.copy()
    states[:, [*range(len(PROFILE)), *DESCRIBED, FAMILY, BATCH]] = np.nan
    return hierarchical(train._replace(states=states), test._replace(states=states), seed)


def boosting(train: DirectedRows, test: DirectedRows, seed: int) -> FloatArray:
    """XGBoost on all columns of both jobs, names as numbers, of the same target."""
    from xgboost import XGBRegressor

    model = XGBRegressor(
        n_estimators=300,
        max_depth=5,
        learning_rate=0.05,
        subsample=0.8,
        colsample_bytree=0.8,
        n_jobs=1,
        random_state=seed,
    )
    model.fit(train.table, np.log(train.slowdown / alone(train)))
    return np.asarray(np.exp(model.predict(test.table)) * alone(test), dtype=np.float64)


def factorisation(train: DirectedRows, test: DirectedRows, seed: int, rank: int = 3) -> FloatArray:
    """Effects and factors of both workloads, at each pair of shares, by alternating least squares.

    A workload that was never seen has none: it is an average one.
    """
    states = len(train.states)
    log = np.log(train.slowdown / alone(train))
    mean = float(np.mean(log))
    draw = np.random.default_rng(seed)
    sides = [0.1 * draw.standard_normal((states, rank + 1)) for _ in range(2)]
    ends = train.own, train.other
    for _ in range(30):
        for side, (mine, theirs) in enumerate((ends, ends[::-1])):
            for state in np.unique(mine):
                seen = mine == state
                partner = sides[1 - side][theirs[seen]]
                design = np.column_stack([np.ones(seen.sum()), partner[:, 1:]])
                left = log[seen] - mean - partner[:, 0]
                ridge = 0.1 * np.eye(rank + 1)
                sides[side][state] = np.linalg.solve(design.T @ design + ridge, design.T @ left)
    for side, end in zip(sides, ends, strict=True):
        side[~np.isin(np.arange(states), end)] = 0.0
    own, other = sides[0][test.own], sides[1][test.other]
    product = (own[:, 1:] * other[:, 1:]).sum(axis=1)
    found = np.exp(mean + own[:, 0] + other[:, 0] + product) * alone(test)
    return np.asarray(np.clip(found, train.slowdown.min(), train.slowdown.max()))


def alone(rows: DirectedRows) -> FloatArray:
    """Return the slowdown of the job alone at its share, 1 if it was not measured."""
    return np.asarray(np.exp(np.nan_to_num(rows.states[rows.own, ALONE])))


MODELS: Mapping[str, Model] = {
    "hierarchical": hierarchical,
    "GP on names": process_on_names,
    "boosting": boosting,
    "factorisation": factorisation,
    "constant": constant,
}


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


def igniter() -> DataSet:
    """Return iGniter's pairs of inference services on a V100, and their solo curves."""
    profiles, rates = [], {}
    for row in rows_of(DATA / "igniter" / "solo.csv"):
        name, share = f"{row['model']} b{row['batch']}", int(row["cap_pct"])
        rates[name, share] = 1000 / float(row["latency_ms"])
        dram = {"dram_active": float(row["dram_pct"]) / 100} if row["dram_pct"] else None
        profiles.append(
            SoloProfile(
                workload=name,
                gpu_model="V100",
                family=row["model"],
                batch_size=int(row["batch"]),
                share=None if share == 100 else share,
                throughput=rates[name, share],
                metrics=dram,
            )
        )
    measurements = []
    for row in rows_of(DATA / "igniter" / "pairs.csv"):
        names = [f"{row[f'model_{k}']} b{row[f'batch_{k}']}" for k in "12"]
        together = [1000 / float(row[f"latency_ms_{k}"]) for k in "12"]
        measurements.append(
            Measurement(
                workloads=names,
                gpu_model="V100",
                share=[int(row[f"share_{k}"]) for k in "12"],
                slowdown=[whole(rates, n) / rate for n, rate in zip(names, together, strict=True)],
            )
        )
    return DataSet(name="igniter", profiles=profiles, measurements=measurements)


def whole(rates: Mapping[tuple[str, int], float], name: str) -> float:
    """Return the rate on the whole GPU: the line from 60 to 80 % continued."""
    most, less = rates[name, 80], rates[name, 60]
    slope = np.clip(np.log(most / less) / np.log(80 / 60), 0.0, 1.0)
    return float(most * (100 / 80) ** slope)


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


def h200(capped: bool) -> DataSet:
    """Return our own measurements: all of them at 50/50, or all without caps."""
    data = read_dataset(OWN)
    chosen = tuple(m for m in data.measurements if (m.share is not None) == capped)
    return data.replace(measurements=chosen)


def gavel() -> DataSet:
    return gavel_data(str(DATA / "gavel" / "simulation_throughputs.json.gz"))


def lucid() -> DataSet:
    return lucid_data(str(DATA / "lucid"))


PARTS: Mapping[str, tuple[str | None, str, Callable[[], DataSet]]] = {
    "h200": (None, "NVIDIA H200", lambda: h200(capped=False)),
    "halves": (None, "NVIDIA H200", lambda: h200(capped=True)),
    "names": (None, "made-up", lambda: read_dataset(NAMES)),
    "k80": ("gavel", "k80", gavel),
    "p100": ("gavel", "p100", gavel),
    "v100": ("gavel", "v100", gavel),
    "lucid": ("lucid", "RTX 3090", lucid),
    "igniter": ("igniter", "V100", igniter),
    "sets": ("parvagpu", "", gavel),
}

if __name__ == "__main__":
    main()
